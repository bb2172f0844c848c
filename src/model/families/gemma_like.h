// What the families of Gemma have in common: norms before and behind attention and MLP, whose checkpoints hold the
// weights less one; a gated GELU; embeddings times the square root of their size.
#ifndef HEADWISE_MODEL_FAMILIES_GEMMA_LIKE_H_
#define HEADWISE_MODEL_FAMILIES_GEMMA_LIKE_H_

#include "model/families/config_reader.h"
#include "model/families/llama_like.h"

namespace headwise {

// Everything but positions and windows.
Status ReadGemmaLikeConfig(const JsonObject& config, const ShapeDefaults& defaults, ModelConfig& model);

// Tensors behind `prefix`, "model.".
Result<ModelWeights> ReadGemmaLikeWeights(const ModelConfig& config, const WeightSource& source, const char* prefix);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_GEMMA_LIKE_H_
