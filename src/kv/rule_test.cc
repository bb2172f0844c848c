#include "kv/rule.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace headwise {
namespace {

using Kind = TokenSelector::Kind;

HeadRule Moa(double alpha, double beta, int64_t sink = 64) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  rule.sink = sink;
  rule.alpha = alpha;
  rule.beta = beta;
  return rule;
}

HeadRule Razor(int64_t min_recent, double divisor, int64_t sink = 4) {
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticRazor;
  rule.sink = sink;
  rule.min_recent = min_recent;
  rule.divisor = divisor;
  return rule;
}

SequenceLimits Limits(int64_t prompt_tokens, int64_t max_tokens) {
  return {.prompt_tokens = prompt_tokens, .max_tokens = max_tokens};
}

// ---- heads that select by score

ResolvedRule Selecting(Kind kind, int64_t prompt_tokens, RuleStart start) {
  HeadRule rule = HeadRule::Stream(10, 90);
  rule.select.kind = kind;
  rule.start = start;
  return ResolveRule(rule, Limits(prompt_tokens, 10000));
}

TEST(SelectingRule, HowManyAreKeptFollowsFromTheLength) {
  const ResolvedRule always = Selecting(Kind::kH2o, 300, RuleStart::kFirstToken);
  const ResolvedRule after = Selecting(Kind::kTova, 300, RuleStart::kEndOfPrompt);
  const ResolvedRule once = Selecting(Kind::kSnapKv, 300, RuleStart::kEndOfPrompt);
  const ResolvedRule of_short = Selecting(Kind::kSnapKv, 40, RuleStart::kEndOfPrompt);
  struct Row {
    int64_t num_tokens;
    int64_t always, after, once, of_short;
  };
  for (const Row& row : {Row{0, 0, 0, 0, 0},
                         {40, 40, 40, 40, 40},
                         {100, 100, 100, 100, 100},
                         {101, 100, 101, 101, 101},
                         {299, 100, 299, 299, 299},
                         {300, 100, 100, 100, 300},
                         {1000, 100, 100, 800, 1000}}) {
    EXPECT_EQ(NumKeptTokens(always, row.num_tokens), row.always) << row.num_tokens;
    EXPECT_EQ(NumKeptTokens(after, row.num_tokens), row.after) << row.num_tokens;
    EXPECT_EQ(NumKeptTokens(once, row.num_tokens), row.once) << row.num_tokens;
    EXPECT_EQ(NumKeptTokens(of_short, row.num_tokens), row.of_short) << row.num_tokens;
  }
  // Room for the token of the next step where that drops one.
  EXPECT_EQ(NumOwnedSlots(always, 100), 100);
  EXPECT_EQ(NumOwnedSlots(always, 101), 101);
  EXPECT_EQ(NumOwnedSlots(always, 5000), 101);
  EXPECT_EQ(NumOwnedSlots(after, 299), 299);
  EXPECT_EQ(NumOwnedSlots(after, 300), 101);
  EXPECT_EQ(NumOwnedSlots(once, 300), 100);
}

TEST(SelectingRule, WhatHeadsShareIsOnTopOfTheirBudget) {
  ResolvedRule rule = Selecting(Kind::kAdaKv, 300, RuleStart::kEndOfPrompt);
  const int64_t budget = rule.Budget();
  EXPECT_EQ(NumKeptTokens(rule, 310), budget + 10);
  EXPECT_FALSE(SharesInStep(rule, 0, 299));
  EXPECT_TRUE(SharesInStep(rule, 200, 100));
  EXPECT_FALSE(SharesInStep(rule, 300, 1));
  EXPECT_TRUE(SelectionOf(rule, 200, 100).shares);
  EXPECT_EQ(SelectionOf(rule, 200, 100).most, budget);
  rule.shared = 32;
  EXPECT_EQ(NumKeptTokens(rule, 310), budget + 42);
  EXPECT_EQ(SelectionOf(rule, 310, 1).FirstSlot(310), budget + 42);
  rule.shared = 0;
  rule.holds_from = budget;
  EXPECT_FALSE(SharesInStep(rule, 0, budget)) << "nothing goes";
}

