#include "bench/op_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "backend/all_backends.h"
#include "bench/op_data.h"
#include "bench/random_model.h"
#include "support/far_backend.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig TinyConfig() {
  ModelConfig config;
  config.family = "llama";
  config.num_layers = 2;
  config.model_dim = 64;
  config.ffn_dim = 96;
  config.num_q_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 80;
  config.trained_length = 128;
  config.softmax_scale = 0.25;
  config.SetLayersAlike(RopeConfig{.rotary_dims = 16}, /*window=*/{});
  return config;
}

// Another family's ways: layer norms with biases, no gate, no rotation.
ModelConfig TinyAlibiConfig() {
  ModelConfig config = TinyConfig();
  config.family = "mpt";
  config.norm = NormKind::kLayer;
  config.norm_bias = true;
  config.mlp = MlpKind::kGelu;
  config.positions = PositionKind::kAlibi;
  config.SetLayersAlike(/*rope=*/{}, /*window=*/{});
  config.alibi_slopes.assign(4, 0.1f);
  return config;
}

OpSubject TinySubject(const std::string& backend, ModelConfig config = TinyConfig()) {
  OpSubject subject;
  subject.config = std::move(config);
  subject.new_backend = [backend]() -> Result<std::unique_ptr<Backend>> {
    if (backend != "far") return MakeBackend({.name = backend});
    std::unique_ptr<Backend> far = std::make_unique<FarBackend>(*MakeBackend({.name = "ref"}));
    return far;
  };
  subject.backend = *subject.new_backend();
  subject.weights = {DType::kF32};
  return subject;
}

OpBenchOptions TinyOptions() {
  OpBenchOptions options;
  options.rows = {1, 3};
  options.depths = {70};
  options.page_tokens = 16;
  options.reps = 2;
  options.cycle_bytes = 100000;
  return options;
}

// The rules of KV heads that all have this one.
std::vector<ResolvedRule> Alike(const ResolvedRule& rule) {
  return {rule};
}

KvLayout TinyLayout(KvFormat format) {
  return {.head_dim = TinyConfig().head_dim, .page_tokens = 32, .format = format};
}

std::vector<OpLine> MustRun(const OpSubject& subject, const OpBenchOptions& options) {
  Result<std::vector<OpLine>> lines = RunOpBench(subject, options);
  EXPECT_TRUE(lines.ok()) << lines.status().message();
  return lines.ok() ? *std::move(lines) : std::vector<OpLine>{};
}

LinearWeights Linear(DType dtype, int64_t num_outputs, int64_t num_inputs) {
  return {.weight = ConstTensorView(nullptr, dtype, Shape{num_outputs, num_inputs}), .bias = {}};
}

// ---- what operations cannot do without ----

TEST(OpWorkTest, MatMulReadsItsMatricesOnce) {
  const std::vector<LinearWeights> parts = {Linear(DType::kBF16, 10, 8), Linear(DType::kQ8_0, 4, 32)};
  const OpWork one = MatMulWork(std::span(parts).first(1), MatMulArgs::Write::kStore, 3);
  EXPECT_EQ(one.bytes_read, 10 * 8 * 2 + 3 * 8 * 4);
  EXPECT_EQ(one.bytes_written, 3 * 10 * 4);
  EXPECT_EQ(one.multiply_adds, 3 * 8 * 10);
  EXPECT_EQ(one.flops(), 2 * 3 * 8 * 10);
  const OpWork added = MatMulWork(std::span(parts).last(1), MatMulArgs::Write::kAdd, 2);
  EXPECT_EQ(added.bytes_read, 4 * 34 + 2 * 32 * 4 + 2 * 4 * 4) << "blocks of 34 bytes, x, and what is added to";
  EXPECT_EQ(added.bytes_written, 2 * 4 * 4);
}

TEST(OpWorkTest, BiasesAreRead) {
  const float storage = 0;
  std::vector<LinearWeights> parts = {Linear(DType::kF32, 10, 8)};
  parts[0].bias = ConstTensorView(&storage, DType::kF32, Shape{10});
  EXPECT_EQ(MatMulWork(parts, MatMulArgs::Write::kStore, 1).bytes_read, 10 * 8 * 4 + 10 * 4 + 8 * 4);
}

