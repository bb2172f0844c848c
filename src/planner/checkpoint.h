// Unfinished work of a planner on disk: written every minute, read back by --resume. A checkpoint belongs to one
// method, model, text and set of options; with any other it is refused, because the run could not be the same. On
// another machine it may go on, in that one's arithmetic: a warning says so, and the plan has a note of it.
#ifndef HEADWISE_PLANNER_CHECKPOINT_H_
#define HEADWISE_PLANNER_CHECKPOINT_H_

#include <headwise/status.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "planner/planner.h"

namespace headwise {

class Checkpoint {
 public:
  // `identity`: everything that the work depends on. No file is kept where input.checkpoint is empty.
  Checkpoint(const PlannerInput& input, Json identity);

  // The state to go on from: null without --resume. An error if there is no file, or if it is of another run.
  Result<std::optional<Json>> Load();
  // Writes if the last write is a minute ago, or if the run is to stop: kCancelled then.
  template <typename MakeState>
  Status SaveNowAndThen(const MakeState& make_state) {
    const bool stops = should_stop_ && should_stop_();
    if (!stops && Clock::now() - last_save_ < kInterval) return Status::Ok();
    HW_RETURN_IF_ERROR(Save(make_state()));
    return stops ? Stopped() : Status::Ok();
  }
  Status Save(const Json& state);
  // For the plan; empty where all of the work was done in one arithmetic.
  std::vector<std::string> Notes() const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kInterval{60};

  Status Stopped() const;
  // Joins what earlier runs computed with to what this one does.
  void TakeUpArithmetic(const JsonObject& saved);

  std::string path_;
  bool resume_;
  std::function<bool()> should_stop_;
  std::function<void(std::string_view)> on_warning_;
  Json identity_;
  std::string compute_;                  // --compute
  std::vector<std::string> arithmetic_;  // of all runs so far (GradArithmetic), each once; the last is this one's
  Clock::time_point last_save_ = Clock::now();
};

}  // namespace headwise

#endif  // HEADWISE_PLANNER_CHECKPOINT_H_