TEST(SelectingRule, PastsAreTheSameWhereTheSameWasObservedAndNothingDropped) {
  const auto at = [](Kind kind, int64_t prompt) { return Selecting(kind, prompt, RuleStart::kEndOfPrompt); };
  const ResolvedRule snap = at(Kind::kSnapKv, 300);
  EXPECT_TRUE(SamePast(snap, snap, 1000));
  EXPECT_TRUE(SamePast(snap, at(Kind::kSnapKv, 400), 268));
  EXPECT_FALSE(SamePast(snap, at(Kind::kSnapKv, 400), 269)) << "the last 32 queries are observed";
  EXPECT_TRUE(SamePast(at(Kind::kH2o, 300), at(Kind::kH2o, 400), 299));
  EXPECT_FALSE(SamePast(at(Kind::kH2o, 300), at(Kind::kH2o, 400), 300));
  EXPECT_FALSE(SamePast(at(Kind::kTova, 300), at(Kind::kH2o, 300), 10));
  EXPECT_FALSE(SamePast(at(Kind::kTova, 300), ResolvedRule{}, 10));
  ResolvedRule expecting = at(Kind::kExpected, 300), with_epsilon = expecting;
  expecting.sink = with_epsilon.sink = 4;
  ResolvedRule later = expecting;
  later.holds_from = 400;
  EXPECT_TRUE(SamePast(expecting, later, 4));
  EXPECT_FALSE(SamePast(expecting, later, 5)) << "all queries behind the sinks are observed";
  with_epsilon.select.epsilon = 0.01;
  EXPECT_FALSE(SamePast(expecting, with_epsilon, 4));
  ResolvedRule compensating = at(Kind::kH2o, 400);
  compensating.compensate = true;
  EXPECT_FALSE(SamePast(at(Kind::kH2o, 400), compensating, 10));
  EXPECT_TRUE(SamePast(compensating, compensating, 1000));
}

// ---- elastic numbers, worked by hand
// ---------------------------------------------------------------------------------

TEST(ResolveRule, MoaSpanIsAlphaPlusBetaTimesTheLimit) {
  EXPECT_EQ(ResolveRule(Moa(1024, 0.125), Limits(7000, 8000)).recent, 1024 + 1000 - 64);
  EXPECT_EQ(ResolveRule(Moa(-1024, 1), Limits(7000, 8000)).recent, 6976 - 64);
  EXPECT_EQ(ResolveRule(Moa(0, 0.125), Limits(7000, 8001)).recent, 1000 - 64) << "1000.125 is rounded down";
  EXPECT_EQ(ResolveRule(Moa(0, 0.125), Limits(7000, 8000)).sink, 64);
}

TEST(ResolveRule, MoaSpanKeepsABlockBesideTheSinkAndBecomesFullAtTheLimit) {
  EXPECT_EQ(ResolveRule(Moa(-1024, 1), Limits(500, 1025)).recent, 64) << "span 1 is raised to 128";
  EXPECT_EQ(ResolveRule(Moa(0, 0), Limits(500, 1000)).recent, 64);
  EXPECT_EQ(ResolveRule(Moa(0, 0, 0), Limits(500, 1000)).recent, 64);
  EXPECT_EQ(ResolveRule(Moa(1024, 0), Limits(500, 1024)), ResolvedRule{}) << "span = limit";
  EXPECT_EQ(ResolveRule(Moa(1024, 0), Limits(500, 1025)).recent, 960);
  EXPECT_EQ(ResolveRule(Moa(0, 0), Limits(100, 128)), ResolvedRule{}) << "the block reaches the limit";
  EXPECT_EQ(ResolveRule(Moa(1099511627776.0, 1099511627776.0), Limits(100, 1 << 20)), ResolvedRule{});
}

