// Finds stop strings in text that arrives in pieces: holds back what could be the beginning of one, and ends the text
// before the first that completes. The outcome does not depend on where the pieces are cut, and the time only on the
// length of the text, whatever repeats in it [Knuth, Morris, Pratt 1977].
#ifndef HEADWISE_ENGINE_STOP_MATCHER_H_
#define HEADWISE_ENGINE_STOP_MATCHER_H_

#include <headwise/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace headwise {

inline constexpr size_t kMaxStops = 256;
inline constexpr size_t kMaxStopBytes = size_t{64} << 10;  // of all together

// An empty stop string would end every text at once; it is an error. So are more than kMaxStops, or longer ones than
// kMaxStopBytes: every byte of an answer is held against each of them.
Status ValidateStops(const std::vector<std::string>& stops);

class StopMatcher {
 public:
  // Requires: ValidateStops(stops).ok(). No stops at all is fine: everything passes.
  explicit StopMatcher(std::vector<std::string> stops);

  // Text that is now certain to come before any stop string. After a stop: empty.
  std::string Push(std::string_view piece);
  // The text is over: what was held back is text after all.
  std::string Flush();
  // True once a stop string was complete. Of several the one that is complete first; of those the one that begins
  // first.
  bool stopped() const { return stopped_; }

 private:
  struct Stop {
    explicit Stop(std::string stop);
    // How much of it the text ends with once `c` has come.
    void Advance(char c);

    std::string text;
    // For each number of its bytes that match: how many do when the next one does not.
    std::vector<size_t> shorter;
    size_t num_matched = 0;
  };

  std::vector<Stop> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_STOP_MATCHER_H_
