// Which request begins when. Pure: time is whatever number its caller hands in, so that tests need no clock.
#ifndef HEADWISE_LOADGEN_LOAD_SCHEDULE_H_
#define HEADWISE_LOADGEN_LOAD_SCHEDULE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace headwise {

// Seconds from the beginning of the run at which requests come, ascending: a Poisson process of `rate` requests a
// second, whose first request comes at once; all of them at once where the rate is infinite. The same seed gives the
// same times, in proportion to 1 / rate. Requires: num_requests >= 0, rate > 0.
std::vector<double> ArrivalTimes(int64_t num_requests, double rate, uint64_t seed);

// Requests begin in order, none before its arrival and never more than `max_concurrency` of them at a time.
class LoadSchedule {
 public:
  // max_concurrency 0: any number. `arrivals` ascend.
  LoadSchedule(std::vector<double> arrivals, int64_t max_concurrency);

  // The next request, where it may begin at `now`; it counts as running from here on.
  std::optional<size_t> TakeDue(double now);
  // When to ask again; none: when a request has ended, or never.
  std::optional<double> NextTime() const;
  // One that was taken is over. Requires: one is running.
  void OnEnd();

  double arrival(size_t request) const { return arrivals_[request]; }
  size_t num_taken() const { return num_taken_; }
  int64_t num_running() const { return num_running_; }
  // Nothing runs and nothing is to come.
  bool is_done() const { return num_running_ == 0 && num_taken_ == arrivals_.size(); }

 private:
  bool HasRoom() const { return max_concurrency_ == 0 || num_running_ < max_concurrency_; }

  std::vector<double> arrivals_;
  int64_t max_concurrency_;
  size_t num_taken_ = 0;
  int64_t num_running_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_SCHEDULE_H_
