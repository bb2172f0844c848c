// Metadata of a .gguf file as the config.json that its family reads.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"
#include "model/rope.h"

namespace headwise {
namespace {

constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;

// A float as config.json had it: the shortest decimal number that rounds to it. 1e-5 is kept as 9.99999974737875e-06.
double AsWritten(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  double number = value;
  if (error == std::errc()) std::from_chars(text, end, number);
  return number;
}

// The smallest number not below `part` / `whole` whose product with `whole` is not below `part`: families multiply a
// share and cut off what is behind the point.
double ShareOf(int64_t part, int64_t whole) {
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  const bool falls_short = share * static_cast<double>(whole) < static_cast<double>(part);
  return falls_short ? std::nextafter(share, INFINITY) : share;
}

// The keys of one architecture, by what stands behind its name.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), architecture_(architecture) {}

  std::string Full(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }
  bool Has(std::string_view key) const { return metadata_.Has(Full(key)); }

  Result<int64_t> Size(std::string_view key) const {
    HW_ASSIGN_OR_RETURN(const int64_t size, metadata_.Int(Full(key)));
    if (size >= 1 && size <= kMaxSize) return size;
    return Wrong(key, fmt::to_string(size), fmt::format("1 to {}", kMaxSize));
  }
  Result<int64_t> SizeOr(std::string_view key, int64_t otherwise) const { return Has(key) ? Size(key) : otherwise; }

  Result<double> Number(std::string_view key) const {
    HW_ASSIGN_OR_RETURN(const double number, metadata_.Double(Full(key)));
    const bool is_float = metadata_.values().find(Full(key))->second.type == GgufType::kF32;
    return is_float ? AsWritten(static_cast<float>(number)) : number;
  }
  Result<double> NumberOr(std::string_view key, double otherwise) const { return Has(key) ? Number(key) : otherwise; }

  Result<bool> BoolOr(std::string_view key, bool otherwise) const { return metadata_.BoolOr(Full(key), otherwise); }
  Result<std::string> StringOr(std::string_view key, std::string otherwise) const {
    return metadata_.StringOr(Full(key), std::move(otherwise));
  }

  Status Wrong(std::string_view key, std::string_view found, std::string_view expected) const {
    return Status::InvalidInput(
        fmt::format("{}: \"{}\" is {}, expected {}", metadata_.origin(), Full(key), found, expected));
  }
  Status Unsupported(std::string_view key, std::string_view found, std::string_view expected) const {
    return Status::Unsupported(fmt::format("{}: \"{}\" is {}, which is not supported, expected {}", metadata_.origin(),
                                           Full(key), found, expected));
  }

 private:
  const GgufMetadata& metadata_;
  std::string architecture_;
};

struct Source {
  const GgufMetadata& metadata;
  const GgufTensorNames& tensors;
  const GgufArchitecture& architecture;
  Keys keys;

  // Whether the first layer has one of these.
  bool HasInLayer(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (tensors.contains(fmt::format("blk.0.{}", name))) return true;
    }
    return false;
  }
};

// What the sizes of heads depend on, whatever a family calls it.
struct Heads {
  int64_t model_dim = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};

Result<Heads> ReadHeads(const Source& source) {
  const Keys& keys = source.keys;
  Heads heads;
  HW_ASSIGN_OR_RETURN(heads.model_dim, keys.Size("embedding_length"));
  HW_ASSIGN_OR_RETURN(heads.num_q_heads, keys.Size("attention.head_count"));
  HW_ASSIGN_OR_RETURN(heads.num_kv_heads, keys.SizeOr("attention.head_count_kv", heads.num_q_heads));
  if (keys.Has("attention.key_length")) {
    HW_ASSIGN_OR_RETURN(heads.head_dim, keys.Size("attention.key_length"));
  } else if (heads.model_dim % heads.num_q_heads != 0) {
    return keys.Wrong("attention.head_count", fmt::to_string(heads.num_q_heads),
                      fmt::format("a divisor of the embedding length {}", heads.model_dim));
  } else {
    heads.head_dim = heads.model_dim / heads.num_q_heads;
  }
  HW_ASSIGN_OR_RETURN(const int64_t value_dim, keys.SizeOr("attention.value_length", heads.head_dim));
  if (value_dim != heads.head_dim) {
    return keys.Unsupported("attention.value_length", fmt::to_string(value_dim),
                            fmt::format("{}, the length of keys", heads.head_dim));
  }
  return heads;
}

