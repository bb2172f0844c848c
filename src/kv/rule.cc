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

KvSelection::Scores ScoresOf(TokenSelector::Kind kind) {
  switch (kind) {
    case TokenSelector::Kind::kPosition:
    case TokenSelector::Kind::kQuest:
    case TokenSelector::Kind::kInfLlm:
      return KvSelection::Scores::kNone;
    case TokenSelector::Kind::kH2o:
    case TokenSelector::Kind::kFastGen:
    case TokenSelector::Kind::kSnapKv:
    case TokenSelector::Kind::kAdaKv:
      return KvSelection::Scores::kSum;
    case TokenSelector::Kind::kTova:
      return KvSelection::Scores::kLast;
    case TokenSelector::Kind::kKeyNorm:
      return KvSelection::Scores::kKeyNorm;
    case TokenSelector::Kind::kKeyDiff:
      return KvSelection::Scores::kKeyDiff;
    case TokenSelector::Kind::kExpected:
      return KvSelection::Scores::kExpected;
  }
  return KvSelection::Scores::kNone;
}

// Blocks that have one of `num_tokens` tokens.
int64_t BlocksOf(int64_t num_tokens, int64_t block_tokens) {
  return num_tokens / block_tokens + (num_tokens % block_tokens == 0 ? 0 : 1);
}

// Of rules that cut once: where the queries begin that they observe.
int64_t ObserveBegin(const ResolvedRule& rule) {
  // All queries of the prompt, but for the first tokens', which are like no others.
  if (rule.select.kind == TokenSelector::Kind::kExpected) return rule.sink;
  return std::max<int64_t>(0, rule.holds_from - rule.select.window);
}

// Whether what a head that selects by score has noted so far is the same under every other budget.
bool NothingObserved(const ResolvedRule& rule, int64_t num_tokens) {
  if (NumKeptTokens(rule, num_tokens) < num_tokens) return false;
  return !rule.select.CutsOnce() || num_tokens <= ObserveBegin(rule);
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
  if (rule.start == RuleStart::kEndOfPrompt) resolved.holds_from = limits.prompt_tokens;
  if (rule.ReadsBlocks()) {
    resolved.blocks = {.block_tokens = rule.select.block,
                       .from = resolved.holds_from,
                       .first = BlocksOf(rule.sink, rule.select.block),
                       .most = BlocksOf(recent, rule.select.block)};
    if (rule.select.kind == TokenSelector::Kind::kInfLlm) {
      KvBlockReads& blocks = resolved.blocks;
      const int64_t newest = FloorToTokens(rule.select.recent_share * static_cast<double>(recent));
      // The one that the query is in is seldom complete, and no other says what those before it are for.
      blocks.newest = std::max<int64_t>(2, BlocksOf(newest, rule.select.block));
      blocks.most = std::max(blocks.most, blocks.newest);
      blocks.representatives = rule.select.representatives;
    }
    return resolved;
  }
  resolved.sink = rule.sink;
  resolved.recent = std::min(recent, layer_window);
  resolved.sink_reach = layer_window;
  resolved.compensate = rule.compensate;
  resolved.positions = rule.positions;
  resolved.select = rule.select;
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
  if (rule.SelectsByScore()) return {{0, NumKeptTokens(rule, num_tokens)}};
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
  if (a == b) return true;
  // Pages of heads that select by score say more of their tokens: no other head goes on with them, nor they with its.
  if (a.SelectsByScore() || b.SelectsByScore()) {
    // A head has its mean from its first step on.
    const bool are_alike = a.select == b.select && a.compensate == b.compensate;
    return are_alike && NothingObserved(a, num_tokens) && NothingObserved(b, num_tokens);
  }
  // Nor do pages without bounds go on as ones with them.
  if (a.ReadsBlocks() || b.ReadsBlocks()) {
    // Representatives are those of the newest blocks' queries.
    const bool notes_alike = a.blocks.representatives == b.blocks.representatives &&
                             (a.blocks.representatives == 0 || a.blocks.newest == b.blocks.newest);
    return a.blocks.block_tokens == b.blocks.block_tokens && notes_alike && a.recent == b.recent &&
           num_tokens <= std::min(a.blocks.from, b.blocks.from);
  }
  if (num_tokens == 0) return true;
  // A mean that was begun is that of one rule.
  const TokenRange folded_a = FoldedRange(a, num_tokens);
  const TokenRange folded_b = FoldedRange(b, num_tokens);
  const bool nothing_folded = folded_a.begin == folded_a.end && folded_b.begin == folded_b.end;
  if (!nothing_folded && folded_a != folded_b) return false;
  return reach(a).has_value() && reach(a) == reach(b);
}

