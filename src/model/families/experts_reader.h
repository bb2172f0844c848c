// What families with mixtures of experts have in common: config keys, and the three layouts in which checkpoints and
// files have their matrices.
#ifndef HEADWISE_MODEL_FAMILIES_EXPERTS_READER_H_
#define HEADWISE_MODEL_FAMILIES_EXPERTS_READER_H_

#include <cstdint>
#include <string>

#include "base/json.h"
#include "model/families/weight_reader.h"
#include "model/model_config.h"

namespace headwise {

// As a family spells them, and their values where they are absent.
struct ExpertKeys {
  const char* num_experts = "num_experts";
  const char* also_num_experts = nullptr;  // another name, where the first is absent
  const char* num_chosen = "num_experts_per_tok";
  const char* ffn = "moe_intermediate_size";
  int64_t default_experts = 0;
  int64_t default_chosen = 0;
  int64_t default_ffn = 0;
};
// Sizes of model.experts, for all layers. An error names the key. Requires: ReadShape.
Status ReadExpertsConfig(const JsonObject& config, const ExpertKeys& keys, ModelConfig& model);
// "norm_topk_prob", of softmax.
Status ReadNormalised(const JsonObject& config, ModelConfig& model);
// Which layers have them: every "decoder_sparse_step"-th, but for those in "mlp_only_layers".
Status ReadSparseLayers(const JsonObject& config, ModelConfig& model);

// Names behind "model.layers.N."; null: the family has no such tensor.
struct ExpertTensors {
  const char* router = "mlp.gate";
  // A module for each expert, behind `experts` and its number; or tensors for all of them, [X, 2 F, E] with the gate's
  // rows first and [X, E, F]; or, of .gguf files, one for each of the three matrices.
  const char* experts = "mlp.experts";
  const char* fused_gate_up = "mlp.experts.gate_up_proj";
  const char* fused_down = "mlp.experts.down_proj";
  // Those two are [X, E, 2 F], gate and up in turns, and [X, F, E], with biases [X, 2 F] and [X, E] beside them.
  bool interleaved = false;
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
  const char* shared = "mlp.shared_expert";
  const char* shared_gate = "mlp.shared_expert_gate";
};
// The router, the experts and what all tokens go through beside them, of the layer whose tensors begin with `at`.
Status ReadExperts(const ModelConfig& config, const ExpertTensors& tensors, const std::string& at, WeightReader& reader,
                   LayerWeights& layer);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_EXPERTS_READER_H_
