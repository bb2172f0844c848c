// EngineOptions::batch_invariant: a text's logits have the same bits whatever shares its steps, however it is cut into
// steps, and whatever it is a fork of; without it they are the same within the tolerance of their numbers. Kept
// prefixes: src/server/prefix_reuse_test.cc; requests that give way to others: preemption_test.cc; all of it at once:
// random_schedule_test.cc.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "engine/quantize.h"
#include "model/model_config.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/requests.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int64_t kPromptTokens = 120;
constexpr size_t kTokens = 150;

// Heads of every kind, of which some drop tokens while the prompt is read, and some behind it.
std::shared_ptr<const HeadPlan> MixedPlan(const Engine& engine) {
  HeadRule cached = HeadRule::Stream(20, 40);
  cached.positions = Positions::kCache;
  HeadRule compensated = HeadRule::Stream(2, 50);
  compensated.compensate = true;
  HeadRule cut = HeadRule::Stream(4, 30);
  cut.start = RuleStart::kEndOfPrompt;
  cut.compensate = true;
  HeadRule elastic;
  elastic.kind = HeadRule::Kind::kElasticMoa;
  elastic.sink = 4;
  elastic.alpha = 8;
  elastic.beta = 0.5;
  const std::vector<HeadRule> rules = {HeadRule::Full(), cached, compensated, cut, elastic, HeadRule::Stream(0, 30)};
  HeadPlan plan = HeadPlan::Dense(engine.shape());
  for (size_t i = 0; i < plan.rules.size(); ++i) plan.rules[i] = rules[i % rules.size()];
  return std::make_shared<const HeadPlan>(std::move(plan));
}

std::vector<int32_t> IdsFor(const Engine& engine, uint64_t seed, size_t num) {
  std::vector<int32_t> ids = IdsOf(seed, num);
  for (int32_t& id : ids) id %= static_cast<int32_t>(engine.config().vocab_size);
  return ids;
}

// How a text is read.
struct Reading {
  int64_t chunk_tokens = 0;
  int64_t decode_tokens = 1;
};

// Logits of `ids`, which go on behind what `sequence` has.
std::vector<float> Read(Engine& engine, std::span<const int32_t> ids, const std::shared_ptr<Sequence>& sequence,
                        Reading how = {}) {
  std::vector<float> logits;
  ForcedRun run;
  run.ids = ids;
  run.sequence = sequence;
  run.chunk_tokens = how.chunk_tokens;
  run.decode_tokens = how.decode_tokens;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t, std::span<const float> row, std::span<const float>) {
    logits.insert(logits.end(), row.begin(), row.end());
    return true;
  };
  const Status status = engine.RunForced(run);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

std::shared_ptr<Sequence> NewText(Engine& engine, std::shared_ptr<const HeadPlan> plan) {
  return *engine.NewSequence(
      {.plan = std::move(plan), .prompt_tokens = kPromptTokens, .max_tokens = static_cast<int64_t>(kTokens)});
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// The logits of a text among 64 others, some of which still read their prompts.
std::vector<float> ReadAmongOthers(Engine& engine, std::span<const int32_t> ids, std::shared_ptr<const HeadPlan> plan) {
  std::vector<RequestId> others;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    Request other = RequestOf(IdsFor(engine, seed, 1 + seed % 40), 200);
    if (seed % 2 == 0) other.plan = plan;
    others.push_back(*engine.Submit(std::move(other)));
  }
  EXPECT_TRUE(*engine.Step());
  std::vector<float> logits = Read(engine, ids, NewText(engine, std::move(plan)), {.chunk_tokens = 50});
  for (const RequestId id : others) {
    EXPECT_EQ(engine.Peek(id)->finish, FinishReason::kRunning);
    engine.Cancel(id);
  }
  while (*engine.Step()) {
  }
  return logits;
}

using Alike = std::function<bool(std::span<const float> logits, std::span<const float> alone)>;

// Which ways of reading a text give other logits than reading it alone and in one step.
std::vector<std::string> WaysThatDiffer(Engine& engine, std::shared_ptr<const HeadPlan> plan,
                                        const Alike& alike = SameBits) {
  const std::vector<int32_t> ids = IdsFor(engine, 1000, kTokens);
  const std::vector<float> alone = Read(engine, ids, NewText(engine, plan));
  std::vector<std::string> differ;
  const auto compare = [&](const std::string& way, std::span<const float> logits, size_t from = 0) {
    if (!alike(logits, std::span(alone).subspan(from * (alone.size() / kTokens)))) differ.push_back(way);
  };
  for (const int64_t chunk_tokens : {1, 3, 7, 64}) {
    compare(fmt::format("chunks of {}", chunk_tokens),
            Read(engine, ids, NewText(engine, plan), {.chunk_tokens = chunk_tokens}));
  }
  compare("answer in one step", Read(engine, ids, NewText(engine, plan), {.decode_tokens = 0}));
  compare("among 64 others", ReadAmongOthers(engine, ids, plan));
  // Forks, where tables change and pages are shared, and the text they are of.
  for (const size_t begun : {size_t{45}, size_t{130}}) {
    const auto text = NewText(engine, plan);
    Read(engine, std::span(ids).first(begun), text, {.chunk_tokens = 20});
    const auto fork = *engine.Fork(*text);
    compare(fmt::format("fork at {}", begun), Read(engine, std::span(ids).subspan(begun), fork), begun);
    compare(fmt::format("forked at {}", begun), Read(engine, std::span(ids).subspan(begun), text, {.chunk_tokens = 9}),
            begun);
  }
  return differ;
}

