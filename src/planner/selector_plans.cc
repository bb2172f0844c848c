// Plans whose heads choose by score which tokens they keep: every head with the same budget, budgets that fall from
// layer to layer, or the bounded heads of another plan, which then choose in place of a window of the same bytes. No
// model is looked at: the scores are those of the text that is read.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "kv/token_marks.h"
#include "planner/base_plan.h"
#include "planner/budget.h"
#include "planner/methods.h"

namespace headwise {
namespace {

using Kind = TokenSelector::Kind;

constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr int64_t kDefaultBudget = 1024;      // tokens
constexpr int64_t kExpectedSink = 4;          // tokens that the authors' code of expected attention leaves alone
constexpr double kDefaultSteepness = 20;      // as PyramidKV is published with
constexpr double kRounding = 1e-9;            // of budgets along a line
constexpr int64_t kDefaultCompared = 32'768;  // tokens at which a head of another plan is given the bytes it had

Result<bool> SecondIsChosen(const NamedOptions& options, const char* name, const char* first, const char* second) {
  const std::string value = options.StringOr(name, first);
  if (value == first || value == second) return value == second;
  return Status::InvalidInput(fmt::format("--{}: found \"{}\", expected {} or {}", name, value, first, second));
}

// From the first token on where nothing else is asked for: the budget then holds while a prompt is read too.
Result<HeadRule> RuleFromOptions(const NamedOptions& options, Kind kind) {
  HeadRule rule = HeadRule::Stream(kind == Kind::kExpected ? kExpectedSink : 0, kDefaultBudget);
  rule.select.kind = kind;
  HW_ASSIGN_OR_RETURN(rule.recent, options.IntOr("budget", kDefaultBudget, 1, kMaxTokens));
  TokenSelector& select = rule.select;
  if (select.CutsOnce()) {
    rule.start = RuleStart::kEndOfPrompt;
    const int64_t least = kind == Kind::kExpected ? 0 : 1;
    HW_ASSIGN_OR_RETURN(select.window, options.IntOr("window", select.window, least, kMaxTokens));
  }
  if (select.PoolsSums()) {
    HW_ASSIGN_OR_RETURN(select.kernel, options.IntOr("kernel", select.kernel, 1, 1023));
    HW_ASSIGN_OR_RETURN(const bool is_mean, SecondIsChosen(options, "pooling", "max", "mean"));
    if (is_mean) select.pooling = TokenSelector::Pooling::kMean;
    if (kind == Kind::kAdaKv) {
      HW_ASSIGN_OR_RETURN(select.floor, options.DoubleOr("floor", select.floor, 0.0, 1.0));
    }
  }
  if (kind == Kind::kExpected) {
    HW_ASSIGN_OR_RETURN(select.epsilon, options.DoubleOr("epsilon", select.epsilon, 0.0, 1e6));
  }
  if (!select.CutsOnce()) {
    HW_ASSIGN_OR_RETURN(const bool from_end, SecondIsChosen(options, "from", "first_token", "end_of_prompt"));
    if (from_end) rule.start = RuleStart::kEndOfPrompt;
  }
  if (kind == Kind::kH2o) {
    HW_ASSIGN_OR_RETURN(select.recent_share, options.DoubleOr("recent-share", select.recent_share, 0.0, 1.0));
  }
  HW_RETURN_IF_ERROR(ValidateRule(rule));
  return rule;
}

// What stands in for `bounded`: of a window with a size the largest budget that takes no more bytes at `at_tokens`; of
// a span that grows with the text the same tokens.
HeadRule InPlaceOf(const HeadRule& bounded, const HeadRule& selecting, const ModelShape& shape, int64_t at_tokens) {
  HeadRule rule = selecting;
  rule.kind = bounded.kind;
  rule.sink = bounded.sink;
  rule.recent = bounded.recent;
  rule.alpha = bounded.alpha;
  rule.beta = bounded.beta;
  rule.min_recent = bounded.min_recent;
  rule.divisor = bounded.divisor;
  // What a window left behind was in a mean: so is what the policy drops, where it may.
  rule.compensate = bounded.compensate && selecting.select.kind != Kind::kAdaKv;
  if (bounded.kind != HeadRule::Kind::kStream) return rule;
  const int64_t bytes = RuleBytesAt(bounded, shape, at_tokens, kNoLimit);
  int64_t fits = 1;
  int64_t too_many = bounded.recent + kPlanBytesPageTokens + 1;
  while (too_many - fits > 1) {
    rule.recent = fits + (too_many - fits) / 2;
    (RuleBytesAt(rule, shape, at_tokens, kNoLimit) <= bytes ? fits : too_many) = rule.recent;
  }
  rule.recent = fits;
  return rule;
}

// Heads that choose by score and have a budget of a fixed size, those together that share theirs: a layer's.
std::vector<std::vector<size_t>> GroupsOfOneBudget(const HeadPlan& plan) {
  std::vector<std::vector<size_t>> groups;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    std::vector<size_t> sharing;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const HeadRule& rule = plan.At(layer_idx, kv_head);
      if (!rule.SelectsByScore() || rule.kind != HeadRule::Kind::kStream) continue;
      const auto head = static_cast<size_t>(layer_idx * plan.shape.num_kv_heads + kv_head);
      if (rule.select.kind == Kind::kAdaKv) {
        sharing.push_back(head);
      } else {
        groups.push_back({head});
      }
    }
    if (!sharing.empty()) groups.push_back(std::move(sharing));
  }
  return groups;
}