// Keys that change what a model computes and that no family here knows. Zero, false and absence mean nothing is done.
Status RefuseOthers(const Source& source) {
  const Keys& keys = source.keys;
  for (const char* key : {"expert_count", "logit_scale", "residual_scale", "embedding_scale", "attn_logit_softcapping",
                          "final_logit_softcapping"}) {
    HW_ASSIGN_OR_RETURN(const double value, keys.NumberOr(key, 0.0));
    if (value != 0.0) return keys.Unsupported(key, fmt::to_string(value), "none");
  }
  HW_ASSIGN_OR_RETURN(const bool causal, keys.BoolOr("attention.causal", true));
  if (!causal) return keys.Unsupported("attention.causal", "false", "true");
  const std::string_view family = source.architecture.family;
  const std::pair<const char*, bool> of_few[] = {
      {"attention.scale", family == "mpt"},
      {"attention.clamp_kqv", family == "mpt"},
      {"attention.max_alibi_bias", family == "mpt" || family == "falcon"},
      {"attention.sliding_window", family == "mistral" || family == "qwen2"}};
  for (const auto& [key, is_known] : of_few) {
    if (is_known) continue;
    HW_ASSIGN_OR_RETURN(const double value, keys.NumberOr(key, 0.0));
    if (value != 0.0) return keys.Unsupported(key, fmt::to_string(value), fmt::format("none in family {}", family));
  }
  return Status::Ok();
}

Status AddYarn(const Source& source, double factor, Json& scaling) {
  const Keys& keys = source.keys;
  if (keys.Has("rope.scaling.original_context_length")) {
    HW_ASSIGN_OR_RETURN(scaling["original_max_position_embeddings"], keys.Size("rope.scaling.original_context_length"));
  }
  HW_ASSIGN_OR_RETURN(const double attn_factor, keys.NumberOr("rope.scaling.attn_factor", 1.0));
  scaling["attention_factor"] = attn_factor * YarnAmplitude(factor);
  HW_ASSIGN_OR_RETURN(scaling["beta_fast"], keys.NumberOr("rope.scaling.yarn_beta_fast", 32.0));
  HW_ASSIGN_OR_RETURN(scaling["beta_slow"], keys.NumberOr("rope.scaling.yarn_beta_slow", 1.0));
  return Status::Ok();
}

Status AddRope(const Source& source, const Heads& heads, Json& config) {
  const Keys& keys = source.keys;
  constexpr const char* kDims = "rope.dimension_count";
  HW_ASSIGN_OR_RETURN(const int64_t rotary_dims, keys.SizeOr(kDims, heads.head_dim));
  // One family has a key for heads of which a part turns.
  const bool may_be_part = source.architecture.family == "gpt_neox";
  if (may_be_part ? rotary_dims > heads.head_dim : rotary_dims != heads.head_dim) {
    return keys.Unsupported(kDims, fmt::to_string(rotary_dims), fmt::format("the head dimension {}", heads.head_dim));
  }
  if (may_be_part) config["rotary_pct"] = ShareOf(rotary_dims, heads.head_dim);
  HW_ASSIGN_OR_RETURN(const double theta, keys.NumberOr("rope.freq_base", 10000.0));
  config["rope_theta"] = theta;
  HW_ASSIGN_OR_RETURN(const std::string type, keys.StringOr("rope.scaling.type", "linear"));
  if (type == "none") return Status::Ok();
  if (type != "linear" && type != "dynamic" && type != "yarn") {
    return keys.Unsupported("rope.scaling.type", fmt::format("\"{}\"", type), "none, linear, dynamic or yarn");
  }
  // The second name is the older one. Neither, or 0, is no scaling.
  const char* key = keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  HW_ASSIGN_OR_RETURN(const double factor, keys.NumberOr(key, 0.0));
  if (factor == 0.0 || factor == 1.0) return Status::Ok();
  if (factor < 1.0) return keys.Wrong(key, fmt::to_string(factor), "at least 1");
  config["rope_scaling"] = {{"rope_type", type}, {"factor", factor}};
  return type == "yarn" ? AddYarn(source, factor, config["rope_scaling"]) : Status::Ok();
}

