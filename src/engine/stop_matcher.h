// Finds stop strings in text that arrives in pieces: holds back what could be the beginning of one, and ends the text
// before the first that completes. The outcome does not depend on where the pieces are cut.
#ifndef HEADWISE_ENGINE_STOP_MATCHER_H_
#define HEADWISE_ENGINE_STOP_MATCHER_H_

#include <headwise/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// An empty stop string would end every text at once; it is an error.
Status ValidateStops(const std::vector<std::string>& stops);

class StopMatcher {
 public:
  // Requires: ValidateStops(stops).ok(). No stops at all is fine: everything passes.
  explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Text that is now certain to come before any stop string. After a stop: empty.
  std::string Push(std::string_view piece);
  // The text is over: what was held back is text after all.
  std::string Flush();
  // True once a stop string was complete. Of several the one that is complete first; of those the one that begins
  // first.
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_STOP_MATCHER_H_
