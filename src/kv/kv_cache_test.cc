// The cache over the reference backend: which pages it holds, in which pool, and what forks do to each other.
#include "kv/cache_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/all_backends.h"
#include "base/mix_seed.h"
#include "kv/kv_snapshot.h"
#include "kv/kv_snapshot_bytes.h"
#include "support/read_token.h"

namespace headwise {
namespace {

constexpr int64_t kHeadDim = 16;
constexpr int64_t kPageTokens = 16;
constexpr int64_t kLayers = 2;
constexpr int64_t kHeads = 3;
constexpr KvFormats kAllQ4{KvFormat::kQ4, KvFormat::kQ4};

std::vector<ResolvedRule> SameForAll(const ResolvedRule& rule) {
  return std::vector<ResolvedRule>(static_cast<size_t>(kLayers * kHeads), rule);
}

// Key of token `pos` of a text, and with another `salt` its value.
float Element(uint64_t text, int64_t pos, int64_t d, int64_t salt) {
  const uint64_t mixed = MixSeed(MixSeed(text, pos, d), salt, 0);
  return static_cast<float>((mixed >> 32) % 2001) / 1000.0f - 1.0f;
}

struct Memory {
  explicit Memory(const KvFormats& formats)
      : backend(MakeBackend({.name = "ref"}).value()),
        set(*backend, {.head_dim = kHeadDim, .page_tokens = kPageTokens, .formats = formats}),
        usage(set.usage()) {}
  std::unique_ptr<KvCache> NewCache(std::vector<ResolvedRule> rules) const {
    return std::make_unique<KvCache>(set.pools(), kHeads, std::move(rules));
  }
  std::vector<PageSpace> Spaces() const {
    std::vector<PageSpace> spaces;
    set.GetSpaces(spaces);
    return spaces;
  }
  PageSizes SizesOf(KvFormat format) const {
    return PageSizesOf(*backend, {.head_dim = kHeadDim, .page_tokens = kPageTokens, .format = format});
  }

  std::unique_ptr<Backend> backend;
  KvPoolSet set;
  const PoolUsage& usage;
};

// A step of the decoder without attention: `num_new` more tokens of a text into every layer.
void Read(Memory& memory, KvCache& cache, uint64_t text, int64_t num_new) {
  std::vector<float> k, v;
  for (int64_t i = 0; i < num_new; ++i) {
    for (int64_t e = 0; e < kHeads * kHeadDim; ++e) {
      k.push_back(Element(text, cache.num_tokens() + i, e % kHeadDim, 1));
      v.push_back(Element(text, cache.num_tokens() + i, e % kHeadDim, 2));
    }
  }
  const auto view = [&](std::vector<float>& values) {
    return TensorView{.data = values.data(), .dtype = DType::kF32, .shape = {num_new, kHeads * kHeadDim}};
  };
  CacheLayerArgs args;
  args.k = view(k);
  args.v = view(v);
  ASSERT_TRUE(cache.PlanStep(num_new).ok());
  CacheStep step(*memory.backend, memory.set.pools());
  step.Add(cache);
  step.Begin();
  for (int64_t layer_idx = 0; layer_idx < kLayers; ++layer_idx) step.RunLayer(layer_idx, args);
  step.Finish();
}

// Key, then value of a kept token: the mean of one token is that token.
std::vector<float> TokenOf(Memory& memory, const KvCache& cache, int64_t layer_idx, int64_t kv_head, int64_t pos) {
  return ReadToken(*memory.backend, cache, layer_idx, kv_head, pos);
}

bool IsAged(const ResolvedRule& rule, int64_t num_tokens, int64_t pos) {
  return AgedPages(rule, num_tokens, kPageTokens).Contains(pos / kPageTokens);
}

std::vector<ResolvedRule> RandomRules(std::mt19937_64& rng) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  std::vector<ResolvedRule> rules;
  for (int64_t i = 0; i < kLayers * kHeads; ++i) {
    HeadRule rule = below(3) == 0 ? HeadRule::Full() : HeadRule::Stream(below(40), 1 + below(100));
    if (rule.kind != HeadRule::Kind::kFull && below(2) == 0) rule.start = RuleStart::kEndOfPrompt;
    if (rule.kind != HeadRule::Kind::kFull) rule.compensate = below(2) == 0;
    rules.push_back(ResolveRule(rule, {.prompt_tokens = 120, .max_tokens = 1000}));
  }
  return rules;
}

void ExpectPages(const Memory& memory, const KvFormats& formats, const KvCache& cache) {
  int64_t full = 0;
  int64_t bounded = 0;
  for (int64_t layer_idx = 0; layer_idx < kLayers; ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < kHeads; ++kv_head) {
      const ResolvedRule& rule = cache.rule(layer_idx, kv_head);
      const KvFormat format = rule.Bounded() ? formats.bounded : formats.full;
      const std::vector<PageSpace> spaces = memory.Spaces();
      const StepRows rows = cache.Rows(0);
      KvStep step;
      step.num_kv_heads = kHeads;
      step.sequences = {&rows, 1};
      step.heads = memory.set.pools().tables->heads.entries();
      step.spaces = spaces;
      const HeadWork head = step.Head(layer_idx, kv_head);
      PageCounts expected = KvPages(rule, cache.num_tokens(), kPageTokens);
      if (format == KvFormat::kQ4) {
        EXPECT_EQ((PageRange{head.aged_begin(), head.aged_end()}), AgedPages(rule, cache.num_tokens(), kPageTokens));
      } else {
        EXPECT_EQ(head.aged_end(), head.aged_begin());
        expected = {.newest = expected.total(), .aged = 0};
      }
      EXPECT_EQ(head.layout().format, NewestFormat(format));
      EXPECT_EQ(cache.NumPages(layer_idx, kv_head).newest, expected.newest) << cache.num_tokens();
      EXPECT_EQ(cache.NumPages(layer_idx, kv_head).aged, expected.aged) << cache.num_tokens();
      (rule.Bounded() ? bounded : full) += memory.SizesOf(format).BytesOf(expected);
      if (rule.Bounded() && rule.compensate) bounded += 2 * kHeadDim * 4;
    }
  }
  EXPECT_EQ(cache.Bytes().full, full);
  EXPECT_EQ(cache.Bytes().bounded, bounded);
}

