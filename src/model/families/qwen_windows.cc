#include "model/families/qwen_windows.h"

#include <fmt/format.h>

namespace headwise {

Status ReadQwenWindows(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const bool use_window, config.BoolOr("use_sliding_window", false));
  const bool null_window = config.Names("sliding_window") && !config.Has("sliding_window");
  std::optional<int64_t> window;
  if (use_window && !null_window) {
    HW_ASSIGN_OR_RETURN(window, ReadSize(config, "sliding_window", 4096));
  }
  HW_ASSIGN_OR_RETURN(const int64_t first, config.IntOr("max_window_layers", 28));
  if (first < 0) {
    return Status::InvalidInput(
        fmt::format("{}: \"max_window_layers\" is {}, expected 0 or more", config.origin(), first));
  }
  HW_ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(config, model.num_layers));
  if (types) return SetWindows(config, *types, window, model);
  for (int64_t i = first; window && i < model.num_layers; ++i) model.layers[static_cast<size_t>(i)].window = window;
  return Status::Ok();
}

}  // namespace headwise
