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

ResolvedRule ResolveRule(const HeadRule& rule, const SequenceLimits& limits) {
  ResolvedRule resolved;
  resolved.recent = limits.model_window;
  resolved.recent_before = limits.model_window;
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
  resolved.recent = std::min(recent, limits.model_window);
  resolved.sink_reach = limits.model_window;
  resolved.compensate = rule.compensate;
  resolved.positions = rule.positions;
  if (rule.start == RuleStart::kEndOfPrompt) resolved.holds_from = limits.prompt_tokens;
  return resolved;
}

bool Readable(const ResolvedRule& rule, int64_t query_pos, int64_t key_pos) {
  if (key_pos < 0 || key_pos > query_pos) return false;
  if (query_pos < rule.holds_from) return query_pos - key_pos < rule.recent_before;
  if (key_pos < rule.sink) return rule.SinkPosition(query_pos) - key_pos < rule.sink_reach;
  return query_pos - key_pos < rule.recent;
}

std::vector<TokenRange> KeptRanges(const ResolvedRule& rule, int64_t num_tokens) {
  std::vector<TokenRange> ranges;
  if (num_tokens == 0) return ranges;
  const int64_t query_pos = num_tokens - 1;
  int64_t sink_begin = 0;
  int64_t sink_end = 0;
  const bool holds = num_tokens >= rule.holds_from;
  int64_t recent_begin = std::max<int64_t>(0, num_tokens - (holds ? rule.recent : rule.recent_before));
  if (holds) {
    sink_end = std::min(rule.sink, num_tokens);
    sink_begin = std::clamp<int64_t>(rule.SinkPosition(query_pos) - rule.sink_reach + 1, 0, sink_end);
    recent_begin = std::max(recent_begin, sink_end);
  }
  if (sink_begin < sink_end) ranges.push_back({sink_begin, sink_end});
  if (recent_begin < num_tokens) {
    if (!ranges.empty() && ranges.back().end == recent_begin) {
      ranges.back().end = num_tokens;
    } else {
      ranges.push_back({recent_begin, num_tokens});
    }
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

TokenRange FoldedRange(const ResolvedRule& rule, int64_t num_tokens) {
  if (!rule.compensate || num_tokens < rule.holds_from) return {rule.sink, rule.sink};
  return {rule.sink, std::max(rule.sink, num_tokens - rule.recent)};
}

}  // namespace headwise
