// The weights of one model in the one form the decoder reads, whatever the family called and packed them.
#ifndef HEADWISE_MODEL_MODEL_WEIGHTS_H_
#define HEADWISE_MODEL_MODEL_WEIGHTS_H_

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "backend/ops.h"
#include "tensor/weight_matrix.h"

namespace headwise {

struct NormWeights {
  ConstTensorView weight;  // [E] f32, or another row: see q_norm
  ConstTensorView bias;    // as weight, or absent
};

struct LayerWeights {
  NormWeights norm;             // before attention; absent under NormPlaces::kAfter
  NormWeights post_norm;        // of what attention adds; under kAfter and kBoth
  LinearWeights q;              // [Hq*D, E]
  LinearWeights k;              // [Hkv*D, E]
  LinearWeights v;              // [Hkv*D, E]
  NormWeights q_norm;           // QkNorm::kHeads: [D] or [Hq, D]; kRows: [Hq*D]; absent without one
  NormWeights k_norm;           // the same with Hkv
  LinearWeights o;              // [E, Hq*D]
  ConstTensorView sink_logits;  // [Hq] f32, or absent: no sink logit
  NormWeights mlp_norm;         // absent where the residual is kParallelSharedNorm, and under kAfter
  NormWeights mlp_post_norm;    // as post_norm
  LinearWeights gate;           // [F, E], only where gated
  LinearWeights up;             // [F, E]; with experts the MLP of all tokens, absent where there is none
  LinearWeights down;           // [E, F]
  // LayerConfig::has_experts: a mixture of experts, in place of the MLP or beside it.
  LinearWeights router;                // [X, E]
  ConstTensorView selection_bias;      // [X] f32, or absent
  std::vector<ExpertWeights> experts;  // [X]
  LinearWeights shared_gate;           // [1, E]: how much of the MLP beside them a token takes; absent: all
};

// Matrices that every token goes through, or absent; in the order in which they are read.
inline std::array<const LinearWeights*, 7> LinearsOf(const LayerWeights& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

struct ModelWeights {
  WeightMatrix embedding;  // [V, E]
  WeightMatrix positions;  // [P, E], PositionKind::kLearned only
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  LinearWeights output;  // [V, E]; the embedding where they are tied

  // Host memory behind what could not stay in the file: widened norms and biases, reordered matrices. A matrix is the
  // whole of its block.
  std::vector<std::unique_ptr<std::byte[]>> owned;
};

}  // namespace headwise

#endif  // HEADWISE_MODEL_MODEL_WEIGHTS_H_