// Where one of heads that share fits a page more than another, that page stays free.
void LevelSharing(HeadPlan& plan) {
  for (const std::vector<size_t>& group : GroupsOfOneBudget(plan)) {
    int64_t least = kMaxTokens;
    for (const size_t head : group) least = std::min(least, plan.rules[head].recent);
    for (const size_t head : group) plan.rules[head].recent = least;
  }
}

// The bounded heads of `plan`, whose file is `path`, select in place of their windows.
Result<HeadPlan> SelectInPlace(HeadPlan plan, const PlannerInput& input, const HeadRule& selecting, int64_t at_tokens,
                               const std::string& path) {
  const std::string base_method = plan.method;
  HW_RETURN_IF_ERROR(NoteBase(plan));
  int64_t num_selecting = 0;
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    HeadRule& rule = plan.rules[i];
    const auto layer_idx = static_cast<int64_t>(i) / plan.shape.num_kv_heads;
    if (rule.kind == HeadRule::Kind::kFull || input.windows.At(layer_idx) != kNoLimit) continue;
    rule = InPlaceOf(rule, selecting, plan.shape, at_tokens);
    ++num_selecting;
  }
  LevelSharing(plan);
  if (!AskForMarks(plan.rules)) plan.tokens = {};
  plan.notes.push_back(
      fmt::format("{} of {} KV heads of {} ({}) select by score in place of a window, with no more bytes",
                  num_selecting, plan.rules.size(), path, base_method));
  return plan;
}

