#include "model/families/rope_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/families/config_reader.h"
#include "model/rope.h"

namespace headwise {
namespace {

constexpr const char* kOriginalLength = "original_max_position_embeddings";

Status CheckKeys(const JsonObject& parameters) {
  static constexpr std::string_view kKnown[] = {"type",
                                                "rope_type",
                                                "rope_theta",
                                                "factor",
                                                "low_freq_factor",
                                                "high_freq_factor",
                                                kOriginalLength,
                                                "beta_fast",
                                                "beta_slow",
                                                "mscale",
                                                "mscale_all_dim",
                                                "attention_factor",
                                                "truncate",
                                                "short_factor",
                                                "long_factor",
                                                "partial_rotary_factor"};
  for (const auto& [key, value] : parameters.json().items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown) && !value.is_null()) {
      return Status::Unsupported(fmt::format("{}: option \"{}\" is not supported", parameters.origin(), key));
    }
  }
  return Status::Ok();
}

Result<std::vector<float>> ReadDivisors(const JsonObject& parameters, const char* key, int64_t num_frequencies) {
  HW_ASSIGN_OR_RETURN(const std::vector<double> numbers, parameters.Doubles(key));
  if (static_cast<int64_t>(numbers.size()) != num_frequencies) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" has {} numbers, expected one for each of {} frequencies",
                                            parameters.origin(), key, numbers.size(), num_frequencies));
  }
  return std::vector<float>(numbers.begin(), numbers.end());
}

// The length that a scaling starts from: some configs have it beside the scaling, which wins as in Hugging Face.
Status ReadOriginalLength(const JsonObject& config, const JsonObject& parameters, int64_t trained_length,
                          RopeConfig& rope) {
  HW_ASSIGN_OR_RETURN(const int64_t within, ReadSize(parameters, kOriginalLength, trained_length));
  HW_ASSIGN_OR_RETURN(rope.original_max_position, ReadSize(config, kOriginalLength, within));
  return Status::Ok();
}

Status ReadLlama3(const JsonObject& parameters, RopeConfig& rope) {
  HW_ASSIGN_OR_RETURN(rope.low_freq_factor, parameters.Double("low_freq_factor"));
  HW_ASSIGN_OR_RETURN(rope.high_freq_factor, parameters.Double("high_freq_factor"));
  if (rope.low_freq_factor <= 0 || rope.high_freq_factor <= rope.low_freq_factor) {
    return Status::InvalidInput(fmt::format("{}: low_freq_factor {} and high_freq_factor {}, expected 0 < low < high",
                                            parameters.origin(), rope.low_freq_factor, rope.high_freq_factor));
  }
  return Status::Ok();
}

// Of which only the share `weight` is wanted.
double YarnAmplitude(double factor, double weight) {
  return weight * (headwise::YarnAmplitude(factor) - 1.0) + 1.0;
}

Status ReadYarn(const JsonObject& parameters, RopeConfig& rope) {
  HW_ASSIGN_OR_RETURN(rope.beta_fast, parameters.DoubleOr("beta_fast", rope.beta_fast));
  HW_ASSIGN_OR_RETURN(rope.beta_slow, parameters.DoubleOr("beta_slow", rope.beta_slow));
  HW_ASSIGN_OR_RETURN(rope.rounds_range, parameters.BoolOr("truncate", true));
  HW_ASSIGN_OR_RETURN(const double weight, parameters.DoubleOr("mscale", 0.0));
  HW_ASSIGN_OR_RETURN(const double weight_of_all, parameters.DoubleOr("mscale_all_dim", 0.0));
  const bool has_weights = weight != 0.0 && weight_of_all != 0.0;
  const double usual = has_weights ? YarnAmplitude(rope.factor, weight) / YarnAmplitude(rope.factor, weight_of_all)
                                   : YarnAmplitude(rope.factor, 1.0);
  HW_ASSIGN_OR_RETURN(rope.amplitude, parameters.DoubleOr("attention_factor", usual));
  return Status::Ok();
}

Status ReadLongRope(const JsonObject& parameters, RopeConfig& rope) {
  HW_ASSIGN_OR_RETURN(rope.freq_divisors, ReadDivisors(parameters, "short_factor", rope.rotary_dims / 2));
  HW_ASSIGN_OR_RETURN(rope.long_divisors, ReadDivisors(parameters, "long_factor", rope.rotary_dims / 2));
  const double original = std::log(static_cast<double>(rope.original_max_position));
  const double usual = rope.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(rope.factor) / original);
  HW_ASSIGN_OR_RETURN(rope.amplitude, parameters.DoubleOr("attention_factor", usual));
  return Status::Ok();
}

struct ScalingRow {
  std::string_view name;
  RopeConfig::Scaling scaling;
};
constexpr ScalingRow kScalings[] = {
    {"default", RopeConfig::Scaling::kNone},       {"linear", RopeConfig::Scaling::kLinear},
    {"dynamic", RopeConfig::Scaling::kDynamicNtk}, {"llama3", RopeConfig::Scaling::kLlama3},
    {"yarn", RopeConfig::Scaling::kYarn},          {"longrope", RopeConfig::Scaling::kLongRope},
    {"su", RopeConfig::Scaling::kLongRope},  // its first name
};

