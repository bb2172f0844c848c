#include "grad/rows.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/isa.h"

namespace headwise {
namespace {

const cpu::SoftmaxKernels& Kernels() {
  static const cpu::SoftmaxKernels kernels = cpu::AvailableKernelTables().front()->softmax;
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
Real Sigmoid(Real x) {
  return 1 / (1 + std::exp(-x));
}

template <typename Real>
Real Gelu(MlpKind kind, Real x) {
  if (kind == MlpKind::kGelu) return x * (1 + std::erf(x * static_cast<Real>(kInverseSqrt2))) / 2;
  const Real inner = static_cast<Real>(kSqrt2OverPi) * (x + static_cast<Real>(kTanhCubic) * x * x * x);
  return x * (1 + std::tanh(inner)) / 2;
}

template <typename Real>
Real GeluSlope(MlpKind kind, Real x) {
  if (kind == MlpKind::kGelu) {
    const Real density = static_cast<Real>(kInverseSqrt2Pi) * std::exp(-x * x / 2);
    return (1 + std::erf(x * static_cast<Real>(kInverseSqrt2))) / 2 + x * density;
  }
  const Real inner = static_cast<Real>(kSqrt2OverPi) * (x + static_cast<Real>(kTanhCubic) * x * x * x);
  const Real inner_slope = static_cast<Real>(kSqrt2OverPi) * (1 + 3 * static_cast<Real>(kTanhCubic) * x * x);
  const Real t = std::tanh(inner);
  return (1 + t) / 2 + x * (1 - t * t) * inner_slope / 2;
}

}  // namespace

float MaxOfRow(const float* x, int64_t n) {
  return Kernels().max(x, n);
}

double MaxOfRow(const double* x, int64_t n) {
  return *std::max_element(x, x + n);
}

float ExpOfRow(float* x, int64_t n, float shift) {
  return Kernels().exp(x, n, shift);
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
  Kernels().gradient(p, g, n, delta, scale);
}

void SoftmaxGradOfRow(const double* p, double* g, int64_t n, double delta, double scale) {
  for (int64_t i = 0; i < n; ++i) g[i] = p[i] * (g[i] - delta) * scale;
}

template <typename Real>
void NormForward(const NormRowParams& norm, const Real* x, Real* y, int64_t n) {
  const Moments<Real> moments(norm, x, n);
  for (int64_t i = 0; i < n; ++i) {
    y[i] = (x[i] - moments.mean) * moments.inverse * Real{norm.weight[i]};
    if (norm.bias != nullptr) y[i] += Real{norm.bias[i]};
  }
}

// With u = (x - mean) * inverse and d_u = weight * d_y:
//   d_x = inverse * (d_u - mean(d_u) - u * mean(d_u u)), the middle term only where a mean is subtracted.
template <typename Real>
void NormBackward(const NormRowParams& norm, const Real* x, const Real* d_y, Real* d_x, int64_t n) {
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
    d_x[i] += moments.inverse * (d_y[i] * Real{norm.weight[i]} - mean - u * mean_along_u);
  }
}

template <typename Real>
void ActivationForward(MlpKind kind, const Real* gate, const Real* up, Real* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = kind == MlpKind::kGatedSilu ? gate[i] * Sigmoid(gate[i]) * up[i] : Gelu(kind, up[i]);
  }
}

template <typename Real>
void ActivationBackward(MlpKind kind, const Real* d_out, Real* gate, Real* up, int64_t n) {
  if (kind != MlpKind::kGatedSilu) {
    for (int64_t i = 0; i < n; ++i) up[i] = d_out[i] * GeluSlope(kind, up[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const Real sigmoid = Sigmoid(gate[i]);
    const Real silu = gate[i] * sigmoid;
    const Real d_up = d_out[i] * silu;
    gate[i] = d_out[i] * up[i] * (sigmoid + silu * (1 - sigmoid));
    up[i] = d_up;
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

#define HW_INSTANTIATE(Real)                                                                  \
  template void NormForward(const NormRowParams&, const Real*, Real*, int64_t);               \
  template void NormBackward(const NormRowParams&, const Real*, const Real*, Real*, int64_t); \
  template void ActivationForward(MlpKind, const Real*, const Real*, Real*, int64_t);         \
  template void ActivationBackward(MlpKind, const Real*, Real*, Real*, int64_t);              \
  template void RotateHead(Rotation, const Real*, int64_t, Real*);
HW_INSTANTIATE(float)
HW_INSTANTIATE(double)
#undef HW_INSTANTIATE

}  // namespace headwise
