// What a text begins with, by all that a model's files may say.
#include "engine/prompt.h"

#include <gtest/gtest.h>

#include "model/model_config.h"

namespace headwise {
namespace {

constexpr std::optional<int32_t> kNone;

TEST(BeginOfText, TheTokenizerDecidesAndElseTheConfig) {
  ModelConfig config;
  config.bos_id = 7;
  config.eos_ids = {8};
  EXPECT_EQ(BeginOfText(true, 3, config), 3);
  EXPECT_EQ(BeginOfText(true, kNone, config), kNone);
  // Qwen2.5: "add_bos_token": false beside a bos_token_id that is no end of a chat model's texts.
  EXPECT_EQ(BeginOfText(false, 3, config), kNone);
  EXPECT_EQ(BeginOfText(std::nullopt, 3, config), 7);
  config.eos_ids = {8, 7};
  EXPECT_EQ(BeginOfText(std::nullopt, 3, config), kNone);
  config.bos_id.reset();
  EXPECT_EQ(BeginOfText(std::nullopt, 3, config), kNone);
}

}  // namespace
}  // namespace headwise
