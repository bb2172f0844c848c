// Heads that keep every token and read blocks of them, against a simulation of what the paper says: in double, over the
// whole text, with bounds from all keys of a block.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <span>

#include "support/backends.h"
#include "support/block_read_simulation.h"
#include "support/random_attention.h"
#include "support/snapshots.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

using Kind = TokenSelector::Kind;

HeadRule Reading(int64_t sink, int64_t recent, int64_t block, Kind kind = Kind::kQuest) {
  HeadRule rule = HeadRule::Stream(sink, recent);
  rule.select.kind = kind;
  rule.select.block = block;
  rule.start = RuleStart::kEndOfPrompt;
  EXPECT_TRUE(ValidateRule(rule).ok()) << ValidateRule(rule).message();
  return rule;
}

AttentionCase RandomCase(std::mt19937_64& rng, uint64_t seed) {
  constexpr int64_t kDims[] = {64, 40, 128, 32, 80};
  constexpr int64_t kPageTokens[] = {16, 32, 64, 96, 48};
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  AttentionCase test_case{.num_tokens = 120 + below(300), .num_q_heads = 8};
  test_case.num_kv_heads = 1 + static_cast<int64_t>(seed % 2) * 3;
  test_case.head_dim = kDims[seed % 5];
  test_case.page_tokens = kPageTokens[seed % 5];
  test_case.score_cap = seed % 4 == 3 ? 2.0f : 0.0f;
  test_case.seed = seed;
  const SequenceLimits limits{.prompt_tokens = 1 + below(150), .max_tokens = 400};
  for (int64_t h = 0; h < test_case.num_kv_heads; ++h) {
    const bool has_half = test_case.page_tokens % 32 == 0;
    const int64_t block = test_case.page_tokens >> below(has_half ? 2 : 1);
    HeadRule rule = Reading(below(3) == 0 ? below(40) : 0, 1 + below(120), block);
    if (block >= 32 && below(3) > 0) {
      rule = Reading(rule.sink, 1 + below(200), block, Kind::kInfLlm);
      rule.select.recent_share = 0.25 * static_cast<double>(below(5));
      rule.select.representatives = 1 + below(block);
    }
    test_case.rules.push_back(ResolveRule(rule, limits));
  }
  // Heads of all kinds in one layer.
  if (test_case.num_kv_heads > 1) test_case.rules[1] = ResolveRule(HeadRule::Full(), limits);
  if (test_case.num_kv_heads > 2) test_case.rules[2] = ResolveRule(HeadRule::Stream(5, 40), limits);
  return test_case;
}

class BlockReads : public testing::Test {
 protected:
  void SetUp() override {
    if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda does not read blocks";
  }
};

TEST_F(BlockReads, TheReferenceReadsWhatThePaperReads) {
  const std::unique_ptr<Backend> ref = MakeRefBackend();
  int64_t num_rows = 0, num_ties = 0, num_sparse = 0, num_looked_up = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    std::mt19937_64 rng(seed);
    const AttentionCase test_case = RandomCase(rng, seed);
    const AttentionData data(test_case);
    constexpr int64_t kMostInStep[] = {1, 7, 100};
    const std::vector<float> out =
        RunAttention(*ref, test_case, data, RandomChunks(rng, test_case, kMostInStep[seed % 3]), Nothing);
    const int64_t group_dim = test_case.num_q_heads / test_case.num_kv_heads * test_case.head_dim;
    for (int64_t h = 0; h < test_case.num_kv_heads; ++h) {
      const KvBlockReads& blocks = test_case.rules[static_cast<size_t>(h)].blocks;
      if (blocks.block_tokens == 0) continue;
      const BlockReadSimulation head(test_case, data, h);
      for (int64_t t = 0; t < test_case.num_tokens; ++t) {
        double margin = 0;
        const std::set<int64_t> read = head.BlocksAt(t, margin);
        ++num_rows;
        num_sparse += static_cast<int64_t>(read.size()) <= t / blocks.block_tokens ? 1 : 0;
        const bool looks_up = blocks.representatives > 0 && blocks.most > blocks.newest && !blocks.ReadsAll(t);
        num_looked_up += looks_up ? 1 : 0;
        ASSERT_EQ(static_cast<int64_t>(read.size()), blocks.NumRead(t));
        if (margin < 1e-5) {
          ++num_ties;
          continue;
        }
        const Row expected = head.Attend(t, read);
        const auto first = static_cast<size_t>((t * test_case.num_kv_heads + h) * group_dim);
        ASSERT_LE(MaxDifference(std::span(out).subspan(first, expected.size()), expected),
                  AttentionTolerance(test_case.kv_formats, test_case.compute))
            << "seed " << seed << " head " << h << " at " << t << " of " << blocks.from;
      }
    }
  }
  EXPECT_GE(num_sparse, num_rows / 4);
  EXPECT_GE(num_looked_up, num_rows / 20);
  EXPECT_LE(num_ties, num_rows / 500);
}

