// What Llama and the many families around its block have in common: a config with the same keys, and tensors under the
// same names but for a few.
#ifndef HEADWISE_MODEL_FAMILIES_LLAMA_LIKE_H_
#define HEADWISE_MODEL_FAMILIES_LLAMA_LIKE_H_

#include "model/families/config_reader.h"
#include "model/families/experts_reader.h"
#include "model/families/weight_reader.h"

namespace headwise {

// Everything but positions, windows and biases: one RMS norm before attention and one before a gated MLP.
Status ReadLlamaLikeConfig(const JsonObject& config, const ShapeKeys& keys, const ShapeDefaults& defaults,
                           ModelConfig& model);

// Names behind "model.layers.N."; null: the family has no such tensor. Which norms there are, biases and learned sinks
// follow from the config.
struct LlamaLikeTensors {
  const char* norm = "input_layernorm";
  const char* post_norm = nullptr;  // of what attention adds
  const char* mlp_norm = "post_attention_layernorm";
  const char* mlp_post_norm = nullptr;  // of what the MLP adds
  const char* fused_qkv = nullptr;      // query, key and value rows in blocks, in place of the three
  const char* fused_gate_up = nullptr;  // gate rows, then up rows, in place of the two
  // Under QkNorm::kHeads: one norm [D] for all heads; [H, D]; or a tensor [D] for every head, whose number stands for
  // {}.
  enum class NormsByHead { kNone, kOneTensor, kTensorsApart };
  const char* q_norm = "self_attn.q_norm";
  const char* k_norm = "self_attn.k_norm";
  NormsByHead norms_by_head = NormsByHead::kNone;
  RotaryOrder rotary_order = RotaryOrder::kHalves;
  bool norms_lack_one = false;    // checkpoints hold them less one
  const char* prefix = "model.";  // of embedding, layers and last norm
  ExpertTensors experts = {};     // of layers that have some
};
Result<ModelWeights> ReadLlamaLikeWeights(const ModelConfig& config, const WeightSource& source,
                                          const LlamaLikeTensors& tensors);

// As Llama has them.
Result<ModelWeights> ReadLlamaWeights(const ModelConfig& config, const WeightSource& source);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_LLAMA_LIKE_H_
