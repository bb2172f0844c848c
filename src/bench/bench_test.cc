#include "bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "backend/all_backends.h"
#include "bench/random_model.h"
#include "bench/work_counts.h"
#include "engine/engine_impl.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Engine> RandomEngine(const std::string& kv_dtype = "f16") {
  EngineImpl::Parts parts;
  parts.options.kv_dtype = kv_dtype;
  parts.memory = std::make_shared<KvMemory>();
  parts.memory->backend = *MakeBackend({});
  parts.model = *MakeRandomModel({.shape = "headwise-17m"}, *parts.memory->backend);
  return *MakeEngine(std::move(parts));
}

TEST(TimingTest, MedianAndSpread) {
  const Timing odd = TimingOf({5, 1, 2});
  EXPECT_EQ(odd.median, 2);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 5);
  EXPECT_EQ(odd.count, 3);
  EXPECT_EQ(TimingOf({4, 1, 2, 3}).median, 2.5);
}

TEST(RandomModelTest, HasTheParametersOfItsShape) {
  auto backend = *MakeBackend({});
  const auto model = *MakeRandomModel({.shape = "headwise-17m"}, *backend);
  const WeightCounts counts = CountWeights(model->weights, 0);
  // Per layer 384 x (512 + 256 + 256 + 512) for attention and 3 x 384 x 1024 for the MLP.
  EXPECT_EQ(counts.layer_params, 8 * (384 * 1536 + 3 * 384 * 1024));
  EXPECT_EQ(counts.output_params, 8192 * 384);
  EXPECT_EQ(counts.read_bytes, 2 * (counts.layer_params + counts.output_params) + 4 * 384 * (2 * 8 + 1));
  EXPECT_EQ(model->weights.output.weight, model->weights.embedding);
}

// Per layer 2048 x (4096 + 2 x 512 + 4096) for attention, the router, and of 128 experts the 8 of a token.
TEST(RandomModelTest, OfExpertsATokenReadsWhatItChose) {
  auto backend = *MakeBackend({.name = "ref"});
  const auto model = *MakeRandomModel({.shape = "qwen3-30b-a3b", .weights = DType::kQ4_0, .num_layers = 1}, *backend);
  ASSERT_EQ(model->weights.layers.size(), 1u);
  EXPECT_EQ(model->weights.layers[0].experts.size(), 128u);
  const WeightCounts counts = CountWeights(model->weights, model->config.experts.num_chosen);
  EXPECT_EQ(counts.layer_params, 2048 * (4096 + 1024 + 4096) + 128 * 2048 + 8 * 3 * 768 * 2048);
  EXPECT_THAT(MakeRandomModel({.shape = "qwen3-30b-a3b", .num_layers = 49}, *backend).status().message(),
              HasSubstr("49 layers, expected 1 to 48"));
}

TEST(RandomModelTest, RowsOfAMatrixDiffer) {
  auto backend = *MakeBackend({});
  const auto model = *MakeRandomModel({.shape = "headwise-17m"}, *backend);
  std::set<std::string> rows;
  const ConstTensorView table = model->weights.embedding.rows();
  for (int64_t row = 0; row < table.shape[0]; ++row) {
    const ConstTensorView view = table.Rows(row, 1);
    rows.emplace(static_cast<const char*>(view.data), static_cast<size_t>(view.size_bytes()));
  }
  EXPECT_EQ(rows.size(), 8192u);
}

TEST(RandomModelTest, UnknownShapesAreRefused) {
  EXPECT_THAT(ConfigOfShape("llama-9").status().message(), HasSubstr("llama-3.2-1b"));
  for (const std::string& name : NamedShapes()) EXPECT_TRUE(ConfigOfShape(name).ok()) << name;
}

TEST(BenchTest, MeasuresEveryLengthOnce) {
  const auto engine = RandomEngine();
  const auto result = RunBench(*engine, {.depths = {40, 0}, .prefills = {33, 40}, .num_steps = 6});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_TRUE(result->verification.repeats);
  ASSERT_EQ(result->prefill.size(), 2u);
  EXPECT_EQ(result->prefill[0].num_tokens, 33);
  EXPECT_EQ(result->prefill[1].num_tokens, 40);
  ASSERT_EQ(result->decode.size(), 2u);
  EXPECT_EQ(result->decode[0].depth, 0);
  EXPECT_EQ(result->decode[1].depth, 40);
  EXPECT_EQ(result->decode[1].timing.count, 6);
  // 46 tokens are two pages of 32 in each of 8 x 4 heads, K and V of 64 f16.
  EXPECT_EQ(result->decode[1].kv_bytes_full, 2 * 32 * 32 * 256);
  EXPECT_EQ(result->decode[1].kv_bytes_bounded, 0);
  EXPECT_EQ(engine->kv_bytes(), 0) << "nothing is left behind";
}

TEST(BenchTest, SeveralSequencesDecodeTogether) {
  const auto engine = RandomEngine();
  const auto result =
      RunBench(*engine, {.depths = {40}, .fill = BenchOptions::Fill::kRandom, .num_steps = 6, .batch = 3});
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->decode.size(), 1u);
  EXPECT_EQ(result->decode[0].batch, 3);
  EXPECT_EQ(result->decode[0].timing.count, 6);
  EXPECT_EQ(result->decode[0].kv_bytes_full, 3 * 2 * 32 * 32 * 256);
  EXPECT_EQ(engine->kv_bytes(), 0) << "nothing is left behind";
  EXPECT_THAT(CheckBench({.depths = {40}, .batch = 3}).message(), HasSubstr("batch is 3"));
}

