// All weights of a model, and nothing left over: a tensor that nobody reads is a part of the model that we would not
// compute.
#ifndef HEADWISE_MODEL_READ_WEIGHTS_H_
#define HEADWISE_MODEL_READ_WEIGHTS_H_

#include <headwise/status.h>

#include <set>
#include <string>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "weights/weight_source.h"

namespace headwise {

struct ReadTensors {
  ModelWeights weights;
  std::set<std::string> names;  // what of the source they were made of
};

// What the model's family reads of `source`. An error for a tensor that it does not read: layers beyond the config's
// number, biases that the config denies, parts of another architecture. Buffers that are made anew from the config
// (rotary frequencies, causal masks) may be there, and a copy of the embedding where the output matrix is tied to it.
Result<ReadTensors> ReadModelWeights(const ModelConfig& config, const WeightSource& source);

}  // namespace headwise

#endif  // HEADWISE_MODEL_READ_WEIGHTS_H_