// 4 query heads and 2 KV heads of 16: a row of queries has 256 bytes, a token in f16 64 bytes a head.
TEST(OpWorkTest, AttentionOfOneQueryReadsEveryKeptToken) {
  const OpWork full = AttentionWork(TinyConfig(), Alike({}), TinyLayout(KvFormat::kF16), 99, 1);
  EXPECT_EQ(full.bytes_read, 256 + 100 * 2 * 64);
  EXPECT_EQ(full.bytes_written, 256);
  EXPECT_EQ(full.multiply_adds, 100 * 4 * (16 + 16));
  const OpWork stream = AttentionWork(TinyConfig(), Alike({.sink = 4, .recent = 6}), TinyLayout(KvFormat::kQ8), 99, 1);
  EXPECT_EQ(stream.bytes_read, 256 + 10 * 2 * (2 * 16 + 4)) << "codes, and two scales of two bytes";
  EXPECT_EQ(stream.multiply_adds, 10 * 4 * 32);
}

// At 99 tokens pages 0 and 2 and the growing one are in q8; page 1 has aged.
TEST(OpWorkTest, AgedPagesAreReadAsTheyAreStored) {
  const double aged_page = 2 * 32 * 16 / 2 + 16 * 4 + 32 * 4;
  const OpWork full = AttentionWork(TinyConfig(), Alike({}), TinyLayout(KvFormat::kQ4), 99, 1);
  EXPECT_EQ(full.bytes_read, 256 + 2 * (aged_page + 68 * 36));
  const OpWork chunk = AttentionWork(TinyConfig(), Alike({}), TinyLayout(KvFormat::kQ4), 99, 4);
  EXPECT_EQ(chunk.bytes_read, 4 * 256 + 2 * (aged_page + 71 * 36));
  EXPECT_EQ(AppendWork(TinyConfig(), TinyLayout(KvFormat::kQ4), 3).bytes_written, 3 * 2 * 36) << "tokens begin as q8";
}

TEST(OpWorkTest, AChunkReadsATokenOnceThoughManyQueriesDo) {
  const OpWork full = AttentionWork(TinyConfig(), Alike({}), TinyLayout(KvFormat::kF16), 10, 3);
  EXPECT_EQ(full.bytes_read, 3 * 256 + 13 * 2 * 64);
  EXPECT_EQ(full.multiply_adds, (11 + 12 + 13) * 4 * 32);
  // 2 sinks, and of 5 recent tokens for each of the queries 10, 11, 12 the tokens 6 to 12.
  const OpWork stream = AttentionWork(TinyConfig(), Alike({.sink = 2, .recent = 5}), TinyLayout(KvFormat::kF16), 10, 3);
  EXPECT_EQ(stream.bytes_read, 3 * 256 + (2 + 7) * 2 * 64);
  EXPECT_EQ(stream.multiply_adds, 3 * 7 * 4 * 32);
  // A model's own window of 8 hides everything before token 3 from query 10, the sinks too.
  const OpWork window =
      AttentionWork(TinyConfig(), Alike({.sink = 2, .recent = 5, .sink_reach = 8}), TinyLayout(KvFormat::kF16), 10, 1);
  EXPECT_EQ(window.bytes_read, 256 + 5 * 2 * 64);
}

// Two KV heads, one of all 100 tokens and one of 10, with two query heads each.
TEST(OpWorkTest, HeadsOfDifferentRulesAddUp) {
  const ResolvedRule rules[] = {{}, {.sink = 4, .recent = 6}};
  const OpWork work = AttentionWork(TinyConfig(), rules, TinyLayout(KvFormat::kF16), 99, 1);
  EXPECT_EQ(work.bytes_read, 256 + (100 + 10) * 64);
  EXPECT_EQ(work.multiply_adds, (100 + 10) * 2 * 32);
}

TEST(OpWorkTest, AppendWritesInTheCachesFormat) {
  const OpWork work = AppendWork(TinyConfig(), TinyLayout(KvFormat::kQ8), 3);
  EXPECT_EQ(work.bytes_read, 2 * 3 * 32 * 4);
  EXPECT_EQ(work.bytes_written, 3 * 2 * 36);
  EXPECT_EQ(work.multiply_adds, 0);
}

