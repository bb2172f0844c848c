// A progress bar with the time left, for work that takes a while. Where it is drawn, if anywhere, is for the program to
// say that runs the library: it owns the line and hands it in.
#ifndef HEADWISE_BASE_PROGRESS_H_
#define HEADWISE_BASE_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace headwise {

// One line without its line end, at most `width` columns for an ASCII label:
// "lines  [#####.....]  5/10  0:12 left". Pure, for tests.
std::string FormatProgress(std::string_view label, int64_t done, int64_t total, double elapsed_seconds, int width);

// One line that is drawn over and over: the last of a terminal, say. Used from the thread that does the work.
class ProgressLine {
 public:
  virtual ~ProgressLine() = default;
  // Columns there is room for now; 0: nobody looks.
  virtual int Columns() = 0;
  virtual void Draw(std::string_view text) = 0;
  virtual void Wipe() = 0;
  // The same in numbers, for programs that have bars of their own: called as often as Draw, whatever Columns says.
  virtual void Count(std::string_view /*label*/, int64_t /*done*/, int64_t /*total*/) {}
};

// Thread-safety: none. The line is wiped when the bar goes out of scope.
class ProgressBar {
 public:
  // Null: nothing is shown. Requires: the line outlives the bar; total >= 0.
  ProgressBar(ProgressLine* line, std::string label, int64_t total);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // Cheap: redraws at most ten times a second.
  void Update(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  ProgressLine* line_;
  std::string label_;
  int64_t total_;
  bool drawn_ = false;
  bool told_ = false;
  Clock::time_point start_;
  Clock::time_point last_told_;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_PROGRESS_H_
