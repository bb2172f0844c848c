// Models whose layers differ in window and rotation: what they compute, and what their layers keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "kv/kv_bytes.h"
#include "planner/budget.h"
#include "support/engines.h"
#include "support/layered_model.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Engine> LayeredEngine(EngineOptions options) {
  EngineImpl::Parts parts;
  parts.memory = std::make_shared<KvMemory>();
  parts.memory->backend = FarIfAsked(*MakeBackend({.name = options.backend, .isa = options.isa}));
  parts.model = LayeredModel().Make(*parts.memory->backend);
  parts.options = std::move(options);
  auto engine = MakeEngine(std::move(parts));
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<int32_t> RandomIds(size_t count, uint64_t seed = 5) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % LayeredModel::kVocab);
  return ids;
}

HeadPlan DensePlan() {
  return HeadPlan::Dense(LayeredModel::Config().shape());
}

// A stream in every layer, wider or narrower than the layer's window, with positions of both kinds.
HeadPlan MixedPlan() {
  HeadPlan plan = DensePlan();
  HeadRule in_cache = HeadRule::Stream(3, 7);
  in_cache.positions = Positions::kCache;
  HeadRule wide_in_cache = HeadRule::Stream(4, 30);
  wide_in_cache.positions = Positions::kCache;
  plan.At(0, 0) = in_cache;
  plan.At(0, 1) = HeadRule::Stream(2, 5);
  plan.At(1, 0) = in_cache;
  plan.At(1, 1) = HeadRule::Stream(4, 20);
  plan.At(2, 0) = wide_in_cache;
  plan.At(2, 1) = in_cache;
  plan.At(3, 0) = wide_in_cache;
  plan.At(3, 1) = HeadRule::Stream(1, 10);
  plan.At(4, 1) = in_cache;
  return plan;
}

TEST(LayersThatDiffer, LogitsAreThoseOfPlainLoopsHoweverTheTextIsCut) {
  const std::vector<int32_t> ids = RandomIds(70);
  for (const HeadPlan& plan : {DensePlan(), MixedPlan()}) {
    const LayeredModel::Rows expected = LayeredModel().Reference(ids, plan);
    for (const BackendChoice& choice : BackendChoices()) {
      const auto engine = LayeredEngine(ExactOptions("", choice));
      ASSERT_NE(engine, nullptr);
      for (const int64_t chunk : {0, 1, 7, 32}) {
        const ForcedRows rows = MustRunForced(*engine, ids, std::make_shared<const HeadPlan>(plan), -1, chunk);
        EXPECT_LE(MaxDifference(expected.logits, rows.logits), kTinyLogitsF32) << choice.name() << " " << chunk;
        EXPECT_LE(MaxDifference(expected.hidden, rows.hidden), kTinyLogitsF32) << choice.name() << " " << chunk;
      }
    }
  }
}

// Every difference between the layers shows in the logits: the test above would see one that is forgotten.
TEST(LayersThatDiffer, APlanThatReadsLessChangesTheLogits) {
  const std::vector<int32_t> ids = RandomIds(70);
  const LayeredModel model;
  const std::vector<double> dense = model.Reference(ids, DensePlan()).logits;
  for (int64_t layer_idx = 0; layer_idx < LayeredModel::kLayers; ++layer_idx) {
    HeadPlan plan = DensePlan();
    plan.At(layer_idx, 0) = HeadRule::Stream(0, 7);
    const std::vector<double> less = model.Reference(ids, plan).logits;
    const double most = MaxDifference(dense, less);
    EXPECT_TRUE(most > 0.05 && std::isfinite(most)) << most << " of layer " << layer_idx;
  }
}

