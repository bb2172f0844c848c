// Norms, rotations and activations, a row at a time.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/vector-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Sum of term(i) over a row: whole vectors in lanes, then the rest one by one.
template <typename Vector, typename Scalar>
HWY_INLINE float SumOver(int64_t n, const Vector& vector_term, const Scalar& scalar_term) {
  VF sum[2] = {hn::Zero(kDF), hn::Zero(kDF)};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    sum[0] = hn::Add(sum[0], vector_term(i));
    sum[1] = hn::Add(sum[1], vector_term(i + kLanes));
  }
  float total = hn::GetLane(hn::SumOfLanes(kDF, hn::Add(sum[0], sum[1])));
  for (; i < n; ++i) total += scalar_term(i);
  return total;
}

// Of the published approximation of GELU.
constexpr float kSqrt2OverPi = 0.79788456080286536f;
constexpr float kGeluCubic = 0.044715f;

// e^x as 2^(x log2 e), for |x| below 87; the product's rounding makes the relative error grow to |x| 1e-7.
HWY_INLINE VF Exp(VF x) {
  const VF exponent = hn::Mul(x, hn::Set(kDF, 1.44269504f));
  return Exp2InRange(hn::Min(hn::Max(exponent, hn::Set(kDF, -126.0f)), hn::Set(kDF, 126.0f)));
}

}  // namespace

void NormRow(const NormRowArgs& args) {
  const float* x = args.x;
  const auto n = static_cast<float>(args.n);
  const float mean = args.subtract_mean ? SumOver(
                                              args.n, [&](int64_t i) { return hn::LoadU(kDF, x + i); },
                                              [&](int64_t i) { return x[i]; }) /
                                              n
                                        : 0.0f;
  const VF mean_vec = hn::Set(kDF, mean);
  const float squares = SumOver(
      args.n,
      [&](int64_t i) {
        const VF centred = hn::Sub(hn::LoadU(kDF, x + i), mean_vec);
        return hn::Mul(centred, centred);
      },
      [&](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
  const float inverse = 1.0f / __builtin_sqrtf(squares / n + args.eps);
  const VF inverse_vec = hn::Set(kDF, inverse);
  int64_t i = 0;
  for (; i + kLanes <= args.n; i += kLanes) {
    VF y = hn::Mul(hn::Mul(hn::Sub(hn::LoadU(kDF, x + i), mean_vec), inverse_vec), hn::LoadU(kDF, args.weight + i));
    if (args.bias != nullptr) y = hn::Add(y, hn::LoadU(kDF, args.bias + i));
    if (args.adds) y = hn::Add(y, hn::LoadU(kDF, args.out + i));
    hn::StoreU(y, kDF, args.out + i);
  }
  for (; i < args.n; ++i) {
    float y = (x[i] - mean) * inverse * args.weight[i];
    if (args.bias != nullptr) y += args.bias[i];
    args.out[i] = args.adds ? args.out[i] + y : y;
  }
}

void RopeRow(const RopeRowArgs& args) {
  int64_t i = 0;
  for (; i + kLanes <= args.half; i += kLanes) {
    VF cosine, sine;
    hn::LoadInterleaved2(kDF, args.angles + 2 * i, cosine, sine);
    const VF low = hn::LoadU(kDF, args.x + i);
    const VF high = hn::LoadU(kDF, args.x + i + args.half);
    hn::StoreU(hn::Sub(hn::Mul(low, cosine), hn::Mul(high, sine)), kDF, args.out + i);
    hn::StoreU(hn::Add(hn::Mul(high, cosine), hn::Mul(low, sine)), kDF, args.out + i + args.half);
  }
  for (; i < args.half; ++i) {
    const float cosine = args.angles[2 * i];
    const float sine = args.angles[2 * i + 1];
    const float low = args.x[i];
    const float high = args.x[i + args.half];
    args.out[i] = low * cosine - high * sine;
    args.out[i + args.half] = high * cosine + low * sine;
  }
  for (int64_t d = 2 * args.half; d < args.dim; ++d) args.out[d] = args.x[d];
}

void GatedSilu(const float* gate, float* x, int64_t n) {
  const VF one = hn::Set(kDF, 1.0f);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF g = hn::LoadU(kDF, gate + i);
    const VF silu = hn::Div(g, hn::Add(one, Exp(hn::Neg(g))));
    hn::StoreU(hn::Mul(silu, hn::LoadU(kDF, x + i)), kDF, x + i);
  }
  for (; i < n; ++i) x[i] *= gate[i] / (1.0f + __builtin_expf(-gate[i]));
}

// The smaller operand of Min that is no number is the second one, as in the loop behind: NaN stays NaN.
void GatedSiluClamped(const float* gate, float* x, int64_t n, float limit, float slope) {
  const VF one = hn::Set(kDF, 1.0f);
  const VF most = hn::Set(kDF, limit);
  const VF least = hn::Set(kDF, -limit);
  const VF steep = hn::Set(kDF, -slope);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF g = hn::Min(most, hn::LoadU(kDF, gate + i));
    const VF up = hn::Max(least, hn::Min(most, hn::LoadU(kDF, x + i)));
    const VF silu = hn::Div(g, hn::Add(one, Exp(hn::Mul(steep, g))));
    hn::StoreU(hn::Mul(silu, hn::Add(up, one)), kDF, x + i);
  }
  for (; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float up = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
    x[i] = (up + 1.0f) * (g / (1.0f + __builtin_expf(-slope * g)));
  }
}

