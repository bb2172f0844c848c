// Metadata of a .gguf file as the config.json that its family reads: what every family has. The families' own keys are
// in gguf_family_configs.cc.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "model/gguf_family_configs.h"
#include "model/gguf_keys.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"

namespace headwise {
namespace {

// Keys that change what a model computes, and the families that know them.
struct KeyOfFew {
  const char* key;
  std::span<const std::string_view> families;
};
constexpr std::string_view kGemmas[] = {"gemma2", "gemma3_text"};
constexpr std::string_view kScalesLogits[] = {"granite", "granitemoe", "cohere"};
constexpr std::string_view kGranite[] = {"granite", "granitemoe"};
constexpr std::string_view kScalesScores[] = {"mpt", "granite", "granitemoe", "gemma2", "gemma3_text"};
constexpr std::string_view kMixtures[] = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss"};
constexpr std::string_view kSomeLayersDense[] = {"qwen2_moe", "qwen3_moe"};
constexpr std::string_view kMpt[] = {"mpt"};
constexpr std::string_view kMayHaveAlibi[] = {"mpt", "falcon"};
constexpr KeyOfFew kKeysOfFew[] = {{"expert_count", kMixtures},
                                   {"leading_dense_block_count", kSomeLayersDense},
                                   {"expert_weights_scale", {}},
                                   {"expert_group_count", {}},
                                   {"nextn_predict_layers", {}},
                                   {"logit_scale", kScalesLogits},
                                   {"residual_scale", kGranite},
                                   {"embedding_scale", kGranite},
                                   {"attn_logit_softcapping", kGemmas},
                                   {"final_logit_softcapping", kGemmas},
                                   {"attention.scale", kScalesScores},
                                   {"attention.clamp_kqv", kMpt},
                                   {"attention.max_alibi_bias", kMayHaveAlibi}};

// Zero, false and absence mean that nothing is done.
Status RefuseOthers(const GgufSource& source) {
  const GgufKeys& keys = source.keys;
  const std::string_view family = source.architecture.family;
  const auto refuse = [&](const char* key) -> Status {
    HW_ASSIGN_OR_RETURN(const double value, keys.NumberOr(key, 0.0));
    if (value == 0.0) return Status::Ok();
    return keys.Unsupported(key, fmt::to_string(value), fmt::format("none in family {}", family));
  };
  for (const KeyOfFew& row : kKeysOfFew) {
    if (std::ranges::find(row.families, family) == row.families.end()) HW_RETURN_IF_ERROR(refuse(row.key));
  }
  if (!source.architecture.window_period) HW_RETURN_IF_ERROR(refuse("attention.sliding_window"));
  HW_ASSIGN_OR_RETURN(const bool causal, keys.BoolOr("attention.causal", true));
  if (!causal) return keys.Unsupported("attention.causal", "false", "true");
  if (keys.Has("attention.rope_pattern") && source.architecture.unrotated_period == 0) {
    return keys.Unsupported("attention.rope_pattern", "there", fmt::format("none in family {}", family));
  }
  if (keys.Has("rope.dimension_sections")) {
    return keys.Unsupported("rope.dimension_sections", "there", "rotation by one position");
  }
  return Status::Ok();
}

// As many as the tokenizer has, and as the file says where it has none.
Result<int64_t> ReadVocabSize(const GgufSource& source) {
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  if (!source.metadata.Has(kTokens)) return source.keys.Size("vocab_size");
  HW_ASSIGN_OR_RETURN(const auto tokens, source.metadata.Strings(kTokens));
  return static_cast<int64_t>(tokens.size());
}

Result<Json> ReadTokenId(const GgufSource& source, const char* key, int64_t vocab_size) {
  if (!source.metadata.Has(key)) return Json();
  HW_ASSIGN_OR_RETURN(const int64_t id, source.metadata.Int(key));
  if (id >= 0 && id < vocab_size) return Json(id);
  return Status::InvalidInput(
      fmt::format("{}: \"{}\" is {}, expected a token id below {}", source.metadata.origin(), key, id, vocab_size));
}

Status AddTokenIds(const GgufSource& source, int64_t vocab_size, Json& config) {
  HW_ASSIGN_OR_RETURN(config["bos_token_id"], ReadTokenId(source, "tokenizer.ggml.bos_token_id", vocab_size));
  Json ends = Json::array();
  // End of text, of a turn, of a message: an answer ends with any of them.
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    HW_ASSIGN_OR_RETURN(const Json id, ReadTokenId(source, key, vocab_size));
    if (!id.is_null() && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  config["eos_token_id"] = std::move(ends);
  return Status::Ok();
}

// Of an architecture that holds several families, the one that the file names; else experts make it the one that has
// some, and a window the one that knows windows.
Result<const GgufArchitecture*> ArchitectureOf(const GgufMetadata& metadata) {
  HW_ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  HW_ASSIGN_OR_RETURN(std::string family, metadata.StringOr(kGgufFamilyKey, ""));
  HW_ASSIGN_OR_RETURN(const int64_t window, metadata.IntOr(fmt::format("{}.attention.sliding_window", name), 0));
  HW_ASSIGN_OR_RETURN(const int64_t num_experts, metadata.IntOr(fmt::format("{}.expert_count", name), 0));
  if (family.empty() && name == "llama" && num_experts > 0) family = "mixtral";
  if (family.empty() && name == "llama" && window > 0) family = "mistral";
  std::string known;
  bool knows_name = false;
  for (const GgufArchitecture& row : GgufArchitectures()) {
    if (row.name == name && (family.empty() || row.family == family)) return &row;
    knows_name = knows_name || row.name == name;
    if (!known.ends_with(row.name)) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  if (knows_name) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is \"{}\", expected a family of the architecture \"{}\"",
                                            metadata.origin(), kGgufFamilyKey, family, name));
  }
  return Status::Unsupported(
      fmt::format("{}: \"general.architecture\" is \"{}\", expected one of: {}", metadata.origin(), name, known));
}

}  // namespace

Result<Json> GgufConfigJson(const GgufMetadata& metadata, const GgufTensorNames& tensors) {
  HW_ASSIGN_OR_RETURN(const GgufArchitecture* architecture, ArchitectureOf(metadata));
  const GgufSource source{metadata, tensors, *architecture, GgufKeys(metadata, architecture->name)};
  HW_RETURN_IF_ERROR(RefuseOthers(source));
  HW_ASSIGN_OR_RETURN(const GgufHeads heads, ReadGgufHeads(source));
  HW_ASSIGN_OR_RETURN(const int64_t vocab_size, ReadVocabSize(source));
  Json config = {{"model_type", architecture->family}, {"vocab_size", vocab_size}};
  config["tie_word_embeddings"] = !tensors.contains("output.weight");
  HW_ASSIGN_OR_RETURN(config["zero_sink"], metadata.BoolOr(kGgufZeroSinkKey, false));
  HW_RETURN_IF_ERROR(AddTokenIds(source, vocab_size, config));
  HW_RETURN_IF_ERROR(AddGgufFamilyKeys(source, heads, config));
  return config;
}

}  // namespace headwise