// 2 heads; 36 bytes of a token become those of an aged page, of 32 tokens.
TEST(OpWorkTest, AgeingReadsWholePagesAndWritesSmallerOnes) {
  const OpWork work = AgeWork(TinyConfig(), TinyLayout(KvFormat::kQ4), 3);
  EXPECT_EQ(work.bytes_read, 3 * 2 * 32 * 36);
  EXPECT_EQ(work.bytes_written, 3 * 2 * (2 * 32 * 16 / 2 + 16 * 4 + 32 * 4));
}

TEST(OpWorkTest, CompensationFoldsWhatFallsOutAndMergesItsMean) {
  ResolvedRule rule{.sink = 2, .recent = 5};
  rule.compensate = true;
  // 20 tokens: 2..14 are folded. Three more: 15, 16, 17, in 2 heads. State: 2 heads x (key, value) x 16 floats.
  const OpWork work = CompensateWork(TinyConfig(), rule, TinyLayout(KvFormat::kF16), 20, 3);
  EXPECT_EQ(work.bytes_read, 3 * 2 * 64 + 256 + 2 * (3 * 256) + 3 * 4 * 4);
  EXPECT_EQ(work.bytes_written, 256 + 3 * 256 + 3 * 4 * 4);
  EXPECT_EQ(work.multiply_adds, 3 * 2 * 32 + 3 * 3 * 64);
  // Of tokens 5 to 8 only 7 and 8 have something to merge: token 7 is the first that leaves token 2 behind.
  EXPECT_EQ(CompensateWork(TinyConfig(), rule, TinyLayout(KvFormat::kF16), 5, 4).multiply_adds,
            2 * 2 * 32 + 2 * 3 * 64);
}

TEST(OpWorkTest, Activations) {
  const ModelConfig config = TinyConfig();
  EXPECT_EQ(NormWork(config, 3).bytes_read, (3 + 1) * 64 * 4);
  EXPECT_EQ(NormWork(config, 3).multiply_adds, 3 * 64 * 2);
  EXPECT_EQ(NormWork(TinyAlibiConfig(), 3).bytes_read, (3 + 2) * 64 * 4);
  EXPECT_EQ(RopeWork(config, 3).bytes_read, 3 * (6 * 16 + 16) * 4);
  EXPECT_EQ(RopeWork(config, 3).bytes_written, 3 * 6 * 16 * 4);
  EXPECT_EQ(ActivateWork(config, 3).bytes_read, 2 * 3 * 96 * 4);
  EXPECT_EQ(ActivateWork(TinyAlibiConfig(), 3).bytes_read, 3 * 96 * 4);
  EXPECT_EQ(EmbedWork(config, DType::kQ8_0, 3).bytes_read, 3 * 2 * 34);
  EXPECT_EQ(EmbedWork(config, DType::kQ8_0, 3).bytes_written, 3 * 64 * 4);
  EXPECT_EQ(DrawWork(config, 3).bytes_read, 3 * config.vocab_size * 4);
}

TEST(OpWorkTest, TheBoundIsTheSlowerCeilingThatBinds) {
  const OpPeaks peaks = {.bytes = 100, .f32_flops = 10, .bf16_flops = 20, .int8_flops = 80, .w8a8_flops = 160};
  const OpWork work = {.bytes_read = 250, .bytes_written = 50, .multiply_adds = 40};  // 3 s; 8, 4 and 1 s
  const auto bound = [&](Compute numbers, bool is_cached) { return BoundOf(work, numbers, is_cached, peaks); };
  EXPECT_EQ(bound(Compute::kF32, false).seconds, 8);
  EXPECT_EQ(bound(Compute::kF32, false).by, OpBound::By::kCompute);
  EXPECT_EQ(bound(Compute::kBF16, false).seconds, 4);
  EXPECT_EQ(bound(Compute::kInt8, false).seconds, 3);
  EXPECT_EQ(bound(Compute::kInt8, false).by, OpBound::By::kMemory);
  EXPECT_EQ(bound(Compute::kInt8, true).seconds, 1) << "memory does not bind what a cache holds";
  EXPECT_EQ(bound(Compute::kW8A8, true).seconds, 0.5);
  const OpBound copy = BoundOf({.bytes_read = 10, .bytes_written = 10}, Compute::kF32, true, peaks);
  EXPECT_EQ(copy.seconds, 0.2) << "without products there is no other ceiling";
  EXPECT_EQ(copy.by, OpBound::By::kMemory);
}