// With a KV budget the base is made anew for it. `earlier`: a plan made so before; null: the base is read.
Result<HeadPlan> FromBase(const PlannerInput& input, const HeadRule& selecting, const HeadPlan* earlier) {
  const NamedOptions& options = input.options;
  if (options.Has("budget")) {
    return Status::InvalidInput("found --budget and --base, whose heads say how much is kept; expected one of the two");
  }
  HW_ASSIGN_OR_RETURN(const std::string path, options.Required("base"));
  HW_ASSIGN_OR_RETURN(HeadPlan base, earlier != nullptr ? BaseOf(*earlier) : ReadHeadPlan(path));
  HW_RETURN_IF_ERROR(CheckPlanFits(base, input.shape, path));
  // Without a budget --at is where bytes are compared.
  if (!options.Has("kv-ratio") && !options.Has("kv-bytes-at")) {
    HW_ASSIGN_OR_RETURN(const int64_t at_tokens, options.IntOr("at", kDefaultCompared, 1, kMaxTokens));
    return SelectInPlace(std::move(base), input, selecting, at_tokens, path);
  }
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  // A span that grows with the text holds as many tokens by score as by position, and these have notes: then the base
  // has to be smaller.
  HeadPlan plan;
  PlannerInput of_base = input;
  for (int64_t bytes = budget->bytes;; bytes -= PlanBytesAt(plan, *budget) - budget->bytes) {
    if (bytes <= 0) {
      return Status::InvalidInput(fmt::format("KV budget: {} bytes at {} tokens; over {} this needs more",
                                              budget->bytes, budget->at_tokens, path));
    }
    of_base.options = NamedOptions({{"kv-bytes-at", fmt::format("{}:{}", bytes, budget->at_tokens)}});
    HW_ASSIGN_OR_RETURN(HeadPlan made, RefitPlan(base, of_base, path));
    HW_ASSIGN_OR_RETURN(plan, SelectInPlace(std::move(made), input, selecting, budget->at_tokens, path));
    if (PlanBytesAt(plan, *budget) <= budget->bytes) break;
  }
  // Notes of scores and rings' last pages leave a little.
  while (WidenByPages(plan, GroupsOfOneBudget(plan), *budget)) {
  }
  plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

// Of each layer, so that their mean over the layers is `budget` [pyramidkv]: beside the observed tokens, which every
// layer keeps, the last layer has 1 / steepness of the mean and the first what makes the line between them even.
std::vector<int64_t> PyramidBudgets(int64_t budget, int64_t window, int64_t num_layers, double steepness) {
  const int64_t observed = std::min(window, budget);
  const double mean = static_cast<double>(budget - observed);
  const double last = num_layers > 1 ? mean / steepness : mean;
  const double step = num_layers > 1 ? 2 * (mean - last) / static_cast<double>(num_layers - 1) : 0;
  std::vector<int64_t> budgets;
  for (int64_t layer_idx = 0; layer_idx < num_layers; ++layer_idx) {
    const double above = last + step * static_cast<double>(num_layers - 1 - layer_idx);
    budgets.push_back(std::max<int64_t>(1, observed + static_cast<int64_t>(std::floor(above + kRounding))));
  }
  return budgets;
}

// Heads that come to choose: all but those of layers with a window of their own, which is a rule by position already;
// such heads are full, and keep it.
std::vector<size_t> HeadsThatSelect(const PlannerInput& input, HeadPlan& plan) {
  std::vector<size_t> selecting;
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    if (input.windows.At(static_cast<int64_t>(i) / plan.shape.num_kv_heads) == kNoLimit) selecting.push_back(i);
  }
  if (selecting.size() < plan.rules.size()) {
    plan.notes.push_back(fmt::format("{} of {} KV heads are in layers with a sliding window of their own and keep that",
                                     plan.rules.size() - selecting.size(), plan.rules.size()));
  }
  return selecting;
}

Result<std::optional<KvBudget>> OnlyBudget(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (budget && input.options.Has("budget")) {
    return Status::InvalidInput("found --budget and a KV budget, which solves for it; expected one");
  }
  return budget;
}

template <Kind kKind>
Result<HeadPlan> Make(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const HeadRule rule, RuleFromOptions(input.options, kKind));
  if (input.options.Has("base")) return FromBase(input, rule, /*earlier=*/nullptr);
  HeadPlan plan = HeadPlan::Dense(input.shape);
  const std::vector<size_t> selecting = HeadsThatSelect(input, plan);
  for (const size_t head : selecting) plan.rules[head] = rule;
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, OnlyBudget(input));
  if (!budget) return plan;
  HW_RETURN_IF_ERROR(FitWindows(
      plan, selecting,
      [&](int64_t recent) {
        HeadRule with_budget = rule;
        with_budget.recent = recent;
        return with_budget;
      },
      *budget));
  LevelSharing(plan);
  plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

