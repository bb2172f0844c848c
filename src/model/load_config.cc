#include "model/load_config.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/file.h"
#include "model/families/family.h"

namespace headwise {

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json root, ParseJson(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(root, origin));
  HW_ASSIGN_OR_RETURN(const std::string model_type, object.String("model_type"));
  HW_ASSIGN_OR_RETURN(const ModelFamily* family, FindFamily(model_type, origin));
  HW_ASSIGN_OR_RETURN(ModelConfig config, family->read_config(object));
  config.family = family->name;
  HW_RETURN_IF_ERROR(ValidateConfig(config, origin));
  return config;
}

Result<ModelConfig> ReadModelConfig(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseModelConfig(text, path);
}

Status ValidateConfig(const ModelConfig& config, const std::string& origin) {
  struct Dimension {
    const char* name;
    int64_t value;
    int64_t limit;
  };
  // Products of any two limits that meet in one tensor stay below 2^63.
  for (const Dimension& dim : {Dimension{"layers", config.num_layers, 4096},
                               {"model dim", config.model_dim, 1 << 20},
                               {"ffn dim", config.ffn_dim, 1 << 22},
                               {"query heads", config.num_q_heads, 4096},
                               {"KV heads", config.num_kv_heads, 4096},
                               {"head dim", config.head_dim, 1024},
                               {"vocabulary", config.vocab_size, 1 << 24},
                               {"trained length", config.trained_length, int64_t{1} << 31}}) {
    if (dim.value < 1 || dim.value > dim.limit) {
      return Status::InvalidInput(
          fmt::format("{}: {} is {}, expected 1 to {}", origin, dim.name, dim.value, dim.limit));
    }
  }
  if (config.num_q_heads % config.num_kv_heads != 0) {
    return Status::InvalidInput(fmt::format("{}: {} query heads are not a multiple of {} KV heads", origin,
                                            config.num_q_heads, config.num_kv_heads));
  }
  if (config.positions == PositionKind::kRope) {
    if (config.rope.rotary_dims < 2 || config.rope.rotary_dims % 2 != 0 || config.rope.rotary_dims > config.head_dim) {
      return Status::InvalidInput(fmt::format("{}: {} rotary dimensions of a head dim of {}, expected an even number",
                                              origin, config.rope.rotary_dims, config.head_dim));
    }
    if (!(config.rope.theta > 1.0)) {
      return Status::InvalidInput(fmt::format("{}: rope theta is {}, expected more than 1", origin, config.rope.theta));
    }
  }
  if (config.sliding_window && *config.sliding_window < 1) {
    return Status::InvalidInput(
        fmt::format("{}: sliding window is {}, expected at least 1", origin, *config.sliding_window));
  }
  if (!(config.norm_eps >= 0) || !(config.softmax_scale > 0)) {
    return Status::InvalidInput(fmt::format("{}: norm epsilon {} or softmax scale {} is out of range", origin,
                                            config.norm_eps, config.softmax_scale));
  }
  for (const int32_t id : config.eos_ids) {
    if (id < -1 || id >= config.vocab_size) {
      return Status::InvalidInput(fmt::format("{}: eos id {} of a vocabulary of {}", origin, id, config.vocab_size));
    }
  }
  if (config.bos_id && (*config.bos_id < 0 || *config.bos_id >= config.vocab_size)) {
    return Status::InvalidInput(
        fmt::format("{}: bos id {} of a vocabulary of {}", origin, *config.bos_id, config.vocab_size));
  }
  return Status::Ok();
}

}  // namespace headwise
