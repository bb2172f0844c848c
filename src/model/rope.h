// Rotary frequencies, with every published scaling that the families use. Angles are computed in double precision:
// a stream may run for millions of tokens, where a float angle would be off by a radian.
#ifndef HEADWISE_MODEL_ROPE_H_
#define HEADWISE_MODEL_ROPE_H_

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace headwise {

// [rotary_dims / 2], radians per token. The lengths matter for dynamic NTK only: its base is fixed at admission, so
// that one-shot prefill and token by token agree.
std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t trained_length, int64_t prompt_tokens);

// Of every rope of a model, in the order of ModelConfig::ropes: worked out once for a sequence.
using SequenceFrequencies = std::vector<std::vector<double>>;
SequenceFrequencies RopeFrequencies(const ModelConfig& config, int64_t prompt_tokens);

// Appends cos, sin pairs [rotary_dims / 2, 2] for one position.
void AppendRopeAngles(const std::vector<double>& inverse_frequencies, int64_t pos, std::vector<float>& angles);

}  // namespace headwise

#endif  // HEADWISE_MODEL_ROPE_H_