TEST(ResolveRule, RazorWindowIsAShareOfThePromptButAtLeastTheMinimum) {
  EXPECT_EQ(ResolveRule(Razor(4000, 5), Limits(30000, 40000)).recent, 6000);
  EXPECT_EQ(ResolveRule(Razor(4000, 5), Limits(19999, 40000)).recent, 4000);
  EXPECT_EQ(ResolveRule(Razor(0, 3), Limits(100, 40000)).recent, 33);
  EXPECT_EQ(ResolveRule(Razor(0, 2.5), Limits(100, 40000)).recent, 40);
}

// With S0 = 0 a short prompt would leave a window of nothing, and a query could not read its own token.
TEST(ResolveRule, RazorWindowHoldsAtLeastTheTokenItself) {
  EXPECT_EQ(ResolveRule(Razor(0, 5), Limits(4, 100)).recent, 1);
  EXPECT_EQ(ResolveRule(Razor(0, 5), Limits(0, 100)).recent, 1);
}

TEST(ResolveRules, EveryHeadHasTheWindowOfItsLayer) {
  HeadPlan plan = HeadPlan::Dense({.architecture = "", .num_layers = 3, .num_kv_heads = 2, .head_dim = 8});
  plan.At(2, 1) = HeadRule::Stream(4, 10);
  const LayerWindows windows{.tokens = {16, kNoLimit, 8}};
  const std::vector<ResolvedRule> rules = ResolveRules(plan, Limits(100, 200), windows);
  ASSERT_EQ(rules.size(), 6u);
  EXPECT_EQ(rules[0], ResolveRule(HeadRule::Full(), Limits(100, 200), 16));
  EXPECT_EQ(rules[1], rules[0]);
  EXPECT_FALSE(rules[2].Bounded());
  EXPECT_FALSE(rules[3].Bounded());
  EXPECT_EQ(rules[4].recent, 8);
  EXPECT_EQ(rules[5], ResolveRule(HeadRule::Stream(4, 10), Limits(100, 200), 8));
  EXPECT_FALSE(ResolveRules(plan, Limits(100, 200), {})[4].Bounded());
}

TEST(ResolveRule, ALayersWindowIsAnUpperBoundForEveryHead) {
  const SequenceLimits limits = Limits(1000, 2000);
  EXPECT_EQ(ResolveRule(HeadRule::Full(), limits, 16).recent, 16);
  EXPECT_EQ(ResolveRule(HeadRule::Stream(4, 64), limits, 16).recent, 16);
  EXPECT_EQ(ResolveRule(HeadRule::Stream(4, 8), limits, 16).recent, 8);
  EXPECT_EQ(ResolveRule(Moa(5000, 0), limits, 16).recent, 16);
}

// ---- ranges --------------------------------------------------------------------------------------------------------

TEST(KeptRanges, StreamByHand) {
  const ResolvedRule rule = ResolveRule(HeadRule::Stream(2, 3), Limits(4, 100));
  using Ranges = std::vector<TokenRange>;
  EXPECT_EQ(KeptRanges(rule, 0), Ranges{});
  EXPECT_EQ(KeptRanges(rule, 1), (Ranges{{0, 1}}));
  EXPECT_EQ(KeptRanges(rule, 5), (Ranges{{0, 5}}));
  EXPECT_EQ(KeptRanges(rule, 6), (Ranges{{0, 2}, {3, 6}}));
  EXPECT_EQ(KeptRanges(rule, 1000000), (Ranges{{0, 2}, {999997, 1000000}}));
}

struct Case {
  ResolvedRule rule;
  int64_t prompt_tokens = 0;
};

