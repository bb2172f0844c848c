// What planners that run no model are given in their tests.
#ifndef HEADWISE_TESTS_SUPPORT_PLANNER_INPUT_H_
#define HEADWISE_TESTS_SUPPORT_PLANNER_INPUT_H_

#include <map>
#include <string>
#include <utility>

#include "planner/planner.h"

namespace headwise {

inline ModelShape PlannerShape() {
  return {.architecture = "llama", .num_layers = 8, .num_q_heads = 8, .num_kv_heads = 4, .head_dim = 64};
}

// For a model of this shape.
inline PlannerInput Input(std::map<std::string, std::string> options) {
  PlannerInput input;
  input.shape = PlannerShape();
  input.options = NamedOptions(std::move(options));
  return input;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_PLANNER_INPUT_H_
