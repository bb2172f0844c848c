#include "kv/plan_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/rule_json.h"

namespace headwise {

namespace {

std::string DescribeSelector(const TokenSelector& selector) {
  switch (selector.kind) {
    case TokenSelector::Kind::kPosition:
      break;
    case TokenSelector::Kind::kH2o:
      return fmt::format(", as many by attention so far (h2o, {} of them the newest)", selector.recent_share);
    case TokenSelector::Kind::kTova:
      return ", as many by the last query's attention (tova)";
    case TokenSelector::Kind::kSnapKv:
      return fmt::format(", as many by the attention of the prompt's last {} queries, pooled over {} ({}) (snapkv)",
                         selector.window, selector.kernel,
                         selector.pooling == TokenSelector::Pooling::kMean ? "mean" : "max");
    case TokenSelector::Kind::kAdaKv:
      return fmt::format(
          ", as many on average over the layer's heads by the attention of the prompt's last {} queries, pooled over "
          "{} "
          "({}), {} of them each for itself (adakv)",
          selector.window, selector.kernel, selector.pooling == TokenSelector::Pooling::kMean ? "mean" : "max",
          selector.floor);
    case TokenSelector::Kind::kKeyNorm:
      return ", as many by the length of their keys (knorm)";
    case TokenSelector::Kind::kFastGen:
      return selector.punctuation ? ", special tokens, punctuation and others by summed attention (fastgen)"
                                  : ", special tokens and others by summed attention (fastgen)";
    case TokenSelector::Kind::kKeyDiff:
      return ", as many by how far their keys point from where all do (keydiff)";
    case TokenSelector::Kind::kExpected:
      return fmt::format(
          ", as many by what queries like the prompt's are expected to give them beside its last {} (expected)",
          selector.window);
    case TokenSelector::Kind::kQuest:
      return fmt::format(
          ": keeps every token, reads as many in blocks of {} by what their keys may give at most (quest)",
          selector.block);
    case TokenSelector::Kind::kInfLlm:
      return fmt::format(
          ": keeps every token, reads as many in blocks of {}, {} of them the newest, the others by {} representatives "
          "each (infllm)",
          selector.block, selector.recent_share, selector.representatives);
  }
  return "";
}

}  // namespace

std::string DescribeRule(const HeadRule& rule) {
  std::string text;
  switch (rule.kind) {
    case HeadRule::Kind::kFull:
      return "full: every token";
    case HeadRule::Kind::kStream:
      text = fmt::format("sink {}, recent {}", rule.sink, rule.recent);
      break;
    case HeadRule::Kind::kElasticMoa:
      text = fmt::format("sink {}, span {} + {} x context", rule.sink, rule.alpha, rule.beta);
      break;
    case HeadRule::Kind::kElasticRazor:
      text = fmt::format("sink {}, recent max({}, prompt / {})", rule.sink, rule.min_recent, rule.divisor);
      break;
  }
  if (rule.HasSelector()) text += DescribeSelector(rule.select);
  if (rule.compensate) text += ", compensation token";
  if (rule.positions == Positions::kCache) text += ", positions in the cache";
  if (rule.start == RuleStart::kEndOfPrompt) text += ", from the end of the prompt";
  return text;
}

std::string FormatPlanMap(const HeadPlan& plan) {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  struct Entry {
    HeadRule rule;
    int64_t num_heads = 0;
  };
  std::vector<Entry> entries;
  // As text, which says all of a rule: a plan may have a rule of its own for each of many thousand heads.
  std::unordered_map<std::string, size_t> entry_of;
  const auto symbol_of = [](const HeadRule& rule, size_t idx) {
    if (rule.kind == HeadRule::Kind::kFull) return '#';
    return idx < sizeof(kLetters) - 1 ? kLetters[idx] : '?';  // more rules than letters: the rest share one
  };
  std::string map;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    map += fmt::format("  layer {:>3}  ", layer_idx);
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const HeadRule& rule = plan.At(layer_idx, kv_head);
      const auto [it, is_new] = entry_of.emplace(FormatHeadRule(rule), entries.size());
      if (is_new) entries.push_back({rule, 0});
      ++entries[it->second].num_heads;
      map += symbol_of(rule, it->second);
    }
    map += '\n';
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    map += fmt::format("  {}  {:>4} of {} KV heads: {}\n", symbol_of(entries[i].rule, i), entries[i].num_heads,
                       plan.rules.size(), DescribeRule(entries[i].rule));
  }
  return map;
}

std::string FormatScoreMap(const HeadPlan& plan) {
  if (plan.scores.empty()) return "";
  static constexpr std::string_view kShades[] = {"·", "░", "▒", "▓", "█"};
  constexpr size_t kNumNamed = 10;
  const auto [least, most] = std::minmax_element(plan.scores.begin(), plan.scores.end());
  const double range = *most > *least ? *most - *least : 1;
  std::string map;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    map += fmt::format("  layer {:>3}  ", layer_idx);
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const auto head = static_cast<size_t>(layer_idx * plan.shape.num_kv_heads + kv_head);
      const double share = (plan.scores[head] - *least) / range;
      const auto shade = static_cast<size_t>(share * (std::size(kShades) - 1) + 0.5);
      const bool is_full = plan.rules[head].kind == HeadRule::Kind::kFull;
      map += fmt::format("{}{}{}", kShades[shade], kShades[shade], is_full ? "#" : " ");
    }
    map += '\n';
  }
  map += fmt::format("  scores from {:.4g} ({}) to {:.4g} ({}); # marks a head that is full\n", *least, kShades[0],
                     *most, kShades[std::size(kShades) - 1]);
  std::vector<size_t> order(plan.scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return plan.scores[a] > plan.scores[b]; });
  order.resize(std::min(order.size(), kNumNamed));
  for (const size_t head : order) {
    const auto idx = static_cast<int64_t>(head);
    map += fmt::format("  {:>10.4g}  layer {} KV head {}\n", plan.scores[head], idx / plan.shape.num_kv_heads,
                       idx % plan.shape.num_kv_heads);
  }
  return map;
}

}  // namespace headwise
