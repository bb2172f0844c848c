#include "model/gguf_family_configs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace headwise {
namespace {

// The sizes that families around Llama's block have the same names for.
Status AddBlockSizes(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddGgufSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["intermediate_size"], source.keys.Size("feed_forward_length"));
  config["num_key_value_heads"] = heads.num_kv_heads;
  config["head_dim"] = heads.head_dim;
  return Status::Ok();
}

bool HasQkvBias(const GgufSource& source) {
  return source.HasInLayer({"attn_q.bias", "attn_k.bias", "attn_v.bias"});
}

Status AddLlamaLike(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddBlockSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["rms_norm_eps"], source.keys.Number("attention.layer_norm_rms_epsilon"));
  config["attention_sinks"] = source.HasInLayer({"attn_sinks.weight"});
  config["mlp_bias"] = source.HasInLayer({"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"});
  const bool o_bias = source.HasInLayer({"attn_output.bias"});
  config["attention_bias"] = HasQkvBias(source) || o_bias;
  const std::string_view family = source.architecture.family;
  if (family == "qwen2_moe") config["qkv_bias"] = HasQkvBias(source);
  if (o_bias && (family == "qwen2" || family == "qwen2_moe" || family == "glm4")) {
    return Status::Unsupported(fmt::format("{}: tensor \"blk.0.attn_output.bias\" has no place in family {}",
                                           source.metadata.origin(), family));
  }
  if (source.architecture.window_period) HW_RETURN_IF_ERROR(AddGgufWindows(source, config));
  return AddGgufRope(source, heads, config);
}

// The sizes of a mixture, under the names of families whose experts are as wide as "feed_forward_length" says.
Status AddExpertCounts(const GgufSource& source, const char* count_name, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_ASSIGN_OR_RETURN(config[count_name], keys.Size("expert_count"));
  HW_ASSIGN_OR_RETURN(config["num_experts_per_tok"], keys.Size("expert_used_count"));
  HW_ASSIGN_OR_RETURN(const double scores, keys.NumberOr("expert_gating_func", 1.0));
  constexpr double kOfChosen = 3.0;  // which is the same where weights are normalised
  const bool is_softmax =
      scores == 0.0 || scores == 1.0 || (scores == kOfChosen && source.architecture.family == "gpt_oss");
  if (is_softmax) return Status::Ok();
  return keys.Unsupported("expert_gating_func", fmt::to_string(scores), "1, softmax");
}

Status AddMixtral(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddLlamaLike(source, heads, config));
  return AddExpertCounts(source, "num_local_experts", config);
}

// The range of its YaRN is not rounded, whoever reads the file.
Status AddGptOss(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddLlamaLike(source, heads, config));
  if (config.contains("rope_scaling")) {
    config["rope_scaling"]["truncate"] = false;
  } else {
    config["rope_parameters"] = {{"rope_type", "default"}};
  }
  return AddExpertCounts(source, "num_local_experts", config);
}

Status AddOlmoe(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddLlamaLike(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["norm_topk_prob"], source.keys.BoolOr("expert_weights_norm", false));
  return AddExpertCounts(source, "num_experts", config);
}

// Readers of the format know Qwen 3's weights as normalised and Qwen 2's as not; which layers have experts, only where
// those without come first.
Status AddQwenMoe(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(AddLlamaLike(source, heads, config));
  HW_RETURN_IF_ERROR(AddExpertCounts(source, "num_experts", config));
  const bool is_qwen3 = source.architecture.family == "qwen3_moe";
  HW_ASSIGN_OR_RETURN(config["norm_topk_prob"], keys.BoolOr("expert_weights_norm", is_qwen3));
  const auto ffn_dim = config["intermediate_size"].get<int64_t>();
  const auto num_chosen = config["num_experts_per_tok"].get<int64_t>();
  HW_ASSIGN_OR_RETURN(config["moe_intermediate_size"],
                      keys.SizeOr("expert_feed_forward_length", std::max<int64_t>(1, ffn_dim / num_chosen)));
  if (!is_qwen3) {
    HW_ASSIGN_OR_RETURN(config["shared_expert_intermediate_size"],
                        keys.SizeOr("expert_shared_feed_forward_length", ffn_dim));
  }
  if (!keys.Has("leading_dense_block_count")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const double num_dense, keys.NumberOr("leading_dense_block_count", 0.0));
  Json dense = Json::array();
  const auto num_layers = config["num_hidden_layers"].get<int64_t>();
  for (int64_t i = 0; i < num_layers && static_cast<double>(i) < num_dense; ++i) dense.push_back(i);
  config["mlp_only_layers"] = std::move(dense);
  return Status::Ok();
}