std::vector<Case> RandomCases(int count) {
  std::mt19937_64 rng(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(rng() % static_cast<uint64_t>(high - low + 1));
  };
  std::vector<Case> cases;
  while (static_cast<int>(cases.size()) < count) {
    HeadRule rule = pick(0, 9) == 0 ? HeadRule::Full() : HeadRule::Stream(pick(0, 12), pick(1, 30));
    if (pick(0, 9) == 0) rule = Moa(static_cast<double>(pick(-64, 64)), static_cast<double>(pick(0, 8)) / 8, 4);
    if (pick(0, 9) == 0) rule = Razor(pick(0, 20), static_cast<double>(pick(1, 8)));
    const SequenceLimits limits = Limits(pick(1, 80), 150);
    if (rule.kind != HeadRule::Kind::kFull) {
      if (pick(0, 1) == 0) rule.start = RuleStart::kEndOfPrompt;
      if (pick(0, 1) == 0) rule.positions = Positions::kCache;
      rule.compensate = rule.positions == Positions::kText && pick(0, 1) == 0;
    }
    // A window that hides sinks during the prompt cannot give them back at its end, which "positions: cache" would ask.
    const bool gives_back = rule.start == RuleStart::kEndOfPrompt && rule.positions == Positions::kCache;
    const int64_t window = !gives_back && pick(0, 2) == 0 ? pick(1, 40) : kNoLimit;
    cases.push_back({ResolveRule(rule, limits, window), limits.prompt_tokens});
  }
  return cases;
}

// Once the prompt is complete, its last query has been answered and what counts is the rule after the cut.
bool InCache(const Case& c, int64_t num_tokens, int64_t key_pos) {
  ResolvedRule rule = c.rule;
  if (num_tokens == rule.holds_from) rule.holds_from = 0;
  return Readable(rule, num_tokens - 1, key_pos);
}

TEST(KeptRanges, AreTheReadableKeys) {
  for (const Case& c : RandomCases(500)) {
    for (int64_t n = 1; n <= 150; ++n) {
      std::vector<bool> kept(static_cast<size_t>(n), false);
      int64_t previous_end = -1;
      int64_t num_kept = 0;
      for (const TokenRange& range : KeptRanges(c.rule, n)) {
        ASSERT_LT(previous_end, range.begin) << "ascending, disjoint, not touching";
        ASSERT_LT(range.begin, range.end);
        previous_end = range.end;
        num_kept += range.end - range.begin;
        for (int64_t j = range.begin; j < range.end; ++j) kept[static_cast<size_t>(j)] = true;
      }
      ASSERT_EQ(num_kept, NumKeptTokens(c.rule, n));
      for (int64_t j = 0; j < n; ++j) ASSERT_EQ(kept[static_cast<size_t>(j)], InCache(c, n, j)) << n << " " << j;
    }
  }
}

// What is dropped never comes back: each query reads only keys that were kept before it, and its own.
TEST(KeptRanges, NothingReadLaterHasBeenDropped) {
  for (const Case& c : RandomCases(500)) {
    for (int64_t n = 1; n < 150; ++n) {
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_TRUE(!Readable(c.rule, n, j) || InCache(c, n, j)) << "query " << n << " key " << j;
      }
    }
  }
}

TEST(NumKeptTokens, IsSinkPlusRecentOnceTheTextIsLonger) {
  const ResolvedRule rule = ResolveRule(HeadRule::Stream(16, 128), Limits(100, 1000));
  for (int64_t n = 0; n < 1000; ++n) EXPECT_EQ(NumKeptTokens(rule, n), std::min<int64_t>(n, 144));
  const ResolvedRule full = ResolveRule(HeadRule::Full(), Limits(100, 1000));
  EXPECT_EQ(NumKeptTokens(full, 1000), 1000);
}

