// Plans whose heads keep every token, and whose decoding queries read the blocks of them that may matter: a budget of
// bytes read, not of bytes kept [quest, infllm].
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kv/plan_bytes.h"
#include "planner/budget.h"
#include "planner/methods.h"

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr int64_t kDefaultBudget = 1024;    // tokens
constexpr int64_t kDefaultDenseLayers = 2;  // the lowest, where few blocks stand out [quest §3]
constexpr int64_t kInfLlmBlock = 32;        // tokens: as large as a page; the paper has 128
constexpr int64_t kInfLlmSink = 32;         // tokens: a block; the paper has 128

int64_t ReadBytesAt(const HeadPlan& plan, const KvBudget& budget) {
  return PlanReadBytesAt(plan, budget.at_tokens, budget.windows);
}

// Gives all heads the most whole blocks with which the plan reads no more than the budget.
Status FitBlocks(HeadPlan& plan, const std::vector<size_t>& heads, const KvBudget& budget) {
  const auto too_many = [&](int64_t read_bytes) {
    return Status::InvalidInput(fmt::format("KV budget: {} bytes read at {} tokens; this plan reads at least {} bytes",
                                            budget.bytes, budget.at_tokens, read_bytes));
  };
  if (heads.empty()) {
    const int64_t read_bytes = ReadBytesAt(plan, budget);
    return read_bytes <= budget.bytes ? Status::Ok() : too_many(read_bytes);
  }
  const int64_t block = plan.rules[heads.front()].select.block;
  const auto bytes_of = [&](int64_t num_blocks) {
    for (const size_t head : heads) plan.rules[head].recent = num_blocks * block;
    return ReadBytesAt(plan, budget);
  };
  // Without a look at bounds, which are bytes too.
  const int64_t all = budget.at_tokens / block + 1;
  if (bytes_of(all) <= budget.bytes) return Status::Ok();
  if (bytes_of(1) > budget.bytes) return too_many(bytes_of(1));
  int64_t fits = 1;
  int64_t beyond = all;
  while (beyond - fits > 1) {
    const int64_t middle = fits + (beyond - fits) / 2;
    (bytes_of(middle) <= budget.bytes ? fits : beyond) = middle;
  }
  bytes_of(fits);
  // A block more to as many heads as still fit.
  int64_t rest = budget.bytes - ReadBytesAt(plan, budget);
  for (const size_t head : heads) {
    HeadRule wider = plan.rules[head];
    wider.recent += block;
    const int64_t more = RuleReadBytesAt(wider, plan.shape, budget.at_tokens) -
                         RuleReadBytesAt(plan.rules[head], plan.shape, budget.at_tokens);
    if (more <= 0 || more > rest) continue;
    rest -= more;
    plan.rules[head] = wider;
  }
  return Status::Ok();
}

std::string DescribeRead(const HeadPlan& plan, const KvBudget& budget) {
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(plan.shape), budget);
  const int64_t read = ReadBytesAt(plan, budget);
  const auto ratio = [&](int64_t part) { return static_cast<double>(part) / static_cast<double>(dense); };
  return fmt::format(
      "a decoding query at {} tokens reads, in f16 pages of {}, {} bytes of {} with every head full, ratio {:.4f} "
      "(asked {:.4f}); {} bytes are kept",
      budget.at_tokens, kPlanBytesPageTokens, read, dense, ratio(read), ratio(budget.bytes), PlanBytesAt(plan, budget));
}

