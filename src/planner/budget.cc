#include "planner/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/format_bytes.h"

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;

Result<KvBudget> ParseBytesAt(const std::string& text) {
  KvBudget budget;
  const size_t colon = text.find(':');
  const auto bytes = ParseBytes(std::string_view(text).substr(0, colon));
  if (bytes.ok() && colon != std::string::npos) {
    budget.bytes = *bytes;
    const char* end = text.data() + text.size();
    const auto tokens = std::from_chars(text.data() + colon + 1, end, budget.at_tokens);
    if (tokens.ec == std::errc() && tokens.ptr == end && budget.bytes > 0 && budget.at_tokens > 0 &&
        budget.at_tokens <= kMaxTokens) {
      return budget;
    }
  }
  return Status::InvalidInput(
      fmt::format("--kv-bytes-at: found \"{}\", expected BYTES:TOKENS, for example 5M:8192", text));
}

int64_t LayerOf(const ModelShape& shape, size_t head) {
  return static_cast<int64_t>(head) / shape.num_kv_heads;
}

// Bytes of bounded heads by the width of their windows: they grow with it, in steps of a page, and layers with the same
// window of the model's own cost the same.
class WindowCosts {
 public:
  WindowCosts(const ModelShape& shape, std::span<const size_t> heads, const WindowRule& rule, const KvBudget& budget)
      : shape_(shape), rule_(rule), budget_(budget) {
    for (const size_t head : heads) ++heads_under_[budget.windows.At(LayerOf(shape, head))];
  }

  int64_t OfHead(int64_t recent, int64_t layer_window) const {
    return RuleBytesAt(rule_(recent), shape_, budget_.at_tokens, layer_window);
  }
  int64_t OfAll(int64_t recent) const {
    int64_t bytes = 0;
    for (const auto& [layer_window, num_heads] : heads_under_) bytes += OfHead(recent, layer_window) * num_heads;
    return bytes;
  }

 private:
  const ModelShape& shape_;
  const WindowRule& rule_;
  const KvBudget& budget_;
  std::map<int64_t, int64_t> heads_under_;  // heads by their layer's own window
};

// The widest window up to `most` that `fits`, which holds for one token.
template <typename Fits>
int64_t WidestWindow(int64_t most, const Fits& fits) {
  int64_t widest = 1;
  int64_t too_wide = most + 1;
  while (too_wide - widest > 1) {
    const int64_t middle = widest + (too_wide - widest) / 2;
    (fits(middle) ? widest : too_wide) = middle;
  }
  return widest;
}

}  // namespace

int64_t RuleBytesAt(const HeadRule& rule, const ModelShape& shape, const KvBudget& budget, int64_t layer_idx) {
  return RuleBytesAt(rule, shape, budget.at_tokens, budget.windows.At(layer_idx));
}

int64_t PlanBytesAt(const HeadPlan& plan, const KvBudget& budget) {
  return PlanBytesAt(plan, budget.at_tokens, budget.windows);
}

Result<std::optional<KvBudget>> BudgetFromOptions(const PlannerInput& input) {
  const NamedOptions& options = input.options;
  if (options.Has("kv-bytes-at")) {
    if (options.Has("kv-ratio") || options.Has("at")) {
      return Status::InvalidInput("--kv-bytes-at: found --kv-ratio or --at too, expected one budget");
    }
    HW_ASSIGN_OR_RETURN(KvBudget budget, ParseBytesAt(options.StringOr("kv-bytes-at", "")));
    budget.windows = input.windows;
    return std::optional<KvBudget>(budget);
  }
  if (options.Has("kv-ratio") != options.Has("at")) {
    return Status::InvalidInput("--kv-ratio and --at: found one of them, expected both: a ratio at a number of tokens");
  }
  if (!options.Has("kv-ratio")) return std::optional<KvBudget>();
  KvBudget budget;
  budget.windows = input.windows;
  HW_ASSIGN_OR_RETURN(const double ratio, options.DoubleOr("kv-ratio", 1.0, 1e-6, 1.0));
  HW_ASSIGN_OR_RETURN(budget.at_tokens, options.IntOr("at", 0, 1, kMaxTokens));
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(input.shape), budget);
  budget.bytes = static_cast<int64_t>(std::floor(ratio * static_cast<double>(dense)));
  return std::optional<KvBudget>(budget);
}

namespace {

Status TooManyBytes(const KvBudget& budget, int64_t needed_bytes) {
  return Status::InvalidInput(fmt::format("KV budget: {} bytes at {} tokens; this plan needs at least {} bytes",
                                          budget.bytes, budget.at_tokens, needed_bytes));
}

}  // namespace