// As many as the tokenizer has, and as the file says where it has none.
Result<int64_t> ReadVocabSize(const Source& source) {
  constexpr const char* kTokens = "tokenizer.ggml.tokens";
  if (!source.metadata.Has(kTokens)) return source.keys.Size("vocab_size");
  HW_ASSIGN_OR_RETURN(const auto tokens, source.metadata.Strings(kTokens));
  return static_cast<int64_t>(tokens.size());
}

Result<Json> ReadTokenId(const Source& source, const char* key, int64_t vocab_size) {
  if (!source.metadata.Has(key)) return Json();
  HW_ASSIGN_OR_RETURN(const int64_t id, source.metadata.Int(key));
  if (id >= 0 && id < vocab_size) return Json(id);
  return Status::InvalidInput(
      fmt::format("{}: \"{}\" is {}, expected a token id below {}", source.metadata.origin(), key, id, vocab_size));
}

Status AddTokenIds(const Source& source, int64_t vocab_size, Json& config) {
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

// The names that all families but one have for them.
Status AddSizes(const Source& source, const Heads& heads, Json& config) {
  const Keys& keys = source.keys;
  HW_ASSIGN_OR_RETURN(config["num_hidden_layers"], keys.Size("block_count"));
  HW_ASSIGN_OR_RETURN(config["max_position_embeddings"], keys.Size("context_length"));
  config["hidden_size"] = heads.model_dim;
  config["num_attention_heads"] = heads.num_q_heads;
  return Status::Ok();
}

// Families whose config has no key for it.
Status CheckHeadDim(const Source& source, const Heads& heads) {
  if (heads.head_dim * heads.num_q_heads == heads.model_dim) return Status::Ok();
  return source.keys.Unsupported(
      "attention.key_length", fmt::to_string(heads.head_dim),
      fmt::format("the embedding length {} over {} heads", heads.model_dim, heads.num_q_heads));
}

Status AddLlamaLike(const Source& source, const Heads& heads, Json& config) {
  const Keys& keys = source.keys;
  HW_RETURN_IF_ERROR(AddSizes(source, heads, config));
  HW_ASSIGN_OR_RETURN(config["intermediate_size"], keys.Size("feed_forward_length"));
  HW_ASSIGN_OR_RETURN(config["rms_norm_eps"], keys.Number("attention.layer_norm_rms_epsilon"));
  config["num_key_value_heads"] = heads.num_kv_heads;
  config["head_dim"] = heads.head_dim;
  config["attention_sinks"] = source.HasInLayer({"attn_sinks.weight"});
  config["mlp_bias"] = source.HasInLayer({"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"});
  const bool qkv_bias = source.HasInLayer({"attn_q.bias", "attn_k.bias", "attn_v.bias"});
  const bool o_bias = source.HasInLayer({"attn_output.bias"});
  config["attention_bias"] = qkv_bias || o_bias;
  if (source.architecture.family == "qwen2") {
    if (o_bias) {
      return Status::Unsupported(
          fmt::format("{}: tensor \"blk.0.attn_output.bias\" has no place in family qwen2", source.metadata.origin()));
    }
    config["max_window_layers"] = 0;
  }
  HW_ASSIGN_OR_RETURN(const int64_t window, source.metadata.IntOr(keys.Full("attention.sliding_window"), 0));
  if (window < 0 || window > kMaxSize) {
    return keys.Wrong("attention.sliding_window", fmt::to_string(window), fmt::format("0 to {}", kMaxSize));
  }
  config["use_sliding_window"] = window > 0;
  config["sliding_window"] = window > 0 ? Json(window) : Json();
  return AddRope(source, heads, config);
}

Status AddGptNeox(const Source& source, const Heads& heads, Json& config) {
  const Keys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddSizes(source, heads, config));
  if (heads.num_kv_heads != heads.num_q_heads) {
    return keys.Unsupported("attention.head_count_kv", fmt::to_string(heads.num_kv_heads),
                            fmt::format("{}, as many as query heads", heads.num_q_heads));
  }
  HW_ASSIGN_OR_RETURN(config["intermediate_size"], keys.Size("feed_forward_length"));
  HW_ASSIGN_OR_RETURN(config["layer_norm_eps"], keys.Number("attention.layer_norm_epsilon"));
  HW_ASSIGN_OR_RETURN(config["use_parallel_residual"], keys.BoolOr("use_parallel_residual", true));
  config["attention_bias"] = source.HasInLayer({"attn_qkv.bias", "attn_output.bias"});
  return AddRope(source, heads, config);
}

