// Models with something wrong in them: an error that says what and where, never a wrong answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/file.h"
#include "engine/quantize.h"
#include "support/changed_model.h"
#include "support/engines.h"
#include "weights/gguf.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kGolden = "llama-gqa";

Status RunStatus(Engine& engine, std::vector<int32_t> prompt) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = 3;
  request.eos = EosMode::kIgnore;
  return engine.Run(std::move(request)).status();
}

Status ReadStatus(Engine& engine, std::vector<int32_t> ids, int64_t* num_rows) {
  *num_rows = 0;
  ForcedRun run;
  run.ids = ids;
  run.prompt_tokens = 1;
  run.decode_tokens = 1;
  run.rows = ForcedRun::Rows::kEvery;
  run.on_row = [&](int64_t, std::span<const float>, std::span<const float>) { return ++*num_rows > 0; };
  return engine.RunForced(run);
}

TEST(HostileWeights, ANumberThatIsNoneIsNamedByTheFirstLogits) {
  for (const char* name : {"model.layers.1.mlp.up_proj.weight", "lm_head.weight"}) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      const ChangedModel model(kGolden);
      model.SetNumber(name, 67, bad);
      const auto engine = MustCreate(ExactOptions(model.path(), {"cpu"}));
      ASSERT_NE(engine, nullptr);
      const auto says_where = AllOf(HasSubstr("model.safetensors"), HasSubstr(name), HasSubstr(" at [1, 3], expected"));
      EXPECT_THAT(RunStatus(*engine, {5, 6}).message(), says_where);
      int64_t num_rows = 0;
      EXPECT_THAT(ReadStatus(*engine, {5, 6}, &num_rows).message(), says_where);
      EXPECT_EQ(num_rows, 0);
      EXPECT_EQ(engine->kv_bytes(), 0);
    }
  }
}

// The scale of one block, where activations have 8 bits, which hold no NaN.
TEST(HostileWeights, AScaleThatIsNoNumberIsNamedInInt8) {
  const ChangedModel model(kGolden);
  const std::string path = model.Path("model.gguf");
  ASSERT_TRUE(QuantizeModel({.model = model.path(), .out = path, .type = DType::kQ8_0}).ok());
  std::string file = *ReadFile(path);
  const auto contents = ParseGguf(std::as_bytes(std::span(file)), path);
  ASSERT_TRUE(contents.ok()) << contents.status().message();
  const uint16_t bad = F32ToF16(std::nanf(""));
  // Row 3 of 64 elements: the second of its two blocks.
  std::memcpy(file.data() + contents->tensors.at("blk.1.ffn_up.weight").begin + 7 * 34, &bad, sizeof(bad));
  model.Write("model.gguf", file);
  for (const char* compute : {"f32", "int8"}) {
    EngineOptions options = ExactOptions(path, {"cpu"});
    options.compute = compute;
    EXPECT_THAT(RunStatus(*MustCreate(options), {5, 6, 9}).message(),
                AllOf(HasSubstr("mlp.up_proj.weight\" holds"), HasSubstr("nan at [3, 32]")));
  }
}

// Row 7 of the embedding is read with token 7 alone.
TEST(HostileWeights, ANumberThatIsReachedLateIsNamedThen) {
  const ChangedModel model(kGolden);
  model.SetNumber("model.embed_tokens.weight", 7 * 64 + 2, std::nanf(""));
  const auto engine = MustCreate(ExactOptions(model.path(), {"cpu"}));
  int64_t num_rows = 0;
  EXPECT_TRUE(ReadStatus(*engine, {5, 6, 8}, &num_rows).ok());
  EXPECT_EQ(num_rows, 3);
  EXPECT_THAT(ReadStatus(*engine, {5, 6, 7}, &num_rows).message(), HasSubstr("\"model.embed_tokens.weight\" holds"));
  EXPECT_EQ(num_rows, 2);
  // A sequence that is kept does not go on from there.
  Request request;
  request.sequence = *engine->NewSequence({.plan = nullptr, .prompt_tokens = 4, .max_tokens = 20});
  request.prompt = {5, 7};
  request.max_new_tokens = 1;
  EXPECT_THAT(engine->Run(request).status().message(), HasSubstr("[7, 2]"));
  request.prompt = {5};
  EXPECT_THAT(engine->Run(request).status().message(), HasSubstr("[7, 2]"));
}

TEST(HostileWeights, NumbersThatOverflowOnTheWayAreToldFromThem) {
  const ChangedModel model(kGolden);
  model.SetNumber("model.layers.0.self_attn.v_proj.weight", 0, 1e12f);
  EngineOptions options = ExactOptions(model.path(), {"cpu"});
  options.kv_dtype = "f16";
  EXPECT_THAT(RunStatus(*MustCreate(options), {5, 6}).message(),
              AllOf(HasSubstr("all weights are finite"), HasSubstr("kv_dtype is f16")));
  options.kv_dtype = "f32";
  EXPECT_TRUE(RunStatus(*MustCreate(options), {5, 6}).ok());
}

TEST(HostileWeights, WhatIsInMemoryOutlivesItsFile) {
  for (const char* file : {"model.safetensors", "model.gguf"}) {
    const ChangedModel model(kGolden);
    EngineOptions options = ExactOptions(model.path(), {"cpu"});
    if (file == std::string("model.gguf")) {
      ASSERT_TRUE(QuantizeModel({.model = model.path(), .out = model.Path(file), .type = DType::kF32}).ok());
      options.model = model.Path(file);
    }
    options.use_mmap = false;
    const auto engine = MustCreate(options);
    ASSERT_NE(engine, nullptr);
    std::filesystem::resize_file(model.Path(file), 0);
    EXPECT_TRUE(RunStatus(*engine, {5, 6}).ok());
  }
}

}  // namespace
}  // namespace headwise
