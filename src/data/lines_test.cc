#include "data/lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>
#include <set>

#include "base/sha256.h"

#include "base/file.h"

namespace headwise {
namespace {

using testing::HasSubstr;

TEST(MakeLineCases, EveryCaseAnswersItself) {
  const auto cases = MakeLineCases({.num_lines = 50, .num_cases = 20, .seed = 1});
  ASSERT_TRUE(cases.ok());
  ASSERT_EQ(cases->size(), 20U);
  const std::regex line("\nline ([a-z]+-[a-z]+): REGISTER_CONTENT is <([0-9]+)>");
  std::set<std::ptrdiff_t> asked_lines;
  for (const LineCase& c : *cases) {
    std::map<std::string, int64_t> register_of;
    std::set<int64_t> numbers;
    std::smatch question;
    ASSERT_TRUE(std::regex_search(c.prompt, question, std::regex("in line ([a-z]+-[a-z]+)\\? I need the number\\. $")));
    std::ptrdiff_t line_idx = 0;
    for (auto it = std::sregex_iterator(c.prompt.begin(), c.prompt.end(), line); it != std::sregex_iterator();
         ++it, ++line_idx) {
      register_of[(*it)[1]] = std::stoll((*it)[2]);
      numbers.insert(std::stoll((*it)[2]));
      if ((*it)[1] == question[1]) asked_lines.insert(line_idx);
    }
    EXPECT_EQ(register_of.size(), 50U);  // all names differ
    EXPECT_EQ(numbers.size(), 50U);      // all numbers differ
    ASSERT_TRUE(register_of.contains(question[1]));
    EXPECT_EQ(register_of[question[1]], c.expected_number);
  }
  EXPECT_GT(asked_lines.size(), 10U);  // anywhere in the record
}

TEST(MakeLineCases, SeedFixesThem) {
  const auto prompts = [](uint64_t seed) {
    const auto cases = MakeLineCases({.num_lines = 3, .num_cases = 2, .seed = seed});
    return (*cases)[0].prompt + (*cases)[1].prompt;
  };
  EXPECT_EQ(prompts(5), prompts(5));
  EXPECT_NE(prompts(5), prompts(6));
  EXPECT_EQ(Sha256Hex(prompts(5)), "c1c57c8259f2c0319fb43ecf6aedc887f065211b29d55de39ebd9db19d7be25d");
}

TEST(MakeLineCases, UsesEveryNameWhenAskedTo) {
  const auto cases = MakeLineCases({.num_lines = kMaxLines, .num_cases = 1, .seed = 0});
  ASSERT_TRUE(cases.ok());
  EXPECT_EQ(kMaxLines, 10000);
}

TEST(MakeLineCases, RefusesNumbersOutOfRange) {
  EXPECT_THAT(MakeLineCases({.num_lines = 0}).status().message(), HasSubstr("number of lines is 0"));
  EXPECT_THAT(MakeLineCases({.num_lines = kMaxLines + 1}).status().message(), HasSubstr("expected 1 to 10000"));
  EXPECT_THAT(MakeLineCases({.num_cases = -1}).status().message(), HasSubstr("number of cases is -1"));
}

TEST(ParseLineCases, ReadsLongEvalFields) {
  const auto cases = ParseLineCases(
      "{\"random_idx\": [\"a\", 1], \"expected_number\": 12, \"prompt\": \"P\"}\n\n"
      "{\"prompt\": \"Q\", \"expected_number\": 0}",
      "f");
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  ASSERT_EQ(cases->size(), 2U);
  EXPECT_EQ((*cases)[0].prompt, "P");
  EXPECT_EQ((*cases)[0].expected_number, 12);
  EXPECT_EQ((*cases)[1].expected_number, 0);
}

TEST(ParseLineCases, ErrorsNameTheLine) {
  const auto message = [](const char* text) { return ParseLineCases(text, "cases.jsonl").status().message(); };
  const std::string good = "{\"prompt\": \"P\", \"expected_number\": 1}\n";
  EXPECT_THAT(message((good + "{oops").c_str()), HasSubstr("cases.jsonl:2"));
  EXPECT_THAT(message((good + "\n[1]\n").c_str()), HasSubstr("cases.jsonl:3"));
  EXPECT_THAT(message("{\"prompt\": \"P\"}"), HasSubstr("expected_number"));
  EXPECT_THAT(message("{\"expected_number\": 1}"), HasSubstr("prompt"));
  EXPECT_THAT(message("{\"prompt\": \"\", \"expected_number\": 1}"), HasSubstr("is empty"));
  EXPECT_THAT(message("{\"prompt\": \"P\", \"expected_number\": -1}"), HasSubstr("is -1"));
  EXPECT_THAT(message("\n \n"), HasSubstr("no cases"));
}

TEST(ParseLineCases, OfficialFile) {
  const std::string path = HEADWISE_SOURCE_DIR "/../shared/data/longeval/200_lines.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const auto cases = ParseLineCases(*ReadFile(path), path);
  ASSERT_TRUE(cases.ok()) << cases.status().message();
  EXPECT_EQ(cases->size(), 50U);
  // Our generator's prompts begin and end as the official ones do.
  const auto own = MakeLineCases({.num_lines = 200, .num_cases = 1});
  const auto opening = [](const std::string& prompt) { return prompt.substr(0, prompt.find("\nline ")); };
  const auto closing = [](const std::string& prompt) { return prompt.substr(prompt.rfind("? I need")); };
  EXPECT_EQ(opening((*own)[0].prompt), opening((*cases)[0].prompt));
  EXPECT_EQ(closing((*own)[0].prompt), closing((*cases)[0].prompt));
}

}  // namespace
}  // namespace headwise
