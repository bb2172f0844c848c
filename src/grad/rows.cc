#include "grad/rows.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/isa.h"
#include "backend/ops.h"
#include "base/check.h"

namespace headwise {
namespace {

const cpu::KernelTable& Kernels() {
  static const cpu::KernelTable& kernels = *cpu::AvailableKernelTables().front();
  return kernels;
}

// Mean (0 for RMS) and 1 / sqrt(mean of squares of the centred row + eps).
template <typename Real>
struct Moments {
  Real mean = 0;
  Real inverse = 0;

  Moments(const NormRowParams& norm, const Real* x, int64_t n) {
    const auto count = static_cast<Real>(n);
    if (norm.kind == NormKind::kLayer) {
      for (int64_t i = 0; i < n; ++i) mean += x[i];
      mean /= count;
    }
    Real squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
    inverse = 1 / std::sqrt(squares / count + static_cast<Real>(norm.eps));
  }
};

constexpr double kInverseSqrt2 = 0.70710678118654752440;
constexpr double kInverseSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588;
constexpr double kTanhCubic = 0.044715;  // of the published approximation of GELU

template <typename Real>
struct ValueAndSlope {
  Real value = 0;
  Real slope = 0;
};

template <typename Real>
ValueAndSlope<Real> Silu(Real x) {
  const Real sigmoid = 1 / (1 + std::exp(-x));
  const Real silu = x * sigmoid;
  return {silu, sigmoid + silu * (1 - sigmoid)};
}

template <typename Real>
ValueAndSlope<Real> Gelu(Real x) {
  const Real below = (1 + std::erf(x * static_cast<Real>(kInverseSqrt2))) / 2;
  const Real density = static_cast<Real>(kInverseSqrt2Pi) * std::exp(-x * x / 2);
  return {x * below, below + x * density};
}

template <typename Real>
ValueAndSlope<Real> GeluTanh(Real x) {
  const Real inner = static_cast<Real>(kSqrt2OverPi) * (x + static_cast<Real>(kTanhCubic) * x * x * x);
  const Real inner_slope = static_cast<Real>(kSqrt2OverPi) * (1 + 3 * static_cast<Real>(kTanhCubic) * x * x);
  const Real t = std::tanh(inner);
  return {x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) * inner_slope / 2};
}

// What the MLP passes its gate through, or, without one, its up projection.
template <typename Real>
ValueAndSlope<Real> Activate(MlpKind kind, Real x) {
  switch (kind) {
    case MlpKind::kGatedSilu:
      return Silu(x);
    case MlpKind::kGatedSiluClamped:
      break;  // of experts, which have a way forward alone
    case MlpKind::kGelu:
      return Gelu(x);
    case MlpKind::kGatedGeluTanh:
    case MlpKind::kGeluTanh:
      return GeluTanh(x);
  }
  HW_CHECK(false, "MLP {}", static_cast<int>(kind));
}

}  // namespace

float MaxOfRow(const float* x, int64_t n) {
  return Kernels().softmax.max(x, n);
}

double MaxOfRow(const double* x, int64_t n) {
  return *std::max_element(x, x + n);
}

float ExpOfRow(float* x, int64_t n, float shift) {
  return Kernels().softmax.exp(x, n, shift);
}

double ExpOfRow(double* x, int64_t n, double shift) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - shift);
    sum += x[i];
  }
  return sum;
}

void SoftmaxGradOfRow(const float* p, float* g, int64_t n, float delta, float scale) {
  Kernels().softmax.gradient(p, g, n, delta, scale);
}

void SoftmaxGradOfRow(const double* p, double* g, int64_t n, double delta, double scale) {
  for (int64_t i = 0; i < n; ++i) g[i] = p[i] * (g[i] - delta) * scale;
}

void CapRow(float* x, int64_t n, float cap) {
  Kernels().elementwise.soft_cap(x, n, cap);
}