TEST_F(BlockReads, ABudgetThatReadsAllIsDenseBitForBit) {
  for (const NamedBackend& named : AllBackends()) {
    for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8}) {
      AttentionCase test_case{.num_tokens = 170};
      test_case.kv_formats = {format, format};
      const SequenceLimits limits{.prompt_tokens = 100, .max_tokens = 400};
      test_case.rules.assign(2, ResolveRule(HeadRule::Full(), limits));
      const AttentionData data(test_case);
      AttentionCase reading = test_case;
      const Kind kind = format == KvFormat::kF16 || format == KvFormat::kQ8 ? Kind::kInfLlm : Kind::kQuest;
      reading.rules.assign(2, ResolveRule(Reading(0, 170, 32, kind), limits));
      const std::vector<int64_t> chunks = {60, 40, 1, 1, 30, 1, 37};
      // Rows behind the prompt of a reading head go one by one, so that the dense head's have to.
      std::vector<int64_t> ones = {60, 40};
      ones.insert(ones.end(), 70, 1);
      const std::vector<float> dense = RunAttention(*named.backend, test_case, data, ones, Nothing);
      EXPECT_EQ(RunAttention(*named.backend, reading, data, ones, Nothing), dense) << named.name << NameOf(format);
      EXPECT_EQ(RunAttention(*named.backend, reading, data, chunks, Nothing), dense) << named.name << NameOf(format);
      reading.rules.assign(2, ResolveRule(Reading(0, 60, 32, kind), limits));
      EXPECT_NE(RunAttention(*named.backend, reading, data, ones, Nothing), dense) << named.name;
    }
  }
}

TEST_F(BlockReads, EveryInstructionSetReadsWhatTheReferenceReads) {
  constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8};
  const std::unique_ptr<Backend> ref = MakeRefBackend();
  const std::vector<NamedBackend> backends = CpuBackends();
  for (uint64_t seed = 100; seed < 116; ++seed) {
    std::mt19937_64 rng(seed);
    AttentionCase test_case = RandomCase(rng, seed);
    const KvFormat format = kFormats[seed % 4];
    test_case.kv_formats = {format, format};
    const AttentionData data(test_case);
    const std::vector<int64_t> chunks = RandomChunks(rng, test_case, seed % 3 == 0 ? 1 : 90);
    const std::vector<float> expected = RunAttention(*ref, test_case, data, chunks, Nothing);
    for (const NamedBackend& named : backends) {
      const std::vector<float> out = RunAttention(*named.backend, test_case, data, chunks, Nothing);
      const double tolerance = AttentionTolerance(test_case.kv_formats, test_case.compute);
      const auto dim = static_cast<size_t>(test_case.head_dim);
      size_t num_other = 0;
      for (size_t row = 0; row < out.size(); row += dim) {
        const double worst = MaxDifference(std::span(out).subspan(row, dim), std::span(expected).subspan(row, dim));
        ASSERT_TRUE(std::isfinite(worst)) << named.name << ", seed " << seed << ", row " << row / dim;
        num_other += worst > tolerance ? 1 : 0;
      }
      // Two bounds that are as close as sums in f32 round to: the other block is read. A key that is rotated in float
      // rounds to the neighbouring number now and then.
      EXPECT_LE(num_other, out.size() / dim / (format == KvFormat::kF32 ? 2000 : 200))
          << named.name << ", seed " << seed << ", " << NameOf(format);
    }
  }
}

// How a text was cut into steps does not show, nor how many threads there are: a choice is its query's alone.
TEST_F(BlockReads, StepsDoNotShowInWhatIsRead) {
  for (const NamedBackend& named : AllBackends()) {
    for (const KvFormat format : {KvFormat::kF16, KvFormat::kQ8}) {
      AttentionCase test_case{.num_tokens = 300, .num_q_heads = 8, .num_kv_heads = 4};
      test_case.kv_formats = {format, format};
      test_case.rules.assign(4, ResolveRule(Reading(8, 64, 32), {.prompt_tokens = 1, .max_tokens = 400}));
      test_case.rules[2] = test_case.rules[3] =
          ResolveRule(Reading(8, 128, 32, Kind::kInfLlm), {.prompt_tokens = 1, .max_tokens = 400});
      const AttentionData data(test_case);
      const std::vector<float> ones =
          RunAttention(*named.backend, test_case, data, std::vector<int64_t>(300, 1), Nothing);
      EXPECT_EQ(RunAttention(*named.backend, test_case, data, {1, 99, 7, 193}, Nothing), ones) << named.name;
    }
  }
}

