#include "data/recall_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/json.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MakeHiddenNumberPrompt, TellsAtTheDepthAndAsksAtTheEnd) {
  const std::string told = "The pass key is 71432. Remember it. 71432 is the pass key. ";
  const std::string question = "\n\nWhat is the pass key? The pass key is";
  EXPECT_EQ(MakeHiddenNumberPrompt("One two. Three four.", {.number = 71432, .depth = 0.6}),
            "One two. " + told + "Three four." + question);
  EXPECT_EQ(MakeHiddenNumberPrompt("One two.", {.number = 71432, .depth = 0.5}), told + "One two." + question);
  EXPECT_EQ(MakeHiddenNumberPrompt("", {.number = 71432, .depth = 1.0}), told + question);
}

TEST(DrawHiddenNumber, FiveDigitsAnywhere) {
  Rng rng(1);
  double least = 1.0, most = 0.0;
  for (int i = 0; i < 200; ++i) {
    const HiddenNumber hidden = DrawHiddenNumber(rng);
    EXPECT_GE(hidden.number, 10'000);
    EXPECT_LE(hidden.number, 99'999);
    least = std::min(least, hidden.depth);
    most = std::max(most, hidden.depth);
  }
  EXPECT_LT(least, 0.1);
  EXPECT_GT(most, 0.9);
}

TEST(MakeJsonPrompt, IsJsonWithTheKeyInIt) {
  Rng rng(3);
  const JsonPairs pairs = DrawJsonPairs(rng, 100);
  EXPECT_EQ(std::set<std::string>(pairs.keys.begin(), pairs.keys.end()).size(), 100U);
  const std::string prompt = MakeJsonPrompt(pairs, 60, 17);
  const size_t end = prompt.find("}\n\n") + 1;
  const auto object = ParseJson(prompt.substr(0, end), "prompt");
  ASSERT_TRUE(object.ok()) << object.status().message();
  EXPECT_EQ(object->size(), 60U);
  EXPECT_EQ(object->at(pairs.keys[17]), pairs.values[17]);
  EXPECT_EQ(prompt.substr(end), "\n\nWhat is the value of the key \"" + pairs.keys[17] + "\" in this JSON object?\n\"" +
                                    pairs.keys[17] + "\":");
}

TEST(ParsePrompts, ReadsPromptsAndNamesBadLines) {
  const auto prompts = ParsePrompts("{\"prompt\": \"P\", \"x\": 1}\n\n{\"prompt\": \"Q\\n\"}", "f");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  EXPECT_THAT(*prompts, ElementsAre("P", "Q\n"));
  const auto message = [](const char* text) { return ParsePrompts(text, "own.jsonl").status().message(); };
  EXPECT_THAT(message("{\"prompt\": \"P\"}\n{oops"), HasSubstr("own.jsonl:2"));
  EXPECT_THAT(message("{\"prompt\": \"P\"}\n\n{\"text\": \"P\"}"), HasSubstr("own.jsonl:3"));
  EXPECT_THAT(message("{\"prompt\": \"\"}"), HasSubstr("is empty"));
  EXPECT_THAT(message("\n"), HasSubstr("own.jsonl: no prompts"));
  EXPECT_FALSE(ReadPrompts("/nonexistent.jsonl").ok());
}

}  // namespace
}  // namespace headwise
