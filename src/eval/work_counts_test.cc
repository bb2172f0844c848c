#include "eval/work_counts.h"

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
  const WeightCounts counts = CountWeights(weights);
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
            .kv_token_bytes_full = 2 * 8 * 2,
            .kv_token_bytes_bounded = 2 * 8 * 4};
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
