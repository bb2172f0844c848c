// Any bytes as a plan file: an error, or a plan that is valid and survives being written and read again.
#include <headwise/head_plan.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto plan = headwise::ParseHeadPlan({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!plan.ok()) return 0;
  HW_CHECK(headwise::ValidatePlan(*plan, "fuzz").ok());
  const std::string written = headwise::SerializeHeadPlan(*plan);
  const auto again = headwise::ParseHeadPlan(written, "fuzz");
  HW_CHECK(again.ok(), "{}", again.status().message());
  HW_CHECK(again->rules == plan->rules && again->shape == plan->shape && again->scores == plan->scores);
  return 0;
}
