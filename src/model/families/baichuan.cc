// Baichuan: Llama's block with one packed W_pack. 7B rotates positions, 13B has ALiBi; the config of the first names
// its trained length max_position_embeddings, that of the second model_max_length only.
#include <fmt/format.h>

#include "model/families/config_reader.h"
#include "model/families/families.h"
#include "model/families/llama_like.h"

namespace headwise {
namespace {

// Baichuan2 normalises the rows of its output matrix at run time; it is told apart by its vocabulary.
constexpr int64_t kBaichuan2Vocabulary = 125696;

Result<ModelConfig> ReadConfig(const JsonObject& config) {
  ModelConfig model;
  HW_RETURN_IF_ERROR(ReadLlamaLikeConfig(config, /*default_length=*/4096, model));
  if (model.vocab_size == kBaichuan2Vocabulary) {
    return Status::Unsupported(
        fmt::format("{}: vocab_size {} is Baichuan2's, whose normalised output matrix is not supported",
                    config.origin(), model.vocab_size));
  }
  if (config.Has("max_position_embeddings")) {
    HW_RETURN_IF_ERROR(ReadRope(config, /*default_theta=*/10000.0, /*rotary_share=*/1.0, model));
    return model;
  }
  HW_ASSIGN_OR_RETURN(model.trained_length, config.IntOr("model_max_length", 4096));
  model.positions = PositionKind::kAlibi;
  model.alibi_slopes = PaperAlibiSlopes(model.num_q_heads);
  return model;
}

}  // namespace

const ModelFamily kBaichuanFamily = {
    .name = "baichuan",
    .other_names = {},
    .description = "Baichuan 7B and 13B (ALiBi)",
    .read_config = ReadConfig,
    .read_weights = ReadPackedLlamaWeights,
};

}  // namespace headwise