Status AddFalcon(const Source& source, const Heads& heads, Json& config) {
  const Keys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckHeadDim(source, heads));
  HW_RETURN_IF_ERROR(AddSizes(source, heads, config));
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
  return AddRope(source, heads, config);
}

Status AddMpt(const Source& source, const Heads& heads, Json& config) {
  const Keys& keys = source.keys;
  HW_RETURN_IF_ERROR(CheckHeadDim(source, heads));
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

// Of an architecture that holds several families, the one that the file names; else a window makes it the one that
// knows windows.
Result<const GgufArchitecture*> ArchitectureOf(const GgufMetadata& metadata) {
  HW_ASSIGN_OR_RETURN(const std::string name, metadata.String("general.architecture"));
  HW_ASSIGN_OR_RETURN(std::string family, metadata.StringOr(kGgufFamilyKey, ""));
  HW_ASSIGN_OR_RETURN(const int64_t window, metadata.IntOr(fmt::format("{}.attention.sliding_window", name), 0));
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
  struct Reader {
    std::string_view family;
    Status (*add)(const Source&, const Heads&, Json&);
  };
  constexpr Reader kReaders[] = {{"llama", AddLlamaLike},  {"mistral", AddLlamaLike}, {"qwen2", AddLlamaLike},
                                 {"gpt_neox", AddGptNeox}, {"falcon", AddFalcon},     {"mpt", AddMpt}};
  HW_ASSIGN_OR_RETURN(const GgufArchitecture* architecture, ArchitectureOf(metadata));
  const Source source{metadata, tensors, *architecture, Keys(metadata, architecture->name)};
  HW_RETURN_IF_ERROR(RefuseOthers(source));
  HW_ASSIGN_OR_RETURN(const Heads heads, ReadHeads(source));
  HW_ASSIGN_OR_RETURN(const int64_t vocab_size, ReadVocabSize(source));
  Json config = {{"model_type", architecture->family}, {"vocab_size", vocab_size}};
  config["tie_word_embeddings"] = !tensors.contains("output.weight");
  HW_ASSIGN_OR_RETURN(config["zero_sink"], metadata.BoolOr(kGgufZeroSinkKey, false));
  HW_RETURN_IF_ERROR(AddTokenIds(source, vocab_size, config));
  const auto* reader = std::find_if(std::begin(kReaders), std::end(kReaders),
                                    [&](const Reader& row) { return row.family == architecture->family; });
  HW_CHECK(reader != std::end(kReaders), "{}", architecture->family);
  HW_RETURN_IF_ERROR(reader->add(source, heads, config));
  return config;
}

}  // namespace headwise