Status AddGranite(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(AddLlamaLike(source, heads, config));
  // Absent and 0 are no multiplier but for attention, where they are the usual one.
  const std::pair<const char*, const char*> multipliers[] = {{"embedding_scale", "embedding_multiplier"},
                                                             {"residual_scale", "residual_multiplier"},
                                                             {"logit_scale", "logits_scaling"},
                                                             {"attention.scale", "attention_multiplier"}};
  for (const auto& [key, name] : multipliers) {
    const bool is_attention = std::string_view(key) == "attention.scale";
    const double usual = is_attention ? 1.0 / std::sqrt(static_cast<double>(heads.head_dim)) : 1.0;
    HW_ASSIGN_OR_RETURN(const double value, keys.NumberOr(key, 0.0));
    config[name] = value != 0.0 ? value : usual;
  }
  HW_ASSIGN_OR_RETURN(const bool rotates, keys.BoolOr("rope.scaling.finetuned", true));
  if (!rotates) return keys.Unsupported("rope.scaling.finetuned", "false, which means no rotation", "true");
  return Status::Ok();
}

Status AddGraniteMoe(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddGranite(source, heads, config));
  return AddExpertCounts(source, "num_local_experts", config);
}

Status AddSmolLm3(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddLlamaLike(source, heads, config));
  return AddGgufUnrotated(source, config);
}

// A cap of 0 is none; an absent one is what the family's config.json has it for.
Status AddCap(const GgufSource& source, const char* key, Json& config) {
  if (!source.keys.Has(key)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const double cap, source.keys.Number(key));
  config[key] = cap != 0.0 ? Json(cap) : Json();
  return Status::Ok();
}

Status AddGemma(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(AddBlockSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["rms_norm_eps"], keys.Number("attention.layer_norm_rms_epsilon"));
  config["attention_bias"] = HasQkvBias(source) || source.HasInLayer({"attn_output.bias"});
  HW_RETURN_IF_ERROR(AddCap(source, "attn_logit_softcapping", config));
  HW_RETURN_IF_ERROR(AddCap(source, "final_logit_softcapping", config));
  HW_ASSIGN_OR_RETURN(const double scale, keys.NumberOr("attention.scale", 0.0));
  const auto num_layers = config["num_hidden_layers"].get<int64_t>();
  config["query_pre_attn_scalar"] =
      scale != 0.0 ? 1.0 / (scale * scale) : UsualGemmaScalar(source.architecture.family, num_layers, heads);
  HW_RETURN_IF_ERROR(AddGgufWindows(source, config));
  return AddGgufRope(source, heads, config);
}

Status AddPhi(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddBlockSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["layer_norm_eps"], source.keys.Number("attention.layer_norm_epsilon"));
  config["qk_layernorm"] = source.HasInLayer({"attn_q_norm.weight"});
  return AddGgufRope(source, heads, config);
}

Status AddStarcoder2(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddBlockSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["norm_epsilon"], source.keys.Number("attention.layer_norm_epsilon"));
  config["use_bias"] = HasQkvBias(source) || source.HasInLayer({"attn_output.bias", "ffn_up.bias", "ffn_down.bias"});
  HW_RETURN_IF_ERROR(AddGgufWindows(source, config));
  return AddGgufRope(source, heads, config);
}

