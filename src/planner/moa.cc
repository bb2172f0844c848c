#include "planner/moa.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "base/check.h"

namespace headwise {
namespace {

constexpr int kBetaSteps = 8;
constexpr int kLowestAlpha = -1;
constexpr int kHighestAlpha = 3;

SequenceLimits LimitsAt(int64_t num_tokens) {
  return {.prompt_tokens = num_tokens, .max_tokens = num_tokens};
}

bool IsAlwaysFull(const HeadRule& rule) {
  return rule.kind == HeadRule::Kind::kFull || (rule.beta >= 1 && rule.alpha >= 0);
}

// The mean over [x - width, x] of what runs straight from one of `points` to the next, and on as the first below it.
double MeanBelow(const std::map<double, double>& points, double x, double width) {
  auto upper = points.find(x);
  double right_x = upper->first;
  double right = upper->second;
  const double end = x - width;
  double area = 0;
  while (right_x > end) {
    if (upper == points.begin()) {
      area += right * (right_x - end);
      break;
    }
    --upper;
    const double slope = (right - upper->second) / (right_x - upper->first);
    const double left_x = std::max(end, upper->first);
    const double left = right - slope * (right_x - left_x);
    area += (left + right) / 2 * (right_x - left_x);
    right_x = left_x;
    right = left;
  }
  return width > 0 ? area / width : right;
}

// A bounded rule of a layer; several heads may share it.
struct LayerRule {
  int64_t layer_idx = 0;
  HeadRule rule;
};

std::span<HeadRule> HeadsOf(HeadPlan& plan, int64_t layer_idx) {
  return std::span(plan.rules)
      .subspan(static_cast<size_t>(layer_idx * plan.shape.num_kv_heads), static_cast<size_t>(plan.shape.num_kv_heads));
}

std::vector<LayerRule> RulesOfLayers(HeadPlan& plan) {
  std::vector<LayerRule> found;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    for (const HeadRule& rule : HeadsOf(plan, layer_idx)) {
      const bool is_known = std::ranges::any_of(
          found, [&](const LayerRule& each) { return each.layer_idx == layer_idx && each.rule == rule; });
      if (rule.kind != HeadRule::Kind::kFull && !is_known) found.push_back({layer_idx, rule});
    }
  }
  return found;
}

// Widens the rule by as many tokens as fit.
void Widen(HeadPlan& plan, const KvBudget& budget, const LayerRule& kind) {
  const std::span<HeadRule> layer = HeadsOf(plan, kind.layer_idx);
  const int64_t count = std::ranges::count(layer, kind.rule);
  const auto widened = [&](int64_t tokens) {
    HeadRule rule = kind.rule;
    rule.alpha += static_cast<double>(tokens);
    return rule;
  };
  const auto bytes_of = [&](int64_t tokens) {
    return RuleBytesAt(widened(tokens), plan.shape, budget, kind.layer_idx) * count;
  };
  const int64_t before = bytes_of(0);
  const int64_t left = budget.bytes - PlanBytesAt(plan, budget);
  int64_t fits = 0;
  int64_t too_wide = budget.at_tokens + 1;
  while (too_wide - fits > 1) {
    const int64_t middle = fits + (too_wide - fits) / 2;
    (bytes_of(middle) - before <= left ? fits : too_wide) = middle;
  }
  // Of the spans that cost as much the narrowest: where the text is short of a span, a wider one would only cost more
  // at lengths that the budget says nothing of.
  const int64_t spent = bytes_of(fits);
  int64_t too_narrow = -1;
  while (fits - too_narrow > 1) {
    const int64_t middle = too_narrow + (fits - too_narrow) / 2;
    (bytes_of(middle) == spent ? fits : too_narrow) = middle;
  }
  std::ranges::replace(layer, kind.rule, widened(fits));
}

}  // namespace