Status FitWindows(HeadPlan& plan, std::span<const size_t> bounded, const WindowRule& rule, const KvBudget& budget) {
  if (bounded.empty()) {
    const int64_t bytes = PlanBytesAt(plan, budget);
    return bytes <= budget.bytes ? Status::Ok() : TooManyBytes(budget, bytes);
  }
  const WindowCosts costs(plan.shape, bounded, rule, budget);
  int64_t left = budget.bytes;
  std::vector<bool> is_bounded(plan.rules.size(), false);
  for (const size_t head : bounded) is_bounded[head] = true;
  for (size_t head = 0; head < plan.rules.size(); ++head) {
    if (!is_bounded[head]) left -= RuleBytesAt(plan.rules[head], plan.shape, budget, LayerOf(plan.shape, head));
  }
  if (costs.OfAll(1) > left) return TooManyBytes(budget, budget.bytes - left + costs.OfAll(1));
  const int64_t recent = WidestWindow(budget.at_tokens, [&](int64_t window) { return costs.OfAll(window) <= left; });
  int64_t rest = left - costs.OfAll(recent);
  const int64_t next = std::min(recent + 1, budget.at_tokens);
  for (const size_t head : bounded) {
    const int64_t layer_window = budget.windows.At(LayerOf(plan.shape, head));
    const int64_t page_more = costs.OfHead(next, layer_window);
    const int64_t extra = page_more - costs.OfHead(recent, layer_window);
    plan.rules[head] = rule(recent);
    if (extra <= 0 || extra > rest) continue;
    rest -= extra;
    plan.rules[head] = rule(WidestWindow(
        budget.at_tokens, [&](int64_t window) { return costs.OfHead(window, layer_window) <= page_more; }));
  }
  return Status::Ok();
}

Result<int64_t> FitFullGroups(HeadPlan& plan, const std::vector<std::vector<size_t>>& groups,
                              const HeadRule& bounded_rule, const KvBudget& budget) {
  std::vector<int64_t> more_if_full;  // by layer
  int64_t bytes = 0;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    const int64_t bounded_bytes = RuleBytesAt(bounded_rule, plan.shape, budget, layer_idx);
    more_if_full.push_back(RuleBytesAt(HeadRule::Full(), plan.shape, budget, layer_idx) - bounded_bytes);
    bytes += bounded_bytes * plan.shape.num_kv_heads;
  }
  int64_t num_full = 0;
  // Of texts no longer than the windows a bounded head may take more than a full one: what it folds, or rounds up.
  if (PlanBytesAt(HeadPlan::Dense(plan.shape), budget) <= budget.bytes) num_full = static_cast<int64_t>(groups.size());
  for (const std::vector<size_t>& group : std::span(groups).subspan(static_cast<size_t>(num_full))) {
    for (const size_t head : group) bytes += more_if_full[static_cast<size_t>(LayerOf(plan.shape, head))];
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

bool WidenByPages(HeadPlan& plan, const std::vector<std::vector<size_t>>& groups, const KvBudget& budget) {
  int64_t rest = budget.bytes - PlanBytesAt(plan, budget);
  bool any = false;
  for (const std::vector<size_t>& group : groups) {
    int64_t more = 0;
    for (const size_t head : group) {
      HeadRule wider = plan.rules[head];
      wider.recent += kPlanBytesPageTokens;
      const int64_t layer_idx = LayerOf(plan.shape, head);
      more += RuleBytesAt(wider, plan.shape, budget, layer_idx) -
              RuleBytesAt(plan.rules[head], plan.shape, budget, layer_idx);
    }
    if (more <= 0 || more > rest) continue;
    rest -= more;
    any = true;
    for (const size_t head : group) plan.rules[head].recent += kPlanBytesPageTokens;
  }
  return any;
}

std::string DescribeBudget(const HeadPlan& plan, const KvBudget& budget) {
  const int64_t dense = PlanBytesAt(HeadPlan::Dense(plan.shape), budget);
  const int64_t bytes = PlanBytesAt(plan, budget);
  const auto ratio = [&](int64_t part) { return static_cast<double>(part) / static_cast<double>(dense); };
  return fmt::format(
      "KV at {} tokens in f16 pages of {}: {} bytes of {} with every head full, ratio {:.4f} (asked {:.4f})",
      budget.at_tokens, kPlanBytesPageTokens, bytes, dense, ratio(bytes), ratio(budget.bytes));
}

}  // namespace headwise