TEST(NumKeptTokens, EndOfPromptHoldsEverythingUntilTheCut) {
  HeadRule head_rule = HeadRule::Stream(4, 64);
  head_rule.start = RuleStart::kEndOfPrompt;
  const ResolvedRule rule = ResolveRule(head_rule, Limits(512, 600));
  EXPECT_EQ(NumKeptTokens(rule, 511), 511);
  EXPECT_EQ(NumKeptTokens(rule, 512), 68);
  EXPECT_EQ(NumKeptTokens(rule, 513), 68);
  EXPECT_TRUE(Readable(rule, 511, 100)) << "the prompt's last query is dense";
  EXPECT_FALSE(Readable(rule, 512, 100));
}

// ---- pages that age ----

TEST(AgedPages, ByHand) {
  const ResolvedRule full = ResolveRule(HeadRule::Full(), Limits(100, 1000));
  EXPECT_TRUE(AgedPages(full, 0, 16).empty());
  EXPECT_TRUE(AgedPages(full, 47, 16).empty()) << "pages 0 and 1 are complete: the first and the newest";
  EXPECT_EQ(AgedPages(full, 48, 16), (PageRange{1, 2})) << "2 is the newest complete one";
  EXPECT_EQ(AgedPages(full, 63, 16), (PageRange{1, 2}));
  EXPECT_EQ(AgedPages(full, 64, 16), (PageRange{1, 3}));
  EXPECT_EQ(AgedPages(ResolveRule(HeadRule::Stream(16, 8), Limits(1, 1000)), 64, 16), (PageRange{1, 3}));
  EXPECT_EQ(AgedPages(ResolveRule(HeadRule::Stream(17, 8), Limits(1, 1000)), 64, 16), (PageRange{2, 3}));
  EXPECT_TRUE(AgedPages(ResolveRule(HeadRule::Stream(40, 8), Limits(1, 1000)), 64, 16).empty());
}

// Sinks, the first page and the newest P tokens and more are never among them, every other complete page is; and a page
// that has aged stays so.
TEST(AgedPages, AreAllButSinksAndTheNewest) {
  for (const Case& c : RandomCases(200)) {
    for (const int64_t page_tokens : {16, 32}) {
      for (int64_t n = 0; n <= 150; ++n) {
        const PageRange aged = AgedPages(c.rule, n, page_tokens);
        for (int64_t page_idx = 0; page_idx * page_tokens <= n; ++page_idx) {
          const bool stays = page_idx == 0 || page_idx * page_tokens < c.rule.sink || (page_idx + 2) * page_tokens > n;
          ASSERT_EQ(aged.Contains(page_idx), !stays) << n << " page " << page_idx;
          ASSERT_TRUE(!aged.Contains(page_idx) || AgedPages(c.rule, n + 1, page_tokens).Contains(page_idx));
        }
      }
    }
  }
}

// ---- the compensation token
// ------------------------------------------------------------------------------------------

TEST(FoldedRange, MatchesTheGoldenCounts) {
  HeadRule head_rule = HeadRule::Stream(4, 64);
  head_rule.start = RuleStart::kEndOfPrompt;
  head_rule.compensate = true;
  const ResolvedRule rule = ResolveRule(head_rule, Limits(512, 544));
  EXPECT_EQ(FoldedRange(rule, 512), (TokenRange{4, 448}));
  // tests/golden/cache_rules/6_razor.json: the first decoded token reads a mean of 445, the last one of 476.
  EXPECT_EQ(FoldedRange(rule, 513).end - 4, 445);
  EXPECT_EQ(FoldedRange(rule, 544).end - 4, 476);
  EXPECT_EQ(FoldedRange(rule, 511), (TokenRange{4, 4})) << "nothing before the cut";
}

TEST(FoldedRange, KeptAndFoldedTokensAreAllTokens) {
  for (const Case& c : RandomCases(300)) {
    // A model's window hides sinks too; what happens to those is the window's business, not the rule's.
    if (!c.rule.compensate || c.rule.sink_reach < kNoLimit) continue;
    for (int64_t n = 1; n <= 150; ++n) {
      const TokenRange folded = FoldedRange(c.rule, n);
      ASSERT_EQ(NumKeptTokens(c.rule, n) + folded.end - folded.begin, n);
      for (int64_t j = folded.begin; j < folded.end; ++j) ASSERT_FALSE(InCache(c, n, j));
    }
  }
}

