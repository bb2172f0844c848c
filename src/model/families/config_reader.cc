#include "model/families/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "weights/published_weights.h"

namespace headwise {
namespace {

constexpr int64_t kMaxSize = (int64_t{1} << 31) - 1;

// -1 is how some configs write "none".
Result<std::optional<int32_t>> ReadTokenId(const JsonObject& config, const char* key, const Json& value,
                                           int64_t vocab_size) {
  const bool whole = value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > kMaxSize);
  const int64_t id = whole ? value.get<int64_t>() : -2;
  if (id < -1 || id >= vocab_size) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" has {}, expected a token id below {}", config.origin(), key,
                                            value.dump(-1, ' ', false, Json::error_handler_t::replace), vocab_size));
  }
  return id == -1 ? std::nullopt : std::optional<int32_t>(static_cast<int32_t>(id));
}

Status ReadEnds(const JsonObject& config, const ShapeDefaults& defaults, ModelConfig& model) {
  const auto in_vocabulary = [&](std::optional<int32_t> id) { return id && *id < model.vocab_size; };
  if (!config.Names("bos_token_id") && in_vocabulary(defaults.bos)) model.bos_id = defaults.bos;
  if (config.Has("bos_token_id")) {
    const Json& value = config.At("bos_token_id");
    HW_ASSIGN_OR_RETURN(model.bos_id, ReadTokenId(config, "bos_token_id", value, model.vocab_size));
  }
  if (!config.Names("eos_token_id") && in_vocabulary(defaults.eos)) model.eos_ids = {*defaults.eos};
  if (!config.Has("eos_token_id")) return Status::Ok();
  HW_ASSIGN_OR_RETURN(model.eos_ids, ReadTokenIds(config, "eos_token_id", model.vocab_size));
  return Status::Ok();
}

}  // namespace

Result<std::vector<int32_t>> ReadTokenIds(const JsonObject& config, const char* key, int64_t vocab_size) {
  std::vector<int32_t> ids;
  const Json& value = config.At(key);
  for (const Json& each : value.is_array() ? value : Json::array({value})) {
    HW_ASSIGN_OR_RETURN(const auto id, ReadTokenId(config, key, each, vocab_size));
    if (id && std::ranges::find(ids, *id) == ids.end()) ids.push_back(*id);
  }
  return ids;
}

Result<int64_t> ReadSize(const JsonObject& config, const char* key, int64_t if_absent) {
  if (!config.Has(key) && if_absent != 0) return if_absent;
  HW_ASSIGN_OR_RETURN(const int64_t size, config.Int(key));
  if (size < 1 || size > kMaxSize) {
    return Status::InvalidInput(
        fmt::format("{}: \"{}\" is {}, expected 1 to {}", config.origin(), key, size, kMaxSize));
  }
  return size;
}

Status ReadShape(const JsonObject& config, const ShapeKeys& keys, const ShapeDefaults& defaults, ModelConfig& model) {
  HW_RETURN_IF_ERROR(ReadPublishedFormat(config).status());  // whoever reads weights asks again
  HW_ASSIGN_OR_RETURN(model.model_dim, ReadSize(config, keys.hidden, defaults.hidden));
  HW_ASSIGN_OR_RETURN(model.num_layers, ReadSize(config, keys.layers, defaults.layers));
  HW_ASSIGN_OR_RETURN(model.num_q_heads, ReadSize(config, keys.q_heads, defaults.q_heads));
  HW_ASSIGN_OR_RETURN(model.vocab_size, ReadSize(config, "vocab_size", defaults.vocab));
  HW_ASSIGN_OR_RETURN(model.trained_length, ReadSize(config, keys.trained_length, defaults.trained_length));
  if (keys.ffn != nullptr) {
    HW_ASSIGN_OR_RETURN(model.ffn_dim, ReadSize(config, keys.ffn, defaults.ffn));
  }
  model.num_kv_heads = model.num_q_heads;
  if (keys.kv_heads != nullptr) {
    const bool use_default = defaults.kv_heads != 0 && !config.Names(keys.kv_heads);
    const int64_t otherwise = use_default ? defaults.kv_heads : model.num_q_heads;
    HW_ASSIGN_OR_RETURN(model.num_kv_heads, ReadSize(config, keys.kv_heads, otherwise));
  }
  // As ValidateConfig, which is asked when the list is there.
  if (model.num_layers > kMaxLayers) {
    return Status::InvalidInput(
        fmt::format("{}: layers is {}, expected 1 to {}", config.origin(), model.num_layers, kMaxLayers));
  }
  model.layers.resize(static_cast<size_t>(model.num_layers));
  if (model.num_q_heads > kMaxHeads) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is {}, expected at most {}", config.origin(), keys.q_heads,
                                            model.num_q_heads, kMaxHeads));
  }
  if (keys.head_dim != nullptr && config.Has(keys.head_dim)) {
    HW_ASSIGN_OR_RETURN(model.head_dim, ReadSize(config, keys.head_dim, 0));
  } else if (defaults.head_dim != 0) {
    model.head_dim = defaults.head_dim;
  } else if (model.model_dim % model.num_q_heads != 0) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" {} is not a multiple of \"{}\" {}", config.origin(),
                                            keys.hidden, model.model_dim, keys.q_heads, model.num_q_heads));
  } else {
    model.head_dim = model.model_dim / model.num_q_heads;
  }
  model.softmax_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  HW_ASSIGN_OR_RETURN(model.tied_embeddings, config.BoolOr("tie_word_embeddings", defaults.tied_embeddings));
  HW_ASSIGN_OR_RETURN(model.zero_sink, config.BoolOr("zero_sink", false));
  return ReadEnds(config, defaults, model);
}

