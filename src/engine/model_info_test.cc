#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/engine.h>
#include <headwise/model_info.h>

namespace headwise {
namespace {

using ::testing::HasSubstr;

const std::string kBundled = HEADWISE_SOURCE_DIR "/models/headwise-17m";
const std::string kTiny = HEADWISE_SOURCE_DIR "/tests/golden/tiny/llama-mha";

TEST(ModelInfo, SaysWhatTheBundledModelIs) {
  const auto info = ReadModelInfo(kBundled);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->shape.num_layers, 8);
  EXPECT_EQ(info->shape.num_kv_heads, 4);
  EXPECT_EQ(info->trained_length, 32768);
  EXPECT_EQ(info->sliding_windows, std::vector<std::optional<int64_t>>(8));
  EXPECT_TRUE(info->has_tokenizer);
  EXPECT_FALSE(info->eos_ids.empty());
}

TEST(ModelInfo, IsTheSameOfALoadedModel) {
  for (const std::string& model : {kBundled, kTiny}) {
    const auto read = ReadModelInfo(model);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EngineOptions options;
    options.model = model;
    const auto engine = Engine::Create(options);
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    const ModelInfo loaded = (*engine)->info();
    EXPECT_EQ(loaded.shape, read->shape);
    EXPECT_EQ(loaded.vocab_size, read->vocab_size);
    EXPECT_EQ(loaded.eos_ids, read->eos_ids);
    EXPECT_EQ(loaded.has_tokenizer, read->has_tokenizer);
    EXPECT_EQ(loaded.has_tokenizer, model == kBundled);
  }
}

TEST(ModelInfo, SaysHowFarEachLayerReads) {
  const auto info = ReadModelInfo(HEADWISE_SOURCE_DIR "/tests/golden/tiny/mistral-window");
  ASSERT_TRUE(info.ok()) << info.status().message();
  ASSERT_EQ(static_cast<int64_t>(info->sliding_windows.size()), info->shape.num_layers);
  for (const auto& window : info->sliding_windows) EXPECT_TRUE(window.has_value());
}

TEST(ModelInfo, AModelThatIsNotThereIsNamed) {
  EXPECT_THAT(ReadModelInfo("/no/such/model").status().message(), HasSubstr("/no/such/model"));
}

}  // namespace
}  // namespace headwise
