#include "model/families/config_reader.h"

#include <fmt/format.h>

#include <cmath>

namespace headwise {
namespace {

Status ReadTokenIds(const JsonObject& config, ModelConfig& model) {
  if (config.Has("bos_token_id")) {
    HW_ASSIGN_OR_RETURN(const int64_t id, config.Int("bos_token_id"));
    model.bos_id = static_cast<int32_t>(id);
  }
  if (!config.Has("eos_token_id")) return Status::Ok();
  const Json& value = config.At("eos_token_id");
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (!id.is_number_integer()) {
      return Status::InvalidInput(
          fmt::format("{}: \"eos_token_id\" is not a token id or a list of them", config.origin()));
    }
    model.eos_ids.push_back(id.get<int32_t>());
  }
  return Status::Ok();
}

Status ReadScaling(const JsonObject& scaling, ModelConfig& model) {
  RopeConfig& rope = model.rope;
  HW_ASSIGN_OR_RETURN(const std::string old_name, scaling.StringOr("type", "default"));
  HW_ASSIGN_OR_RETURN(const std::string type, scaling.StringOr("rope_type", old_name));
  if (type == "default") return Status::Ok();
  HW_ASSIGN_OR_RETURN(rope.factor, scaling.Double("factor"));
  if (rope.factor < 1.0) {
    return Status::InvalidInput(
        fmt::format("{}: \"factor\" is {}, expected at least 1", scaling.origin(), rope.factor));
  }
  if (type == "linear") {
    rope.scaling = RopeConfig::Scaling::kLinear;
  } else if (type == "dynamic") {
    rope.scaling = RopeConfig::Scaling::kDynamicNtk;
  } else if (type == "llama3") {
    rope.scaling = RopeConfig::Scaling::kLlama3;
    HW_ASSIGN_OR_RETURN(rope.low_freq_factor, scaling.Double("low_freq_factor"));
    HW_ASSIGN_OR_RETURN(rope.high_freq_factor, scaling.Double("high_freq_factor"));
    HW_ASSIGN_OR_RETURN(rope.original_max_position, scaling.Int("original_max_position_embeddings"));
    if (rope.low_freq_factor <= 0 || rope.high_freq_factor <= rope.low_freq_factor || rope.original_max_position < 1) {
      return Status::InvalidInput(
          fmt::format("{}: expected 0 < low_freq_factor < high_freq_factor and a positive length", scaling.origin()));
    }
  } else {
    return Status::Unsupported(fmt::format(
        "{}: rope type \"{}\" is not supported, expected default, linear, dynamic or llama3", scaling.origin(), type));
  }
  return Status::Ok();
}

}  // namespace

Status ReadShape(const JsonObject& config, const ShapeKeys& keys, int64_t default_length, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(model.model_dim, config.Int(keys.hidden));
  HW_ASSIGN_OR_RETURN(model.num_layers, config.Int(keys.layers));
  HW_ASSIGN_OR_RETURN(model.num_q_heads, config.Int(keys.q_heads));
  HW_ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size"));
  HW_ASSIGN_OR_RETURN(model.trained_length, config.IntOr(keys.trained_length, default_length));
  if (keys.ffn != nullptr) {
    HW_ASSIGN_OR_RETURN(model.ffn_dim, config.Int(keys.ffn));
  }
  model.num_kv_heads = model.num_q_heads;
  if (keys.kv_heads != nullptr) {
    HW_ASSIGN_OR_RETURN(model.num_kv_heads, config.IntOr(keys.kv_heads, model.num_q_heads));
  }
  if (model.num_q_heads < 1) {
    return Status::InvalidInput(
        fmt::format("{}: \"{}\" is {}, expected at least 1", config.origin(), keys.q_heads, model.num_q_heads));
  }
  model.head_dim = model.model_dim / model.num_q_heads;
  if (keys.head_dim != nullptr && config.Has(keys.head_dim)) {
    HW_ASSIGN_OR_RETURN(model.head_dim, config.Int(keys.head_dim));
  } else if (model.model_dim % model.num_q_heads != 0) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" {} is not a multiple of \"{}\" {}", config.origin(),
                                            keys.hidden, model.model_dim, keys.q_heads, model.num_q_heads));
  }
  if (model.head_dim > 0) model.softmax_scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  HW_ASSIGN_OR_RETURN(model.tied_embeddings, config.BoolOr("tie_word_embeddings", false));
  return ReadTokenIds(config, model);
}

Status ReadRope(const JsonObject& config, double default_theta, double rotary_share, ModelConfig& model) {
  model.positions = PositionKind::kRope;
  model.rope.rotary_dims = static_cast<int64_t>(static_cast<double>(model.head_dim) * rotary_share);
  // GPT-NeoX's old name for it.
  HW_ASSIGN_OR_RETURN(const double base, config.DoubleOr("rotary_emb_base", default_theta));
  HW_ASSIGN_OR_RETURN(model.rope.theta, config.DoubleOr("rope_theta", base));
  if (config.Has("rope_parameters")) {
    HW_ASSIGN_OR_RETURN(const JsonObject parameters, config.Object("rope_parameters"));
    HW_ASSIGN_OR_RETURN(model.rope.theta, parameters.DoubleOr("rope_theta", model.rope.theta));
    HW_RETURN_IF_ERROR(ReadScaling(parameters, model));
  } else if (config.Has("rope_scaling")) {
    HW_ASSIGN_OR_RETURN(const JsonObject scaling, config.Object("rope_scaling"));
    HW_RETURN_IF_ERROR(ReadScaling(scaling, model));
  }
  return Status::Ok();
}

Status RequireBool(const JsonObject& config, const char* key, bool value_if_absent, bool supported) {
  HW_ASSIGN_OR_RETURN(const bool value, config.BoolOr(key, value_if_absent));
  if (value == supported) return Status::Ok();
  return Status::Unsupported(fmt::format("{}: \"{}\": {} is not supported", config.origin(), key, value));
}

Result<MlpKind> ReadActivation(const JsonObject& config, const char* key, const std::string& if_absent,
                               const std::vector<std::pair<std::string, MlpKind>>& names) {
  HW_ASSIGN_OR_RETURN(const std::string found, config.StringOr(key, if_absent));
  std::string known;
  for (const auto& [name, kind] : names) {
    if (name == found) return kind;
    known += (known.empty() ? "" : ", ") + name;
  }
  return Status::Unsupported(
      fmt::format("{}: \"{}\" is \"{}\", expected one of: {}", config.origin(), key, found, known));
}

const std::vector<std::pair<std::string, MlpKind>>& GeluNames() {
  static const std::vector<std::pair<std::string, MlpKind>> kNames = {{"gelu", MlpKind::kGelu},
                                                                      {"gelu_new", MlpKind::kGeluTanh},
                                                                      {"gelu_fast", MlpKind::kGeluTanh},
                                                                      {"gelu_pytorch_tanh", MlpKind::kGeluTanh}};
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
