// Searches go on in slices, which nobody may see in what is found; and what a pattern may do to one text has an end.
#include "text/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "text/tokenizer.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Regex MustCompile(std::string_view pattern) {
  auto regex = Regex::Compile(pattern, "test.json");
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  return *std::move(regex);
}

// "begin-end begin-end ..."
std::string Found(const Regex& regex, std::string_view text) {
  std::vector<TextSpan> matches;
  PatternBudget budget(text.size());
  const Status status = regex.FindAll(text, budget, matches);
  if (!status.ok()) return status.message();
  std::string spans;
  for (const TextSpan& match : matches) spans += std::to_string(match.begin) + "-" + std::to_string(match.end) + " ";
  return spans;
}

std::string Span(size_t begin, size_t end) {
  return std::to_string(begin) + "-" + std::to_string(end) + " ";
}

TEST(Regex, WhatIsFoundKnowsNoSlices) {
  const Regex spaces = MustCompile(R"(\s+(?!\S)|\s+|\S+)");
  const Regex last = MustCompile(R"(b$)");
  const Regex behind = MustCompile(R"((?<=a{40})b|é\b)");
  const Regex far = MustCompile(R"(a(?=a*b))");
  for (size_t num = 1; num < 1400; num = num < 700 ? num + 1 : num + 97) {
    SCOPED_TRACE(num);
    const std::string run(num, ' ');
    // The last space of a run goes with what follows.
    EXPECT_EQ(Found(spaces, run + "x"), (num > 1 ? Span(0, num - 1) : "") + Span(num - 1, num) + Span(num, num + 1));
    EXPECT_EQ(Found(spaces, run), Span(0, num));
    const std::string letters(num, 'a');
    EXPECT_EQ(Found(last, letters + "b"), Span(num, num + 1));
    EXPECT_EQ(Found(last, letters + "bc\nb"), Span(num + 3, num + 4));
    EXPECT_EQ(Found(behind, letters + "b"), num >= 40 ? Span(num, num + 1) : "");
    EXPECT_EQ(Found(behind, letters + "é"), Span(num, num + 2));
    EXPECT_EQ(Found(far, letters), "");
    std::string each;
    for (size_t i = 0; i < num; ++i) each += Span(i, i + 1);
    EXPECT_EQ(Found(far, letters + "b"), each);
    // Characters of three bytes, so that slices would end within them.
    std::string signs, of_signs;
    for (size_t i = 0; i < num; ++i) {
      of_signs += Span(signs.size(), signs.size() + 3);
      signs += "語";
    }
    EXPECT_EQ(Found(MustCompile(R"(\p{L}(?=\p{L}*))"), signs), of_signs);
  }
}

// Quadratic in the text without a budget: from each of its places to its end.
TEST(Regex, AllOfATextHasABudget) {
  const std::string text(size_t{1} << 19, 'a');
  for (const char* pattern : {"a*b", "a(?=a*b)", "(?:a|a)*?b", ".*b"}) {
    EXPECT_THAT(Found(MustCompile(pattern), text),
                AllOf(HasSubstr("test.json: the pattern "), HasSubstr(pattern), HasSubstr("text of 524288 bytes")));
  }
  // Where there is little of it they are patterns like others.
  EXPECT_EQ(Found(MustCompile("a*b"), std::string(4000, 'a')), "");
}

// The words of a text have one budget together: a step before may have cut it into any number of them.
TEST(Regex, ABudgetIsOfAllSearchesThatShareIt) {
  const Regex regex = MustCompile("a*b");
  const std::string word(4000, 'a');
  PatternBudget budget(0);
  Status status;
  int num_words = 0;
  for (; status.ok() && num_words < 1000; ++num_words) {
    std::vector<TextSpan> matches;
    status = regex.FindAll(word, budget, matches);
  }
  EXPECT_GT(num_words, 1);
  EXPECT_LT(num_words, 100);
}

TEST(Regex, TheBeginningOfASearchIsRefused) {
  EXPECT_THAT(Regex::Compile("\\Ga", "f").status().message(), HasSubstr("\\G"));
  EXPECT_TRUE(Regex::Compile("\\\\Ga", "f").ok());
}

// Megabytes of what published patterns take longest over.
TEST(Regex, PublishedPatternsKeepWithinTheBudget) {
  const size_t num_bytes = size_t{1} << 20;
  std::map<std::string, std::string> texts;
  for (const char* unit :
       {" ", "\n", " \n", "a", "7", "!", "'", "é", "語", "The 12 millers' words, \t and\r\n\n  so on... ", "x1 "}) {
    std::string& text = texts[unit];
    while (text.size() < num_bytes) text += unit;
  }
  for (const auto& entry : std::filesystem::directory_iterator(HEADWISE_SOURCE_DIR "/tests/golden/tokenizer_styles")) {
    const auto tokenizer = LoadTokenizer(entry.path());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    for (const auto& [unit, text] : texts) {
      const auto ids = (*tokenizer)->Encode(text, SpecialText::kAsText);
      EXPECT_TRUE(ids.ok()) << entry.path() << ", of " << unit << ": " << ids.status().message();
    }
  }
}

}  // namespace
}  // namespace headwise
