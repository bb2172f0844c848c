#include "backend/cpu/compute_rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <mutex>

namespace headwise::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// 30 microseconds or so at 12 sums of 4 to 6 cycles' latency, 150 on tile registers: long beside the clock's own cost,
// short beside a time slice, so that most rounds run undisturbed.
constexpr int64_t kIterations = 1 << 13;
constexpr int kRounds = 15;
// Far from both kinds of machine there are (0.5 and 2), so that noise does not decide.
constexpr double kLeastGain = 1.25;

double RateOf(double (*loop)(int64_t, float*)) {
  float sink = 0;
  const Clock::time_point start = Clock::now();
  const double operations = loop(kIterations, &sink);
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return seconds > 0 ? operations / seconds : 0;
}

double Gain(const ComputeRates& rates) {
  return rates.f32_flops > 0 ? rates.bf16_dot_flops / rates.f32_flops : 0;
}

}  // namespace

// A neighbour or a change of clock slows whichever loop runs then: so the two take turns, and of their ratios the
// median counts. The best of each on its own differed by half between processes of one machine.
ComputeRates MeasureComputeRates(const KernelTable& kernels) {
  std::array<ComputeRates, kRounds> rounds;
  for (ComputeRates& rates : rounds) {
    rates.f32_flops = RateOf(kernels.peak.f32_multiply_add);
    if (kernels.matmul.has_bf16_dot) rates.bf16_dot_flops = RateOf(kernels.peak.bf16_dot);
  }
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 2, {}, Gain);
  return rounds[kRounds / 2];
}

bool Bf16Pays(const ComputeRates& rates) {
  return Gain(rates) >= kLeastGain;
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