void CapRow(double* x, int64_t n, double cap) {
  for (int64_t i = 0; i < n; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

template <typename Real>
void NormForward(const NormRowParams& norm, const Real* x, RowWrite write, Real* y, int64_t n) {
  const Moments<Real> moments(norm, x, n);
  for (int64_t i = 0; i < n; ++i) {
    Real value = (x[i] - moments.mean) * moments.inverse * Real{norm.weight[i]};
    if (norm.bias != nullptr) value += Real{norm.bias[i]};
    y[i] = write == RowWrite::kAdd ? y[i] + value : value;
  }
}

// With u = (x - mean) * inverse and d_u = weight * d_y:
//   d_x = inverse * (d_u - mean(d_u) - u * mean(d_u u)), the middle term only where a mean is subtracted.
template <typename Real>
void NormBackward(const NormRowParams& norm, const Real* x, const Real* d_y, RowWrite write, Real* d_x, int64_t n) {
  const Moments<Real> moments(norm, x, n);
  Real sum = 0;
  Real sum_along_u = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Real d_u = d_y[i] * Real{norm.weight[i]};
    sum += d_u;
    sum_along_u += d_u * (x[i] - moments.mean) * moments.inverse;
  }
  const auto count = static_cast<Real>(n);
  const Real mean = norm.kind == NormKind::kLayer ? sum / count : Real{0};
  const Real mean_along_u = sum_along_u / count;
  for (int64_t i = 0; i < n; ++i) {
    const Real u = (x[i] - moments.mean) * moments.inverse;
    const Real value = moments.inverse * (d_y[i] * Real{norm.weight[i]} - mean - u * mean_along_u);
    d_x[i] = write == RowWrite::kAdd ? d_x[i] + value : value;
  }
}

template <typename Real>
void ActivationForward(MlpKind kind, const Real* gate, const Real* up, Real* out, int64_t n) {
  const bool is_gated = IsGated(kind);
  if (kind == MlpKind::kGatedSiluClamped) {
    constexpr Real kLimit = kClampedSiluLimit;
    for (int64_t i = 0; i < n; ++i) {
      const Real g = gate[i] > kLimit ? kLimit : gate[i];
      const Real clamped = up[i] < -kLimit ? -kLimit : up[i] > kLimit ? kLimit : up[i];
      out[i] = (clamped + 1) * g / (1 + std::exp(-static_cast<Real>(kClampedSiluSlope) * g));
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = is_gated ? Activate(kind, gate[i]).value * up[i] : Activate(kind, up[i]).value;
  }
}

template <typename Real>
void ActivationBackward(MlpKind kind, const Real* d_out, Real* gate, Real* up, int64_t n) {
  const bool is_gated = IsGated(kind);
  for (int64_t i = 0; i < n; ++i) {
    if (!is_gated) {
      up[i] = d_out[i] * Activate(kind, up[i]).slope;
      continue;
    }
    const ValueAndSlope<Real> activated = Activate(kind, gate[i]);
    gate[i] = d_out[i] * up[i] * activated.slope;
    up[i] = d_out[i] * activated.value;
  }
}

template <typename Real>
void RotateHead(Rotation rotation, const Real* angles, int64_t half, Real* x) {
  for (int64_t i = 0; i < half; ++i) {
    const Real cosine = angles[2 * i];
    const Real sine = rotation == Rotation::kForward ? angles[2 * i + 1] : -angles[2 * i + 1];
    const Real low = x[i];
    const Real high = x[i + half];
    x[i] = low * cosine - high * sine;
    x[i + half] = high * cosine + low * sine;
  }
}

#define HW_INSTANTIATE(Real)                                                                            \
  template void NormForward(const NormRowParams&, const Real*, RowWrite, Real*, int64_t);               \
  template void NormBackward(const NormRowParams&, const Real*, const Real*, RowWrite, Real*, int64_t); \
  template void ActivationForward(MlpKind, const Real*, const Real*, Real*, int64_t);                   \
  template void ActivationBackward(MlpKind, const Real*, Real*, Real*, int64_t);                        \
  template void RotateHead(Rotation, const Real*, int64_t, Real*);
HW_INSTANTIATE(float)
HW_INSTANTIATE(double)
#undef HW_INSTANTIATE

}  // namespace headwise
