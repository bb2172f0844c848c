#include "backend/cpu/compute_rates.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>

namespace headwise::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// 60 microseconds or so at 12 sums of 4 to 6 cycles' latency, 300 on tile registers: long beside the clock's own cost,
// short beside a time slice, so that some rounds run undisturbed.
constexpr int64_t kIterations = 1 << 14;
// The best of them counts. The first wake the vector units up.
constexpr int kRounds = 8;
// Far from both kinds of machine there are (0.5 and 2), so that noise does not decide.
constexpr double kLeastGain = 1.25;

double RateOf(double (*loop)(int64_t, float*)) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    float sink = 0;
    const Clock::time_point start = Clock::now();
    const double operations = loop(kIterations, &sink);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds > 0) best = std::max(best, operations / seconds);
  }
  return best;
}

}  // namespace

ComputeRates MeasureComputeRates(const KernelTable& kernels) {
  ComputeRates rates;
  rates.f32_flops = RateOf(kernels.peak.f32_multiply_add);
  if (kernels.matmul.has_bf16_dot) rates.bf16_dot_flops = RateOf(kernels.peak.bf16_dot);
  return rates;
}

bool Bf16Pays(const ComputeRates& rates) {
  return rates.bf16_dot_flops >= kLeastGain * rates.f32_flops && rates.bf16_dot_flops > 0;
}

bool HasFastBf16(const KernelTable& kernels) {
  if (!kernels.matmul.has_bf16_dot) return false;
  // What a machine can do is a fact of the process, and two engines of one process must not differ in it.
  static std::mutex mutex;
  static std::map<const KernelTable*, bool> known;
  const std::lock_guard lock(mutex);
  const auto [it, is_new] = known.try_emplace(&kernels, false);
  if (is_new) it->second = Bf16Pays(MeasureComputeRates(kernels));
  return it->second;
}

}  // namespace headwise::cpu