struct Numbers {
  const char* weights;  // of the bundled model, or a tiny one
  const char* compute;
  const char* kv_dtype;
};

class BatchInvariant : public ::testing::TestWithParam<Numbers> {
 protected:
  ~BatchInvariant() override { fs::remove(quantized_); }

  // A checkpoint, or the bundled one with its matrices in another format.
  std::string ModelOf(const std::string& weights) {
    if (weights == "bf16") return BundledModel();
    const std::optional<DType> dtype = DTypeByName(weights);
    if (!dtype) return SourcePath("tests/golden/tiny/" + weights);
    if (!fs::exists(quantized_)) {
      const auto result = QuantizeModel({.model = BundledModel(), .out = quantized_, .type = *dtype});
      EXPECT_TRUE(result.ok()) << result.status().message();
    }
    return quantized_;
  }
  EngineOptions OptionsOf(const Numbers& numbers, const BackendChoice& choice) {
    EngineOptions options = ExactOptions(ModelOf(numbers.weights), choice);
    options.compute = numbers.compute;
    options.kv_dtype = numbers.kv_dtype;
    options.num_threads = 2;
    return options;
  }
  static std::vector<BackendChoice> Choices() {
    std::vector<BackendChoice> choices = BackendChoices();
    // Plain loops take the bundled model too long.
    if (DTypeByName(GetParam().weights)) std::erase_if(choices, [](const auto& each) { return each.backend == "ref"; });
    return choices;
  }

  // Tests run side by side.
  const std::string quantized_ =
      (fs::path(::testing::TempDir()) / fmt::format("headwise_invariant_{}.gguf", ::getpid())).string();
};

TEST_P(BatchInvariant, TheBitsAreThoseOfATextAlone) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda is not batch-invariant";
  for (const BackendChoice& choice : Choices()) {
    EngineOptions options = OptionsOf(GetParam(), choice);
    options.batch_invariant = true;
    const auto engine = MustCreate(options);
    EXPECT_THAT(engine->backend_description(), HasSubstr("batch-invariant"));
    EXPECT_THAT(WaysThatDiffer(*engine, MixedPlan(*engine)), ::testing::IsEmpty()) << choice.name();
  }
}

// Of the cases above: which can fail.
class NotInvariant : public BatchInvariant {};

TEST_P(NotInvariant, TheBitsDiffer) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda is not batch-invariant";
  for (const BackendChoice& choice : Choices()) {
    if (choice.backend == "ref") continue;
    const auto engine = MustCreate(OptionsOf(GetParam(), choice));
    EXPECT_THAT(WaysThatDiffer(*engine, MixedPlan(*engine)), ::testing::SizeIs(::testing::Ge(3))) << choice.name();
  }
}

class WithinTolerance : public BatchInvariant {
 protected:
  // Of the goldens of a whole model under these numbers.
  static double Tolerance() {
    const std::string_view weights = GetParam().weights, kv_dtype = GetParam().kv_dtype;
    if (kv_dtype == "q4") return kBundledLogitsKvQ4;
    if (kv_dtype == "q8") return kBundledLogitsKvQ8;
    if (std::string_view(GetParam().compute) == "bf16") return kBundledLogitsComputeBF16;
    if (kv_dtype == "f16") return kBundledLogitsKvF16;
    return weights == "bf16" ? kBundledLogitsF32 : kTinyLogitsF32;
  }
};