// Converters write that attention and MLP are in parallel where config.json says nothing: the norm tells.
Status AddStableLm(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddBlockSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["layer_norm_eps"], keys.Number("attention.layer_norm_epsilon"));
  HW_ASSIGN_OR_RETURN(const bool may_be_parallel, keys.BoolOr("use_parallel_residual", true));
  const bool is_parallel = !source.HasInLayer({"ffn_norm.weight"});
  if (is_parallel && !may_be_parallel) {
    return keys.Wrong("use_parallel_residual", "false", "true, as there is no tensor \"blk.0.ffn_norm.weight\"");
  }
  config["use_parallel_residual"] = is_parallel;
  config["use_qkv_bias"] = HasQkvBias(source);
  config["qk_layernorm"] = source.HasInLayer({"attn_q_norm.weight"});
  return AddGgufRope(source, heads, config);
}

Status AddCohere(const GgufSource& source, const GgufHeads& heads, Json& config) {
  HW_RETURN_IF_ERROR(AddBlockSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["layer_norm_eps"], source.keys.Number("attention.layer_norm_epsilon"));
  HW_ASSIGN_OR_RETURN(const double logit_scale, source.keys.NumberOr("logit_scale", 0.0));
  config["logit_scale"] = logit_scale != 0.0 ? logit_scale : 1.0;
  config["attention_bias"] = HasQkvBias(source) || source.HasInLayer({"attn_output.bias"});
  config["use_qk_norm"] = source.HasInLayer({"attn_q_norm.weight"});
  return AddGgufRope(source, heads, config);
}

Status CheckNoGroups(const GgufSource& source, const GgufHeads& heads) {
  if (heads.num_kv_heads == heads.num_q_heads) return Status::Ok();
  return source.keys.Unsupported("attention.head_count_kv", fmt::to_string(heads.num_kv_heads),
                                 fmt::format("{}, as many as query heads", heads.num_q_heads));
}

Status AddGpt2(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_RETURN_IF_ERROR(CheckNoGroups(source, heads));
  HW_ASSIGN_OR_RETURN(config["n_layer"], keys.Size("block_count"));
  HW_ASSIGN_OR_RETURN(config["n_positions"], keys.Size("context_length"));
  HW_ASSIGN_OR_RETURN(config["n_inner"], keys.Size("feed_forward_length"));
  HW_ASSIGN_OR_RETURN(config["layer_norm_epsilon"], keys.Number("attention.layer_norm_epsilon"));
  config["n_embd"] = heads.model_dim;
  config["n_head"] = heads.num_q_heads;
  return Status::Ok();
}

Status AddGptNeox(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddGgufSizes(source, heads, config));
  HW_RETURN_IF_ERROR(CheckNoGroups(source, heads));
  HW_ASSIGN_OR_RETURN(config["intermediate_size"], keys.Size("feed_forward_length"));
  HW_ASSIGN_OR_RETURN(config["layer_norm_eps"], keys.Number("attention.layer_norm_epsilon"));
  HW_ASSIGN_OR_RETURN(config["use_parallel_residual"], keys.BoolOr("use_parallel_residual", true));
  config["attention_bias"] = source.HasInLayer({"attn_qkv.bias", "attn_output.bias"});
  return AddGgufRope(source, heads, config);
}

Status AddFalcon(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddGgufSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["ffn_hidden_size"], keys.Size("feed_forward_length"));
  HW_ASSIGN_OR_RETURN(config["layer_norm_epsilon"], keys.Number("attention.layer_norm_epsilon"));
  // Which of the layouts it is, the file does not say. Groups of one KV head or of one query head are no groups.
  const bool two_norms = source.HasInLayer({"attn_norm_2.weight"});
  const bool grouped = two_norms || (heads.num_kv_heads != 1 && heads.num_kv_heads != heads.num_q_heads);
  config["new_decoder_architecture"] = grouped;
  config["multi_query"] = !grouped && heads.num_kv_heads == 1;
  config["num_kv_heads"] = heads.num_kv_heads;
  config["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  config["parallel_attn"] = !source.HasInLayer({"ffn_norm.weight"});
  config["bias"] = source.HasInLayer({"attn_qkv.bias", "attn_output.bias", "ffn_up.bias", "ffn_down.bias"});
  HW_ASSIGN_OR_RETURN(const double alibi, keys.NumberOr("attention.max_alibi_bias", 0.0));
  config["alibi"] = alibi != 0.0;
  if (alibi != 0.0) {
    constexpr double kPublished = 8.0;
    if (alibi == kPublished) return Status::Ok();
    return keys.Unsupported("attention.max_alibi_bias", fmt::to_string(alibi), fmt::to_string(kPublished));
  }
  return AddGgufRope(source, heads, config);
}

