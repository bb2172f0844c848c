#include "model/gguf_keys.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "model/layer_config.h"
#include "model/rope.h"

namespace headwise {
namespace {

// The shortest decimal number that rounds to it.
double AsWritten(float value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof(text), value);
  double number = value;
  if (error == std::errc()) std::from_chars(text, end, number);
  return number;
}

// The family's key for the share of a head that turns; null: heads turn as a whole.
const char* ShareKey(std::string_view family) {
  if (family == "gpt_neox") return "rotary_pct";
  for (const std::string_view of_part : {"phi", "phi3", "stablelm", "glm4"}) {
    if (family == of_part) return "partial_rotary_factor";
  }
  return nullptr;
}

Status AddYarn(const GgufKeys& keys, double factor, Json& scaling) {
  // By how much frequencies are stretched at all, and a further amplitude.
  for (const char* key : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
    HW_ASSIGN_OR_RETURN(const double value, keys.NumberOr(key, 1.0));
    if (value != 1.0) return keys.Unsupported(key, fmt::to_string(value), "1");
  }
  if (keys.Has("rope.scaling.original_context_length")) {
    HW_ASSIGN_OR_RETURN(scaling["original_max_position_embeddings"], keys.Size("rope.scaling.original_context_length"));
  }
  HW_ASSIGN_OR_RETURN(const double attn_factor, keys.NumberOr("rope.scaling.attn_factor", 1.0));
  scaling["attention_factor"] = attn_factor * YarnAmplitude(factor);
  HW_ASSIGN_OR_RETURN(scaling["beta_fast"], keys.NumberOr("rope.scaling.yarn_beta_fast", 32.0));
  HW_ASSIGN_OR_RETURN(scaling["beta_slow"], keys.NumberOr("rope.scaling.yarn_beta_slow", 1.0));
  return Status::Ok();
}

// Files of Phi-3 do not name this scaling: it is there with its tensors. Their factor of all frequencies is 1.
Status AddLongRope(const GgufSource& source, std::string_view type, double factor, Json& config) {
  const GgufKeys& keys = source.keys;
  for (const char* name : {kGgufRopeShort, kGgufRopeLong}) {
    if (source.tensors.contains(name)) continue;
    return Status::InvalidInput(
        fmt::format("{}: tensor \"{}\" is missing, expected with the rope scaling longrope and its other tensor",
                    source.metadata.origin(), name));
  }
  if (type != "longrope") {
    return keys.Wrong("rope.scaling.type", fmt::format("\"{}\"", type),
                      fmt::format("longrope, as there is a tensor \"{}\"", kGgufRopeLong));
  }
  if (factor != 0.0 && factor != 1.0) {
    return keys.Unsupported("rope.scaling.factor", fmt::to_string(factor), "none under longrope");
  }
  Json scaling = {{"rope_type", "longrope"}};
  if (keys.Has("rope.scaling.original_context_length")) {
    HW_ASSIGN_OR_RETURN(scaling["original_max_position_embeddings"], keys.Size("rope.scaling.original_context_length"));
  }
  HW_ASSIGN_OR_RETURN(scaling["attention_factor"], keys.NumberOr("rope.scaling.attn_factor", 1.0));
  config["rope_scaling"] = std::move(scaling);
  return Status::Ok();
}

Status AddScaling(const GgufSource& source, Json& config) {
  const GgufKeys& keys = source.keys;
  const bool has_factors = source.tensors.contains(kGgufRopeShort) || source.tensors.contains(kGgufRopeLong);
  HW_ASSIGN_OR_RETURN(const std::string type, keys.StringOr("rope.scaling.type", has_factors ? "longrope" : "linear"));
  // The second name is the older one. Neither, or 0, is no scaling.
  const char* key = keys.Has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  HW_ASSIGN_OR_RETURN(const double factor, keys.NumberOr(key, 0.0));
  if (has_factors || type == "longrope") return AddLongRope(source, type, factor, config);
  HW_ASSIGN_OR_RETURN(const double attn_factor, keys.NumberOr("rope.scaling.attn_factor", 1.0));
  if (attn_factor != 1.0 && type != "yarn") {
    return keys.Unsupported("rope.scaling.attn_factor", fmt::to_string(attn_factor),
                            fmt::format("1 with the scaling {}", type));
  }
  if (type == "none") return Status::Ok();
  if (type != "linear" && type != "dynamic" && type != "yarn") {
    return keys.Unsupported("rope.scaling.type", fmt::format("\"{}\"", type),
                            "none, linear, dynamic, yarn or longrope");
  }
  // With a factor of 1 the others still do something: beyond the trained length, or to the amplitude.
  if (factor == 0.0 || (factor == 1.0 && (type == "linear" || (type == "yarn" && attn_factor == 1.0)))) {
    return Status::Ok();
  }
  if (factor < 1.0) return keys.Wrong(key, fmt::to_string(factor), "at least 1");
  config["rope_scaling"] = {{"rope_type", type}, {"factor", factor}};
  return type == "yarn" ? AddYarn(keys, factor, config["rope_scaling"]) : Status::Ok();
}

// Layers with a window have a base of their own in one family; it has no scaling.
Status AddSlidingBase(const GgufSource& source, double base, Json& config) {
  const GgufKeys& keys = source.keys;
  constexpr const char* kKey = "rope.freq_base_swa";
  if (source.architecture.family == "gemma3_text") {
    HW_ASSIGN_OR_RETURN(config["rope_local_base_freq"], keys.NumberOr(kKey, 10000.0));
    return Status::Ok();
  }
  HW_ASSIGN_OR_RETURN(const double sliding_base, keys.NumberOr(kKey, base));
  if (sliding_base == base) return Status::Ok();
  return keys.Unsupported(kKey, fmt::to_string(sliding_base), fmt::format("{}, that of all layers", base));
}

// For each layer, what a pattern says: an entry each or, where `may_be_period`, a number, of which every n-th layer is
// false. Without the key, `otherwise`.
Result<std::vector<bool>> ReadPattern(const GgufSource& source, const char* key, int64_t num_layers, bool may_be_period,
                                      const std::function<bool(int64_t)>& otherwise) {
  const std::string full = source.keys.Full(key);
  std::vector<bool> pattern;
  const auto value = source.metadata.values().find(full);
  if (value == source.metadata.values().end()) {
    for (int64_t i = 0; i < num_layers; ++i) pattern.push_back(otherwise(i));
    return pattern;
  }
  if (may_be_period && std::holds_alternative<int64_t>(value->second.value)) {
    const int64_t period = std::get<int64_t>(value->second.value);
    if (period < 0 || period > kMaxGgufSize) {
      return source.keys.Wrong(key, fmt::to_string(period), fmt::format("0 to {}, or an array", kMaxGgufSize));
    }
    for (int64_t i = 0; i < num_layers; ++i) pattern.push_back(period == 0 || i % period != period - 1);
    return pattern;
  }
  HW_ASSIGN_OR_RETURN(const auto entries, source.metadata.Ints(full));
  if (static_cast<int64_t>(entries.size()) != num_layers) {
    return source.keys.Wrong(key, fmt::format("an array of {}", entries.size()),
                             fmt::format("one entry for each of {} layers", num_layers));
  }
  for (const int64_t entry : entries) pattern.push_back(entry != 0);
  return pattern;
}

}  // namespace

