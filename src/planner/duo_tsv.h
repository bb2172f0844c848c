// DuoAttention's published form of a plan: a folder with full_attention_heads.tsv, L rows of Hkv gates.
#ifndef HEADWISE_PLANNER_DUO_TSV_H_
#define HEADWISE_PLANNER_DUO_TSV_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwise {

// Gates clipped to [0, 1]. Ragged, empty or not a finite number: an error with line and column.
struct GateTable {
  int64_t num_layers = 0;
  int64_t num_kv_heads = 0;
  std::vector<double> gates;  // [L * Hkv]
};
Result<GateTable> ParseGateTable(std::string_view text, const std::string& origin);

// The gates of a plan, or 1 for full heads and 0 for the others where it carries none.
Result<std::string> FormatDuoTsv(const HeadPlan& plan);

}  // namespace headwise

#endif  // HEADWISE_PLANNER_DUO_TSV_H_
