#include "planner/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;

Result<KvBudget> ParseBytesAt(const std::string& text) {
  KvBudget budget;
  const char* end = text.data() + text.size();
  const auto bytes = std::from_chars(text.data(), end, budget.bytes);
  if (bytes.ec == std::errc() && bytes.ptr != end && *bytes.ptr == ':') {
    const auto tokens = std::from_chars(bytes.ptr + 1, end, budget.at_tokens);
    if (tokens.ec == std::errc() && tokens.ptr == end && budget.bytes > 0 && budget.at_tokens > 0 &&
        budget.at_tokens <= kMaxTokens) {
      return budget;
    }
  }
  return Status::InvalidInput(
      fmt::format("--kv-bytes-at: found \"{}\", expected BYTES:TOKENS, for example 5000000:8192", text));
}

}  // namespace

Result<std::optional<KvBudget>> BudgetFromOptions(const PlannerInput& input) {
  const NamedOptions& options = input.options;
  if (options.Has("kv-bytes-at")) {
    if (options.Has("kv-ratio") || options.Has("at")) {
      return Status::InvalidInput("--kv-bytes-at: found --kv-ratio or --at too, expected one budget");
    }
    HW_ASSIGN_OR_RETURN(KvBudget budget, ParseBytesAt(options.StringOr("kv-bytes-at", "")));
    budget.model_window = input.model_window;
    return std::optional<KvBudget>(budget);
  }
  if (options.Has("kv-ratio") != options.Has("at")) {
    return Status::InvalidInput("--kv-ratio and --at: found one of them, expected both: a ratio at a number of tokens");
  }
  if (!options.Has("kv-ratio")) return std::optional<KvBudget>();
  KvBudget budget;
  budget.model_window = input.model_window;
  HW_ASSIGN_OR_RETURN(const double ratio, options.DoubleOr("kv-ratio", 1.0, 1e-6, 1.0));
  HW_ASSIGN_OR_RETURN(budget.at_tokens, options.IntOr("at", 0, 1, kMaxTokens));
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(input.shape), budget.at_tokens, input.model_window);
  budget.bytes = static_cast<int64_t>(std::floor(ratio * static_cast<double>(dense)));
  return std::optional<KvBudget>(budget);
}

Status FitWindows(HeadPlan& plan, std::span<const size_t> bounded, const WindowRule& rule, const KvBudget& budget) {
  if (bounded.empty()) return Status::Ok();
  const auto head_bytes = [&](int64_t recent) {
    return RuleBytesAt(rule(recent), plan.shape, budget.at_tokens, budget.model_window);
  };
  HeadPlan others = plan;  // the same plan without the bounded heads
  std::vector<bool> is_bounded(plan.rules.size(), false);
  for (const size_t head : bounded) is_bounded[head] = true;
  others.rules.clear();
  for (size_t head = 0; head < plan.rules.size(); ++head) {
    if (!is_bounded[head]) others.rules.push_back(plan.rules[head]);
  }
  const int64_t left = budget.bytes - PlanBytesAt(others, budget.at_tokens, budget.model_window);
  const auto count = static_cast<int64_t>(bounded.size());
  if (head_bytes(1) * count > left) {
    return Status::InvalidInput(fmt::format("KV budget: {} bytes at {} tokens; this plan needs at least {} bytes",
                                            budget.bytes, budget.at_tokens,
                                            budget.bytes - left + head_bytes(1) * count));
  }
  // The bytes of a head grow with its window, in steps of a page.
  const auto widest_within = [&](int64_t bytes) {
    int64_t fits = 1;
    int64_t too_wide = budget.at_tokens + 1;
    while (too_wide - fits > 1) {
      const int64_t middle = fits + (too_wide - fits) / 2;
      (head_bytes(middle) <= bytes ? fits : too_wide) = middle;
    }
    return fits;
  };
  const int64_t recent = widest_within(left / count);
  const int64_t page_more =
      std::min(budget.at_tokens, widest_within(head_bytes(std::min(recent + 1, budget.at_tokens))));
  int64_t rest = left - head_bytes(recent) * count;
  for (const size_t head : bounded) {
    const int64_t extra = head_bytes(page_more) - head_bytes(recent);
    const bool widen = extra > 0 && extra <= rest;
    plan.rules[head] = rule(widen ? page_more : recent);
    if (widen) rest -= extra;
  }
  return Status::Ok();
}

Result<int64_t> FitFullGroups(HeadPlan& plan, const std::vector<std::vector<size_t>>& groups,
                              const HeadRule& bounded_rule, const KvBudget& budget) {
  const auto full_bytes = RuleBytesAt(HeadRule::Full(), plan.shape, budget.at_tokens, budget.model_window);
  const auto bounded_bytes = RuleBytesAt(bounded_rule, plan.shape, budget.at_tokens, budget.model_window);
  int64_t bytes = bounded_bytes * static_cast<int64_t>(plan.rules.size());
  int64_t num_full = 0;
  for (const std::vector<size_t>& group : groups) {
    bytes += (full_bytes - bounded_bytes) * static_cast<int64_t>(group.size());
    if (bytes > budget.bytes) break;
    ++num_full;
  }
  std::vector<size_t> bounded;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const size_t head : groups[i]) {
      plan.rules[head] = static_cast<int64_t>(i) < num_full ? HeadRule::Full() : bounded_rule;
      if (static_cast<int64_t>(i) >= num_full) bounded.push_back(head);
    }
  }
  const WindowRule rule = [&](int64_t recent) {
    HeadRule widened = bounded_rule;
    widened.recent = recent;
    return widened;
  };
  HW_RETURN_IF_ERROR(FitWindows(plan, bounded, rule, budget));
  return num_full;
}

std::string DescribeBudget(const HeadPlan& plan, const KvBudget& budget) {
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(plan.shape), budget.at_tokens, budget.model_window);
  const int64_t bytes = PlanBytesAt(plan, budget.at_tokens, budget.model_window);
  const auto ratio = [&](int64_t part) { return static_cast<double>(part) / static_cast<double>(dense); };
  return fmt::format(
      "KV at {} tokens in f16 pages of {}: {} bytes of {} with every head full, ratio {:.4f} (asked {:.4f})",
      budget.at_tokens, kPlanBytesPageTokens, bytes, dense, ratio(bytes), ratio(budget.bytes));
}

}  // namespace headwise