TEST(OpWorkTest, NumbersAreThoseThatProductsAreComputedIn) {
  const auto numbers = [](Compute compute, std::vector<DType> weights, int64_t num_rows = 512,
                          bool are_rounded = false) { return NumbersOf(compute, weights, num_rows, are_rounded); };
  EXPECT_EQ(numbers(Compute::kW8A8, {DType::kQ8_0}), Compute::kW8A8);
  EXPECT_EQ(numbers(Compute::kW8A8, {DType::kQ8_0}, 16), Compute::kInt8);
  EXPECT_EQ(numbers(Compute::kW8A8, {DType::kQ8_0}, 16, true), Compute::kW8A8);
  EXPECT_EQ(numbers(Compute::kW8A8, {DType::kQ8_0}, 8, true), Compute::kInt8);
  EXPECT_EQ(numbers(Compute::kInt8, {DType::kQ8_0}, 16, true), Compute::kInt8);
  EXPECT_EQ(numbers(Compute::kW8A8, {DType::kBF16, DType::kQ4_K}), Compute::kW8A8) << "of one of them";
  EXPECT_EQ(numbers(Compute::kInt8, {DType::kQ4_0}), Compute::kInt8);
  for (const Compute in_bytes : {Compute::kInt8, Compute::kW8A8}) {
    EXPECT_EQ(numbers(in_bytes, {DType::kBF16}), Compute::kBF16);
    EXPECT_EQ(numbers(in_bytes, {DType::kNF4}), Compute::kBF16) << "its codes are no whole numbers";
  }
  EXPECT_EQ(numbers(Compute::kF32, {DType::kQ8_0}), Compute::kF32);
  EXPECT_EQ(numbers(Compute::kFp8, {DType::kBF16}), Compute::kFp8);
}

// ---- what they are timed on ----

TEST(OpDataTest, PagesAreThoseThatTheRuleHolds) {
  auto backend = *MakeBackend({});
  const RandomPages::Wanted wanted = {.layout = {.head_dim = 16, .page_tokens = 16},
                                      .rules = {{.sink = 20, .recent = 30}, {.sink = 20, .recent = 30}},
                                      .first_pos = 109,
                                      .num_rows = 3};
  const auto pages = RandomPages::Make(*backend, wanted, 1, 0);
  ASSERT_TRUE(pages.ok()) << pages.status().message();
  EXPECT_EQ(pages->num_layers(), 1);
  const StepRows rows = pages->Rows(3);
  const KvStep step = pages->Step({&rows, 1});
  ASSERT_EQ(step.num_heads(), 2);
  std::set<const std::byte*> distinct;
  for (int64_t head_idx = 0; head_idx < 2; ++head_idx) {
    const HeadWork work = step.Head(0, head_idx);
    EXPECT_EQ(work.kv_head, head_idx);
    EXPECT_EQ(work.head->sink_pages, 2);
    EXPECT_EQ(work.head->ring_first, 4) << "token 79 falls out when query 109 comes";
    EXPECT_EQ(pages->pages_of_head(head_idx), 2 + 3) << "tokens 64 to 111";
    for (const int64_t page : {0, 1, 4, 5, 6}) distinct.insert(work.Page(page));
  }
  EXPECT_EQ(distinct.size(), 10u);
}

// Heads of different lengths: the pages of each are its own, whatever the others hold.
TEST(OpDataTest, HeadsHoldTheirOwnNumbersOfPages) {
  auto backend = *MakeBackend({});
  const RandomPages::Wanted wanted = {.layout = {.head_dim = 16, .page_tokens = 16},
                                      .rules = {{}, {.sink = 0, .recent = 16}},
                                      .first_pos = 96,
                                      .num_rows = 1};
  const auto pages =
      RandomPages::Make(*backend, wanted, 8 * static_cast<int64_t>(backend->PageBytes(wanted.layout)), 0);
  ASSERT_TRUE(pages.ok()) << pages.status().message();
  const StepRows rows = pages->Rows(1);
  const KvStep step = pages->Step({&rows, 1});
  EXPECT_EQ(pages->pages_of_head(0), 7);
  EXPECT_EQ(pages->pages_of_head(1), 2) << "tokens 80 to 96";
  std::set<const std::byte*> distinct;
  for (const int64_t page : {0, 1, 2, 3, 4, 5, 6}) distinct.insert(step.Head(0, 0).Page(page));
  for (const int64_t page : {5, 6}) distinct.insert(step.Head(0, 1).Page(page));
  EXPECT_EQ(distinct.size(), 9u);
}