TEST(KvCache, AgesThePagesThatTheRuleSays) {
  std::mt19937_64 rng(1);
  for (const char* names : {"q4", "q8,q4", "q4,f16", "f16,q4", "q8"}) {
    const KvFormats formats = KvFormatsByName(names).value();
    for (int round = 0; round < 8; ++round) {
      Memory memory(formats);
      const auto cache = memory.NewCache(RandomRules(rng));
      while (cache->num_tokens() < 400) {
        const int64_t wish = rng() % 2 == 0 ? 1 : 1 + static_cast<int64_t>(rng() % 60);
        Read(memory, *cache, 1, std::min(wish, cache->MaxStepTokens()));
        ASSERT_NO_FATAL_FAILURE(ExpectPages(memory, formats, *cache)) << names;
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Tokens in pages that stay are what a q8 cache holds, bit for bit; aged ones are near it.
TEST(KvCache, OnlyAgedTokensLoseBits) {
  Memory q4(kAllQ4);
  Memory q8({KvFormat::kQ8, KvFormat::kQ8});
  const ResolvedRule rule = ResolveRule(HeadRule::Stream(20, 100), {});
  const auto cache = q4.NewCache(SameForAll(rule));
  const auto exact = q8.NewCache(SameForAll(rule));
  int64_t num_changed = 0;
  for (const int64_t num_new : {33, 1, 50, 7, 40, 64, 1, 1}) {
    Read(q4, *cache, 3, num_new);
    Read(q8, *exact, 3, num_new);
    for (const TokenRange& range : KeptRanges(rule, cache->num_tokens())) {
      for (int64_t pos = range.begin; pos < range.end; ++pos) {
        const std::vector<float> token = TokenOf(q4, *cache, 1, 2, pos);
        const std::vector<float> expected = TokenOf(q8, *exact, 1, 2, pos);
        if (!IsAged(rule, cache->num_tokens(), pos)) {
          ASSERT_EQ(token, expected) << pos << " of " << cache->num_tokens();
          continue;
        }
        for (size_t i = 0; i < token.size(); ++i) {
          ASSERT_NEAR(token[i], expected[i], 2.0 / 15 / 2 * 1.01) << pos;  // numbers in -1 .. 1, half a step
          num_changed += token[i] == expected[i] ? 0 : 1;
        }
      }
    }
  }
  EXPECT_GT(num_changed, 1000);
}

// However the tokens came, a page that has aged is the same.
TEST(KvCache, StepsDoNotMatter) {
  Memory memory(kAllQ4);
  const ResolvedRule rule;
  const auto at_once = memory.NewCache(SameForAll(rule));
  const auto one_by_one = memory.NewCache(SameForAll(rule));
  Read(memory, *at_once, 5, 150);
  for (int i = 0; i < 150; ++i) Read(memory, *one_by_one, 5, 1);
  for (int64_t pos = 0; pos < 150; ++pos) {
    ASSERT_EQ(TokenOf(memory, *at_once, 0, 1, pos), TokenOf(memory, *one_by_one, 0, 1, pos)) << pos;
  }
}

TEST(KvCache, ForksAgeOnTheirOwn) {
  for (const int64_t shared : {10, 16, 40, 63, 64, 65, 100}) {
    Memory memory(kAllQ4);
    const ResolvedRule rule = ResolveRule(shared % 2 == 0 ? HeadRule::Full() : HeadRule::Stream(4, 60), {});
    const auto original = memory.NewCache(SameForAll(rule));
    const auto alone = memory.NewCache(SameForAll(rule));
    Read(memory, *original, 1, shared);
    Read(memory, *alone, 1, shared);
    const auto fork = original->Fork();
    EXPECT_EQ(fork->Bytes().total(), original->Bytes().total());
    Read(memory, *fork, 2, 90);  // ages pages that the original still reads as q8
    for (const TokenRange& range : KeptRanges(rule, shared)) {
      for (int64_t pos = range.begin; pos < range.end; ++pos) {
        ASSERT_EQ(TokenOf(memory, *original, 0, 0, pos), TokenOf(memory, *alone, 0, 0, pos)) << shared << " " << pos;
      }
    }
    Read(memory, *original, 1, 90);
    Read(memory, *alone, 1, 90);
    for (const TokenRange& range : KeptRanges(rule, shared + 90)) {
      for (int64_t pos = range.begin; pos < range.end; ++pos) {
        ASSERT_EQ(TokenOf(memory, *original, 1, 2, pos), TokenOf(memory, *alone, 1, 2, pos)) << shared << " " << pos;
        // What the fork shares with the text it left is the same, where its page holds nothing else.
        if ((pos / kPageTokens + 1) * kPageTokens > shared) continue;
        ASSERT_EQ(TokenOf(memory, *fork, 1, 2, pos), TokenOf(memory, *alone, 1, 2, pos)) << shared << " " << pos;
      }
    }
    EXPECT_EQ(fork->Bytes().total(), original->Bytes().total());
  }
}

std::string BytesOf(const KvSnapshot& snapshot) {
  ByteWriter to;
  PutSnapshot(to, snapshot);
  return to.bytes();
}

// What a cache says of itself is what a file of it may say, and is the same from there.
void ExpectFits(Memory& memory, const std::vector<ResolvedRule>& rules, const KvSnapshot& snapshot) {
  const Status fits = CheckSnapshot(memory.set.pools(), kHeads, rules, snapshot);
  EXPECT_TRUE(fits.ok()) << fits.message();
  const std::string bytes = BytesOf(snapshot);
  ByteReader from(bytes);
  const KvSnapshot read = GetSnapshot(from);
  EXPECT_TRUE(from.ok() && from.rest().empty());
  EXPECT_EQ(BytesOf(read), bytes);
  EXPECT_TRUE(CheckSnapshot(memory.set.pools(), kHeads, rules, read).ok());
}

TEST(KvCache, ASnapshotThatCannotBeIsRefused) {
  Memory memory(kAllQ4);
  HeadRule compensating = HeadRule::Stream(20, 100);
  compensating.compensate = true;
  std::vector<ResolvedRule> rules = SameForAll(ResolveRule(compensating, {}));
  rules[0] = ResolveRule(HeadRule::Full(), {});
  const auto cache = memory.NewCache(rules);
  Read(memory, *cache, 1, 200);
  const auto snapshot = cache->Save();
  ASSERT_TRUE(snapshot.ok());
  const std::string bytes = BytesOf(**snapshot);
  int num_refused = 0;
  // Whatever number is another, nothing breaks: it is refused, or was of no consequence.
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ (1 << (i % 8)));
    ByteReader from(changed);
    const KvSnapshot read = GetSnapshot(from);
    if (!from.ok() || !CheckSnapshot(memory.set.pools(), kHeads, rules, read).ok()) {
      ++num_refused;
    } else {
      EXPECT_TRUE(changed.substr(16, 8) != bytes.substr(16, 8) || read.num_tokens != (*snapshot)->num_tokens) << i;
    }
    ByteReader cut(std::string_view(bytes).substr(0, i));
    GetSnapshot(cut);
    EXPECT_FALSE(cut.ok()) << i;
  }
  EXPECT_GT(num_refused, static_cast<int>(bytes.size()) - 16);
  std::vector<ResolvedRule> others = rules;
  others[1].recent += 1;
  EXPECT_FALSE(CheckSnapshot(memory.set.pools(), kHeads, others, **snapshot).ok());
  Memory f16({KvFormat::kF16, KvFormat::kF16});
  EXPECT_FALSE(CheckSnapshot(f16.set.pools(), kHeads, rules, **snapshot).ok());
}

// What comes back from host memory is what was there, holds as much, and goes on alike; a fork of it that stayed does
// not notice.
TEST(KvCache, GoesOnFromASnapshot) {
  std::mt19937_64 rng(5);
  for (const char* names : {"f32", "q8", "q4", "q4,f16", "f16,q4"}) {
    const KvFormats formats = KvFormatsByName(names).value();
    for (int round = 0; round < 6; ++round) {
      Memory memory(formats);
      const std::vector<ResolvedRule> rules = RandomRules(rng);
      const auto stays = memory.NewCache(rules);
      auto moves = memory.NewCache(rules);
      std::unique_ptr<KvCache> fork;
      while (stays->num_tokens() < 300) {
        const int64_t bytes = memory.usage.bytes;
        const auto snapshot = moves->Save();
        ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
        EXPECT_EQ((*snapshot)->bytes, moves->Bytes().total());
        if (moves->num_tokens() > 0) ExpectFits(memory, rules, **snapshot);
        moves.reset();
        auto restored = KvCache::Restore(memory.set.pools(), **snapshot);
        ASSERT_TRUE(restored.ok()) << restored.status().message();
        moves = *std::move(restored);
        if (fork == nullptr) {
          EXPECT_EQ(memory.usage.bytes, bytes);
          EXPECT_EQ(moves->PeakBytes(), stays->PeakBytes());
          EXPECT_EQ(memory.usage.bounded_bytes, moves->Bytes().bounded + stays->Bytes().bounded);
        }
        if (moves->num_tokens() > 0) ExpectPages(memory, formats, *moves);
        if (round % 2 == 1 && stays->num_tokens() > 100 && fork == nullptr) fork = moves->Fork();

        const int64_t wish = rng() % 3 == 0 ? 1 : 1 + static_cast<int64_t>(rng() % 60);
        const int64_t num_new = std::min(wish, stays->MaxStepTokens());
        Read(memory, *stays, 1, num_new);
        Read(memory, *moves, 1, num_new);
        for (int64_t i = 0; i < kLayers * kHeads; ++i) {
          for (const TokenRange& range : KeptRanges(rules[static_cast<size_t>(i)], stays->num_tokens())) {
            for (int64_t pos = range.begin; pos < range.end; pos += 7) {
              ASSERT_EQ(TokenOf(memory, *moves, i / kHeads, i % kHeads, pos),
                        TokenOf(memory, *stays, i / kHeads, i % kHeads, pos))
                  << names << " " << pos << " of " << stays->num_tokens();
            }
          }
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(KvCache, ASnapshotThatFindsNoRoomTakesNone) {
  Memory memory(kAllQ4);
  const auto cache = memory.NewCache(SameForAll(ResolveRule(HeadRule::Stream(20, 100), {})));
  Read(memory, *cache, 1, 200);
  const auto snapshot = cache->Save();
  ASSERT_TRUE(snapshot.ok());
  const int64_t bytes = memory.usage.bytes;
  memory.set.usage().limit_bytes = 2 * bytes - 1;
  EXPECT_EQ(KvCache::Restore(memory.set.pools(), **snapshot).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(memory.usage.bytes, bytes);
  memory.set.usage().limit_bytes = 2 * bytes;
  EXPECT_TRUE(KvCache::Restore(memory.set.pools(), **snapshot).ok());
}

TEST(KvCache, MemoryReturns) {
  for (const char* names : {"q4", "q8,q4", "q4,f16"}) {
    Memory memory(KvFormatsByName(names).value());
    std::mt19937_64 rng(3);
    auto cache = memory.NewCache(RandomRules(rng));
    Read(memory, *cache, 1, 100);
    auto fork = cache->Fork();
    Read(memory, *fork, 2, 20);
    Read(memory, *fork, 2, 200);
    Read(memory, *cache, 1, 20);
    cache.reset();
    EXPECT_GT(memory.usage.bytes, 0);
    EXPECT_GT(fork->Bytes().total(), 0);
    fork.reset();
    EXPECT_EQ(memory.usage.bytes, 0) << names;
    EXPECT_EQ(memory.usage.bounded_bytes, 0) << names;
  }
}

// What forks share counts once, as what it was read as: not as what a head that goes on from it is.
TEST(KvCache, BytesCountByTheClassOfHeads) {
  Memory memory(KvFormatsByName("f16").value());
  HeadRule cut = HeadRule::Stream(4, 30);
  cut.start = RuleStart::kEndOfPrompt;
  const auto full = memory.NewCache(SameForAll(ResolveRule(HeadRule::Full(), {})));
  Read(memory, *full, 1, 10 * kPageTokens);
  const int64_t bytes = memory.usage.bytes;
  EXPECT_EQ(memory.usage.bounded_bytes, 0);
  const SequenceLimits limits{.prompt_tokens = 11 * kPageTokens, .max_tokens = 20 * kPageTokens};
  auto bounded = full->ForkAs(SameForAll(ResolveRule(cut, limits)));
  ASSERT_NE(bounded, nullptr);
  EXPECT_EQ(memory.usage.bytes, bytes);
  EXPECT_EQ(memory.usage.bounded_bytes, 0);
  Read(memory, *bounded, 1, kPageTokens);
  EXPECT_EQ(memory.usage.bounded_bytes, memory.usage.bytes - bytes);
  EXPECT_GT(memory.usage.bounded_bytes, 0);
  bounded.reset();
  EXPECT_EQ(memory.usage.bounded_bytes, 0);
  EXPECT_EQ(memory.usage.bytes, bytes);
}

// A window that slides drops pages that have aged: the pools hold what its heads own and no more.
TEST(KvCache, AWindowDropsAgedPages) {
  Memory memory(kAllQ4);
  const ResolvedRule rule = ResolveRule(HeadRule::Stream(4, 80), {});
  const auto cache = memory.NewCache(SameForAll(rule));
  for (int i = 0; i < 300; ++i) {
    Read(memory, *cache, 1, 1);
    const PageCounts pages = KvPages(rule, cache->num_tokens(), kPageTokens);
    ASSERT_EQ(memory.set.pools().full.aged->pages_in_use(), kLayers * kHeads * pages.aged);
    ASSERT_EQ(memory.set.pools().full.newest->pages_in_use(), kLayers * kHeads * pages.newest);
    ASSERT_EQ(memory.usage.bytes, cache->Bytes().total());
  }
}

TEST(KvCache, KindsOfHeadsShareThePoolsOfTheirFormats) {
  const auto pools_of = [](const char* names) { return Memory(KvFormatsByName(names).value()).set.pools(); };
  KvPools pools = pools_of("q4");
  EXPECT_EQ(pools.full, pools.bounded);
  EXPECT_NE(pools.full.aged, nullptr);
  pools = pools_of("q8,q4");
  EXPECT_EQ(pools.full.newest, pools.bounded.newest);
  EXPECT_EQ(pools.full.aged, nullptr);
  EXPECT_NE(pools.bounded.aged, nullptr);
  pools = pools_of("q4,f16");
  EXPECT_NE(pools.full.newest, pools.bounded.newest);
  EXPECT_EQ(pools.bounded.aged, nullptr);
}

// Pages of sinks stay in q8: a full head's page that has aged cannot become one.
TEST(KvCache, AForkCannotMakeAnAgedPageASinksPage) {
  Memory memory(kAllQ4);
  const SequenceLimits limits{.prompt_tokens = 200, .max_tokens = 300};
  HeadRule few = HeadRule::Stream(16, 20);
  HeadRule many = HeadRule::Stream(17, 20);
  few.start = many.start = RuleStart::kEndOfPrompt;
  const auto cache = memory.NewCache(SameForAll(ResolveRule(HeadRule::Full(), limits)));
  Read(memory, *cache, 1, 47);
  // Heads are of the other kind under these rules; both kinds have the same pools.
  EXPECT_NE(cache->ForkAs(SameForAll(ResolveRule(many, limits))), nullptr) << "nothing has aged yet";
  Read(memory, *cache, 1, 60);
  EXPECT_EQ(cache->ForkAs(SameForAll(ResolveRule(many, limits))), nullptr);
  const auto fork = cache->ForkAs(SameForAll(ResolveRule(few, limits)));
  ASSERT_NE(fork, nullptr);
  ExpectPages(memory, kAllQ4, *fork);
  Read(memory, *fork, 1, fork->MaxStepTokens());
  ExpectPages(memory, kAllQ4, *fork);
  Read(memory, *fork, 1, 30);
  ExpectPages(memory, kAllQ4, *fork);
}

TEST(KvCache, ThePeakIsWithinThePlansArithmetic) {
  std::mt19937_64 rng(5);
  for (int round = 0; round < 60; ++round) {
    HeadPlan plan =
        HeadPlan::Dense({.architecture = "", .num_layers = kLayers, .num_kv_heads = kHeads, .head_dim = kHeadDim});
    for (HeadRule& rule : plan.rules) {
      if (rng() % 3 == 0) continue;
      rule = HeadRule::Stream(static_cast<int64_t>(rng() % 40), 1 + static_cast<int64_t>(rng() % 100));
      if (rng() % 2 == 0) rule.start = RuleStart::kEndOfPrompt;
    }
    Memory memory(kAllQ4);
    const KvBytesArgs args{.plan = &plan,
                           .limits = {.prompt_tokens = 1 + static_cast<int64_t>(rng() % 300), .max_tokens = 350},
                           .chunk_tokens = 1 + static_cast<int64_t>(rng() % 100),
                           .page_tokens = kPageTokens,
                           .full_pages = memory.SizesOf(KvFormat::kQ4),
                           .bounded_pages = memory.SizesOf(KvFormat::kQ4)};
    std::vector<ResolvedRule> rules;
    for (const HeadRule& rule : plan.rules) rules.push_back(ResolveRule(rule, args.limits));
    const auto cache = memory.NewCache(rules);
    while (cache->num_tokens() < args.limits.max_tokens) {
      const bool in_prompt = cache->num_tokens() < args.limits.prompt_tokens;
      const int64_t left = (in_prompt ? args.limits.prompt_tokens : args.limits.max_tokens) - cache->num_tokens();
      const int64_t wish = in_prompt || rng() % 4 == 0 ? args.chunk_tokens : 1;
      Read(memory, *cache, 1, std::min({wish, left, cache->MaxStepTokens()}));
      ASSERT_EQ(cache->Bytes().total(), PlanKvBytes(args, cache->num_tokens()).total());
    }
    ASSERT_LE(cache->PeakBytes(), PeakKvBytes(args)) << round;
    ASSERT_EQ(cache->PeakBytes(), memory.usage.peak_bytes);
    ASSERT_GE(cache->PeakBytes() * 3, PeakKvBytes(args) * 2) << "the bound is near, round " << round;
  }
}

// A plan may say so. What a head has is what its tokens take, by any rule that has sinks.
TEST(KvCache, ASinkOfABillionTokensTakesNoMemory) {
  constexpr int64_t kBillion = 1'000'000'000;
  const SequenceLimits limits{.prompt_tokens = 40, .max_tokens = 2 * kBillion};
  HeadRule stream = HeadRule::Stream(kBillion, 1);
  HeadRule cached = HeadRule::Stream(kBillion, kBillion);
  cached.positions = Positions::kCache;
  HeadRule compensated = stream;
  compensated.compensate = true;
  HeadRule cut = stream;
  cut.start = RuleStart::kEndOfPrompt;
  for (const KvFormats& formats : {KvFormats{}, kAllQ4}) {
    for (const HeadRule& rule : {stream, cached, compensated, cut}) {
      Memory memory(formats);
      const auto cache = memory.NewCache(SameForAll(ResolveRule(rule, limits)));
      EXPECT_EQ(memory.usage.bytes, 0);
      for (const int64_t num_new : {40, 1, 20, 1}) Read(memory, *cache, 1, num_new);
      const auto fork = cache->Fork();
      Read(memory, *fork, 1, 1);
      EXPECT_EQ(cache->NumPages(0, 0).newest + cache->NumPages(0, 0).aged, 4);
      // Places of tables are 4 bytes, and a head has a few.
      EXPECT_LT(memory.set.pools().tables->pages.entries().size(), 4096u);
      EXPECT_LT(memory.usage.peak_bytes, 1 << 20);
    }
  }
}

}  // namespace
}  // namespace headwise