std::string GgufKeys::Full(std::string_view key) const {
  return fmt::format("{}.{}", architecture_, key);
}

Result<int64_t> GgufKeys::Size(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const int64_t size, metadata_.Int(Full(key)));
  if (size >= 1 && size <= kMaxGgufSize) return size;
  return Wrong(key, fmt::to_string(size), fmt::format("1 to {}", kMaxGgufSize));
}

Result<int64_t> GgufKeys::SizeOr(std::string_view key, int64_t otherwise) const {
  return Has(key) ? Size(key) : otherwise;
}

Result<double> GgufKeys::Number(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const double number, metadata_.Double(Full(key)));
  const bool is_float = metadata_.values().find(Full(key))->second.type == GgufType::kF32;
  return is_float ? AsWritten(static_cast<float>(number)) : number;
}

Result<double> GgufKeys::NumberOr(std::string_view key, double otherwise) const {
  return Has(key) ? Number(key) : otherwise;
}

Result<bool> GgufKeys::BoolOr(std::string_view key, bool otherwise) const {
  return metadata_.BoolOr(Full(key), otherwise);
}

Result<std::string> GgufKeys::StringOr(std::string_view key, std::string otherwise) const {
  return metadata_.StringOr(Full(key), std::move(otherwise));
}

Status GgufKeys::Wrong(std::string_view key, std::string_view found, std::string_view expected) const {
  return Status::InvalidInput(
      fmt::format("{}: \"{}\" is {}, expected {}", metadata_.origin(), Full(key), found, expected));
}

Status GgufKeys::Unsupported(std::string_view key, std::string_view found, std::string_view expected) const {
  return Status::Unsupported(fmt::format("{}: \"{}\" is {}, which is not supported, expected {}", metadata_.origin(),
                                         Full(key), found, expected));
}

bool GgufSource::HasInLayer(std::initializer_list<std::string_view> names) const {
  for (const std::string_view name : names) {
    if (tensors.contains(fmt::format("blk.0.{}", name))) return true;
  }
  return false;
}

