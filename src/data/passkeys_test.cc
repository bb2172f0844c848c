#include "data/passkeys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/filler.h"

namespace headwise {
namespace {

using testing::HasSubstr;

std::string Join(const RecallPrompt& prompt) {
  std::string text;
  for (const PromptSegment& segment : prompt) text += segment.text;
  return text;
}

TEST(DrawPasskeys, WordsAndDepths) {
  Rng rng(1);
  const std::vector<Passkey> passkeys = DrawPasskeys(rng, {.num_passkeys = 20, .words_per_passkey = 32});
  ASSERT_EQ(passkeys.size(), 20U);
  std::set<std::string> different;
  bool ascending = true;
  for (size_t i = 0; i < passkeys.size(); ++i) {
    different.insert(passkeys[i].words);
    EXPECT_EQ(std::count(passkeys[i].words.begin(), passkeys[i].words.end(), ' '), 31);
    EXPECT_GE(passkeys[i].depth, 0.05);
    EXPECT_LE(passkeys[i].depth, 0.95);
    if (i > 0 && passkeys[i].depth < passkeys[i - 1].depth) ascending = false;
  }
  EXPECT_EQ(different.size(), 20U);
  EXPECT_FALSE(ascending);  // the order of the questions says nothing about the depth
  EXPECT_EQ(std::set<std::string_view>(PasskeyWords().begin(), PasskeyWords().end()).size(), 26U);
}

TEST(MakePasskeyPrompt, HidesEveryPasskeyOnceAndAsksForAll) {
  Rng rng(2);
  const std::string filler = MakeFiller(rng, 20'000);
  const std::vector<Passkey> passkeys = DrawPasskeys(rng, {});
  const RecallPrompt prompt = MakePasskeyPrompt(filler, passkeys);
  ASSERT_EQ(prompt.size(), 20U);
  const std::string& context = prompt[0].text;
  constexpr std::string_view kNames[] = {"first", "second",  "third",  "fourth", "fifth",
                                         "sixth", "seventh", "eighth", "ninth",  "tenth"};
  for (size_t i = 0; i < 10; ++i) {
    const std::string name(kNames[i]);
    const std::string told =
        "Remember this sequence of words, it's the " + name + " passkey to the vault: " + passkeys[i].words + "\n\n";
    const size_t at = context.find(told);
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_EQ(context.find(told, at + 1), std::string::npos);
    // At its depth, but for the sentence's start and the other passkeys.
    EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(context.size()), passkeys[i].depth, 0.12);
    const std::string before = context.substr(0, at);
    EXPECT_TRUE(before.ends_with("\n\n"));
    EXPECT_FALSE(prompt[2 * i].is_answer);
    EXPECT_TRUE(prompt[2 * i].text.ends_with("\n\nBased on the content of the book, what is the " + name +
                                             " passkey to the vault?\nThe " + name + " passkey is:"));
    EXPECT_TRUE(prompt[2 * i + 1].is_answer);
    EXPECT_EQ(prompt[2 * i + 1].text, " " + passkeys[i].words);
  }
  // The filler is all there, cut between sentences only.
  std::string rest = context;
  for (size_t at = 0; (at = rest.find("Remember this")) != std::string::npos;) {
    rest.erase(at, rest.find("\n\n", at) + 2 - at);
  }
  rest.resize(rest.find("\n\nBased on"));
  const auto no_space = [](std::string text) {
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  EXPECT_EQ(no_space(rest), no_space(filler));
}

TEST(MakePasskeyPrompt, WorksWithoutFillerAndAtTheEnds) {
  const std::vector<Passkey> passkeys = {{.words = "alpha", .depth = 1.0}, {.words = "bravo", .depth = 0.0}};
  const std::string told_first = "Remember this sequence of words, it's the first passkey to the vault: alpha\n\n";
  const std::string told_second = "Remember this sequence of words, it's the second passkey to the vault: bravo\n\n";
  EXPECT_TRUE(Join(MakePasskeyPrompt("", passkeys)).starts_with(told_second + told_first + "Based on"));
  EXPECT_TRUE(Join(MakePasskeyPrompt("A text. An end.\n\n", passkeys))
                  .starts_with(told_second + "A text. An end.\n\n" + told_first + "Based on"));
}

TEST(ValidatePasskeyOptions, NamesWhatIsOutOfRange) {
  EXPECT_TRUE(ValidatePasskeyOptions({}).ok());
  EXPECT_THAT(ValidatePasskeyOptions({.num_passkeys = 21}).message(), HasSubstr("is 21, expected 1 to 20"));
  EXPECT_THAT(ValidatePasskeyOptions({.num_passkeys = 0}).message(), HasSubstr("number of passkeys is 0"));
  EXPECT_THAT(ValidatePasskeyOptions({.words_per_passkey = 0}).message(), HasSubstr("words per passkey is 0"));
}

}  // namespace
}  // namespace headwise
