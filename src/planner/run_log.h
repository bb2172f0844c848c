// What a planner's run cost, for the plan's report: seconds by step, peak memory.
#ifndef HEADWISE_PLANNER_RUN_LOG_H_
#define HEADWISE_PLANNER_RUN_LOG_H_

#include <chrono>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/process_memory.h"

namespace headwise {

class RunLog {
 public:
  // The seconds since the last call, or since the log was made, belong to `step`.
  void EndStep(const std::string& step) {
    const Clock::time_point now = Clock::now();
    Add(step, std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }
  void Add(const std::string& step, double seconds) {
    const double before = seconds_.contains(step) ? seconds_.at(step).get<double>() : 0.0;
    seconds_[step] = before + seconds;
  }

  // Takes `seconds` from one step and gives them to another: work that ran inside it and was timed there.
  void Move(const std::string& from, const std::string& to, double seconds) {
    Add(from, -seconds);
    Add(to, seconds);
  }

  // {"seconds": {step: s, ..., "total": s}, "peak_memory_bytes": b, and what `more` holds}
  Json ToJson(Json more) const {
    double total = 0;
    for (const auto& [step, seconds] : seconds_.items()) total += seconds.get<double>();
    more["seconds"] = seconds_;
    more["seconds"]["total"] = total;
    more["peak_memory_bytes"] = ReadProcessMemory().peak_resident_bytes;
    return more;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  Json seconds_ = Json::object();
};

}  // namespace headwise

#endif  // HEADWISE_PLANNER_RUN_LOG_H_