TEST(OpDataTest, LayersAreAddedUntilThereAreEnoughBytes) {
  auto backend = *MakeBackend({});
  const RandomPages::Wanted wanted = {
      .layout = {.head_dim = 16, .page_tokens = 16}, .rules = {{}, {}}, .first_pos = 15, .num_rows = 2};
  const int64_t layer_bytes = 2 * 2 * static_cast<int64_t>(backend->PageBytes(wanted.layout));
  const auto pages = RandomPages::Make(*backend, wanted, 5 * layer_bytes + 1, 0);
  ASSERT_TRUE(pages.ok()) << pages.status().message();
  EXPECT_EQ(pages->num_layers(), 6);
  EXPECT_EQ(pages->bytes(), 6 * layer_bytes);
}

TEST(OpDataTest, MoreThanTheMachineHasIsAnError) {
  EXPECT_THAT(CheckMemory(HostDevice(), int64_t{1} << 60, "KV pages").message(), HasSubstr("KV pages would take"));
}

// ---- running them ----

class OpBenchTest : public testing::TestWithParam<const char*> {};

// No time is looked at: only that every operation runs, on numbers of every kind.
TEST_P(OpBenchTest, EveryOperationRuns) {
  OpSubject subject = TinySubject(GetParam());
  subject.weights = {DType::kF32, DType::kBF16, DType::kQ8_0};
  OpBenchOptions options = TinyOptions();
  options.kv_formats = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4};
  std::set<std::string> ops;
  std::set<std::string> parts;
  for (const OpLine& line : MustRun(subject, options)) {
    const OpPoint& point = line.point;
    ops.insert(point.op);
    if (point.op == "matmul") parts.insert(point.part);
    EXPECT_GT(line.timing.median, 0) << point.op;
    EXPECT_EQ(line.timing.count, 2) << point.op;
    EXPECT_GT(point.work.bytes(), 0) << point.op;
    EXPECT_GT(point.cycled_bytes, 0) << point.op;
    EXPECT_FALSE(point.shape.empty()) << point.op;
  }
  const std::vector<std::string> names = OpNames();
  EXPECT_EQ(ops, std::set<std::string>(names.begin(), names.end()));
  EXPECT_EQ(parts, (std::set<std::string>{"qkv", "output", "gate+up", "down", "logits"}));
}

TEST_P(OpBenchTest, OtherFamiliesRun) {
  const OpSubject subject = TinySubject(GetParam(), TinyAlibiConfig());
  OpBenchOptions options = TinyOptions();
  std::set<std::string> ops;
  for (const OpLine& line : MustRun(subject, options)) ops.insert(line.point.op);
  EXPECT_FALSE(ops.contains("rope"));
  EXPECT_TRUE(ops.contains("activate"));
  options.ops = {"rope"};
  EXPECT_THAT(RunOpBench(subject, options).status().message(), HasSubstr("rope: this model has no rotary"));
}

TEST_P(OpBenchTest, StreamingHeads) {
  OpBenchOptions options = TinyOptions();
  options.ops = {"attention-decode", "attention-prefill", "compensate"};
  options.rules = {HeadRule::Stream(4, 20)};
  for (const OpLine& line : MustRun(TinySubject(GetParam()), options)) EXPECT_EQ(line.point.heads, "4+20");
}

TEST_P(OpBenchTest, HeadsOfDifferentRules) {
  OpBenchOptions options = TinyOptions();
  options.ops = {"attention-decode", "attention-prefill"};
  options.rules = {HeadRule::Full(), HeadRule::Stream(4, 20)};
  for (const OpLine& line : MustRun(TinySubject(GetParam()), options)) {
    EXPECT_EQ(line.point.heads, "1 full, 1 of 4+20");
  }
}

// "far": memory of its own and a queue that lags behind.
INSTANTIATE_TEST_SUITE_P(Backends, OpBenchTest, testing::Values("ref", "cpu", "far"),
                         [](const auto& param) { return std::string(param.param); });

