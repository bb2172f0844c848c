// Any bytes as a MoA plan for a model of 2 layers, 4 query heads and 2 KV heads: an error, or a valid plan.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "planner/moa_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const headwise::ModelShape shape{
      .architecture = "llama", .num_layers = 2, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  const auto plan = headwise::ParseMoaPlan({reinterpret_cast<const char*>(data), size}, shape, "fuzz");
  if (plan.ok()) {
    const headwise::Status status = headwise::ValidatePlan(*plan, "fuzz");
    HW_CHECK(status.ok(), "{}", status.message());
  }
  return 0;
}