// Two readings of a text are each that far from what it really has, and the token that is most likely is the same one
// wherever the best two are more than twice that apart.
TEST_P(WithinTolerance, TheLogitsAreThoseOfATextAlone) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "what two readings may be apart was never tried on a GPU";
  const double tolerance = Tolerance();
  for (const BackendChoice& choice : Choices()) {
    const auto engine = MustCreate(OptionsOf(GetParam(), choice));
    const auto vocab_size = static_cast<size_t>(engine->config().vocab_size);
    const auto is_near = [&](std::span<const float> logits, std::span<const float> alone) {
      for (size_t from = 0; from < alone.size(); from += vocab_size) {
        const auto row = logits.subspan(from, vocab_size);
        const auto expected = alone.subspan(from, vocab_size);
        const auto best = std::ranges::max_element(expected);
        const auto is_clear = [&](float logit) { return *best - logit > 2 * tolerance; };
        // All but one, itself.
        if (std::ranges::count_if(expected, is_clear) + 1 < static_cast<int64_t>(vocab_size)) continue;
        if (std::ranges::max_element(row) - row.begin() != best - expected.begin()) return false;
      }
      return std::ranges::equal(logits, alone, [&](float a, float b) { return std::abs(a - b) <= 2 * tolerance; });
    };
    // Caches of codes: decoding rounds queries and probabilities too, prefill does not, and random ids show it (1.7 of
    // a logit). No schedule reads all of a prompt token by token.
    const bool is_coded = GetParam().kv_dtype[0] == 'q';
    std::vector<std::string> differ = WaysThatDiffer(*engine, MixedPlan(*engine), is_near);
    if (is_coded) std::erase(differ, "chunks of 1");
    EXPECT_THAT(differ, ::testing::IsEmpty()) << choice.name();
  }
}

std::string NameOf(const ::testing::TestParamInfo<Numbers>& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.weights, info.param.compute, info.param.kv_dtype);
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == ','; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Numbers, BatchInvariant,
                         ::testing::Values(Numbers{"llama-gqa", "f32", "f32"}, Numbers{"baichuan-13b", "f32", "f16"},
                                           Numbers{"gemma2", "f32", "f32"}, Numbers{"llama-sink-logits", "bf16", "f16"},
                                           Numbers{"mistral-window", "auto", "q8,f16"}, Numbers{"bf16", "auto", "f16"},
                                           Numbers{"bf16", "bf16", "bf16"}, Numbers{"f16", "f32", "q8"},
                                           Numbers{"q8_0", "auto", "f16"}, Numbers{"q4_k", "f32", "q8,f32"}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Numbers, NotInvariant,
                         ::testing::Values(Numbers{"llama-gqa", "f32", "f32"}, Numbers{"gemma2", "f32", "f32"},
                                           Numbers{"llama-sink-logits", "bf16", "f16"},
                                           Numbers{"mistral-window", "auto", "q8,f16"}, Numbers{"q8_0", "auto", "f16"}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Numbers, WithinTolerance,
                         ::testing::Values(Numbers{"llama-gqa", "f32", "f32"}, Numbers{"gemma2", "f32", "f32"},
                                           Numbers{"bf16", "f32", "f32"}, Numbers{"bf16", "f32", "f16"},
                                           Numbers{"bf16", "bf16", "f16"}, Numbers{"bf16", "f32", "q8"},
                                           Numbers{"bf16", "f32", "q4"}),
                         NameOf);

// Nor on the number of threads, as ever.
TEST(BatchInvariantEngine, ThreadsDoNotShow) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda is not batch-invariant";
  std::vector<float> first;
  for (const int num_threads : {1, 3}) {
    EngineOptions options = ExactOptions(BundledModel(), {"cpu"});
    options.compute = "auto";
    options.kv_dtype = "q8,f16";
    options.batch_invariant = true;
    options.num_threads = num_threads;
    const auto engine = MustCreate(options);
    const std::vector<float> logits = Read(*engine, IdsOf(1, kTokens), NewText(*engine, MixedPlan(*engine)));
    if (first.empty()) first = logits;
    EXPECT_TRUE(SameBits(logits, first));
  }
}

TEST(BatchInvariantEngine, WhatCannotBeIsRefusedByName) {
  EngineOptions options = ExactOptions(SourcePath("tests/golden/tiny/llama-gqa"), {"cpu"});
  options.batch_invariant = true;
  for (const char* kv_dtype : {"q4", "q4,f16", "f16,q4"}) {
    options.kv_dtype = kv_dtype;
    EXPECT_THAT(Engine::Create(options).status().message(),
                HasSubstr(fmt::format("batch_invariant: kv_dtype is \"{}\"", kv_dtype)));
  }
  options.kv_dtype = "f16";
  options.backend = "cuda";
  EXPECT_THAT(Engine::Create(options).status().message(), HasSubstr("backend cuda: cannot be batch-invariant"));
  // A backend that was made without it.
  options.backend = "cpu";
  EXPECT_THAT(CreateEngine(options, *MakeBackend({.name = "cpu"})).status().message(),
              HasSubstr("batch_invariant: the backend cpu is not"));
}

TEST(BatchInvariantEngine, IsPartOfItsArithmetic) {
  if (IsTestDevice("cuda")) GTEST_SKIP() << "cuda is not batch-invariant";
  EngineOptions options = ExactOptions(BundledModel(), {"cpu"});
  options.compute = "auto";
  EXPECT_FALSE(MustCreate(options)->arithmetic().batch_invariant);
  options.batch_invariant = true;
  const auto engine = MustCreate(options);
  EXPECT_TRUE(engine->arithmetic().batch_invariant);
  EXPECT_EQ(engine->arithmetic().compute, "f32") << "bf16 products are of prompts only where they pay";
}

}  // namespace
}  // namespace headwise
