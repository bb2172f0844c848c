#include "bench/work_counts.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

ResolvedRule Stream(int64_t sink, int64_t recent) {
  return {.sink = sink, .recent = recent};
}

TEST(WorkCountsTest, PairsOfAFullHeadAreATriangle) {
  EXPECT_EQ(CountPairs({}, 0, 4), 1 + 2 + 3 + 4);
  EXPECT_EQ(CountPairs({}, 0, 32768), int64_t{32768} * 32769 / 2);
  EXPECT_EQ(CountPairs({}, 100, 101), 101);
}

TEST(WorkCountsTest, PairsOfAStreamStopGrowing) {
  EXPECT_EQ(CountPairs(Stream(2, 3), 0, 8), 1 + 2 + 3 + 4 + 5 + 5 + 5 + 5);
  EXPECT_EQ(CountPairs(Stream(2, 3), 1000, 1001), 5);
}

TEST(WorkCountsTest, RulesFromTheEndOfThePromptCostAllOfThePrompt) {
  ResolvedRule rule = Stream(1, 2);
  rule.holds_from = 4;
  EXPECT_EQ(CountPairs(rule, 0, 6), 1 + 2 + 3 + 4 + 3 + 3);
}

TEST(WorkCountsTest, TheMeanOfDroppedKeysIsOneKey) {
  ResolvedRule rule = Stream(1, 2);
  rule.compensate = true;
  EXPECT_EQ(CountPairs(rule, 0, 5), 1 + 2 + 3 + 4 + 4);
}

// Two blocks of 16 and what of the newest is there; 32 f16 dimensions, keys and values, and the bounds of all blocks.
TEST(WorkCountsTest, HeadsThatReadBlocksReadFewAndTheirBounds) {
  ResolvedRule rule;
  rule.holds_from = 100;
  rule.blocks = {.block_tokens = 16, .from = 100, .first = 1, .most = 2};
  const KvLayout layout{.head_dim = 32, .page_tokens = 32, .format = KvFormat::kF16};
  EXPECT_EQ(CountPairs(rule, 99, 100), 100);
  EXPECT_EQ(CountPairs(rule, 100, 101), 2 * 16 + 5);
  EXPECT_EQ(KvReadBytes(rule, layout, 99), 100 * 128);
  EXPECT_EQ(KvReadBytes(rule, layout, 100), 37 * 128 + 7 * 128);
  rule.blocks.most = 6;
  EXPECT_EQ(KvReadBytes(rule, layout, 100), 101 * 128);
}

TEST(WorkCountsTest, WeightsCountMatricesBiasesAndNormsButNotTheEmbedding) {
  const float storage = 0;  // only its address is used
  const auto view = [&](DType dtype, Shape shape) { return ConstTensorView(&storage, dtype, shape); };
  ModelWeights weights;
  weights.embedding = view(DType::kBF16, {16, 8});
  weights.layers.resize(2);
  for (LayerWeights& layer : weights.layers) {
    layer.norm.weight = view(DType::kF32, {8});   // 32 bytes
    layer.q.weight = view(DType::kBF16, {4, 8});  // 64 bytes
    layer.q.bias = view(DType::kF32, {4});        // 16 bytes
    layer.down.weight = view(DType::kF32, {8, 2});
  }
  weights.output.weight = view(DType::kF16, {16, 8});
  const WeightCounts counts = CountWeights(weights, 0);
  EXPECT_EQ(counts.layer_params, 2 * (32 + 16));
  EXPECT_EQ(counts.output_params, 128);
  EXPECT_EQ(counts.read_bytes, 2 * (32 + 64 + 16 + 64) + 256);
}

class WorkTest : public testing::Test {
 protected:
  WorkTest() {
    config_.num_layers = 1;
    config_.num_q_heads = 4;
    config_.num_kv_heads = 2;
    config_.head_dim = 8;
    plan_.shape = config_.shape();
    plan_.rules = {HeadRule::Full(), HeadRule::Stream(2, 3)};
  }
  WorkArgs Args() const {
    return {.plan = &plan_,
            .config = &config_,
            .weights = {.layer_params = 100, .output_params = 10, .read_bytes = 220},
            .limits = {.prompt_tokens = 8, .max_tokens = 28},
            .kv_formats = {KvFormat::kF16, KvFormat::kF32}};
  }
  ModelConfig config_;
  HeadPlan plan_;
};

// A pair costs 2 query heads x (8 multiply-adds for the score + 8 for the output) = 64 operations.
TEST_F(WorkTest, Prefill) {
  const Work work = PrefillWork(Args(), 8);
  EXPECT_EQ(work.linear_flops, 2 * 100 * 8 + 2 * 10);
  EXPECT_EQ(work.attention_flops, (36 + 30) * 64);
}

TEST_F(WorkTest, Decode) {
  const Work work = DecodeWork(Args(), 8);
  EXPECT_EQ(work.linear_flops, 2 * 110);
  EXPECT_EQ(work.attention_flops, (9 + 5) * 64);
  EXPECT_EQ(work.weight_bytes, 220);
  EXPECT_EQ(work.kv_bytes, 9 * 2 * 8 * 2 + 5 * 2 * 8 * 4);
}

// At position 100 pages of 16 are: 0 in q8, 1 to 4 aged, 5 the newest complete one, 6 with the first 4 of its tokens.
TEST_F(WorkTest, TokensInAgedPagesAreReadInFourBits) {
  config_.head_dim = 64;
  WorkArgs args = Args();
  args.kv_formats = {KvFormat::kQ4, KvFormat::kQ4};
  args.page_tokens = 16;
  plan_.rules = {HeadRule::Full(), HeadRule::Stream(8, 40)};
  const int64_t q8_token = 2 * (64 + 2);
  const int64_t q4_page = 16 * 64 + 64 * 4 + 16 * 2 * 4;
  // The full head reads 101 tokens, the stream 8 sinks and 61 .. 100, of which 61 .. 79 are in pages 3 and 4.
  EXPECT_DOUBLE_EQ(DecodeWork(args, 100).kv_bytes, 4 * q4_page + 37 * q8_token + 19.0 / 16 * q4_page + 29 * q8_token);
  args.kv_formats.bounded = KvFormat::kF16;
  EXPECT_DOUBLE_EQ(DecodeWork(args, 100).kv_bytes, 4 * q4_page + 37 * q8_token + 48 * 256);
  EXPECT_DOUBLE_EQ(DecodeWork(args, 30).kv_bytes, 31 * q8_token + 31 * 256) << "nothing is old enough";
}

TEST_F(WorkTest, TheBoundIsTheSlowerOfMemoryAndCompute) {
  const Work work = DecodeWork(Args(), 8);  // 828 bytes, 220 and 896 operations
  const Bound bound = BoundOf(work, {.bytes_per_second = 828, .linear_flops = 220, .attention_flops = 448});
  EXPECT_DOUBLE_EQ(bound.memory_seconds, 1);
  EXPECT_DOUBLE_EQ(bound.compute_seconds, 1 + 2);
  EXPECT_DOUBLE_EQ(bound.seconds(), 3);
  EXPECT_DOUBLE_EQ(BoundOf(work, {.bytes_per_second = 82.8, .linear_flops = 220, .attention_flops = 448}).seconds(),
                   10);
}

}  // namespace
}  // namespace headwise
