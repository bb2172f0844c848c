#include "kv/kv_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "backend/all_backends.h"

namespace headwise {
namespace {

constexpr PageSizes kPlain{.newest = 100};
constexpr PageSizes kAging{.newest = 100, .aged = 60};

ResolvedRule Stream(int64_t sink, int64_t recent) {
  return {.sink = sink, .recent = recent};
}

TEST(KvPages, ByHand) {
  // 100 tokens in pages of 16: six complete ones and a growing one, of which 1 to 4 have aged.
  PageCounts pages = KvPages({}, 100, 16);
  EXPECT_EQ(pages.newest, 3);
  EXPECT_EQ(pages.aged, 4);
  // Sinks in pages 0 and 1; tokens 60 .. 99 in pages 3 to 6.
  pages = KvPages(Stream(20, 40), 100, 16);
  EXPECT_EQ(pages.newest, 2 + 2);
  EXPECT_EQ(pages.aged, 2);
  pages = KvPages(Stream(0, 10), 100, 16);
  EXPECT_EQ(pages.newest, 2);
  EXPECT_EQ(pages.aged, 0);
  EXPECT_EQ(KvPages({}, 0, 16).total(), 0);
}

// All with a kept token are among them; a ring has at most one more, its oldest.
TEST(KvPages, AreThoseOfSinksAndOfTheRing) {
  std::mt19937_64 rng(1);
  for (int round = 0; round < 200; ++round) {
    const ResolvedRule rule = Stream(static_cast<int64_t>(rng() % 50), 1 + static_cast<int64_t>(rng() % 90));
    const int64_t sink_pages = (rule.sink + 15) / 16;
    for (int64_t n = 0; n <= 250; n += 1 + static_cast<int64_t>(rng() % 7)) {
      std::set<int64_t> kept, owned;
      for (const TokenRange& range : KeptRanges(rule, n)) {
        for (int64_t j = range.begin; j < range.end; ++j) kept.insert(j / 16);
      }
      // The ring: as many pages as the window touches where it touches most.
      const int64_t num_pages = (n + 15) / 16;
      const int64_t ring = (rule.recent + 14) / 16 + 1;
      for (int64_t p = 0; p < num_pages; ++p) {
        if (p < sink_pages || p >= num_pages - ring) owned.insert(p);
      }
      ASSERT_TRUE(std::includes(owned.begin(), owned.end(), kept.begin(), kept.end())) << n;
      ASSERT_LE(owned.size(), kept.size() + 1) << n;
      const auto num_aged =
          std::count_if(owned.begin(), owned.end(), [&](int64_t p) { return AgedPages(rule, n, 16).Contains(p); });
      const PageCounts pages = KvPages(rule, n, 16);
      ASSERT_EQ(pages.aged, num_aged) << n;
      ASSERT_EQ(pages.total(), static_cast<int64_t>(owned.size())) << n;
    }
  }
}

// 1000 tokens in 63 pages of 16, each with 4 bytes of bounds for each of 64 dimensions; the next query reads blocks of
// 16 tokens, 6 and one for the sinks, and the bounds of all.
TEST(PlanKvBytes, HeadsThatReadBlocksKeepAll) {
  HeadPlan plan;
  plan.shape = {.architecture = "llama", .num_layers = 1, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 64};
  HeadRule rule = HeadRule::Stream(4, 96);
  rule.select.kind = TokenSelector::Kind::kQuest;
  rule.start = RuleStart::kEndOfPrompt;
  plan.rules = {HeadRule::Full(), rule};
  const KvBytesArgs args{.plan = &plan,
                         .limits = {.prompt_tokens = 1000, .max_tokens = 1200},
                         .page_tokens = 16,
                         .full_pages = {.newest = 4096, .aged = 2000},
                         .bounded_pages = {.newest = 1}};
  const KvBytes bytes = PlanKvBytes(args, 1000);
  EXPECT_EQ(bytes.bounded, 0);
  EXPECT_EQ(bytes.full, 3 * 4096 + 60 * 2000 + 63 * (4096 + 256));
  EXPECT_EQ(bytes.read, 3 * 4096 + 60 * 2000 + 7 * 4096 + 63 * 256);
  EXPECT_EQ(bytes.kept_tokens, 2000);
  // The prompt's own queries read all.
  EXPECT_EQ(PlanKvBytes(args, 900).read, PlanKvBytes(args, 900).full - 57 * 256);
}

TEST(RingPages, HoldTheWindowWhereverItLies) {
  for (const int64_t recent : {1, 2, 15, 16, 17, 31, 32, 33, 100}) {
    int64_t most = 0;
    int64_t most_with_leaving = 0;
    for (int64_t end = recent + 1; end < recent + 40; ++end) {
      most = std::max(most, (end - 1) / 16 - (end - recent) / 16 + 1);
      most_with_leaving = std::max(most_with_leaving, (end - 1) / 16 - (end - recent - 1) / 16 + 1);
    }
    EXPECT_EQ(RingPages(recent, /*compensate=*/false, 16), most) << recent;
    EXPECT_EQ(RingPages(recent, /*compensate=*/true, 16), most_with_leaving) << recent;
  }
  EXPECT_EQ(RingPages(kNoLimit, false, 16), kNoLimit);
}

TEST(PageSizes, AreTheBackends) {
  const auto backend = MakeBackend({.name = "ref"}).value();
  const KvLayout layout{.head_dim = 64, .page_tokens = 32, .format = KvFormat::kQ4};
  const PageSizes sizes = PageSizesOf(*backend, layout);
  EXPECT_EQ(sizes.newest, 2 * 32 * 66);
  EXPECT_EQ(sizes.aged, 2 * 32 * 32 + 256 + 256);
  EXPECT_EQ(sizes.BytesOf({.newest = 3, .aged = 4}), 3 * sizes.newest + 4 * sizes.aged);
  KvLayout plain = layout;
  plain.format = KvFormat::kF16;
  EXPECT_FALSE(PageSizesOf(*backend, plain).ages());
  EXPECT_EQ(PageSizesOf(*backend, plain).BytesOf({.newest = 3, .aged = 4}), 7 * 2 * 32 * 64 * 2);
}

KvBytesArgs ArgsFor(const HeadPlan& plan, int64_t num_tokens) {
  return {.plan = &plan,
          .limits = {.prompt_tokens = num_tokens, .max_tokens = num_tokens},
          .chunk_tokens = 64,
          .page_tokens = 16,
          .full_pages = kPlain,
          .bounded_pages = kPlain};
}

// The largest shape that a plan may name, over the longest text.
TEST(KvBytes, WhatNoNumberHoldsIsTheLargest) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const HeadPlan plan =
      HeadPlan::Dense({.architecture = "", .num_layers = 4, .num_kv_heads = 4, .head_dim = int64_t{1} << 20});
  KvBytesArgs args = ArgsFor(plan, int64_t{1} << 40);
  for (const PageSizes& sizes :
       {PageSizes{.newest = int64_t{1} << 28}, {.newest = int64_t{1} << 28, .aged = 1 << 27}}) {
    args.full_pages = sizes;
    EXPECT_EQ(PlanKvBytes(args, int64_t{1} << 40).full, kLargest);
    EXPECT_EQ(PlanKvBytes(args, int64_t{1} << 40).total(), kLargest);
    EXPECT_EQ(PeakKvBytes(args), kLargest);
  }
  EXPECT_EQ((KvBytes{.full = kLargest, .bounded = 1}).total(), kLargest);
}

TEST(KvBytes, EachKindOfHeadHasItsPages) {
  HeadPlan plan = HeadPlan::Dense({.architecture = "", .num_layers = 1, .num_kv_heads = 2, .head_dim = 8});
  plan.rules[1] = HeadRule::Stream(20, 40);
  KvBytesArgs args = ArgsFor(plan, 100);
  EXPECT_EQ(PlanKvBytes(args, 100).full, 700);
  EXPECT_EQ(PlanKvBytes(args, 100).bounded, 600);
  args.full_pages = kAging;
  EXPECT_EQ(PlanKvBytes(args, 100).full, 3 * 100 + 4 * 60);
  EXPECT_EQ(PlanKvBytes(args, 100).bounded, 600);
  args.bounded_pages = kAging;
  EXPECT_EQ(PlanKvBytes(args, 100).bounded, 4 * 100 + 2 * 60);
}

TEST(KvBytes, AFullHeadOfALayerWithAWindowKeepsTheWindow) {
  const HeadPlan plan = HeadPlan::Dense({.architecture = "", .num_layers = 3, .num_kv_heads = 2, .head_dim = 8});
  KvBytesArgs args = ArgsFor(plan, 100);
  args.windows.tokens = {20, kNoLimit, 40};
  // Of pages of 16, 20 tokens touch up to three, 40 up to four; all 100 lie in seven.
  EXPECT_EQ(PlanKvBytes(args, 100).bounded, 2 * (3 + 4) * 100);
  EXPECT_EQ(PlanKvBytes(args, 100).full, 2 * 7 * 100);
  EXPECT_EQ(PlanKvBytes(args, 100).kept_tokens, 2 * (20 + 100 + 40));
  args.limits.prompt_tokens = args.limits.max_tokens = 10'000;
  const int64_t windowed = PeakKvBytes(args);
  args.windows = {};
  // In a layer that is computed a step of 64 tokens comes on top; windows may straddle a page more.
  EXPECT_GE(windowed, PlanKvBytes(args, 10'000).full / 3);
  EXPECT_LE(windowed, PlanKvBytes(args, 10'000).full / 3 + 2 * (3 + 4 + 5) * 100);
}

// Bytes fall when a page ages: the peak looks at every length, not at the last.
TEST(KvBytes, ThePeakCoversEveryLength) {
  HeadPlan plan = HeadPlan::Dense({.architecture = "", .num_layers = 3, .num_kv_heads = 1, .head_dim = 8});
  plan.rules[1] = HeadRule::Stream(20, 40);
  for (int64_t n = 1; n <= 300; ++n) {
    KvBytesArgs args = ArgsFor(plan, n);
    args.full_pages = args.bounded_pages = kAging;
    int64_t most = 0;
    for (int64_t k = 1; k <= n; ++k) most = std::max(most, PlanKvBytes(args, k).total());
    const int64_t peak = PeakKvBytes(args);
    ASSERT_GE(peak, most) << n;
    // A bounded head at most two pages too much; in one layer a step of 64 tokens, and what ages of it.
    ASSERT_LE(peak, most + 2 * 100 + 5 * 160) << n;
    if (n < 200) continue;
    args.full_pages = args.bounded_pages = kPlain;
    ASSERT_LT(peak, PeakKvBytes(args)) << n << ": a long text takes less than in the larger format";
  }
}

// The peak at what fits is within the bytes, and one token more is not.
TEST(TokensThatFit, AreTheMostWhosePeakIsWithin) {
  const ModelShape shape{.architecture = "llama", .num_layers = 2, .num_q_heads = 2, .num_kv_heads = 2, .head_dim = 16};
  HeadPlan plan = HeadPlan::Dense(shape);
  KvBytesArgs args = ArgsFor(plan, 0);
  for (const bool is_mixed : {false, true}) {
    if (is_mixed) plan.rules[1] = plan.rules[3] = HeadRule::Stream(16, 32);
    for (const PageSizes& pages : {kPlain, kAging}) {
      args.full_pages = args.bounded_pages = pages;
      const auto peak = [&](int64_t tokens) {
        args.limits = {.prompt_tokens = tokens, .max_tokens = tokens};
        return PeakKvBytes(args);
      };
      for (const int64_t bytes : {int64_t{5000}, int64_t{123456}, int64_t{1} << 30}) {
        const int64_t tokens = TokensThatFit(args, bytes, int64_t{1} << 40);
        EXPECT_GT(tokens, 0) << bytes;
        EXPECT_LE(peak(tokens), bytes);
        EXPECT_GT(peak(tokens + 1), bytes);
      }
    }
  }
  EXPECT_EQ(TokensThatFit(args, 10, 1 << 20), 0);
  EXPECT_EQ(TokensThatFit(args, int64_t{1} << 60, 1 << 20), 1 << 20) << "no more than asked";
}

}  // namespace
}  // namespace headwise