std::vector<HeadRule> MoaRuleGrid(int64_t shortest, std::span<const int64_t> lengths) {
  std::vector<HeadRule> rules;
  std::vector<std::vector<ResolvedRule>> seen;
  for (int beta = 0; beta <= kBetaSteps; ++beta) {
    for (int alpha = kLowestAlpha; alpha <= kHighestAlpha; ++alpha) {
      HeadRule rule;
      rule.kind = HeadRule::Kind::kElasticMoa;
      rule.sink = kMoaBlock;
      rule.alpha = alpha * static_cast<double>(shortest) / 2;
      rule.beta = static_cast<double>(beta) / kBetaSteps;
      std::vector<ResolvedRule> meaning;
      for (const int64_t length : lengths) meaning.push_back(ResolveRule(rule, LimitsAt(length)));
      if (std::find(seen.begin(), seen.end(), meaning) != seen.end()) continue;
      seen.push_back(std::move(meaning));
      rules.push_back(rule);
    }
  }
  return rules;
}

std::vector<HeadRule> MoaStaticGrid(std::span<const int64_t> lengths) {
  const auto longest = static_cast<double>(*std::max_element(lengths.begin(), lengths.end()));
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = kMoaBlock;
  std::vector<HeadRule> rules;
  for (int step = 0; step <= kBetaSteps; ++step) {
    rule.alpha = std::floor(longest * step / kBetaSteps);
    rules.push_back(rule);
  }
  rule.alpha = 0;
  rule.beta = 1;
  rules.push_back(rule);
  return rules;
}

HeadPlan PlanOfChoice(const ModelShape& shape, std::span<const HeadRule> rules, const RuleChoice& choice) {
  HeadPlan plan = HeadPlan::Dense(shape);
  HW_CHECK(choice.rule_of_head.size() == plan.rules.size());
  for (size_t head = 0; head < plan.rules.size(); ++head) {
    const HeadRule& rule = rules[static_cast<size_t>(choice.rule_of_head[head])];
    if (!IsAlwaysFull(rule)) plan.rules[head] = rule;
  }
  return plan;
}

void SmoothLosses(std::span<const double> kept, size_t num_rules, int64_t length, double spacing,
                  std::span<double> losses) {
  for (size_t head = 0; head < losses.size(); head += num_rules) {
    std::map<double, double>
        by_kept;  // the largest loss of the rules that keep so much, then of all that keep more too
    for (size_t i = head; i < head + num_rules; ++i) {
      double& loss = by_kept.try_emplace(kept[i], 0.0).first->second;
      if (kept[i] < static_cast<double>(length)) loss = std::max(loss, losses[i]);
    }
    double most = 0;
    for (auto it = by_kept.rbegin(); it != by_kept.rend(); ++it) it->second = most = std::max(most, it->second);
    for (size_t i = head; i < head + num_rules; ++i) {
      losses[i] = kept[i] < static_cast<double>(length) ? MeanBelow(by_kept, kept[i], spacing) : 0;
    }
  }
}

void WidenToBudget(HeadPlan& plan, const KvBudget& budget) {
  for (const LayerRule& each : RulesOfLayers(plan)) Widen(plan, budget, each);
}

void WidenByInfluence(HeadPlan& plan, const KvBudget& budget, std::span<const double> influence) {
  const auto mean_influence = [&](const LayerRule& each) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const int64_t head = each.layer_idx * plan.shape.num_kv_heads + kv_head;
      if (plan.rules[static_cast<size_t>(head)] != each.rule) continue;
      sum += influence[static_cast<size_t>(head)];
      ++count;
    }
    return sum / static_cast<double>(count);
  };
  std::vector<std::pair<double, LayerRule>> ranked;
  for (const LayerRule& each : RulesOfLayers(plan)) ranked.emplace_back(mean_influence(each), each);
  std::ranges::stable_sort(ranked, std::ranges::greater(), [](const auto& each) { return each.first; });
  for (const auto& [influence_of_rule, each] : ranked) {
    HeadPlan full = plan;
    std::ranges::replace(HeadsOf(full, each.layer_idx), each.rule, HeadRule::Full());
    if (PlanBytesAt(full, budget) <= budget.bytes) {
      plan = std::move(full);
    } else {
      Widen(plan, budget, each);
    }
  }
}

}  // namespace headwise