Result<std::optional<std::vector<LayerType>>> ReadLayerTypes(const JsonObject& config, int64_t num_layers) {
  constexpr const char* kKey = "layer_types";
  if (!config.Has(kKey)) return std::optional<std::vector<LayerType>>();
  const Json& names = config.At(kKey);
  if (!names.is_array() || static_cast<int64_t>(names.size()) != num_layers) {
    return Status::InvalidInput(
        fmt::format("{}: \"{}\" is not a list of {} layer types", config.origin(), kKey, num_layers));
  }
  std::vector<LayerType> types;
  for (const Json& name : names) {
    if (name != "full_attention" && name != "sliding_attention") {
      return Status::Unsupported(fmt::format("{}: \"{}\" has {}, expected \"full_attention\" or \"sliding_attention\"",
                                             config.origin(), kKey,
                                             name.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
    types.push_back(name == "full_attention" ? LayerType::kFull : LayerType::kSliding);
  }
  return std::optional(std::move(types));
}

Status SetSlidingWindow(const JsonObject& config, std::optional<int64_t> window, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(config, model.num_layers));
  if (!types) {
    for (LayerConfig& layer : model.layers) layer.window = window;
    return Status::Ok();
  }
  return SetWindows(config, *types, window, model);
}

Status SetWindows(const JsonObject& config, const std::vector<LayerType>& types, std::optional<int64_t> window,
                  ModelConfig& model) {
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (types[i] == LayerType::kFull) continue;
    if (!window) {
      return Status::InvalidInput(
          fmt::format("{}: \"layer_types\" say sliding attention, but there is no window", config.origin()));
    }
    model.layers[i].window = window;
  }
  return Status::Ok();
}

Result<std::optional<double>> ReadPositive(const JsonObject& config, const char* key, std::optional<double> if_absent) {
  if (!config.Names(key)) return if_absent;
  if (!config.Has(key)) return std::optional<double>();
  HW_ASSIGN_OR_RETURN(const double value, config.Double(key));
  if (value > 0.0) return std::optional(value);
  return Status::InvalidInput(fmt::format("{}: \"{}\" is {}, expected more than 0", config.origin(), key, value));
}

Status RequireBool(const JsonObject& config, const char* key, bool value_if_absent, bool supported) {
  HW_ASSIGN_OR_RETURN(const bool value, config.BoolOr(key, value_if_absent));
  if (value == supported) return Status::Ok();
  return Status::Unsupported(fmt::format("{}: \"{}\": {} is not supported", config.origin(), key, value));
}

Result<MlpKind> ReadActivation(const JsonObject& config, const char* key, const std::string& if_absent,
                               const ActivationNames& names) {
  HW_ASSIGN_OR_RETURN(const std::string found, config.StringOr(key, if_absent));
  std::string known;
  for (const auto& [name, kind] : names) {
    if (name == found) return kind;
    known += (known.empty() ? "" : ", ") + name;
  }
  return Status::Unsupported(
      fmt::format("{}: \"{}\" is \"{}\", expected one of: {}", config.origin(), key, found, known));
}

const ActivationNames& GatedNames() {
  static const ActivationNames kNames = {{"silu", MlpKind::kGatedSilu}, {"swish", MlpKind::kGatedSilu}};
  return kNames;
}

const ActivationNames& GatedGeluNames() {
  static const ActivationNames kNames = {{"gelu_pytorch_tanh", MlpKind::kGatedGeluTanh},
                                         {"gelu_new", MlpKind::kGatedGeluTanh}};
  return kNames;
}

const ActivationNames& GeluNames() {
  // gelu_fast and gelu_accurate are other ways to write the tanh approximation; quick_gelu (a sigmoid) is not.
  static const ActivationNames kNames = {{"gelu", MlpKind::kGelu},
                                         {"gelu_python", MlpKind::kGelu},
                                         {"gelu_new", MlpKind::kGeluTanh},
                                         {"gelu_pytorch_tanh", MlpKind::kGeluTanh},
                                         {"gelu_fast", MlpKind::kGeluTanh},
                                         {"gelu_python_tanh", MlpKind::kGeluTanh},
                                         {"gelu_accurate", MlpKind::kGeluTanh}};
  return kNames;
}

std::vector<float> MptAlibiSlopes(int64_t num_heads, double max_bias) {
  int64_t rounded = 1;
  while (rounded < num_heads) rounded *= 2;
  std::vector<int64_t> order;
  if (rounded == num_heads) {
    for (int64_t h = 0; h < num_heads; ++h) order.push_back(h);
  } else {
    for (int64_t h = 1; h < rounded; h += 2) order.push_back(h);
    for (int64_t h = 0; h < rounded; h += 2) order.push_back(h);
  }
  std::vector<float> slopes;
  for (int64_t h = 0; h < num_heads; ++h) {
    const auto exponent = static_cast<double>(order[static_cast<size_t>(h)] + 1) / static_cast<double>(rounded);
    slopes.push_back(static_cast<float>(std::exp2(-max_bias * exponent)));
  }
  return slopes;
}

std::vector<float> PaperAlibiSlopes(int64_t num_heads) {
  int64_t below = 1;
  while (2 * below <= num_heads) below *= 2;
  const auto slope = [](int64_t h, int64_t n) {
    return static_cast<float>(std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(n)));
  };
  std::vector<float> slopes;
  for (int64_t h = 0; h < below; ++h) slopes.push_back(slope(h, below));
  for (int64_t h = 0; h < num_heads - below; ++h) slopes.push_back(slope(2 * h, 2 * below));
  return slopes;
}

}  // namespace headwise