void ScaleBySigmoid(float gate, float* x, int64_t n) {
  const float factor = 1.0f / (1.0f + __builtin_expf(-gate));
  const VF factor_vec = hn::Set(kDF, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(hn::LoadU(kDF, x + i), factor_vec), kDF, x + i);
  for (; i < n; ++i) x[i] *= factor;
}

void GatedGeluTanh(const float* gate, float* x, int64_t n) {
  const auto gelu = [](VF v) HW_INLINE_LAMBDA {
    const VF cubed = hn::Mul(hn::Mul(v, v), v);
    const VF inner = hn::Mul(hn::MulAdd(cubed, hn::Set(kDF, kGeluCubic), v), hn::Set(kDF, kSqrt2OverPi));
    const VF half = hn::Mul(v, hn::Set(kDF, 0.5f));
    return hn::MulAdd(half, Tanh(inner), half);
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Mul(gelu(hn::LoadU(kDF, gate + i)), hn::LoadU(kDF, x + i)), kDF, x + i);
  }
  for (; i < n; ++i) x[i] *= hn::GetLane(gelu(hn::Set(kDF, gate[i])));
}

void Gelu(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = 0.5f * x[i] * (1.0f + __builtin_erff(x[i] * 0.70710678118654752f));
}

void GeluTanh(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = x[i];
    x[i] = 0.5f * v * (1.0f + __builtin_tanhf(kSqrt2OverPi * (v + kGeluCubic * v * v * v)));
  }
}

void ClampRow(float* x, int64_t n, float limit) {
  for (int64_t i = 0; i < n; ++i) x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

void SoftCapRow(float* x, int64_t n, float cap) {
  const VF cap_vec = hn::Set(kDF, cap);
  const VF inverse = hn::Set(kDF, 1.0f / cap);
  const auto capped = [&](VF v) HW_INLINE_LAMBDA { return hn::Mul(cap_vec, Tanh(hn::Mul(v, inverse))); };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(capped(hn::LoadU(kDF, x + i)), kDF, x + i);
  for (; i < n; ++i) x[i] = hn::GetLane(capped(hn::Set(kDF, x[i])));
}

void AddScaledRow(const float* x, float factor, float* sum, int64_t n) {
  const VF factor_vec = hn::Set(kDF, factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(kDF, x + i), factor_vec, hn::LoadU(kDF, sum + i)), kDF, sum + i);
  }
  for (; i < n; ++i) sum[i] += factor * x[i];
}

}  // namespace headwise::cpu::HW_ISA
