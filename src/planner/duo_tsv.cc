#include "planner/duo_tsv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "planner/gates.h"
#include "planner/methods.h"

namespace headwise {
namespace {

Result<double> ParseGate(std::string_view field, const std::string& origin, int64_t line, int64_t column) {
  while (!field.empty() && (field.front() == ' ')) field.remove_prefix(1);
  while (!field.empty() && (field.back() == ' ' || field.back() == '\r')) field.remove_suffix(1);
  // Python writes neither, but reads both: a plus, and numbers too small for a double, which are 0.
  std::string_view number = field;
  if (number.starts_with('+') && !number.starts_with("+-")) number.remove_prefix(1);
  double gate = 0;
  auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), gate);
  if (error == std::errc::result_out_of_range) {
    gate = std::strtod(std::string(number).c_str(), nullptr);  // 0, or infinite
    error = std::errc();
  }
  if (number.empty() || error != std::errc() || end != number.data() + number.size() || !std::isfinite(gate)) {
    return Status::InvalidInput(
        fmt::format("{}: line {}, column {}: found \"{}\", expected a finite number", origin, line, column, field));
  }
  return std::clamp(gate, 0.0, 1.0);
}

Result<HeadPlan> MakeImportDuo(const PlannerInput& input) {
  const NamedOptions& options = input.options;
  HW_ASSIGN_OR_RETURN(const std::string folder, options.Required("from"));
  const std::string path = (std::filesystem::path(folder) / "full_attention_heads.tsv").string();
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  HW_ASSIGN_OR_RETURN(const GateTable table, ParseGateTable(text, path));
  if (table.num_layers != input.shape.num_layers || table.num_kv_heads != input.shape.num_kv_heads) {
    return Status::InvalidInput(fmt::format("{}: has {} layers of {} KV heads, the model has {} of {}", path,
                                            table.num_layers, table.num_kv_heads, input.shape.num_layers,
                                            input.shape.num_kv_heads));
  }
  if (!options.Has("sparsity") && !options.Has("threshold") && !options.Has("kv-ratio") &&
      !options.Has("kv-bytes-at")) {
    return Status::InvalidInput("plan import-duo: expected --sparsity, --threshold, or a KV budget");
  }
  // An import's "from" is its folder, not where the rule begins.
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(options.Without("from"), /*default_sink=*/64,
                                                                 /*default_recent=*/256));
  return PlanFromGates(input, table.gates, rule, /*default_sparsity=*/0.5);
}

Result<HeadPlan> RefitImport(const PlannerInput& input, const HeadPlan& earlier) {
  PlannerInput stream = input;
  stream.options = input.options.Without("from");
  return RefitGates(stream, earlier);
}

}  // namespace

Result<GateTable> ParseGateTable(std::string_view text, const std::string& origin) {
  GateTable table;
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++line_number;
    if (line.empty() || line == "\r") continue;
    int64_t columns = 0;
    for (bool more = true; more;) {
      const size_t tab = line.find('\t');
      more = tab != std::string_view::npos;
      HW_ASSIGN_OR_RETURN(const double gate, ParseGate(line.substr(0, tab), origin, line_number, ++columns));
      table.gates.push_back(gate);
      if (more) line.remove_prefix(tab + 1);
    }
    if (table.num_layers > 0 && columns != table.num_kv_heads) {
      return Status::InvalidInput(fmt::format("{}: line {} has {} columns, the lines above have {}", origin,
                                              line_number, columns, table.num_kv_heads));
    }
    table.num_kv_heads = columns;
    ++table.num_layers;
  }
  if (table.gates.empty()) return Status::InvalidInput(fmt::format("{}: has no gates", origin));
  return table;
}

Result<std::string> FormatDuoTsv(const HeadPlan& plan) {
  for (const double score : plan.scores) {
    if (score >= 0 && score <= 1) continue;
    return Status::InvalidInput(fmt::format("plan: its scores are no gates: found {}, expected 0 to 1", score));
  }
  std::string text;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const auto idx = static_cast<size_t>(layer_idx * plan.shape.num_kv_heads + kv_head);
      const double gate = !plan.scores.empty()                            ? plan.scores[idx]
                          : plan.rules[idx].kind == HeadRule::Kind::kFull ? 1.0
                                                                          : 0.0;
      text += fmt::format("{}{:.17g}", kv_head == 0 ? "" : "\t", gate);
    }
    text += '\n';
  }
  return text;
}

const PlannerMethod kImportDuoMethod = {
    .name = "import-duo",
    .description = "from a DuoAttention folder (--from) at a --sparsity or --threshold",
    .options = {"from", "sparsity", "threshold", "kv-ratio", "at", "kv-bytes-at", "sink", "recent", "positions",
                "compensate"},
    .make = MakeImportDuo,
    .refit = {.make = RefitImport, .replaced = {"sparsity", "threshold"}},
};

}  // namespace headwise
