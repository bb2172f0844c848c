#include "planner/moa_influence.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "planner/moa.h"

namespace headwise {
namespace {

using Forward = GradDecoder<float>::ForwardArgs;

// A head that costs less than this under some window, in nats per token of the answer, is taken to cost nothing under
// wider ones: most heads cost nothing under the narrowest already.
constexpr double kMeasuredLoss = 0.005;

// One text, whose last token is only a target.
struct Text {
  std::span<const int32_t> ids;
  std::span<const int32_t> labels;
  std::vector<int32_t> targets;

  explicit Text(const TokenSample& sample)
      : ids(std::span(sample.ids).first(sample.ids.size() - 1)), labels(sample.labels) {
    for (const int32_t label : sample.labels) targets.push_back(sample.ids[static_cast<size_t>(label) + 1]);
  }
  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
};

// What every rule means in every layer: [L * rules].
std::vector<ResolvedRule> ResolveInLayers(const ModelConfig& config, std::span<const HeadRule> rules,
                                          int64_t num_tokens) {
  const LayerWindows windows = LayerWindowsOf(config);
  std::vector<ResolvedRule> resolved;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    for (const HeadRule& rule : rules) {
      resolved.push_back(
          ResolveRule(rule, {.prompt_tokens = num_tokens, .max_tokens = num_tokens}, windows.At(layer_idx)));
    }
  }
  return resolved;
}

std::vector<Influence> NoInfluence(const ModelConfig& config, int64_t num_tokens) {
  return {static_cast<size_t>(config.num_layers),
          Influence::For(Influence::By::kDistance, num_tokens, config.num_q_heads, kMoaBlock)};
}

// [L * Hkv * rules] from the distances that the rules hide.
std::vector<double> LossesOfRules(const ModelConfig& config, std::span<const Influence> influence,
                                  std::span<const ResolvedRule> rules) {
  const int64_t group = config.q_heads_per_kv_head();
  const size_t num_rules = rules.size() / static_cast<size_t>(config.num_layers);
  std::vector<double> losses;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const Influence& layer = influence[static_cast<size_t>(layer_idx)];
    for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
      std::vector<double> distances(static_cast<size_t>(layer.num_blocks));
      for (int64_t q_head = kv_head * group; q_head < (kv_head + 1) * group; ++q_head) {
        const double* sums = layer.sums.data() + q_head * layer.num_blocks;
        for (size_t d = 0; d < distances.size(); ++d) distances[d] += sums[d];
      }
      for (const ResolvedRule& rule : rules.subspan(static_cast<size_t>(layer_idx) * num_rules, num_rules)) {
        losses.push_back(HiddenLoss(distances, rule));
      }
    }
  }
  return losses;
}

SampleInfluence FirstOrder(GradDecoder<float>& decoder, const Text& text, std::span<const ResolvedRule> rules,
                           InfluenceOptions::Kind kind) {
  SampleInfluence result;
  std::vector<float> hidden;
  std::vector<float> d_hidden;
  decoder.Forward({.ids = text.ids, .wanted = text.labels, .keep = Forward::Keep::kForBackward, .on_attention = {}},
                  hidden);
  result.loss = decoder.NllLoss(hidden, text.targets, d_hidden);
  if (kind == InfluenceOptions::Kind::kMargin) decoder.MarginLoss(hidden, text.targets, d_hidden);
  std::vector<Influence> influence = NoInfluence(decoder.model().config, text.num_tokens());
  decoder.Backward({.d_hidden = d_hidden, .d_gates = {}, .influence = influence});
  result.rule_losses = LossesOfRules(decoder.model().config, influence, rules);
  return result;
}

// The narrowest of the rules, as one that needs no length.
HeadRule NarrowestRule(std::span<const ResolvedRule> rules) {
  const ResolvedRule& narrowest = *std::ranges::min_element(rules, {}, &ResolvedRule::recent);
  return HeadRule::Stream(narrowest.sink, narrowest.recent);
}

