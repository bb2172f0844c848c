// Activations of one number, wherever they are computed: in a kernel of their own and behind a product alike, bit for
// bit.
#ifndef HEADWISE_BACKEND_CUDA_ACTIVATION_CUH_
#define HEADWISE_BACKEND_CUDA_ACTIVATION_CUH_

#include <cstdint>
#include <type_traits>

#include "backend/ops.h"

namespace headwise::cuda {

// Whether products do it on their way out.
inline bool GoesWithProduct(ActivateArgs::Kind kind) {
  return kind == ActivateArgs::Kind::kGatedSilu || kind == ActivateArgs::Kind::kGatedGeluTanh;
}

__device__ inline float Silu(float x) {
  return x / (1.0f + expf(-x));
}
__device__ inline float Gelu(float x) {
  return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}
__device__ inline float GeluTanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}
// Comparisons, by which what is no number stays none.
__device__ inline float ClampedSilu(float gate, float x) {
  const float limited = gate > kClampedSiluLimit ? kClampedSiluLimit : gate;
  const float bounded = x > kClampedSiluLimit ? kClampedSiluLimit : x < -kClampedSiluLimit ? -kClampedSiluLimit : x;
  return (bounded + 1.0f) * limited / (1.0f + expf(-kClampedSiluSlope * limited));
}
// In any unit that `cap` has too.
__device__ inline float SoftCapped(float x, float cap) {
  return cap * tanhf(x / cap);
}

template <ActivateArgs::Kind kKind>
__device__ inline float Activated(const float* gate, const float* x, int64_t i) {
  if constexpr (kKind == ActivateArgs::Kind::kGatedSilu) {
    return Silu(gate[i]) * x[i];
  } else if constexpr (kKind == ActivateArgs::Kind::kGatedGeluTanh) {
    return GeluTanh(gate[i]) * x[i];
  } else if constexpr (kKind == ActivateArgs::Kind::kGatedSiluClamped) {
    return ClampedSilu(gate[i], x[i]);
  } else if constexpr (kKind == ActivateArgs::Kind::kGelu) {
    return Gelu(x[i]);
  } else {
    return GeluTanh(x[i]);
  }
}

// Four of them, of rows that begin on 16 bytes. `gate`: null where there is none.
template <ActivateArgs::Kind kKind>
__device__ inline float4 ActivatedQuad(const float* gate, const float* x, int64_t quad) {
  const float4 values = reinterpret_cast<const float4*>(x)[quad];
  float4 gates = {};
  if (gate != nullptr) gates = reinterpret_cast<const float4*>(gate)[quad];
  const float from[4] = {values.x, values.y, values.z, values.w};
  const float of_gate[4] = {gates.x, gates.y, gates.z, gates.w};
  return {Activated<kKind>(of_gate, from, 0), Activated<kKind>(of_gate, from, 1), Activated<kKind>(of_gate, from, 2),
          Activated<kKind>(of_gate, from, 3)};
}

// body(integral_constant<Kind>).
template <typename Body>
void WithKind(ActivateArgs::Kind kind, const Body& body) {
  using Kind = ActivateArgs::Kind;
  switch (kind) {
    case Kind::kGatedSilu:
      return body(std::integral_constant<Kind, Kind::kGatedSilu>());
    case Kind::kGatedGeluTanh:
      return body(std::integral_constant<Kind, Kind::kGatedGeluTanh>());
    case Kind::kGatedSiluClamped:
      return body(std::integral_constant<Kind, Kind::kGatedSiluClamped>());
    case Kind::kGelu:
      return body(std::integral_constant<Kind, Kind::kGelu>());
    case Kind::kGeluTanh:
      return body(std::integral_constant<Kind, Kind::kGeluTanh>());
  }
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ACTIVATION_CUH_
