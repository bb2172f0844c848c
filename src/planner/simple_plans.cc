// Plans that look at no model: the baselines and hand-made ones.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "kv/rule_json.h"
#include "planner/budget.h"
#include "planner/gates.h"
#include "planner/methods.h"

namespace headwise {
namespace {

// StreamingLLM's sizes for long streams: 4 sinks are enough, the rest is window [streaming-llm §4.4 table 2].
constexpr int64_t kStreamingSink = 4;
constexpr int64_t kStreamingRecent = 2044;

HeadPlan PlanOf(const ModelShape& shape, const HeadRule& rule) {
  HeadPlan plan = HeadPlan::Dense(shape);
  for (HeadRule& each : plan.rules) each = rule;
  return plan;
}

std::vector<size_t> EveryHead(const HeadPlan& plan) {
  std::vector<size_t> heads(plan.rules.size());
  std::iota(heads.begin(), heads.end(), size_t{0});
  return heads;
}

Status BothGiven(const char* option) {
  return Status::InvalidInput(fmt::format("found --{} and a KV budget, which solves for it; expected one", option));
}

// Positions in the cache by default: a stream may outrun the trained length.
Result<HeadPlan> MakeStreaming(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(HeadRule rule, StreamRuleFromOptions(input.options, kStreamingSink, kStreamingRecent));
  if (!input.options.Has("positions") && !rule.compensate) rule.positions = Positions::kCache;
  HeadPlan plan = PlanOf(input.shape, rule);
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (!budget) return plan;
  if (input.options.Has("recent")) return BothGiven("recent");
  HW_RETURN_IF_ERROR(FitWindows(
      plan, EveryHead(plan),
      [&](int64_t recent) {
        HeadRule widened = rule;
        widened.recent = recent;
        return widened;
      },
      *budget));
  plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

// The same share of the text for every head: MoA's uniform baseline [moa §5].
Result<HeadPlan> MakeUniform(const PlannerInput& input) {
  constexpr double kMax = 1e15;
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  HW_ASSIGN_OR_RETURN(rule.sink, input.options.IntOr("sink", 64, 0, int64_t{1} << 40));
  HW_ASSIGN_OR_RETURN(rule.alpha, input.options.DoubleOr("alpha", 0.0, -kMax, kMax));
  HW_ASSIGN_OR_RETURN(rule.beta, input.options.DoubleOr("beta", 0.5, 0.0, 1.0));
  HeadPlan plan = PlanOf(input.shape, rule);
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (!budget) return plan;
  if (input.options.Has("beta")) return BothGiven("beta");
  HW_RETURN_IF_ERROR(FitWindows(
      plan, EveryHead(plan),
      [&](int64_t recent) {
        HeadRule elastic = rule;
        // The half keeps the product from rounding below the span.
        elastic.beta = std::max(
            0.0, (static_cast<double>(rule.sink + recent) + 0.5 - rule.alpha) / static_cast<double>(budget->at_tokens));
        return elastic;
      },
      *budget));
  plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

// A share of the heads full, drawn by seed: the baseline that tells whether choosing heads matters.
Result<HeadPlan> MakeRandom(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(input.options, kDuoSink, kDuoRecent));
  HW_ASSIGN_OR_RETURN(const double sparsity, input.options.DoubleOr("sparsity", 0.5, 0.0, 1.0));
  HW_ASSIGN_OR_RETURN(const int64_t seed, input.options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  HeadPlan plan = HeadPlan::Dense(input.shape);
  plan.seed = static_cast<uint64_t>(seed);
  std::vector<size_t> order = EveryHead(plan);
  Rng rng(static_cast<uint64_t>(seed));
  for (size_t i = 0; i < order.size(); ++i) std::swap(order[i], order[i + rng.Below(order.size() - i)]);
  if (budget) {
    if (input.options.Has("sparsity")) return BothGiven("sparsity");
    std::vector<std::vector<size_t>> groups;
    for (auto it = order.rbegin(); it != order.rend(); ++it) groups.push_back({*it});
    HW_RETURN_IF_ERROR(FitFullGroups(plan, groups, rule, *budget).status());
    plan.notes.push_back(DescribeBudget(plan, *budget));
    return plan;
  }
  const auto num_streaming = static_cast<size_t>(std::llround(sparsity * static_cast<double>(order.size())));
  for (size_t i = 0; i < num_streaming; ++i) plan.rules[order[i]] = rule;
  return plan;
}

// Plans that look at no model are just made again.
template <Result<HeadPlan> (*kMake)(const PlannerInput&)>
Result<HeadPlan> MakeAgain(const PlannerInput& input, const HeadPlan&) {
  return kMake(input);
}

// A table [layer][KV head] of rules in a JSON file; or an object that has one as "plan" or "layers".
Result<HeadPlan> MakeManual(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const std::string path, input.options.Required("rules"));
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  HW_ASSIGN_OR_RETURN(const Json root, ParseJsonUniqueKeys(text, path));
  const Json* table = &root;
  for (const char* key : {"plan", "layers"}) {
    if (root.is_object() && root.contains(key)) table = &root.at(key);
  }
  HeadPlan plan;
  HW_ASSIGN_OR_RETURN(plan.rules, ParseRuleTable(*table, input.shape, path));
  if (root.is_object() && root.contains("tokens")) {
    HW_ASSIGN_OR_RETURN(plan.tokens, ParseTokenLists(root.at("tokens"), path + ": \"tokens\""));
  }
  return plan;
}

}  // namespace

const PlannerMethod kStreamingMethod = {
    .name = "streaming",
    .description = "every head keeps sinks and a window [streaming-llm]",
    .options = {"sink", "recent", "positions", "from", "compensate", "kv-ratio", "at", "kv-bytes-at"},
    .make = MakeStreaming,
    .refit = {.make = MakeAgain<MakeStreaming>, .replaced = {"recent"}},
};
const PlannerMethod kUniformMethod = {
    .name = "uniform",
    .description = "every head keeps the same span alpha + beta * context [moa's baseline]",
    .options = {"sink", "alpha", "beta", "kv-ratio", "at", "kv-bytes-at"},
    .make = MakeUniform,
    .refit = {.make = MakeAgain<MakeUniform>, .replaced = {"beta"}},
};
const PlannerMethod kRandomMethod = {
    .name = "random",
    .description = "a share of the heads, drawn by seed, is full; the others keep sinks and a window",
    .options = {"sparsity", "seed", "sink", "recent", "positions", "from", "compensate", "kv-ratio", "at",
                "kv-bytes-at"},
    .make = MakeRandom,
    .refit = {.make = MakeAgain<MakeRandom>, .replaced = {"sparsity"}},
};
const PlannerMethod kManualMethod = {
    .name = "manual",
    .description = "rules per layer and KV head from a JSON file (--rules)",
    .options = {"rules"},
    .make = MakeManual,
};

}  // namespace headwise