// Each head's output goes in a straight line from what it is when the head reads all to what it is under the narrowest
// rule, all heads' at once: what one loses counts where others lose theirs too.
SampleInfluence Integrated(GradDecoder<float>& decoder, const Text& text, std::span<const ResolvedRule> rules,
                           int64_t num_points) {
  const ModelConfig& config = decoder.model().config;
  SampleInfluence result;
  std::vector<float> hidden;
  std::vector<float> d_hidden;
  decoder.Forward({.ids = text.ids, .wanted = text.labels, .on_attention = {}}, hidden);
  result.loss = decoder.NllLoss(hidden, text.targets, d_hidden);
  std::vector<double> gates(static_cast<size_t>(config.num_layers * config.num_kv_heads));
  std::vector<double> d_gates(gates.size());
  const HeadGates head_gates{.values = gates, .bounded = NarrowestRule(rules)};
  result.rule_losses.resize(gates.size() * rules.size() / static_cast<size_t>(config.num_layers));
  for (int64_t point = 0; point < num_points; ++point) {
    const double gate = (static_cast<double>(point) + 0.5) / static_cast<double>(num_points);
    std::ranges::fill(gates, gate);
    decoder.Forward({.ids = text.ids,
                     .wanted = text.labels,
                     .gates = &head_gates,
                     .keep = Forward::Keep::kForBackward,
                     .on_attention = {}},
                    hidden);
    decoder.NllLoss(hidden, text.targets, d_hidden);
    std::vector<Influence> influence = NoInfluence(config, text.num_tokens());
    decoder.Backward({.d_hidden = d_hidden, .d_gates = d_gates, .influence = influence});
    const std::vector<double> losses = LossesOfRules(config, influence, rules);
    for (size_t i = 0; i < losses.size(); ++i) {
      result.rule_losses[i] += losses[i] / (gate * static_cast<double>(num_points));
    }
  }
  return result;
}

// From the narrowest window to wider ones, as long as what is hidden costs something.
SampleInfluence Measured(GradDecoder<float>& decoder, const Text& text, std::span<const ResolvedRule> rules) {
  const ModelConfig& config = decoder.model().config;
  SampleInfluence result;
  std::vector<float> hidden;
  std::vector<float> d_hidden;
  decoder.Forward({.ids = text.ids, .wanted = text.labels, .keep = Forward::Keep::kInputs, .on_attention = {}}, hidden);
  result.loss = decoder.NllLoss(hidden, text.targets, d_hidden);
  const size_t num_rules = rules.size() / static_cast<size_t>(config.num_layers);
  std::vector<double> gates(static_cast<size_t>(config.num_layers * config.num_kv_heads), 1.0);
  for (size_t head = 0; head < gates.size(); ++head) {
    const auto layer_idx = static_cast<int64_t>(head) / config.num_kv_heads;
    const auto in_layer = rules.subspan(static_cast<size_t>(layer_idx) * num_rules, num_rules);
    std::map<int64_t, double> loss_of_window;
    for (const ResolvedRule& rule : in_layer) {
      // A window as long as the text hides nothing.
      if (rule.recent < text.num_tokens() - rule.sink) loss_of_window[rule.recent] = 0;
    }
    gates[head] = 0;
    for (auto& [recent, loss] : loss_of_window) {
      const HeadGates head_gates{.values = gates, .bounded = HeadRule::Stream(kMoaBlock, recent)};
      decoder.ForwardFrom(layer_idx, head_gates, hidden);
      loss = decoder.NllLoss(hidden, text.targets, d_hidden) - result.loss;
      if (std::abs(loss) < kMeasuredLoss) break;
    }
    gates[head] = 1;
    for (const ResolvedRule& rule : in_layer) {
      const auto it = loss_of_window.find(rule.recent);
      result.rule_losses.push_back(it == loss_of_window.end() ? 0 : it->second);
    }
  }
  return result;
}

}  // namespace

double HiddenLoss(std::span<const double> distances, const ResolvedRule& rule) {
  if (!rule.Bounded()) return 0;
  double loss = 0;
  for (int64_t d = static_cast<int64_t>(distances.size()) - 1; (d + 1) * kMoaBlock > rule.recent; --d) {
    const int64_t num_hidden = std::min(kMoaBlock, (d + 1) * kMoaBlock - rule.recent);
    loss += distances[static_cast<size_t>(d)] * static_cast<double>(num_hidden) / static_cast<double>(kMoaBlock);
  }
  return loss;
}

SampleInfluence ProfileSample(GradDecoder<float>& decoder, const TokenSample& sample, std::span<const HeadRule> rules,
                              const InfluenceOptions& options) {
  const Text text(sample);
  const auto length = static_cast<int64_t>(sample.ids.size());
  const std::vector<ResolvedRule> resolved = ResolveInLayers(decoder.model().config, rules, length);
  switch (options.kind) {
    case InfluenceOptions::Kind::kIntegrated:
      return Integrated(decoder, text, resolved, options.num_points);
    case InfluenceOptions::Kind::kMeasured:
      return Measured(decoder, text, resolved);
    default:
      return FirstOrder(decoder, text, resolved, options.kind);
  }
}

}  // namespace headwise
