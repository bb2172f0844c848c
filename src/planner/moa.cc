#include "planner/moa.h"

#include <algorithm>
#include <cmath>
#include <map>

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

double HiddenLoss(std::span<const double> distances, const ResolvedRule& rule) {
  if (!rule.Bounded()) return 0;
  double loss = 0;
  for (int64_t d = static_cast<int64_t>(distances.size()) - 1; (d + 1) * kMoaBlock > rule.recent; --d) {
    const int64_t num_hidden = std::min(kMoaBlock, (d + 1) * kMoaBlock - rule.recent);
    loss += distances[static_cast<size_t>(d)] * static_cast<double>(num_hidden) / static_cast<double>(kMoaBlock);
  }
  return loss;
}

SampleInfluence ProfileSample(GradDecoder<float>& decoder, const TokenSample& sample, std::span<const HeadRule> rules) {
  using Forward = GradDecoder<float>::ForwardArgs;
  const ModelConfig& config = decoder.model().config;
  // The last token is only a target.
  const auto num_tokens = static_cast<int64_t>(sample.ids.size()) - 1;
  const std::span<const int32_t> ids = std::span(sample.ids).first(static_cast<size_t>(num_tokens));
  std::vector<int32_t> targets;
  for (const int32_t label : sample.labels) targets.push_back(sample.ids[static_cast<size_t>(label) + 1]);
  SampleInfluence result;
  std::vector<float> hidden;
  std::vector<float> d_hidden;
  decoder.Forward({.ids = ids, .wanted = sample.labels, .keep = Forward::Keep::kForBackward, .on_attention = {}},
                  hidden);
  result.loss = decoder.NllLoss(hidden, targets, d_hidden);
  std::vector<Influence> influence(static_cast<size_t>(config.num_layers),
                                   Influence::For(Influence::By::kDistance, num_tokens, config.num_q_heads, kMoaBlock));
  decoder.Backward({.d_hidden = d_hidden, .d_gates = {}, .influence = influence});

  const SequenceLimits limits = LimitsAt(num_tokens + 1);
  const LayerWindows windows = LayerWindowsOf(config);
  const int64_t group = config.q_heads_per_kv_head();
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
      const Influence& layer = influence[static_cast<size_t>(layer_idx)];
      std::vector<double> distances(static_cast<size_t>(layer.num_blocks));
      for (int64_t q_head = kv_head * group; q_head < (kv_head + 1) * group; ++q_head) {
        const double* sums = layer.sums.data() + q_head * layer.num_blocks;
        for (size_t d = 0; d < distances.size(); ++d) distances[d] += sums[d];
      }
      for (const HeadRule& rule : rules) {
        result.rule_losses.push_back(HiddenLoss(distances, ResolveRule(rule, limits, windows.At(layer_idx))));
      }
    }
  }
  return result;
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

void WidenToBudget(HeadPlan& plan, const KvBudget& budget) {
  const int64_t heads_per_layer = plan.shape.num_kv_heads;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    const std::span<HeadRule> layer(plan.rules.data() + layer_idx * heads_per_layer,
                                    static_cast<size_t>(heads_per_layer));
    std::vector<HeadRule> kinds;
    for (const HeadRule& rule : layer) {
      if (rule.kind == HeadRule::Kind::kFull || std::find(kinds.begin(), kinds.end(), rule) != kinds.end()) continue;
      kinds.push_back(rule);
    }
    for (const HeadRule& kind : kinds) {
      const int64_t count = std::count(layer.begin(), layer.end(), kind);
      const int64_t before = RuleBytesAt(kind, plan.shape, budget, layer_idx) * count;
      const int64_t left = budget.bytes - PlanBytesAt(plan, budget);
      const auto widened = [&](int64_t tokens) {
        HeadRule rule = kind;
        rule.alpha += static_cast<double>(tokens);
        return rule;
      };
      int64_t fits = 0;
      int64_t too_wide = budget.at_tokens + 1;
      while (too_wide - fits > 1) {
        const int64_t middle = fits + (too_wide - fits) / 2;
        const int64_t bytes = RuleBytesAt(widened(middle), plan.shape, budget, layer_idx) * count;
        (bytes - before <= left ? fits : too_wide) = middle;
      }
      // Of the spans that cost as much the narrowest: where the text is short of a span, a wider one would only cost
      // more at lengths that the budget says nothing of.
      const int64_t spent = RuleBytesAt(widened(fits), plan.shape, budget, layer_idx);
      int64_t too_narrow = -1;
      while (fits - too_narrow > 1) {
        const int64_t middle = too_narrow + (fits - too_narrow) / 2;
        const bool is_as_wide = RuleBytesAt(widened(middle), plan.shape, budget, layer_idx) == spent;
        (is_as_wide ? fits : too_narrow) = middle;
      }
      std::replace(layer.begin(), layer.end(), HeadRule(kind), widened(fits));
    }
  }
}

}  // namespace headwise