// Sequences of one step have their own positions in the tables of every rope.
TEST(LayersThatDiffer, RequestsTogetherGiveTheTokensOfEachAlone) {
  const auto engine = LayeredEngine(ExactOptions("", {"cpu"}));
  const auto plan = std::make_shared<const HeadPlan>(MixedPlan());
  const auto request = [&](size_t length) {
    Request made;
    made.prompt = RandomIds(length, length);
    made.plan = length % 2 == 0 ? plan : nullptr;
    made.max_new_tokens = 20;
    made.eos = EosMode::kIgnore;
    return made;
  };
  std::vector<RequestId> together;
  for (const size_t length : {5, 40, 21, 12}) together.push_back(engine->Submit(request(length)).value());
  while (engine->Step().value()) {
  }
  for (size_t i = 0; i < together.size(); ++i) {
    const size_t length = std::vector<size_t>{5, 40, 21, 12}[i];
    EXPECT_EQ(engine->Take(together[i])->tokens, engine->Run(request(length)).value().tokens) << length;
  }
}

// What windowed layers keep ends with their windows, and it is what byte counts and budgets say.
TEST(LayersThatDiffer, KeptBytesAreWhatIsCounted) {
  const int64_t page_bytes = 2 * 32 * LayeredModel::kDim * 2;  // f16
  const PageSizes pages{.newest = page_bytes};
  const LayerWindows windows = LayerWindowsOf(LayeredModel::Config());
  EngineOptions options = ExactOptions("", {"cpu"});
  options.kv_dtype = "f16";
  options.page_tokens = 32;
  options.chunk_tokens = 48;
  const auto engine = LayeredEngine(options);
  for (const HeadPlan& plan : {DensePlan(), MixedPlan()}) {
    for (const int64_t length : {1, 8, 31, 32, 33, 70, 200, 333}) {
      engine->ResetKvPeak();
      const auto sequence =
          engine
              ->NewSequence(
                  {.plan = std::make_shared<const HeadPlan>(plan), .prompt_tokens = length, .max_tokens = length + 1})
              .value();
      Request request;
      request.prompt = RandomIds(static_cast<size_t>(length));
      request.sequence = sequence;
      request.max_new_tokens = 1;
      request.eos = EosMode::kIgnore;
      const auto result = engine->Run(std::move(request));
      ASSERT_TRUE(result.ok()) << result.status().message();
      const KvBytesArgs args{.plan = &plan,
                             .limits = {.prompt_tokens = length, .max_tokens = length + 1},
                             .windows = windows,
                             .chunk_tokens = options.chunk_tokens,
                             .page_tokens = options.page_tokens,
                             .full_pages = pages,
                             .bounded_pages = pages};
      const KvBytes expected = PlanKvBytes(args, length);
      EXPECT_EQ(result->metrics.kv_bytes_full, expected.full) << length;
      EXPECT_EQ(result->metrics.kv_bytes_bounded, expected.bounded) << length;
      EXPECT_EQ(PlanBytesAt(plan, length, windows), expected.total()) << length;
      EXPECT_LE(engine->kv_peak_bytes(), PeakKvBytes(args)) << length;
    }
  }
  // By hand: the windows of 8, 16 and 8 have rings of two pages, full heads have 11.
  EXPECT_EQ(PlanBytesAt(DensePlan(), 333, windows), 2 * (2 + 11 + 2 + 11 + 2) * page_bytes);
}

TEST(LayersThatDiffer, PositionsInTheCacheFromTheEndOfThePromptNeedALayerWithoutWindow) {
  const auto engine = LayeredEngine(ExactOptions("", {"ref"}));
  HeadRule rule = HeadRule::Stream(2, 4);
  rule.positions = Positions::kCache;
  rule.start = RuleStart::kEndOfPrompt;
  for (int64_t layer_idx = 0; layer_idx < LayeredModel::kLayers; ++layer_idx) {
    HeadPlan plan = DensePlan();
    plan.At(layer_idx, 1) = rule;
    const auto sequence =
        engine->NewSequence({.plan = std::make_shared<const HeadPlan>(plan), .prompt_tokens = 10, .max_tokens = 20});
    const bool has_window = layer_idx % 2 == 0;
    EXPECT_EQ(sequence.ok(), !has_window) << layer_idx;
    if (!has_window) continue;
    EXPECT_THAT(sequence.status().message(), HasSubstr("the layer's sliding window")) << layer_idx;
  }
}

}  // namespace
}  // namespace headwise