// ---- positions inside the cache
// --------------------------------------------------------------------------------------

// With slots 0 .. k-1 for the kept keys in text order and the query at k-1, the distance to every kept key is that from
// SinkPosition (sinks) or from the text (the rest) [streaming-llm §3.2].
TEST(SinkPosition, GivesTheDistancesOfSlots) {
  HeadRule head_rule = HeadRule::Stream(4, 9);
  head_rule.positions = Positions::kCache;
  const ResolvedRule rule = ResolveRule(head_rule, Limits(10, 100));
  for (int64_t n = 1; n <= 100; ++n) {
    int64_t slot = 0;
    for (const TokenRange& range : KeptRanges(rule, n)) {
      for (int64_t j = range.begin; j < range.end; ++j, ++slot) {
        const int64_t distance = NumKeptTokens(rule, n) - 1 - slot;
        EXPECT_EQ(j < rule.sink ? rule.SinkPosition(n - 1) - j : n - 1 - j, distance) << n << " " << j;
      }
    }
  }
}

// ---- heads that keep all and read few ----

ResolvedRule Reading(int64_t sink, int64_t recent, int64_t block, int64_t prompt_tokens) {
  HeadRule rule = HeadRule::Stream(sink, recent);
  rule.select = {.kind = Kind::kQuest, .block = block};
  rule.start = RuleStart::kEndOfPrompt;
  return ResolveRule(rule, {.prompt_tokens = prompt_tokens, .max_tokens = 1000});
}

TEST(BlockReads, KeepAllAndReadFew) {
  const ResolvedRule rule = Reading(20, 100, 16, 300);
  EXPECT_FALSE(rule.SelectsByScore());
  EXPECT_FALSE(rule.Bounded());
  EXPECT_EQ(rule.blocks, (KvBlockReads{.block_tokens = 16, .from = 300, .first = 2, .most = 7}));
  for (const int64_t n : {1, 299, 300, 301, 900}) {
    EXPECT_EQ(NumKeptTokens(rule, n), n);
    EXPECT_EQ(KeptRanges(rule, n), (std::vector<TokenRange>{{0, n}}));
  }
  EXPECT_TRUE(rule.blocks.ReadsAll(299));
  EXPECT_EQ(rule.blocks.NumTokensRead(299), 300);
  EXPECT_FALSE(rule.blocks.ReadsAll(300));
  EXPECT_EQ(rule.blocks.NumTokensRead(300), 8 * 16 + 13);
  // Nine blocks are all that a text of 144 tokens has.
  const ResolvedRule of_short = Reading(20, 100, 16, 10);
  EXPECT_TRUE(of_short.blocks.ReadsAll(143));
  EXPECT_EQ(of_short.blocks.NumTokensRead(143), 144);
  EXPECT_FALSE(of_short.blocks.ReadsAll(144));
  EXPECT_EQ(of_short.blocks.NumTokensRead(144), 8 * 16 + 1);
}

TEST(BlockReads, AShareOfThemIsTheNewest) {
  const auto of = [](int64_t recent, double share) {
    HeadRule rule = HeadRule::Stream(20, recent);
    rule.select = {.kind = Kind::kInfLlm, .recent_share = share, .block = 32, .representatives = 3};
    rule.start = RuleStart::kEndOfPrompt;
    return ResolveRule(rule, {.prompt_tokens = 300, .max_tokens = 1000});
  };
  const ResolvedRule rule = of(320, 0.3);
  EXPECT_EQ(rule.blocks,
            (KvBlockReads{.block_tokens = 32, .from = 300, .first = 1, .most = 10, .newest = 3, .representatives = 3}));
  EXPECT_EQ(rule.blocks.NotedWith(5), 7);
  EXPECT_EQ(NumKeptTokens(rule, 900), 900);
  // Two at least.
  EXPECT_EQ(of(320, 0).blocks.newest, 2);
  EXPECT_EQ(of(10, 0).blocks.most, 2);
  // Other newest blocks, other representatives.
  EXPECT_TRUE(SamePast(rule, of(640, 0.15), 200));
  EXPECT_FALSE(SamePast(rule, of(320, 0.5), 200));
}

