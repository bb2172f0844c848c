// Rotary frequencies, with every published scaling that the families use. Angles are computed in double precision:
// a stream may run for millions of tokens, where a float angle would be off by a radian.
#ifndef HEADWISE_MODEL_ROPE_H_
#define HEADWISE_MODEL_ROPE_H_

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace headwise {

// In tokens. They matter for dynamic NTK and LongRoPE only, which are settled at admission, so that one-shot prefill
// and token by token agree.
struct RopeLengths {
  int64_t trained = 0;
  int64_t prompt = 0;
  int64_t most = 0;  // that the sequence may come to have
};
// What a context stretched by `factor` multiplies cosines and sines by, where nothing else is said [YaRN, arXiv
// 2309.00071 §3.4 eq.22].
double YarnAmplitude(double factor);

// [rotary_dims / 2], radians per token.
std::vector<double> RopeFrequencies(const RopeConfig& rope, const RopeLengths& lengths);

// Of every rope of a model, in the order of ModelConfig::ropes: worked out once for a sequence.
using SequenceFrequencies = std::vector<std::vector<double>>;
SequenceFrequencies RopeFrequencies(const ModelConfig& config, int64_t prompt_tokens, int64_t max_tokens);

// Appends cos, sin pairs [rotary_dims / 2, 2] for one position, times `amplitude`.
void AppendRopeAngles(const std::vector<double>& inverse_frequencies, double amplitude, int64_t pos,
                      std::vector<float>& angles);

}  // namespace headwise

#endif  // HEADWISE_MODEL_ROPE_H_