Status AddMpt(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckGgufHeadDim(source, heads));
  HW_ASSIGN_OR_RETURN(config["n_layers"], keys.Size("block_count"));
  HW_ASSIGN_OR_RETURN(config["max_seq_len"], keys.Size("context_length"));
  config["d_model"] = heads.model_dim;
  config["n_heads"] = heads.num_q_heads;
  HW_ASSIGN_OR_RETURN(const int64_t ffn_dim, keys.Size("feed_forward_length"));
  config["expansion_ratio"] = ShareOf(ffn_dim, heads.model_dim);
  const bool rms = keys.Has("attention.layer_norm_rms_epsilon");
  const char* eps_key = rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  config["norm_type"] = rms ? "rmsnorm" : "layernorm";
  HW_ASSIGN_OR_RETURN(config["layer_norm_epsilon"], keys.Number(eps_key));
  config["no_bias"] = !source.HasInLayer(
      {"attn_norm.bias", "attn_qkv.bias", "attn_output.bias", "ffn_norm.bias", "ffn_up.bias", "ffn_down.bias"});
  HW_ASSIGN_OR_RETURN(const double alibi, keys.Number("attention.max_alibi_bias"));
  Json attention = {{"alibi", alibi != 0.0}};
  if (alibi != 0.0) attention["alibi_bias_max"] = alibi;
  if (heads.num_kv_heads != heads.num_q_heads) {
    attention["attn_type"] = "grouped_query_attention";
    attention["kv_n_heads"] = heads.num_kv_heads;
  }
  HW_ASSIGN_OR_RETURN(attention["clip_qkv"], keys.NumberOr("attention.clamp_kqv", 0.0));
  HW_ASSIGN_OR_RETURN(const double scale, keys.NumberOr("attention.scale", 0.0));
  if (scale != 0.0) attention["softmax_scale"] = scale;
  config["attn_config"] = std::move(attention);
  return Status::Ok();
}

}  // namespace

Status AddGgufFamilyKeys(const GgufSource& source, const GgufHeads& heads, Json& config) {
  struct Reader {
    std::string_view family;
    Status (*add)(const GgufSource&, const GgufHeads&, Json&);
  };
  constexpr Reader kReaders[] = {{"llama", AddLlamaLike},   {"mistral", AddLlamaLike}, {"qwen2", AddLlamaLike},
                                 {"qwen3", AddLlamaLike},   {"phi3", AddLlamaLike},    {"olmo2", AddLlamaLike},
                                 {"glm4", AddLlamaLike},    {"granite", AddGranite},   {"gemma2", AddGemma},
                                 {"gemma3_text", AddGemma}, {"smollm3", AddSmolLm3},   {"phi", AddPhi},
                                 {"cohere", AddCohere},     {"stablelm", AddStableLm}, {"starcoder2", AddStarcoder2},
                                 {"gpt2", AddGpt2},         {"falcon", AddFalcon},     {"gpt_neox", AddGptNeox},
                                 {"mpt", AddMpt},           {"mixtral", AddMixtral},   {"qwen2_moe", AddQwenMoe},
                                 {"qwen3_moe", AddQwenMoe}, {"olmoe", AddOlmoe},       {"granitemoe", AddGraniteMoe},
                                 {"gpt_oss", AddGptOss}};
  const auto* reader = std::find_if(std::begin(kReaders), std::end(kReaders),
                                    [&](const Reader& row) { return row.family == source.architecture.family; });
  HW_CHECK(reader != std::end(kReaders), "{}", source.architecture.family);
  return reader->add(source, heads, config);
}

}  // namespace headwise