// Bounds, representatives and the sums of queries that these are chosen by are saved with the pages that they are of.
TEST_F(BlockReads, ASnapshotGoesOnAsItsOriginalWould) {
  AttentionCase test_case{.num_tokens = 400, .num_q_heads = 8, .num_kv_heads = 4};
  const SequenceLimits limits{.prompt_tokens = 150, .max_tokens = 400};
  test_case.rules.assign(4, ResolveRule(Reading(8, 64, 32), limits));
  test_case.rules[2] = test_case.rules[3] = ResolveRule(Reading(8, 128, 32, Kind::kInfLlm), limits);
  // Within the prompt and within a block; behind the prompt, at the end of a block and within one.
  ExpectSnapshotsGoOn(test_case, AttentionData(test_case), {90, 160, 250}, 400, [](const KvCache&, const KvCache&) {});
}

// Of equal products the earlier token of a block stands for it, and of equal blocks the later is read; one whose
// representative is no number before all others.
TEST_F(BlockReads, TiesBetweenBlocksWithRepresentatives) {
  for (const NamedBackend& named : AllBackends()) {
    AttentionCase test_case{.num_tokens = 300};
    HeadRule rule = Reading(0, 128, 32, Kind::kInfLlm);
    rule.select.recent_share = 0.5;
    rule.select.representatives = 1;
    test_case.rules.assign(2, ResolveRule(rule, {.prompt_tokens = 299, .max_tokens = 400}));
    AttentionData data(test_case);
    std::fill(data.k.begin(), data.k.end(), 0.0f);
    const auto kv_dim = static_cast<size_t>(2 * test_case.head_dim);
    for (size_t t = 0; t < 300; ++t) {
      std::fill_n(data.v.begin() + static_cast<int64_t>(t * kv_dim), kv_dim, static_cast<float>(t / 32));
    }
    // Blocks 6 and 7, and of the newest 8 and 9, which has 12 tokens.
    const std::vector<float> out = RunAttention(*named.backend, test_case, data, {299, 1}, Nothing);
    EXPECT_NEAR(out.back(), (32.0 * (6 + 7 + 8) + 12 * 9) / 108, 1e-5) << named.name;
    data.k[64 * kv_dim + 3] = std::nanf("");  // the first token of block 2, of head 0
    EXPECT_TRUE(std::isnan(RunAttention(*named.backend, test_case, data, {299, 1}, Nothing)[299 * 4 * 64 + 5]))
        << named.name;
  }
}

// Of equal bounds the later block is read; one with a key that is no number before all others.
TEST_F(BlockReads, TiesAndNumbersThatAreNone) {
  for (const NamedBackend& named : AllBackends()) {
    AttentionCase test_case{.num_tokens = 200};
    test_case.rules.assign(2, ResolveRule(Reading(16, 48, 16), {.prompt_tokens = 199, .max_tokens = 400}));
    AttentionData data(test_case);
    std::fill(data.k.begin(), data.k.end(), 0.0f);
    const auto kv_dim = static_cast<size_t>(2 * test_case.head_dim);
    for (size_t t = 0; t < 200; ++t) {
      std::fill_n(data.v.begin() + static_cast<int64_t>(t * kv_dim), kv_dim, static_cast<float>(t / 16));
    }
    // Blocks 0, 10, 11 and 12, which has 8 tokens.
    const std::vector<float> out = RunAttention(*named.backend, test_case, data, {199, 1}, Nothing);
    EXPECT_NEAR(out.back(), (16.0 * (0 + 10 + 11) + 8 * 12) / 56, 1e-5) << named.name;
    data.k[static_cast<size_t>(70 * 2 * test_case.head_dim + 3)] = std::nanf("");
    EXPECT_TRUE(std::isnan(RunAttention(*named.backend, test_case, data, {199, 1}, Nothing)[199 * 4 * 64 + 5]))
        << named.name;
  }
}

}  // namespace
}  // namespace headwise
