// The steps of a decoder layer that are not matrix products, a row at a time, forward and backward, in f32 and f64.
// f32 softmax rows run on the backend's SIMD kernels; f64 exists to check the rest and is plain.
#ifndef HEADWISE_GRAD_ROWS_H_
#define HEADWISE_GRAD_ROWS_H_

#include <cstdint>

#include "model/model_config.h"

namespace headwise {

// Whether a result takes the place of what it is written to or is added to it.
enum class RowWrite { kStore, kAdd };

// ---- softmax ----
// Requires: n >= 1.
float MaxOfRow(const float* x, int64_t n);
double MaxOfRow(const double* x, int64_t n);
// x = e^(x - shift); returns the sum.
float ExpOfRow(float* x, int64_t n, float shift);
double ExpOfRow(double* x, int64_t n, double shift);
// g = p * (g - delta) * scale: from the gradient of probabilities to that of unscaled scores.
void SoftmaxGradOfRow(const float* p, float* g, int64_t n, float delta, float scale);
void SoftmaxGradOfRow(const double* p, double* g, int64_t n, double delta, double scale);

// ---- soft caps: x = cap * tanh(x / cap) ----
void CapRow(float* x, int64_t n, float cap);
void CapRow(double* x, int64_t n, double cap);
// The slope of a cap where its result is `capped`.
template <typename Real>
Real CapSlope(Real capped, Real cap) {
  const Real tanh = capped / cap;
  return (1 - tanh) * (1 + tanh);
}

// ---- norms: weight and bias [n] f32, bias may be null ----
struct NormRowParams {
  NormKind kind = NormKind::kRms;
  const float* weight = nullptr;
  const float* bias = nullptr;
  double eps = 0;
};
template <typename Real>
void NormForward(const NormRowParams& norm, const Real* x, RowWrite write, Real* y, int64_t n);
// d_x = or += the gradient through the norm at x. A d_x that is stored may be d_y or x.
template <typename Real>
void NormBackward(const NormRowParams& norm, const Real* x, const Real* d_y, RowWrite write, Real* d_x, int64_t n);

// A norm over rows that are cut into `rows_per_token` pieces of `dim` each; piece i of a token has the weights at
// i * weight_step.
struct RowNorm {
  NormRowParams params;
  int64_t dim = 0;
  int64_t rows_per_token = 1;
  int64_t weight_step = 0;

  // Of piece `row` of a text.
  NormRowParams Of(int64_t row) const {
    NormRowParams piece = params;
    const int64_t offset = row % rows_per_token * weight_step;
    piece.weight += offset;
    if (piece.bias != nullptr) piece.bias += offset;
    return piece;
  }
};

// ---- MLP activation: out from gate (gated kinds only) and up; `up` and `gate` are kept for the way back ----
template <typename Real>
void ActivationForward(MlpKind kind, const Real* gate, const Real* up, Real* out, int64_t n);
// Replaces gate and up by their gradients.
template <typename Real>
void ActivationBackward(MlpKind kind, const Real* d_out, Real* gate, Real* up, int64_t n);

// ---- rotation of one head: angles [half, 2] cos, sin; kInverse is also the gradient ----
enum class Rotation { kForward, kInverse };
template <typename Real>
void RotateHead(Rotation rotation, const Real* angles, int64_t half, Real* x);

}  // namespace headwise

#endif  // HEADWISE_GRAD_ROWS_H_