TEST(BenchTest, MemoryIsMeasuredAroundTheStepsOfEachDepth) {
  const auto engine = RandomEngine();
  double measured = 0;
  const auto measure = [&]() -> Result<double> { return ++measured == 3 ? 30 : measured; };
  const auto result = RunBench(*engine, {.depths = {0, 40}, .num_steps = 5, .measure_read = measure});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(measured, 4);
  EXPECT_EQ(result->decode[0].read_bytes_per_second, 2);
  EXPECT_EQ(result->decode[1].read_bytes_per_second, 30) << "the better one";
  const auto failing = [] { return Result<double>(Status::OutOfMemory("no room")); };
  EXPECT_THAT(RunBench(*engine, {.depths = {0}, .num_steps = 5, .measure_read = failing}).status().message(),
              HasSubstr("no room"));
}

TEST(BenchTest, CountsBoundedHeadsApart) {
  const auto engine = RandomEngine();
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine->shape()));
  plan->At(3, 1) = HeadRule::Stream(16, 16);
  const auto result = RunBench(*engine, {.plan = plan, .depths = {300}, .num_steps = 5});
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(result->decode[0].kv_bytes_full, 10 * 31 * 32 * 256);
  EXPECT_GT(result->decode[0].kv_bytes_bounded, 0);
  EXPECT_LE(result->decode[0].kv_bytes_bounded, 3 * 32 * 256);
}

// What a random fill leaves is what a prefill leaves, in bytes.
void ExpectFillToKeepWhatAPrefillKeeps(Engine& engine) {
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(engine.shape()));
  plan->At(0, 0) = HeadRule::Stream(4, 60);
  plan->At(1, 1) = {.kind = HeadRule::Kind::kElasticRazor, .min_recent = 32, .divisor = 4, .compensate = true};
  plan->At(1, 1).start = RuleStart::kEndOfPrompt;
  for (const std::shared_ptr<const HeadPlan>& each :
       {std::shared_ptr<const HeadPlan>(), std::shared_ptr<const HeadPlan>(plan)}) {
    BenchOptions options = {.plan = each, .depths = {0, 700}, .num_steps = 5};
    const auto read = RunBench(engine, options);
    options.fill = BenchOptions::Fill::kRandom;
    const auto filled = RunBench(engine, options);
    ASSERT_TRUE(read.ok() && filled.ok()) << filled.status().message();
    EXPECT_TRUE(filled->prefill.empty());
    ASSERT_EQ(filled->decode.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(filled->decode[i].depth, read->decode[i].depth);
      EXPECT_EQ(filled->decode[i].kv_bytes_full, read->decode[i].kv_bytes_full);
      EXPECT_EQ(filled->decode[i].kv_bytes_bounded, read->decode[i].kv_bytes_bounded);
    }
  }
  EXPECT_EQ(engine.kv_bytes(), 0);
}

TEST(BenchTest, ARandomFillKeepsWhatAPrefillKeeps) {
  ExpectFillToKeepWhatAPrefillKeeps(*RandomEngine());
}

TEST(BenchTest, ARandomFillAgesPages) {
  ExpectFillToKeepWhatAPrefillKeeps(*RandomEngine("q4"));
}

TEST(BenchTest, APromptIsTimedBehindRandomTokens) {
  const auto engine = RandomEngine();
  const auto result =
      RunBench(*engine, {.prefills = {40}, .prefill_depth = 600, .fill = BenchOptions::Fill::kRandom, .num_steps = 5});
  ASSERT_TRUE(result.ok()) << result.status().message();
  ASSERT_EQ(result->prefill.size(), 1u);
  EXPECT_EQ(result->prefill[0].depth, 600);
  EXPECT_EQ(result->prefill[0].kv_bytes, 20 * 32 * 32 * 256);
  EXPECT_THAT(RunBench(*engine, {.prefills = {40}, .prefill_depth = 600}).status().message(),
              HasSubstr("prefill depth is 600"));
}

TEST(RandomModelTest, BlockFormatsTakeTheirBytesAndRun) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0}) {
    EngineImpl::Parts parts;
    parts.memory = std::make_shared<KvMemory>();
    parts.memory->backend = *MakeBackend({});
    parts.model = *MakeRandomModel({.shape = "headwise-17m", .weights = dtype}, *parts.memory->backend);
    const WeightCounts counts = CountWeights(parts.model->weights, 0);
    EXPECT_EQ(counts.read_bytes, BytesOf(dtype, counts.layer_params + counts.output_params) + 4 * 384 * (2 * 8 + 1));
    EXPECT_EQ(parts.model->weights.owned.size(), 2u * 8 + 1) << "matrices are the backend's, only norms are left";
    const auto engine = *MakeEngine(std::move(parts));
    EXPECT_TRUE(RunBench(*engine, {.depths = {20}, .num_steps = 5}).ok());
  }
}

TEST(BenchTest, RefusesLengthsThatMeanNothing) {
  const auto engine = RandomEngine();
  EXPECT_THAT(RunBench(*engine, {.depths = {-1}}).status().message(), HasSubstr("depth is -1"));
  EXPECT_THAT(RunBench(*engine, {.prefills = {0}}).status().message(), HasSubstr("prefill is 0"));
  EXPECT_THAT(RunBench(*engine, {.depths = {0}, .num_steps = 4}).status().message(), HasSubstr("steps is 4"));
}

}  // namespace
}  // namespace headwise