Result<GgufHeads> ReadGgufHeads(const GgufSource& source) {
  const GgufKeys& keys = source.keys;
  GgufHeads heads;
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

Status CheckGgufHeadDim(const GgufSource& source, const GgufHeads& heads) {
  if (heads.head_dim * heads.num_q_heads == heads.model_dim) return Status::Ok();
  return source.keys.Unsupported(
      "attention.key_length", fmt::to_string(heads.head_dim),
      fmt::format("the embedding length {} over {} heads", heads.model_dim, heads.num_q_heads));
}

double UsualGemmaScalar(std::string_view family, int64_t num_layers, const GgufHeads& heads) {
  constexpr int64_t kLargestGemma2 = 46;
  constexpr int64_t kLargestGemma3 = 62;
  const bool is_largest = num_layers == (family == "gemma2" ? kLargestGemma2 : kLargestGemma3);
  return static_cast<double>(is_largest ? heads.model_dim / heads.num_q_heads : heads.head_dim);
}

double ShareOf(int64_t part, int64_t whole) {
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  const bool falls_short = share * static_cast<double>(whole) < static_cast<double>(part);
  return falls_short ? std::nextafter(share, INFINITY) : share;
}

Status AddGgufSizes(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  HW_ASSIGN_OR_RETURN(config["num_hidden_layers"], keys.Size("block_count"));
  HW_ASSIGN_OR_RETURN(config["max_position_embeddings"], keys.Size("context_length"));
  config["hidden_size"] = heads.model_dim;
  config["num_attention_heads"] = heads.num_q_heads;
  return Status::Ok();
}

Status AddGgufRope(const GgufSource& source, const GgufHeads& heads, Json& config) {
  const GgufKeys& keys = source.keys;
  constexpr const char* kDims = "rope.dimension_count";
  HW_ASSIGN_OR_RETURN(const int64_t rotary_dims, keys.SizeOr(kDims, heads.head_dim));
  const char* share_key = ShareKey(source.architecture.family);
  if (share_key != nullptr ? rotary_dims > heads.head_dim : rotary_dims != heads.head_dim) {
    return keys.Unsupported(kDims, fmt::to_string(rotary_dims), fmt::format("the head dimension {}", heads.head_dim));
  }
  if (share_key != nullptr) config[share_key] = ShareOf(rotary_dims, heads.head_dim);
  HW_ASSIGN_OR_RETURN(const double theta, keys.NumberOr("rope.freq_base", 10000.0));
  config["rope_theta"] = theta;
  HW_RETURN_IF_ERROR(AddSlidingBase(source, theta, config));
  return AddScaling(source, config);
}

Status AddGgufWindows(const GgufSource& source, Json& config) {
  const GgufKeys& keys = source.keys;
  constexpr const char* kWindow = "attention.sliding_window";
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  // Gemma 2's has a value where the file has none, as in its config.json.
  const int64_t otherwise = source.architecture.family == "gemma2" ? 4096 : 0;
  HW_ASSIGN_OR_RETURN(const int64_t window, source.metadata.IntOr(keys.Full(kWindow), otherwise));
  if (window < 0 || window > kMaxGgufSize) {
    return keys.Wrong(kWindow, fmt::to_string(window), fmt::format("0 to {}", kMaxGgufSize));
  }
  config["use_sliding_window"] = window > 0;
  config["sliding_window"] = window > 0 ? Json(window) : Json();
  const auto num_layers = config["num_hidden_layers"].get<int64_t>();
  if (num_layers > kMaxLayers) return Status::Ok();  // which is refused when the config is read
  HW_ASSIGN_OR_RETURN(const std::vector<bool> slides,
                      ReadPattern(source, kPattern, num_layers, true, [&](int64_t layer_idx) {
                        return window > 0 && source.architecture.SlidesWithoutPattern(layer_idx);
                      }));
  Json types = Json::array();
  for (const bool each : slides) {
    if (each && window == 0) return keys.Wrong(kPattern, "there", fmt::format("with \"{}\"", keys.Full(kWindow)));
    types.push_back(each ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = std::move(types);
  return Status::Ok();
}

Status AddGgufUnrotated(const GgufSource& source, Json& config) {
  const auto num_layers = config["num_hidden_layers"].get<int64_t>();
  if (num_layers > kMaxLayers) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const std::vector<bool> rotates,
                      ReadPattern(source, "attention.rope_pattern", num_layers, false, [&](int64_t layer_idx) {
                        return source.architecture.RotatesWithoutPattern(layer_idx);
                      }));
  Json layers = Json::array();
  for (const bool each : rotates) layers.push_back(each ? 1 : 0);
  config["no_rope_layers"] = std::move(layers);
  return Status::Ok();
}

}  // namespace headwise
