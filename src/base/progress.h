// A progress bar with the time left, for commands that take a while. Written to stderr and only when that is a
// terminal: logs and pipes never see it.
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

// Thread-safety: none. The line is wiped when the bar goes out of scope.
class ProgressBar {
 public:
  // Requires: total >= 0.
  ProgressBar(std::string label, int64_t total);
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  ~ProgressBar();

  // Cheap: redraws at most ten times a second.
  void Update(int64_t done);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  int64_t total_;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_draw_;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_PROGRESS_H_
