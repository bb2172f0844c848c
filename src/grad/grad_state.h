// What a GradDecoder holds. For the files that implement it; others take grad/grad_decoder.h.
#ifndef HEADWISE_GRAD_GRAD_STATE_H_
#define HEADWISE_GRAD_GRAD_STATE_H_

#include <cstdint>
#include <vector>

#include "grad/grad_decoder.h"

namespace headwise {

inline size_t MatrixSize(int64_t rows, int64_t columns) {
  return static_cast<size_t>(rows * columns);
}

// Whether the way back needs queries and keys as they were before they were normed and rotated: to go back through the
// norm, or to tell which of them were clamped.
inline bool KeepsRaw(const ModelConfig& config) {
  return config.qk_norm != QkNorm::kNone || (config.qkv_clip && !config.ropes.empty());
}

template <typename Real>
struct GradDecoder<Real>::Activations {
  using Matrix = std::vector<Real>;
  Matrix normed;                 // [N, E] only where a norm is before attention
  Matrix q, k, v;                // [N, Hq*D], [N, Hkv*D] twice; normed, rotated
  Matrix q_raw, k_raw;           // as q and k: clamped, but not normed or rotated; only where KeepsRaw
  Matrix full_out, bounded_out;  // [N, Hq*D] each; on the way back the gradients to them
  Matrix full_lse, bounded_lse;  // [N, Hq]
  Matrix other_mass;             // [N, Hq], only for influence
  Matrix mixed;                  // [N, Hq*D]; without gates full_out stands in
  Matrix branch, mlp_branch;     // [N, E] what attention and the MLP add, only where a norm is behind it: the norm's
                                 // input, and on the way back the gradient to that
  Matrix x_mid;                  // [N, E] the residual stream after attention
  Matrix mlp_normed;             // [N, E] only where the MLP has a norm of its own before it
  Matrix gate, up, activated;    // [N, F]; gate only where gated
  Matrix changed;                // [N, E] the residual stream of ForwardFrom
  // On the way back:
  Matrix d_x;                        // [N, E]
  Matrix d_normed, d_mlp_normed;     // [N, E]
  Matrix d_mixed;                    // [N, Hq*D]
  Matrix d_q, d_k, d_v;              // as q, k, v
  Matrix full_delta, bounded_delta;  // [N, Hq]
  Matrix d_q_slabs;                  // partial gradients of q

  int64_t num_elements() const {
    size_t count = 0;
    for (const Matrix* each :
         {&normed,       &q,          &k,           &v,          &q_raw,     &k_raw,      &full_out,
          &bounded_out,  &full_lse,   &bounded_lse, &other_mass, &mixed,     &branch,     &mlp_branch,
          &x_mid,        &mlp_normed, &gate,        &up,         &activated, &d_x,        &d_normed,
          &d_mlp_normed, &d_mixed,    &d_q,         &d_k,        &d_v,       &full_delta, &bounded_delta,
          &d_q_slabs}) {
      count += each->size();
    }
    return static_cast<int64_t>(count);
  }
};

template <typename Real>
struct GradDecoder<Real>::Saved {
  int64_t num_tokens = 0;
  std::vector<int32_t> wanted;
  std::vector<double> gates;                // empty: every head full
  std::vector<ResolvedRule> full_rules;     // [L] the model's own masks
  std::vector<ResolvedRule> bounded_rules;  // [L], unused without gates
  std::vector<std::vector<Real>> angles;    // by rope of the model: [N, R/2, 2]
  std::vector<std::vector<Real>> inputs;    // [L + 1] of [N, E]; without kForBackward one that is passed on
  bool keeps_inputs = false;
  bool wants_other_mass = false;
};

}  // namespace headwise

#endif  // HEADWISE_GRAD_GRAD_STATE_H_
