// Any bytes as DuoAttention gates: an error, or a full table of numbers in [0, 1].
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "planner/duo_tsv.h"
#include "planner/gates.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table = headwise::ParseGateTable({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!table.ok()) return 0;
  HW_CHECK(static_cast<int64_t>(table->gates.size()) == table->num_layers * table->num_kv_heads);
  for (const double gate : table->gates) HW_CHECK(gate >= 0 && gate <= 1, "{}", gate);
  HW_CHECK(headwise::HeadsByGate(table->gates).size() == table->gates.size());
  return 0;
}