Result<HeadPlan> Make(const PlannerInput& input, const HeadRule& rule, int64_t dense_layers) {
  const NamedOptions& options = input.options;
  HW_RETURN_IF_ERROR(ValidateRule(rule));
  HeadPlan plan = HeadPlan::Dense(input.shape);
  std::vector<size_t> heads;
  int64_t num_windowed = 0;
  for (size_t i = 0; i < plan.rules.size(); ++i) {
    const auto layer_idx = static_cast<int64_t>(i) / plan.shape.num_kv_heads;
    const bool has_window = input.windows.At(layer_idx) != kNoLimit;
    num_windowed += has_window ? 1 : 0;
    if (has_window || layer_idx < dense_layers) continue;
    plan.rules[i] = rule;
    heads.push_back(i);
  }
  if (num_windowed > 0) {
    plan.notes.push_back(fmt::format("{} of {} KV heads are in layers with a sliding window of their own and keep that",
                                     num_windowed, plan.rules.size()));
  }
  plan.notes.push_back(
      fmt::format("{} of {} KV heads keep every token, with {} beside them; what is few is what a decoding query reads",
                  heads.size(), plan.rules.size(),
                  rule.select.kind == TokenSelector::Kind::kQuest ? "bounds of their keys" : "what stands for blocks"));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (!budget) return plan;
  if (options.Has("budget")) {
    return Status::InvalidInput("found --budget and a KV budget, which solves for it; expected one");
  }
  HW_RETURN_IF_ERROR(FitBlocks(plan, heads, *budget));
  plan.notes.push_back(DescribeRead(plan, *budget));
  return plan;
}

// The rule, with the options that both methods have.
Result<HeadRule> RuleFromOptions(const NamedOptions& options, TokenSelector::Kind kind, int64_t sink, int64_t block) {
  HeadRule rule = HeadRule::Stream(sink, kDefaultBudget);
  rule.select.kind = kind;
  rule.start = RuleStart::kEndOfPrompt;
  HW_ASSIGN_OR_RETURN(rule.sink, options.IntOr("sink", sink, 0, kMaxTokens));
  HW_ASSIGN_OR_RETURN(rule.recent, options.IntOr("budget", kDefaultBudget, 1, kMaxTokens));
  HW_ASSIGN_OR_RETURN(rule.select.block, options.IntOr("block", block, 1, kMaxTokens));
  return rule;
}

Result<HeadPlan> MakeQuest(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const HeadRule rule,
                      RuleFromOptions(input.options, TokenSelector::Kind::kQuest, 0, TokenSelector{}.block));
  HW_ASSIGN_OR_RETURN(const int64_t dense_layers,
                      input.options.IntOr("dense-layers", kDefaultDenseLayers, 0, kMaxTokens));
  return Make(input, rule, dense_layers);
}

Result<HeadPlan> MakeInfLlm(const PlannerInput& input) {
  const NamedOptions& options = input.options;
  HW_ASSIGN_OR_RETURN(HeadRule rule, RuleFromOptions(options, TokenSelector::Kind::kInfLlm, kInfLlmSink, kInfLlmBlock));
  TokenSelector& select = rule.select;
  HW_ASSIGN_OR_RETURN(select.recent_share, options.DoubleOr("recent-share", select.recent_share, 0.0, 1.0));
  HW_ASSIGN_OR_RETURN(select.representatives, options.IntOr("representatives", select.representatives, 1, kMaxTokens));
  return Make(input, rule, /*dense_layers=*/0);
}

Result<HeadPlan> MakeInfLlmAgain(const PlannerInput& input, const HeadPlan& /*earlier*/) {
  return MakeInfLlm(input);
}

Result<HeadPlan> MakeQuestAgain(const PlannerInput& input, const HeadPlan& /*earlier*/) {
  return MakeQuest(input);
}

}  // namespace

const PlannerMethod kQuestMethod = {
    .name = "quest",
    .description = "every head keeps all, and decoding reads the blocks whose keys may score highest [quest]",
    .options = {"budget", "sink", "block", "dense-layers", "kv-ratio", "at", "kv-bytes-at"},
    .make = MakeQuest,
    .refit = {.make = MakeQuestAgain, .replaced = {"budget"}},
};

const PlannerMethod kInfLlmMethod = {
    .name = "infllm",
    .description =
        "every head keeps all, and decoding reads the newest blocks and those whose representatives are most "
        "like the query [infllm]",
    .options = {"budget", "sink", "recent-share", "block", "representatives", "kv-ratio", "at", "kv-bytes-at"},
    .make = MakeInfLlm,
    .refit = {.make = MakeInfLlmAgain, .replaced = {"budget"}},
};

}  // namespace headwise