Result<RopeConfig::Scaling> ReadType(const JsonObject& parameters, const RopeKeys& keys) {
  HW_ASSIGN_OR_RETURN(const std::string old_name, parameters.StringOr("type", "default"));
  HW_ASSIGN_OR_RETURN(const std::string type, parameters.StringOr("rope_type", old_name));
  const auto* row = std::find_if(std::begin(kScalings), std::end(kScalings),
                                 [&](const ScalingRow& each) { return each.name == type; });
  if (row == std::end(kScalings)) {
    return Status::Unsupported(fmt::format(
        "{}: rope type \"{}\" is not supported, expected default, linear, dynamic, llama3, yarn or longrope",
        parameters.origin(), type));
  }
  const bool renames = keys.yarn_is_longrope && row->scaling == RopeConfig::Scaling::kYarn;
  return renames ? RopeConfig::Scaling::kLongRope : row->scaling;
}

// Requires: rotary_dims and theta are read.
Status ReadScaling(const JsonObject& config, const JsonObject& parameters, const RopeKeys& keys, int64_t trained_length,
                   RopeConfig& rope) {
  HW_ASSIGN_OR_RETURN(rope.scaling, ReadType(parameters, keys));
  using Scaling = RopeConfig::Scaling;
  if (rope.scaling == Scaling::kNone) return Status::Ok();
  const bool is_stretched = rope.scaling == Scaling::kYarn || rope.scaling == Scaling::kLongRope;
  if (is_stretched || rope.scaling == Scaling::kLlama3) {
    HW_RETURN_IF_ERROR(ReadOriginalLength(config, parameters, trained_length, rope));
  }
  if (is_stretched && !parameters.Has("factor")) {
    rope.factor = static_cast<double>(trained_length) / static_cast<double>(rope.original_max_position);
  } else {
    HW_ASSIGN_OR_RETURN(rope.factor, parameters.Double("factor"));
  }
  if (rope.factor < 1.0) {
    return Status::InvalidInput(
        fmt::format("{}: \"factor\" is {}, expected at least 1", parameters.origin(), rope.factor));
  }
  if (rope.scaling == Scaling::kLlama3) return ReadLlama3(parameters, rope);
  if (rope.scaling == Scaling::kYarn) return ReadYarn(parameters, rope);
  if (rope.scaling == Scaling::kLongRope) return ReadLongRope(parameters, rope);
  return Status::Ok();
}

}  // namespace

Result<RopeConfig> RopeOf(const JsonObject& config, const JsonObject* parameters, const RopeKeys& keys,
                          const ModelConfig& model) {
  RopeConfig rope;
  const char* share_key = keys.share != nullptr ? keys.share : "partial_rotary_factor";
  HW_ASSIGN_OR_RETURN(double share, config.DoubleOr(share_key, keys.default_share));
  HW_ASSIGN_OR_RETURN(const double theta, config.DoubleOr("rope_theta", keys.default_theta));
  HW_ASSIGN_OR_RETURN(rope.theta, config.DoubleOr(keys.theta, theta));
  if (parameters != nullptr) {
    HW_RETURN_IF_ERROR(CheckKeys(*parameters));
    HW_ASSIGN_OR_RETURN(rope.theta, parameters->DoubleOr("rope_theta", rope.theta));
    HW_ASSIGN_OR_RETURN(share, parameters->DoubleOr("partial_rotary_factor", share));
  }
  if (!(share > 0.0 && share <= 1.0)) {
    return Status::InvalidInput(
        fmt::format("{}: {} of each head is rotated, expected a share above 0 and up to 1", config.origin(), share));
  }
  if (keys.share == nullptr && share != 1.0) {
    return Status::Unsupported(
        fmt::format("{}: \"{}\": {} is not supported in this family, expected 1", config.origin(), share_key, share));
  }
  rope.rotary_dims = static_cast<int64_t>(static_cast<double>(model.head_dim) * share);
  if (parameters != nullptr) HW_RETURN_IF_ERROR(ReadScaling(config, *parameters, keys, model.trained_length, rope));
  return rope;
}

Status ReadRope(const JsonObject& config, const RopeKeys& keys, ModelConfig& model) {
  model.positions = PositionKind::kRope;
  // The old name wins where a config has both, and an empty object is none, as in Hugging Face.
  const auto holds = [&](const char* key) { return config.Has(key) && !config.At(key).empty(); };
  const char* where = holds("rope_scaling") ? "rope_scaling" : "rope_parameters";
  std::optional<JsonObject> parameters;
  if (holds(where)) {
    HW_ASSIGN_OR_RETURN(JsonObject found, config.Object(where));
    parameters.emplace(std::move(found));
  }
  HW_ASSIGN_OR_RETURN(RopeConfig rope, RopeOf(config, parameters ? &*parameters : nullptr, keys, model));
  model.ropes = {std::move(rope)};
  for (LayerConfig& layer : model.layers) layer.rope = 0;
  return Status::Ok();
}

}  // namespace headwise