TEST(OpBenchTest, AModelsMatricesAreGroupedByShapeAndFormat) {
  OpSubject subject;
  subject.backend = *MakeBackend({});
  subject.model = *MakeRandomModel({.shape = "headwise-17m", .weights = DType::kQ8_0}, *subject.backend);
  subject.config = subject.model->config;
  OpBenchOptions options = TinyOptions();
  options.ops = {"embed", "matmul"};
  options.rows = {2};
  std::vector<std::string> lines;
  for (const OpLine& line : MustRun(subject, options)) {
    lines.push_back(line.point.op + " " + line.point.part + ": " + line.point.shape + " " + line.point.format);
  }
  EXPECT_THAT(lines, ElementsAre("matmul qkv: 384 -> 512+256+256 q8_0", "matmul output: 512 -> 384 q8_0",
                                 "matmul gate+up: 384 -> 1024+1024 q8_0", "matmul down: 1024 -> 384 q8_0",
                                 "matmul logits: 384 -> 8192 q8_0", "embed : 384 of 8192 q8_0"));
}

TEST(OpBenchTest, NumbersAreThoseOfTheProducts) {
  OpSubject subject = TinySubject("cpu");
  subject.weights = {DType::kBF16, DType::kQ8_0};
  OpBenchOptions options = TinyOptions();
  options.compute = "int8";
  options.kv_formats = {KvFormat::kF16, KvFormat::kQ8};
  for (const OpLine& line : MustRun(subject, options)) {
    const OpPoint& point = line.point;
    const Compute expected = point.op == "matmul" ? point.format == "q8_0" ? Compute::kInt8 : Compute::kBF16
                             : point.op == "attention-prefill"                        ? Compute::kBF16
                             : point.op == "attention-decode" && point.format == "q8" ? Compute::kInt8
                                                                                      : Compute::kF32;
    EXPECT_EQ(point.numbers, expected) << point.op << " " << point.format;
  }
}

TEST(OpBenchTest, RefusesWhatMeansNothing) {
  const OpSubject subject = TinySubject("cpu");
  const auto message = [&](auto change) {
    OpBenchOptions options = TinyOptions();
    change(options);
    return RunOpBench(subject, options).status().message();
  };
  EXPECT_THAT(message([](auto& o) {
                o.ops = {"norm", "softmax"};
              }),
              AllOf(HasSubstr("\"softmax\" is unknown"), HasSubstr("matmul, attention-decode")));
  EXPECT_THAT(message([](auto& o) { o.rows = {1, 0}; }), HasSubstr("rows is 0"));
  EXPECT_THAT(message([](auto& o) { o.rows = {}; }), HasSubstr("rows"));
  EXPECT_THAT(message([](auto& o) { o.depths = {-5}; }), HasSubstr("depth is -5"));
  EXPECT_THAT(message([](auto& o) { o.reps = 0; }), HasSubstr("samples is 0"));
  EXPECT_THAT(message([](auto& o) { o.rules = {HeadRule::Stream(4, 0)}; }), HasSubstr("recent"));
  EXPECT_THAT(message([](auto& o) { o.rules = {HeadRule::Full(), HeadRule::Stream(-1, 10)}; }), HasSubstr("sink"));
  EXPECT_THAT(message([](auto& o) { o.ops = {"age"}; }), HasSubstr("age: no format of --kv-dtype ages"));
  EXPECT_THAT(message([](auto& o) { o.page_tokens = 17; }), HasSubstr("page_tokens is 17"));
  EXPECT_THAT(message([](auto& o) { o.compute = "f8"; }), HasSubstr("compute is \"f8\""));
  EXPECT_THAT(message([](auto& o) {
                o.ops = {"attention-prefill"};
                o.rows = {1};
              }),
              HasSubstr("2 rows or more"));
  EXPECT_THAT(message([](auto& o) {
                o.ops = {"compensate"};
                o.rules = {HeadRule::Stream(4, 100)};
              }),
              HasSubstr("compensate: a head that keeps 4+100 has dropped nothing at depth 70"));
  OpSubject blocks = TinySubject("cpu");
  blocks.weights = {DType::kQ4_K};
  EXPECT_THAT(RunOpBench(blocks, TinyOptions()).status().message(),
              HasSubstr("rows of 64 are not whole blocks of 256"));
}

}  // namespace
}  // namespace headwise
