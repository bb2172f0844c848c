// The loops behind the measured ceilings: multiply-adds on registers alone, and a plain read.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/native-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Latency times throughput of a multiply-add or dot product is at most 12 on the processors of today (Zen 5: 6 cycles,
// two a cycle). With 16 registers three stay for the operands.
constexpr int kNumSums = 12;

HWY_INLINE void StartSum(VF& sum, int i) {
  sum = hn::Set(kDF, static_cast<float>(i) * 0.125f);
}
HWY_INLINE void StartSum(VI& sum, int i) {
  sum = hn::Set(DI(), i);
}
HWY_INLINE VF AsF32(VF sum) {
  return sum;
}
HWY_INLINE VF AsF32(VI sum) {
  return hn::ConvertTo(kDF, sum);
}

template <typename Sum, typename Operation>
HWY_INLINE void Repeat(int64_t num_iterations, float* sink, const Operation& operation) {
  Sum sums[kNumSums];
  HW_UNROLL
  for (int i = 0; i < kNumSums; ++i) StartSum(sums[i], i);
  for (int64_t n = 0; n < num_iterations; ++n) {
    HW_UNROLL
    for (int i = 0; i < kNumSums; ++i) sums[i] = operation(sums[i]);
  }
  VF total = AsF32(sums[0]);
  HW_UNROLL
  for (int i = 1; i < kNumSums; ++i) total = hn::Add(total, AsF32(sums[i]));
  *sink = hn::GetLane(hn::SumOfLanes(kDF, total));
}

#if HW_TILES

// Emulated, a product of tiles takes as long as thousands of other iterations.
#if defined(HW_NATIVE_TILES)
constexpr int64_t kOtherIterations = 1;
#else
constexpr int64_t kOtherIterations = 4096;
#endif
HWY_INLINE int64_t TileIterations(int64_t num_iterations) {
  return num_iterations / kOtherIterations + 1;
}

// Operands are numbers like those of a model, because zeros let some processors run faster than any product does.
// Each step of an operand is `bits`.
template <typename Dot>
HWY_INLINE void RepeatTiles(int64_t num_iterations, uint32_t bits, uint32_t* sums, const Dot& dot) {
  alignas(64) uint32_t operand[kRegisterRows * kRegisterSteps];
  for (uint32_t& steps : operand) steps = bits;
  Tiles tiles;
  tiles.Zero<0>();
  tiles.Zero<1>();
  tiles.Zero<2>();
  tiles.Zero<3>();
  tiles.Load<4>(operand, kRegisterBytes);
  tiles.Load<5>(operand, kRegisterBytes);
  tiles.Load<6>(operand, kRegisterBytes);
  tiles.Load<7>(operand, kRegisterBytes);
  for (int64_t n = 0; n < TileIterations(num_iterations); ++n) dot(tiles);
  tiles.Store<0>(sums, kRegisterBytes);
}

#endif

}  // namespace

double PeakF32(int64_t num_iterations, float* sink) {
  // The sums tend to 0.75 / (1 - 0.25): neither overflow nor subnormal numbers, which some processors handle slowly.
  const VF a = hn::Set(kDF, 0.25f);
  const VF b = hn::Set(kDF, 0.75f);
  Repeat<VF>(num_iterations, sink, [&](VF sum) HWY_ATTR { return hn::MulAdd(sum, a, b); });
  return 2.0 * static_cast<double>(hn::Lanes(kDF)) * kNumSums * static_cast<double>(num_iterations);
}

double PeakBF16Dot(int64_t num_iterations, float* sink) {
  // Each step adds 2^-20 per lane: far from overflow after a billion steps.
  const float pair = PackBF16Pair(0x1p-11f, 0x1p-11f);
#if HW_TILES
  alignas(64) uint32_t sums[kRegisterRows * kRegisterSteps];
  RepeatTiles(num_iterations, __builtin_bit_cast(uint32_t, pair), sums, [](Tiles& tiles) HW_INLINE_LAMBDA {
    tiles.DotBF16<0, 4, 6>();
    tiles.DotBF16<1, 4, 7>();
    tiles.DotBF16<2, 5, 6>();
    tiles.DotBF16<3, 5, 7>();
  });
  *sink = __builtin_bit_cast(float, sums[0]);
  return 4.0 * 2 * 2 * kRegisterRows * kRegisterSteps * kRegisterSteps *
         static_cast<double>(TileIterations(num_iterations));
#endif
  const VF a = hn::Set(kDF, pair);
  Repeat<VF>(num_iterations, sink, [&](VF sum) HWY_ATTR { return BF16Dot(sum, a, a); });
  return 4.0 * static_cast<double>(hn::Lanes(kDF)) * kNumSums * static_cast<double>(num_iterations);
}

double PeakInt8Dot(int64_t num_iterations, float* sink) {
  // Each step adds 1 per lane, modulo 2^32 after four billion of them; what the sums are does not matter.
  const VB codes = hn::BitCast(D8(), hn::Set(DI(), 1));
  const VI x = hn::Set(DI(), 1);
  Repeat<VI>(num_iterations, sink, [&](VI sum) HWY_ATTR { return CodeDot<4>(sum, codes, x); });
  return 8.0 * static_cast<double>(hn::Lanes(kDF)) * kNumSums * static_cast<double>(num_iterations);
}

double PeakInt8Tiles([[maybe_unused]] int64_t num_iterations, float* sink) {
#if HW_TILES
  alignas(64) uint32_t sums[kRegisterRows * kRegisterSteps];
  RepeatTiles(num_iterations, 0x01010101u, sums, [](Tiles& tiles) HW_INLINE_LAMBDA {
    tiles.DotInt8<0, 4, 6>();
    tiles.DotInt8<1, 4, 7>();
    tiles.DotInt8<2, 5, 6>();
    tiles.DotInt8<3, 5, 7>();
  });
  *sink = 1.0f + static_cast<float>(sums[0]);
  return 4.0 * 2 * 4 * kRegisterRows * kRegisterSteps * kRegisterSteps *
         static_cast<double>(TileIterations(num_iterations));
#else
  *sink = 1.0f;
  return 0;
#endif
}

float ReadSum(const float* x, int64_t n) {
  constexpr int kNumReads = 8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(kDF));
  VF sums[kNumReads];
  HW_UNROLL
  for (int i = 0; i < kNumReads; ++i) sums[i] = hn::Zero(kDF);
  int64_t at = 0;
  for (; at + kNumReads * lanes <= n; at += kNumReads * lanes) {
    HW_UNROLL
    for (int i = 0; i < kNumReads; ++i) sums[i] = hn::Add(sums[i], hn::LoadU(kDF, x + at + i * lanes));
  }
  VF total = sums[0];
  HW_UNROLL
  for (int i = 1; i < kNumReads; ++i) total = hn::Add(total, sums[i]);
  float sum = hn::GetLane(hn::SumOfLanes(kDF, total));
  for (; at < n; ++at) sum += x[at];
  return sum;
}

}  // namespace headwise::cpu::HW_ISA
