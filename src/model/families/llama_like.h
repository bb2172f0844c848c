// The decoder block that llama, mistral, qwen2 and baichuan share: RMSNorm, gated SiLU, serial residual, the tensor
// names of Hugging Face's LlamaForCausalLM.
#ifndef HEADWISE_MODEL_FAMILIES_LLAMA_LIKE_H_
#define HEADWISE_MODEL_FAMILIES_LLAMA_LIKE_H_

#include "base/json.h"
#include "model/families/config_reader.h"
#include "model/families/weight_reader.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace headwise {

// Shape, norm, MLP and sink logits; positions, biases and windows are the family's business.
Status ReadLlamaLikeConfig(const JsonObject& config, const ShapeKeys& keys, const ShapeDefaults& defaults,
                           ModelConfig& model);

// q_proj, k_proj, v_proj; biases and sinks as the config says.
Result<ModelWeights> ReadLlamaWeights(const ModelConfig& config, const WeightSource& source);
// One W_pack instead [baichuan].
Result<ModelWeights> ReadPackedLlamaWeights(const ModelConfig& config, const WeightSource& source);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_LLAMA_LIKE_H_
