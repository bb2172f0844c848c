#include "planner/moa_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "planner/methods.h"

namespace headwise {
namespace {

// Imported plans keep MoA's first block as the sink [moa §3.2].
constexpr int64_t kMoaSink = 64;

// A table [L][Hq] of finite numbers.
Result<std::vector<double>> ReadTable(const JsonObject& root, const char* key, const ModelShape& shape) {
  const auto wrong = [&](const std::string& what) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" {}, expected {} layers of {} query heads", root.origin(), key,
                                            what, shape.num_layers, shape.num_q_heads));
  };
  if (!root.Has(key)) return wrong("is missing");
  const Json& table = root.At(key);
  if (!table.is_array() || static_cast<int64_t>(table.size()) != shape.num_layers) {
    return wrong(table.is_array() ? fmt::format("has {} layers", table.size()) : "is not a list");
  }
  std::vector<double> values;
  for (size_t layer_idx = 0; layer_idx < table.size(); ++layer_idx) {
    const Json& row = table[layer_idx];
    if (!row.is_array() || static_cast<int64_t>(row.size()) != shape.num_q_heads) {
      return wrong(fmt::format("has {} heads in layer {}", row.is_array() ? row.size() : 0, layer_idx));
    }
    for (const Json& value : row) {
      if (!value.is_number() || !std::isfinite(value.get<double>()) || std::abs(value.get<double>()) > 1e15) {
        return wrong(fmt::format("has a value in layer {} that is not a finite number", layer_idx));
      }
      values.push_back(value.get<double>());
    }
  }
  return values;
}

Result<HeadPlan> MakeImportMoa(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const std::string path, input.options.Required("from"));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseMoaPlan(text, input.shape, path);
}

}  // namespace

// With the largest beta b, a member (a_i, b_i) is furthest above b * N where its own span stops being the whole text,
// or where it first exceeds the least span, whichever is later: before, text or least span bound both; after, b grows
// faster.
HeadRule WidestRule(std::span<const double> alphas, std::span<const double> betas) {
  constexpr double kLeastSpan = kMoaSink + 64;
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = kMoaSink;
  rule.alpha = *std::ranges::max_element(alphas);
  rule.beta = *std::ranges::max_element(betas);
  for (size_t i = 0; i < alphas.size(); ++i) {
    if (alphas[i] == rule.alpha && betas[i] == rule.beta) return rule;  // the widest at every length
    if (betas[i] < 0 || betas[i] > 1) return rule;                      // not a share of the text: wide enough will do
  }
  double needed = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < alphas.size(); ++i) {
    if (betas[i] == 1) {
      needed = std::max(needed, std::min(alphas[i], 0.0));  // as wide as the text, or narrower by a constant
      continue;
    }
    double at = alphas[i] / (1 - betas[i]);  // the longest text that is visible as a whole
    if (at < kLeastSpan) {
      if (betas[i] == 0) continue;  // never more than the least span
      at = (kLeastSpan - alphas[i]) / betas[i];
    }
    needed = std::max(needed, alphas[i] + (betas[i] - rule.beta) * at);
  }
  if (std::isfinite(needed)) rule.alpha = std::min(rule.alpha, std::ceil(needed));
  return rule;
}

Result<HeadPlan> ParseMoaPlan(std::string_view text, const ModelShape& shape, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json json, ParseJsonUniqueKeys(text, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(json, origin));
  HW_ASSIGN_OR_RETURN(const std::vector<double> alphas, ReadTable(root, "alphas", shape));
  HW_ASSIGN_OR_RETURN(const std::vector<double> betas, ReadTable(root, "betas", shape));
  HeadPlan plan = HeadPlan::Dense(shape);
  const int64_t group = shape.num_q_heads / shape.num_kv_heads;
  int64_t num_widened = 0;
  for (int64_t head = 0; head < shape.num_layers * shape.num_kv_heads; ++head) {
    const auto begin = static_cast<size_t>(head * group);
    const HeadRule rule = WidestRule(std::span(alphas).subspan(begin, static_cast<size_t>(group)),
                                     std::span(betas).subspan(begin, static_cast<size_t>(group)));
    bool is_one_of_them = false;
    for (size_t i = begin; i < begin + static_cast<size_t>(group); ++i) {
      is_one_of_them |= alphas[i] == rule.alpha && betas[i] == rule.beta;
    }
    if (!is_one_of_them) ++num_widened;
    plan.rules[static_cast<size_t>(head)] = rule;
  }
  if (group > 1) {
    plan.notes.push_back(
        fmt::format("spans are per query head in the source; each KV head takes the widest of its {}", group));
  }
  if (num_widened > 0) {
    plan.notes.push_back(
        fmt::format("{} KV heads take the largest beta of their query heads with the smallest alpha that covers them "
                    "all: no single "
                    "one is widest at every length",
                    num_widened));
  }
  // Numbers that are fine by themselves can make a rule that is not: the widest of a group is computed.
  HW_RETURN_IF_ERROR(ValidatePlan(plan, origin));
  return plan;
}

const PlannerMethod kImportMoaMethod = {
    .name = "import-moa",
    .description = "from a MoA JSON file of alphas and betas (--from)",
    .options = {"from"},
    .make = MakeImportMoa,
};

}  // namespace headwise
