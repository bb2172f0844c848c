// Pieces of a softmax over rows of scores.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/vector-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

constexpr float kLog2E = 1.44269504f;

// The difference is taken first: it is exact where it matters, near the shift.
HWY_INLINE VF ExpBelow(VF x, VF shift) {
  const VF exponent = hn::Mul(hn::Sub(x, shift), hn::Set(kDF, kLog2E));
  const VF lowest = hn::Set(kDF, -126.0f);
  const VF clamped = hn::Min(hn::Max(exponent, lowest), hn::Set(kDF, 126.0f));
  return hn::IfThenElseZero(hn::Gt(exponent, lowest), Exp2InRange(clamped));
}

}  // namespace

float MaxRow(const float* x, int64_t n) {
  float max = x[0];
  int64_t i = 0;
  if (n >= kLanes) {
    VF best = hn::LoadU(kDF, x);
    for (i = kLanes; i + kLanes <= n; i += kLanes) best = hn::Max(best, hn::LoadU(kDF, x + i));
    max = hn::GetLane(hn::MaxOfLanes(kDF, best));
  }
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

float ExpRow(float* x, int64_t n, float shift) {
  const VF shift_vec = hn::Set(kDF, shift);
  VF sum = hn::Zero(kDF);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF p = ExpBelow(hn::LoadU(kDF, x + i), shift_vec);
    hn::StoreU(p, kDF, x + i);
    sum = hn::Add(sum, p);
  }
  float total = hn::GetLane(hn::SumOfLanes(kDF, sum));
  for (; i < n; ++i) {
    x[i] = hn::GetLane(ExpBelow(hn::Set(kDF, x[i]), shift_vec));
    total += x[i];
  }
  return total;
}

void SoftmaxGradRow(const float* p, float* g, int64_t n, float delta, float scale) {
  const VF delta_vec = hn::Set(kDF, delta);
  const VF scale_vec = hn::Set(kDF, scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF difference = hn::Sub(hn::LoadU(kDF, g + i), delta_vec);
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(kDF, p + i), difference), scale_vec), kDF, g + i);
  }
  for (; i < n; ++i) g[i] = p[i] * (g[i] - delta) * scale;
}

}  // namespace headwise::cpu::HW_ISA
