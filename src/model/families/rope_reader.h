// Rotary embeddings of a config.json: the old keys (rope_theta, rope_scaling) or rope_parameters, in which the same
// stand under one roof. A scaling or an option that the engine does not know changes the angles and is refused by name.
#ifndef HEADWISE_MODEL_FAMILIES_ROPE_READER_H_
#define HEADWISE_MODEL_FAMILIES_ROPE_READER_H_

#include "base/json.h"
#include "model/model_config.h"

namespace headwise {

struct RopeKeys {
  const char* theta = "rope_theta";
  double default_theta = 10000.0;
  // Names the share of head_dim that is rotated; null: all of it, and a config that says otherwise is refused.
  const char* share = nullptr;
  double default_share = 1.0;
  // Phi 3 once called LongRoPE so.
  bool yarn_is_longrope = false;
};

// One rope, of all layers. Requires: ReadShape.
Status ReadRope(const JsonObject& config, const RopeKeys& keys, ModelConfig& model);

// One rope by `parameters`, what rope_scaling or an entry of rope_parameters holds; null: none. Requires: ReadShape.
Result<RopeConfig> RopeOf(const JsonObject& config, const JsonObject* parameters, const RopeKeys& keys,
                          const ModelConfig& model);

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_ROPE_READER_H_
