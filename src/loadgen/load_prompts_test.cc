#include "loadgen/load_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int32_t> Pool() {
  std::vector<int32_t> pool(1000);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = 5000 + static_cast<int32_t>(i);
  return pool;
}

TEST(RandomPrompts, HaveTheLengthsAskedFor) {
  const RandomPrompts prompts({.input_tokens = 100, .output_tokens = 20, .range_ratio = 0.1, .seed = 1}, Pool());
  std::map<int64_t, int> inputs;
  std::map<int64_t, int> outputs;
  for (int64_t i = 0; i < 2000; ++i) {
    const LoadPrompt prompt = prompts.Make(i);
    EXPECT_EQ(prompt.num_ids, static_cast<int64_t>(prompt.prompt.size()));
    ++inputs[prompt.num_ids];
    ++outputs[prompt.output_tokens];
    for (const Json& id : prompt.prompt) EXPECT_TRUE(id >= 5000 && id < 6000);
  }
  EXPECT_EQ(inputs.begin()->first, 90);
  EXPECT_EQ(inputs.rbegin()->first, 110);
  EXPECT_EQ(inputs.size(), 21u);
  EXPECT_EQ(outputs.begin()->first, 18);
  EXPECT_EQ(outputs.rbegin()->first, 22);
  const RandomPrompts exact({.input_tokens = 100, .output_tokens = 20}, Pool());
  EXPECT_EQ(exact.Make(3).num_ids, 100);
  EXPECT_EQ(exact.Make(3).output_tokens, 20);
  const RandomPrompts least({.input_tokens = 1, .output_tokens = 1, .range_ratio = 0.99}, Pool());
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(least.Make(i).num_ids, 1);
}

TEST(RandomPrompts, ComeFromTheSeedAndTheNumberAlone) {
  const RandomPromptOptions options = {.input_tokens = 30, .prefix_tokens = 10, .num_prefixes = 3, .seed = 7};
  const RandomPrompts first(options, Pool());
  const RandomPrompts second(options, Pool());
  const Json fifth = first.Make(5).prompt;
  for (int64_t i = 0; i < 5; ++i) EXPECT_NE(second.Make(i).prompt, fifth);
  EXPECT_EQ(second.Make(5).prompt, fifth);
  RandomPromptOptions other = options;
  other.seed = 8;
  EXPECT_NE(RandomPrompts(other, Pool()).Make(5).prompt, fifth);
}

TEST(RandomPrompts, ShareBeginningsOfTheNumberAskedFor) {
  const RandomPrompts prompts({.input_tokens = 20, .prefix_tokens = 16, .num_prefixes = 4, .seed = 2}, Pool());
  const auto beginning = [](const LoadPrompt& prompt) {
    std::vector<int32_t> ids = prompt.prompt;
    ids.resize(16);
    return ids;
  };
  std::map<std::vector<int32_t>, int> beginnings;
  std::set<std::vector<int32_t>> whole;
  for (int64_t i = 0; i < 400; ++i) {
    EXPECT_EQ(prompts.Make(i).num_ids, 36);
    ++beginnings[beginning(prompts.Make(i))];
    whole.insert(prompts.Make(i).prompt.get<std::vector<int32_t>>());
  }
  EXPECT_EQ(beginnings.size(), 4u);
  for (const auto& [ids, count] : beginnings) EXPECT_GT(count, 60);  // of 100; four deviations are 35
  EXPECT_EQ(whole.size(), 400u);
  // What warms up is as long and begins otherwise.
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_EQ(prompts.MakeWarmup(i).num_ids, 36);
    EXPECT_FALSE(beginnings.contains(beginning(prompts.MakeWarmup(i))));
  }
}

TEST(RandomPrompts, AreWordsWhereNoIdsAreKnown) {
  const RandomPrompts prompts({.input_tokens = 12, .prefix_tokens = 3, .seed = 1}, {});
  const LoadPrompt prompt = prompts.Make(0);
  EXPECT_EQ(prompt.num_ids, 0);
  const std::string text = prompt.prompt;
  EXPECT_EQ(std::ranges::count(text, ' '), 14);
  const std::string other = prompts.Make(1).prompt;
  EXPECT_NE(text, other);
  const size_t third = text.find(' ', text.find(' ', text.find(' ') + 1) + 1);
  EXPECT_EQ(text.substr(0, third), other.substr(0, third));
}

TEST(ParseLoadPrompts, TakesTextsAndIds) {
  const auto prompts = ParseLoadPrompts(
      "{\"prompt\": \"Once\", \"max_tokens\": 3, \"id\": 7}\n\n{\"prompt\": [1, 2, 3]}\n{\"prompt\": \"\"}\n",
      "p.jsonl", 64);
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ((*prompts)[0].prompt, "Once");
  EXPECT_EQ((*prompts)[0].output_tokens, 3);
  EXPECT_EQ((*prompts)[1].prompt, Json({1, 2, 3}));
  EXPECT_EQ((*prompts)[1].num_ids, 3);
  EXPECT_EQ((*prompts)[1].output_tokens, 64);
}

TEST(ParseLoadPrompts, RefusesOthersByTheirLine) {
  const auto error = [](const std::string& text) { return ParseLoadPrompts(text, "p.jsonl", 1).status().message(); };
  EXPECT_THAT(error(""), HasSubstr("p.jsonl: has no line"));
  EXPECT_THAT(error("{\"prompt\": \"a\"}\n{\"text\": 1}"), HasSubstr("p.jsonl:2: prompt is missing"));
  EXPECT_THAT(error("{\"prompt\": []}"), HasSubstr("p.jsonl:1: prompt: found a list of something else, or of nothing"));
  EXPECT_THAT(error("{\"prompt\": [1, -2]}"), HasSubstr("expected a text or a list of token ids"));
  EXPECT_THAT(error("{\"prompt\": 3}"), HasSubstr("found number"));
  EXPECT_THAT(error("{\"prompt\": \"a\", \"max_tokens\": 0}"), HasSubstr("p.jsonl:1: max_tokens is 0"));
  EXPECT_THAT(error("{\"prompt\": \"a\", \"max_tokens\": \"3\"}"), HasSubstr("max_tokens"));
  EXPECT_THAT(error("{"), HasSubstr("p.jsonl:1"));
}

TEST(IdsOfTokenizeReply, TakesListsOfIdsAlone) {
  EXPECT_THAT(IdsOfTokenizeReply(R"({"tokens": [5, 3, 5], "count": 3})"), ElementsAre(3, 5));
  for (const char* body : {"", "{", "[]", "{}", R"({"tokens": "a"})", R"({"tokens": []})", R"({"tokens": [1, -1]})",
                           R"({"tokens": [{"id": 1}]})", R"({"tokens": [4294967296]})"}) {
    EXPECT_THAT(IdsOfTokenizeReply(body), IsEmpty()) << body;
  }
  EXPECT_GT(TextOfManyTokens().size(), 8192u);
}

}  // namespace
}  // namespace headwise