int64_t NumKeptTokens(const ResolvedRule& rule, int64_t num_tokens) {
  if (rule.SelectsByScore()) {
    if (num_tokens < rule.holds_from) return num_tokens;
    if (!rule.select.CutsOnce()) return std::min(num_tokens, rule.Budget());
    // What comes behind the prompt stays.
    return num_tokens - rule.holds_from + std::min(rule.holds_from, rule.Budget());
  }
  int64_t kept = 0;
  for (const TokenRange& range : KeptRanges(rule, num_tokens)) kept += range.end - range.begin;
  return kept;
}

int64_t NumOwnedSlots(const ResolvedRule& rule, int64_t num_tokens) {
  const int64_t kept = NumKeptTokens(rule, num_tokens);
  return std::min(num_tokens, DropsEveryStep(rule, num_tokens) ? kept + 1 : kept);
}

bool SelectsByScore(const HeadPlan& plan) {
  return std::any_of(plan.rules.begin(), plan.rules.end(), [](const HeadRule& rule) { return rule.SelectsByScore(); });
}

bool HasSelector(const HeadPlan& plan) {
  return std::any_of(plan.rules.begin(), plan.rules.end(), [](const HeadRule& rule) { return rule.HasSelector(); });
}

bool DropsEveryStep(const ResolvedRule& rule, int64_t num_tokens) {
  return rule.SelectsByScore() && !rule.select.CutsOnce() && num_tokens >= rule.holds_from;
}

bool SharesInStep(const ResolvedRule& rule, int64_t num_tokens, int64_t num_new) {
  const int64_t end_tokens = num_tokens + num_new;
  return rule.select.kind == TokenSelector::Kind::kAdaKv && num_tokens < rule.holds_from &&
         NumKeptTokens(rule, end_tokens) < end_tokens;
}

KvSelection SelectionOf(const ResolvedRule& rule, int64_t num_tokens, int64_t num_new) {
  using Kind = TokenSelector::Kind;
  KvSelection selection;
  selection.blocks = rule.blocks;
  if (!rule.SelectsByScore()) return selection;
  const bool holds = num_tokens + num_new >= rule.holds_from;
  selection.scores = ScoresOf(rule.select.kind);
  if (DropsEveryStep(rule, num_tokens)) {
    selection.slot_limit = rule.Budget();
  } else {
    selection.dropped = num_tokens - NumKeptTokens(rule, num_tokens);
  }
  selection.keep_first = rule.sink;
  if (holds) selection.most = rule.Budget();
  if (rule.select.kind == Kind::kFastGen) {
    selection.keeps_marked = rule.select.punctuation ? TokenMark::kPunctuation : TokenMark::kSpecial;
  }
  if (rule.select.SumsAll()) {
    selection.keep_newest = FloorToTokens(rule.select.recent_share * static_cast<double>(rule.recent));
  }
  if (!rule.select.CutsOnce()) return selection;
  selection.keep_newest = std::min(rule.select.window, rule.recent);
  selection.observe_begin = ObserveBegin(rule);
  selection.observe_end = rule.holds_from;
  if (num_tokens >= rule.holds_from) selection.most = kNoLimit;
  if (rule.select.kind == Kind::kExpected) {
    selection.epsilon = rule.select.epsilon;
    // Of a prompt that all is kept of nothing is asked.
    if (rule.holds_from <= rule.Budget()) selection.observe_end = selection.observe_begin;
    return selection;
  }
  selection.kernel = static_cast<int32_t>(rule.select.kernel);
  selection.pooling =
      rule.select.pooling == TokenSelector::Pooling::kMean ? KvSelection::Pooling::kMean : KvSelection::Pooling::kMax;
  selection.shares = rule.select.kind == Kind::kAdaKv;
  if (selection.shares) selection.floor = rule.select.floor;
  return selection;
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
