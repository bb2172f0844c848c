#include "kv/rule.h"

#include <cmath>
#include <optional>

namespace headwise {
namespace {

// MoA counts spans in blocks of 64 tokens and keeps at least one block beside the sink [moa §3.2].
constexpr int64_t kMoaBlockTokens = 64;

// Rounds down and keeps the result in [0, kNoLimit]: plans may carry any finite number.
int64_t FloorToTokens(double value) {
  return static_cast<int64_t>(std::clamp(std::floor(value), 0.0, static_cast<double>(kNoLimit)));
}

}  // namespace

ResolvedRule ResolveRule(const HeadRule& rule, const SequenceLimits& limits, int64_t layer_window) {
  ResolvedRule resolved;
  resolved.recent = layer_window;
  resolved.recent_before = layer_window;
  int64_t recent = kNoLimit;
  switch (rule.kind) {
    case HeadRule::Kind::kFull:
      return resolved;
    case HeadRule::Kind::kStream:
      recent = rule.recent;
      break;
    case HeadRule::Kind::kElasticMoa: {
      const int64_t span = std::max(FloorToTokens(rule.alpha + rule.beta * static_cast<double>(limits.max_tokens)),
                                    rule.sink + kMoaBlockTokens);
      if (span >= limits.max_tokens) return resolved;
      recent = span - rule.sink;
      break;
    }
    case HeadRule::Kind::kElasticRazor:
      // At least 1: a short prompt with S0 = 0 must not hide a token from itself.
      recent = std::max(
          {int64_t{1}, rule.min_recent, FloorToTokens(static_cast<double>(limits.prompt_tokens) / rule.divisor)});
      break;
  }
  resolved.sink = rule.sink;
  resolved.recent = std::min(recent, layer_window);
  resolved.sink_reach = layer_window;
  resolved.compensate = rule.compensate;
  resolved.positions = rule.positions;
  if (rule.start == RuleStart::kEndOfPrompt) resolved.holds_from = limits.prompt_tokens;
  return resolved;
}

std::vector<ResolvedRule> ResolveRules(const HeadPlan& plan, const SequenceLimits& limits,
                                       const LayerWindows& windows) {
  std::vector<ResolvedRule> rules;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      rules.push_back(ResolveRule(plan.At(layer_idx, kv_head), limits, windows.At(layer_idx)));
    }
  }
  return rules;
}

bool Readable(const ResolvedRule& rule, int64_t query_pos, int64_t key_pos) {
  return key_pos >= 0 && rule.MaskAt(query_pos).Reads(query_pos, key_pos);
}

std::vector<TokenRange> KeptRanges(const ResolvedRule& rule, int64_t num_tokens) {
  std::vector<TokenRange> ranges;
  if (num_tokens == 0) return ranges;
  // The cut at the end of the prompt leaves what the next query may read of what is there.
  const bool holds = num_tokens >= rule.holds_from;
  const KeyRanges keys = rule.MaskAt(holds ? rule.holds_from : 0).KeysOf(num_tokens - 1);
  if (keys.sink_begin < keys.sink_end) ranges.push_back({keys.sink_begin, keys.sink_end});
  if (keys.recent_begin >= num_tokens) return ranges;
  if (!ranges.empty() && ranges.back().end == keys.recent_begin) {
    ranges.back().end = num_tokens;
  } else {
    ranges.push_back({keys.recent_begin, num_tokens});
  }
  return ranges;
}

bool SamePast(const ResolvedRule& a, const ResolvedRule& b, int64_t num_tokens) {
  // How far back every query so far read; none once a rule has dropped, kept or folded tokens in a way of its own.
  const auto reach = [&](const ResolvedRule& rule) -> std::optional<int64_t> {
    if (num_tokens < rule.holds_from) return rule.recent_before;
    const bool is_plain = rule.sink == 0 && !rule.compensate && rule.positions == Positions::kText;
    if (is_plain && (rule.holds_from == 0 || rule.recent == rule.recent_before)) return rule.recent;
    return std::nullopt;
  };
  if (num_tokens == 0 || a == b) return true;
  // A mean that was begun is that of one rule.
  const TokenRange folded_a = FoldedRange(a, num_tokens);
  const TokenRange folded_b = FoldedRange(b, num_tokens);
  const bool nothing_folded = folded_a.begin == folded_a.end && folded_b.begin == folded_b.end;
  if (!nothing_folded && folded_a != folded_b) return false;
  return reach(a).has_value() && reach(a) == reach(b);
}

int64_t NumKeptTokens(const ResolvedRule& rule, int64_t num_tokens) {
  int64_t kept = 0;
  for (const TokenRange& range : KeptRanges(rule, num_tokens)) kept += range.end - range.begin;
  return kept;
}

PageRange AgedPages(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens) {
  const int64_t sink_pages = (rule.sink + page_tokens - 1) / page_tokens;
  const int64_t begin = std::max<int64_t>(1, sink_pages);
  return {begin, std::max(begin, num_tokens / page_tokens - 1)};
}

int64_t RingPages(int64_t recent, bool compensate, int64_t page_tokens) {
  if (recent >= kNoLimit) return kNoLimit;
  const int64_t num_tokens = recent + (compensate ? 1 : 0);
  return (num_tokens - 1 + page_tokens - 1) / page_tokens + 1;
}

TokenRange FoldedRange(const ResolvedRule& rule, int64_t num_tokens) {
  if (!rule.compensate) return {rule.sink, rule.sink};
  const int64_t recent = num_tokens < rule.holds_from ? rule.recent_before : rule.recent;
  return {rule.sink, std::max(rule.sink, num_tokens - recent)};
}

}  // namespace headwise
