// Every model family against float64 goldens: logits, final hidden states and greedy continuations, on every backend
// and instruction set, with the config under both generations of key names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <vector>

#include "engine/quantize.h"
#include "model/gguf_names.h"
#include "model/load_config.h"
#include "support/engines.h"
#include "support/golden.h"
#include "support/test_device.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(SourcePath("tests/golden/tiny"))) {
    if (entry.is_directory()) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Family : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const Json config = ReadJsonFile(Folder() + "/config.json").value();
    const bool is_published =
        config.contains("quantization_config") && config["quantization_config"].value("quant_method", "") != "mxfp4";
    if (IsTestDevice("cuda") && is_published) GTEST_SKIP() << "no weights in u4 or f8_e4m3 on cuda";
  }
  std::string Folder() const { return SourcePath("tests/golden/tiny/" + GetParam()); }
  GoldenTensors Golden() const { return GoldenTensors(Folder() + "/golden.safetensors"); }
};

TEST_P(Family, LogitsEqualTheGolden) {
  const GoldenTensors golden = Golden();
  // Where logits are scaled the last norm does it.
  std::vector<float> hidden = golden.F32("final_hidden_a");
  const auto logit_scale = static_cast<float>(ReadModelConfig(Folder()).value().logit_scale);
  for (float& value : hidden) value *= logit_scale;
  for (const BackendChoice& choice : BackendChoices()) {
    const auto engine = MustCreate(ExactOptions(Folder(), choice));
    ASSERT_NE(engine, nullptr);
    const ForcedRows a = MustRunForced(*engine, golden.Ids("ids_a"));
    EXPECT_LE(MaxDifference(a.logits, golden.F32("logits_a")), kTinyLogitsF32) << choice.name();
    EXPECT_LE(MaxDifference(a.hidden, hidden), kTinyLogitsF32) << choice.name();
    const ForcedRows b = MustRunForced(*engine, golden.Ids("ids_b"));
    // Of large models the last rows alone, which rest on all before them.
    const std::vector<float> last = golden.F32("logits_b");
    ASSERT_GE(b.logits.size(), last.size());
    const std::span<const float> rows = std::span(b.logits).last(last.size());
    EXPECT_LE(MaxDifference(rows, last), kTinyLogitsF32) << choice.name();
  }
}

// The same numbers with the prompt cut into chunks, and token by token. The prompt is declared whole, because dynamic
// NTK fixes its base by the prompt's length.
TEST_P(Family, AnyChunkingGivesTheSameLogits) {
  const GoldenTensors golden = Golden();
  const std::vector<int32_t> ids = golden.Ids("ids_a");
  for (const BackendChoice& choice : BackendChoices()) {
    const auto engine = MustCreate(ExactOptions(Folder(), choice));
    ASSERT_NE(engine, nullptr);
    for (const int64_t chunk : {1, 7, 16}) {
      const ForcedRows rows = MustRunForced(*engine, ids, nullptr, -1, chunk);
      EXPECT_LE(MaxDifference(rows.logits, golden.F32("logits_a")), kTinyLogitsF32) << choice.name() << " " << chunk;
    }
  }
}

// Rules of a plan on top of the layers' own windows: whatever the backend and the chunking, what `ref` makes of them.
TEST_P(Family, MixedRulesGiveTheSameLogits) {
  const ModelConfig config = ReadModelConfig(Folder()).value();
  auto plan = std::make_shared<HeadPlan>(HeadPlan::Dense(config.shape()));
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    HeadRule& first = plan->At(layer_idx, 0);
    first = HeadRule::Stream(3, layer_idx % 2 == 0 ? 7 : 20);
    // Learned positions are part of keys.
    if (layer_idx % 2 == 0 && config.positions != PositionKind::kLearned) first.positions = Positions::kCache;
  }
  const GoldenTensors golden = Golden();
  const std::vector<int32_t> ids = golden.Ids("ids_a");
  const auto ref = MustCreate(ExactOptions(Folder(), {.backend = "ref", .isa = "auto"}));
  ASSERT_NE(ref, nullptr);
  const std::vector<float> expected = MustRunForced(*ref, ids, plan).logits;
  EXPECT_GT(MaxDifference(expected, golden.F32("logits_a")), 1e-3);  // the plan hides something
  for (const BackendChoice& choice : BackendChoices()) {
    const auto engine = MustCreate(ExactOptions(Folder(), choice));
    ASSERT_NE(engine, nullptr);
    for (const int64_t chunk : {1, 7, 48}) {
      const ForcedRows rows = MustRunForced(*engine, ids, plan, -1, chunk);
      EXPECT_LE(MaxDifference(rows.logits, expected), kTinyLogitsF32) << choice.name() << " " << chunk;
    }
  }
}

// Written as a .gguf file, rows in the order of such files, and read back from it: nothing is lost in f32.
TEST_P(Family, AsAFileItGivesTheSameLogits) {
  const ModelConfig config = ReadModelConfig(Folder()).value();
  if (FindGgufArchitecture(config.family) == nullptr) GTEST_SKIP() << "the format has no place for " << config.family;
  const std::string path = (fs::path(::testing::TempDir()) / ("headwise_family_" + GetParam() + ".gguf")).string();
  const auto written = QuantizeModel({.model = Folder(), .out = path, .type = DType::kF32});
  ASSERT_TRUE(written.ok()) << written.status().message();
  const auto engine = MustCreate(ExactOptions(path, {.backend = "ref", .isa = "auto"}));
  ASSERT_NE(engine, nullptr);
  EXPECT_FALSE(engine->has_tokenizer());
  const GoldenTensors golden = Golden();
  const ForcedRows rows = MustRunForced(*engine, golden.Ids("ids_a"));
  EXPECT_LE(MaxDifference(rows.logits, golden.F32("logits_a")), kTinyLogitsF32);
  fs::remove(path);
}

TEST_P(Family, GreedyContinuationsAreTheGoldens) {
  const GoldenTensors golden = Golden();
  for (const BackendChoice& choice : BackendChoices()) {
    const auto engine = MustCreate(ExactOptions(Folder(), choice));
    ASSERT_NE(engine, nullptr);
    for (const std::string which : {"a", "b"}) {
      Request request;
      request.prompt = golden.Ids("ids_" + which);
      request.max_new_tokens = 16;
      request.eos = EosMode::kIgnore;
      const auto result = engine->Run(std::move(request));
      ASSERT_TRUE(result.ok()) << result.status().message();
      EXPECT_EQ(result->tokens, golden.Ids("greedy_" + which)) << choice.name();
    }
  }
}

// config.v4.json has the key names of transformers 4, which most published checkpoints have.
TEST_P(Family, OldKeyNamesGiveTheSameModel) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("headwise_v4_" + GetParam());
  fs::create_directories(folder);
  fs::copy_file(Folder() + "/config.v4.json", folder / "config.json", fs::copy_options::overwrite_existing);
  fs::copy_file(Folder() + "/model.safetensors", folder / "model.safetensors", fs::copy_options::overwrite_existing);
  const GoldenTensors golden = Golden();
  const auto engine = MustCreate(ExactOptions(folder, {"cpu"}));
  ASSERT_NE(engine, nullptr);
  const ForcedRows rows = MustRunForced(*engine, golden.Ids("ids_a"));
  EXPECT_LE(MaxDifference(rows.logits, golden.F32("logits_a")), kTinyLogitsF32);
  fs::remove_all(folder);
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Tiny, Family, ::testing::ValuesIn(FamilyNames()), TestName);

}  // namespace
}  // namespace headwise
