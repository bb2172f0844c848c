// A head rule as a pure function from "tokens so far" to "token ranges still readable": the definition that cache,
// backends and tests share. Nothing here stores a token.
#ifndef HEADWISE_KV_RULE_H_
#define HEADWISE_KV_RULE_H_

#include <headwise/head_plan.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backend/ops.h"
#include "kv/layer_windows.h"

namespace headwise {

// What is known of a sequence when it is admitted. All in tokens.
struct SequenceLimits {
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;  // prompt + maximum new tokens (N_limit); --max-context where there is no limit
};

// A rule with every number fixed. The query at position t reads key j <= t when
//     j < sink and SinkPosition(t) - j < sink_reach,   or   j >= sink and t - j < recent.
// A full head has sink 0 and recent kNoLimit.
struct ResolvedRule {
  int64_t sink = 0;
  int64_t recent = kNoLimit;
  int64_t sink_reach = kNoLimit;  // a layer's own window also hides sinks that are too far back
  bool compensate = false;        // tokens that leave, by position or by score, are folded into one
  Positions positions = Positions::kText;
  int64_t holds_from = 0;            // queries before this position (the prompt's, under kEndOfPrompt) read as `before`
  int64_t recent_before = kNoLimit;  // recent for those queries: the layer's window or no limit
  // By score: the head keeps as many tokens, but chooses which. Its keys are in slots (backend/kv_step.h), in what
  // follows too: MaskAt and KeptRanges are about these.
  TokenSelector select = {};
  // Of heads that share: what the cut gave this one beyond its budget, or took. 0 until then, and in what is worked out
  // without running a plan, which is right for the layer: whole pages, 0 in all over its heads.
  int64_t shared = 0;
  // A head that keeps every token and reads some is a full one otherwise, `select` unset.
  KvBlockReads blocks = {};

  bool ReadsBlocks() const { return blocks.block_tokens > 0; }
  bool SelectsByScore() const { return select.kind != TokenSelector::Kind::kPosition; }
  // Tokens that a head which selects by score keeps once it has come to choose.
  int64_t Budget() const { return sink + recent + shared; }
  bool Bounded() const { return recent < kNoLimit; }
  // The position that the query at `pos` has for sink keys: inside the cache it stays put once the window slides
  // [streaming-llm §3.2]: sink key j is at distance min(t, s + w - 1) - j.
  int64_t SinkPosition(int64_t pos) const { return MaskAt(std::max(pos, holds_from)).SinkPos(pos); }
  // What the query at `query_pos` reads.
  KeyMask MaskAt(int64_t query_pos) const {
    if (SelectsByScore()) return {};
    if (query_pos < holds_from) return {.recent = recent_before};
    return {.sink = sink,
            .recent = recent,
            .sink_reach = sink_reach,
            .sink_pos_limit = positions == Positions::kCache && Bounded() ? sink + recent - 1 : kNoLimit};
  }

  friend bool operator==(const ResolvedRule&, const ResolvedRule&) = default;
};

struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;  // one past the last
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// Fixes every number of `rule` for one sequence. `layer_window` is the model's own sliding window in the head's layer
// [mistral]; kNoLimit where it has none. Requires: ValidateRule(rule).ok().
ResolvedRule ResolveRule(const HeadRule& rule, const SequenceLimits& limits, int64_t layer_window = kNoLimit);

// Of every head, as in plan.rules: [L * Hkv].
std::vector<ResolvedRule> ResolveRules(const HeadPlan& plan, const SequenceLimits& limits, const LayerWindows& windows);

// May the query at `query_pos` read the key at `key_pos`? (The mean token of dropped keys is not a key.)
bool Readable(const ResolvedRule& rule, int64_t query_pos, int64_t key_pos);

// Keys that the cache holds once `num_tokens` are in it: those that the query at num_tokens - 1 reads and, where the
// prompt ends there and the rule holds from its end, those left by the cut. Ascending, disjoint, at most two ranges.
std::vector<TokenRange> KeptRanges(const ResolvedRule& rule, int64_t num_tokens);

// Whether the first `num_tokens` tokens of a text are read and kept alike under both rules, whatever follows.
// Sufficient, not necessary: equal rules, or two that hide nothing yet but what a model's own window hides. Of heads
// that select by score: equal rules, or two that observe alike and have dropped nothing. Of heads that read blocks:
// equal rules, or two with blocks of one size none of whose queries has chosen.
bool SamePast(const ResolvedRule& a, const ResolvedRule& b, int64_t num_tokens);

// Number of keys in KeptRanges: min(num_tokens, sink + recent) where neither a model window nor `start` interferes.
// By score too it follows from the length alone; where heads of a layer share, in all over these.
int64_t NumKeptTokens(const ResolvedRule& rule, int64_t num_tokens);

// Slots that a head which selects by score has pages for once `num_tokens` are in: those of its tokens, and where it
// drops one in every step that of the token which comes next, so that its table stays as it is.
int64_t NumOwnedSlots(const ResolvedRule& rule, int64_t num_tokens);

// Whether a head of the plan selects by score what it keeps; or what it keeps or reads.
bool SelectsByScore(const HeadPlan& plan);
bool HasSelector(const HeadPlan& plan);

// Whether a head which selects by score, once `num_tokens` are in, is one that cuts back to its budget in every step.
bool DropsEveryStep(const ResolvedRule& rule, int64_t num_tokens);

// Whether the step that adds `num_new` to `num_tokens` is one in which a head shares its budget with others.
bool SharesInStep(const ResolvedRule& rule, int64_t num_tokens, int64_t num_new);

// What the operations of a step are told of a head that has a selector; `num_tokens` are in, `num_new` come.
KvSelection SelectionOf(const ResolvedRule& rule, int64_t num_tokens, int64_t num_new);

// Pages by index, of a head's pages of P tokens each.
struct PageRange {
  int64_t begin = 0;
  int64_t end = 0;  // one past the last
  bool empty() const { return begin >= end; }
  bool Contains(int64_t page_idx) const { return page_idx >= begin && page_idx < end; }
  friend bool operator==(const PageRange&, const PageRange&) = default;
};

// Where a head's format ages (kQ4 in backend/kv_format.h): the pages that have aged once `num_tokens` are in, those the
// rule has dropped among them. The first page and those of sinks never do, as nearly every query reads them; nor do the
// newest complete page and the one that grows, so that the newest P tokens and more are as they were written. Whether
// pages age depends on the length alone, not on the steps that led there.
PageRange AgedPages(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens);

// Pages that a head uses in a ring, behind those of sinks, while its queries read the `recent` newest keys: as many as
// these keys touch wherever they begin, and one key more where a token that leaves is folded before it goes. kNoLimit
// where nothing leaves.
int64_t RingPages(int64_t recent, bool compensate, int64_t page_tokens);

// Keys folded into the mean once `num_tokens` are in the cache: {sink <= j <= t - recent}, a contiguous range. Where a
// rule holds from the end of the prompt, keys that a model's window hides before are folded as they leave.
TokenRange FoldedRange(const ResolvedRule& rule, int64_t num_tokens);

}  // namespace headwise

#endif  // HEADWISE_KV_RULE_H_
