#include "loadgen/load_schedule.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/mix_seed.h"
#include "base/rng.h"

namespace headwise {
namespace {

constexpr int64_t kArrivalStream = -1;  // of MixSeed; prompts have the numbers from 0 on

}  // namespace

std::vector<double> ArrivalTimes(int64_t num_requests, double rate, uint64_t seed) {
  std::vector<double> times;
  times.reserve(static_cast<size_t>(num_requests));
  Rng rng(MixSeed(seed, kArrivalStream, 0));
  double time = 0;
  for (int64_t i = 0; i < num_requests; ++i) {
    times.push_back(time);
    // Gaps of a Poisson process are exponential. Uniform() is below 1, so that the logarithm is finite.
    time += std::isinf(rate) ? 0.0 : -std::log1p(-rng.Uniform()) / rate;
  }
  return times;
}

LoadSchedule::LoadSchedule(std::vector<double> arrivals, int64_t max_concurrency)
    : arrivals_(std::move(arrivals)), max_concurrency_(max_concurrency) {}

std::optional<size_t> LoadSchedule::TakeDue(double now) {
  if (num_taken_ == arrivals_.size() || !HasRoom() || arrivals_[num_taken_] > now) return std::nullopt;
  ++num_running_;
  return num_taken_++;
}

std::optional<double> LoadSchedule::NextTime() const {
  if (num_taken_ == arrivals_.size() || !HasRoom()) return std::nullopt;
  return arrivals_[num_taken_];
}

void LoadSchedule::OnEnd() {
  HW_CHECK(num_running_ > 0);
  --num_running_;
}

}  // namespace headwise