Result<HeadPlan> MakePyramid(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const HeadRule rule, RuleFromOptions(input.options, Kind::kSnapKv));
  HW_ASSIGN_OR_RETURN(const double steepness, input.options.DoubleOr("steepness", kDefaultSteepness, 1.0, 1e6));
  HeadPlan plan = HeadPlan::Dense(input.shape);
  const std::vector<size_t> selecting = HeadsThatSelect(input, plan);
  const auto give = [&](int64_t mean) {
    const std::vector<int64_t> budgets = PyramidBudgets(mean, rule.select.window, plan.shape.num_layers, steepness);
    for (const size_t head : selecting) {
      plan.rules[head] = rule;
      plan.rules[head].recent = budgets[head / static_cast<size_t>(plan.shape.num_kv_heads)];
    }
  };
  give(rule.recent);
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, OnlyBudget(input));
  if (!budget) return plan;
  int64_t fits = 1;
  give(fits);
  if (PlanBytesAt(plan, *budget) > budget->bytes) {
    return Status::InvalidInput(fmt::format("KV budget: {} bytes at {} tokens; this plan needs at least {} bytes",
                                            budget->bytes, budget->at_tokens, PlanBytesAt(plan, *budget)));
  }
  // From there on the last layer keeps everything too.
  auto too_many = static_cast<int64_t>(steepness * static_cast<double>(budget->at_tokens + rule.select.window)) + 1;
  while (too_many - fits > 1) {
    const int64_t mean = fits + (too_many - fits) / 2;
    give(mean);
    (PlanBytesAt(plan, *budget) <= budget->bytes ? fits : too_many) = mean;
  }
  give(fits);
  // A page more to as many heads as still fit, lower layers first.
  std::vector<std::vector<size_t>> groups;
  for (const size_t head : selecting) groups.push_back({head});
  WidenByPages(plan, groups, *budget);
  plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

Result<HeadPlan> MakePyramidAgain(const PlannerInput& input, const HeadPlan& /*earlier*/) {
  return MakePyramid(input);
}

template <Kind kKind>
Result<HeadPlan> MakeAgain(const PlannerInput& input, const HeadPlan& earlier) {
  if (!input.options.Has("base")) return Make<kKind>(input);
  HW_ASSIGN_OR_RETURN(const HeadRule rule, RuleFromOptions(input.options, kKind));
  return FromBase(input, rule, &earlier);
}

template <Kind kKind>
PlannerMethod Row(std::string_view name, std::string_view description, std::vector<std::string_view> options) {
  options.insert(options.end(), {"kv-ratio", "at", "kv-bytes-at"});
  return {.name = name,
          .description = description,
          .options = std::move(options),
          .make = Make<kKind>,
          .refit = {.make = MakeAgain<kKind>, .replaced = {"budget"}}};
}

}  // namespace

const PlannerMethod kH2oMethod =
    Row<Kind::kH2o>("h2o", "every head keeps the newest tokens and those of the highest summed attention [h2o]",
                    {"budget", "recent-share", "from", "base"});
const PlannerMethod kTovaMethod = Row<Kind::kTova>(
    "tova", "every head keeps the tokens that the last query attends to most [tova]", {"budget", "from", "base"});
const PlannerMethod kSnapKvMethod = Row<Kind::kSnapKv>(
    "snapkv", "every head keeps what the prompt's last queries attend to most, and all that comes later [snapkv]",
    {"budget", "window", "kernel", "pooling", "base"});
const PlannerMethod kPyramidKvMethod = {
    .name = "pyramidkv",
    .description = "as snapkv, with budgets that fall from layer to layer [pyramidkv]",
    .options = {"budget", "steepness", "window", "kernel", "pooling", "kv-ratio", "at", "kv-bytes-at"},
    .make = MakePyramid,
    .refit = {.make = MakePyramidAgain, .replaced = {"budget"}},
};
const PlannerMethod kAdaKvMethod = Row<Kind::kAdaKv>(
    "adakv", "as snapkv, and the heads of a layer share their budgets by what the prompt's last queries see [adakv]",
    {"budget", "floor", "window", "kernel", "pooling", "base"});
const PlannerMethod kKeyDiffMethod =
    Row<Kind::kKeyDiff>("keydiff", "every head keeps the tokens whose keys point least where all keys point [keydiff]",
                        {"budget", "from", "base"});
const PlannerMethod kExpectedMethod = Row<Kind::kExpected>(
    "expected",
    "every head keeps what queries like the prompt's are expected to look at, and all that comes later [expected]",
    {"budget", "window", "epsilon", "base"});
const PlannerMethod kKnormMethod = Row<Kind::kKeyNorm>(
    "knorm", "every head keeps the tokens with the shortest keys [knorm]", {"budget", "from", "base"});

}  // namespace headwise
