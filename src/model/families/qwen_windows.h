// Which layers of the Qwen families have a sliding window.
#ifndef HEADWISE_MODEL_FAMILIES_QWEN_WINDOWS_H_
#define HEADWISE_MODEL_FAMILIES_QWEN_WINDOWS_H_

#include "model/families/config_reader.h"

namespace headwise {

// Where "use_sliding_window" is true, the layers from max_window_layers on, or those that layer_types names.
Status ReadQwenWindows(const JsonObject& config, ModelConfig& model);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_QWEN_WINDOWS_H_