TEST(BlockReads, ForksGoOnUntilAQueryHasChosen) {
  const ResolvedRule rule = Reading(0, 64, 16, 300);
  EXPECT_TRUE(SamePast(rule, Reading(0, 128, 16, 400), 300));
  EXPECT_FALSE(SamePast(rule, Reading(0, 128, 16, 400), 301));
  EXPECT_TRUE(SamePast(rule, Reading(0, 64, 16, 300), 301));
  EXPECT_FALSE(SamePast(rule, Reading(0, 64, 32, 300), 10)) << "bounds of other blocks";
  EXPECT_FALSE(SamePast(rule, ResolvedRule{}, 10)) << "pages without bounds";
  EXPECT_FALSE(SamePast(ResolvedRule{}, rule, 0));
}

// ---- forks under other rules ----

// By brute force: equal for every query so far, what it may read and what the cache keeps. SamePast may be false where
// that holds, but never true where it does not; and it must see what forks rest on.
TEST(SamePast, IsNeverTrueOfPastsThatDiffer) {
  std::vector<ResolvedRule> rules;
  for (const int64_t window : {kNoLimit, int64_t{12}}) {
    for (const RuleStart start : {RuleStart::kFirstToken, RuleStart::kEndOfPrompt}) {
      for (HeadRule rule : {HeadRule::Stream(0, 8), HeadRule::Stream(3, 8), HeadRule::Stream(3, 30)}) {
        rule.start = start;
        rules.push_back(ResolveRule(rule, {.prompt_tokens = 20, .max_tokens = 60}, window));
        rule.compensate = true;
        rules.push_back(ResolveRule(rule, {.prompt_tokens = 25, .max_tokens = 60}, window));
      }
    }
    rules.push_back(ResolveRule(HeadRule::Full(), {.prompt_tokens = 20, .max_tokens = 60}, window));
  }
  int64_t num_same = 0;
  for (const ResolvedRule& a : rules) {
    for (const ResolvedRule& b : rules) {
      for (int64_t n = 0; n <= 40; ++n) {
        if (!SamePast(a, b, n)) continue;
        num_same += a == b ? 0 : 1;
        EXPECT_EQ(KeptRanges(a, n), KeptRanges(b, n)) << n;
        EXPECT_EQ(FoldedRange(a, n).end - FoldedRange(a, n).begin, FoldedRange(b, n).end - FoldedRange(b, n).begin);
        for (int64_t query = 0; query < n; ++query) {
          for (int64_t key = 0; key <= query; ++key) {
            ASSERT_EQ(Readable(a, query, key), Readable(b, query, key)) << n << " " << query << " " << key;
          }
        }
      }
    }
  }
  EXPECT_GT(num_same, 0);
  HeadRule cut = HeadRule::Stream(3, 8);
  cut.start = RuleStart::kEndOfPrompt;
  const SequenceLimits limits{.prompt_tokens = 20, .max_tokens = 60};
  const ResolvedRule full = ResolveRule(HeadRule::Full(), limits);
  EXPECT_TRUE(SamePast(full, ResolveRule(cut, limits), 19));
  EXPECT_FALSE(SamePast(full, ResolveRule(cut, limits), 20));
  EXPECT_FALSE(SamePast(full, ResolveRule(HeadRule::Stream(3, 8), limits), 19));
}

}  // namespace
}  // namespace headwise
