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

// As Oniguruma, for which tokenizer files are written, finds it.
TEST(Regex, WhatThatIsWrittenForReadsDifferently) {
  // An interval is neither possessive nor lazy: what follows it is a quantifier of its own.
  EXPECT_EQ(Found(MustCompile("a{1,3}+b"), "aaaaab"), "0-6 ");
  EXPECT_EQ(Found(MustCompile("x(?:a|[bc}]){2}?"), "xabxx"), "0-3 3-4 4-5 ");
  EXPECT_EQ(Found(MustCompile("a{,2}b|(?#(b*)c{x"), "aaabc{x"), "1-4 4-7 ");
  EXPECT_EQ(Found(MustCompile("(?:ab+){2}{2}"), "ababbabab"), "0-9 ");
  EXPECT_EQ(Found(MustCompile("a{1,2}?"), "aa"), "0-1 1-2 ");
  EXPECT_EQ(Found(MustCompile("\\p{N}{1,2}\\x{61}{2}+\\u0062"), "12aaaab"), "0-7 ");
  // White space is Unicode's.
  EXPECT_EQ(Found(MustCompile("\\s+"), "a\u180E\u0085\u3000"), "4-9 ");
  EXPECT_EQ(Found(MustCompile("[\\S]|[[:^space:]]"), "\u180E "), "0-3 ");
  EXPECT_EQ(Found(MustCompile("[^\\s]+|[[:space:]]x"), "\u180E x"), "0-3 3-5 ");
  EXPECT_EQ(Found(MustCompile("\\w+"), "a\u0301\u203Fb\u00B2\u2460c"), "0-9 12-13 ");
  EXPECT_EQ(Found(MustCompile("\\W+"), "a\u2460-\u0301"), "1-5 ");
  EXPECT_EQ(Found(MustCompile("\\h+|[\\hx]"), "af \tg9x"), "0-2 5-6 6-7 ");
  EXPECT_EQ(Found(MustCompile("[[:punct:]]+"), "a+!b"), "1-3 ");
  EXPECT_EQ(Found(MustCompile("\\p{Han}+|\\P{^Latin}"), "\u4E2D\u3002a"), "0-3 6-7 ");
  // The dot meets line ends where m says so; i holds in its group.
  EXPECT_EQ(Found(MustCompile("(?m:a.)|b."), "a\nb\n"), "0-2 ");
  EXPECT_EQ(Found(MustCompile("(?i)ab|(?-i:C)d"), "ABcdCd"), "0-2 4-6 ");
  EXPECT_EQ(Found(MustCompile("[]a]+"), "a]"), "0-2 ");
}

TEST(Regex, WhatHasNoWordsInPcreIsRefused) {
  const auto error = [](std::string_view pattern) { return Regex::Compile(pattern, "f").status().message(); };
  EXPECT_EQ(error("[a&&b]"), "f: pattern with a set operation inside brackets: [a&&b]");
  EXPECT_EQ(error("[^\\W]"), "f: pattern with \\W inside brackets: [^\\W]");
  EXPECT_EQ(error("[[:^punct:]]"), "f: pattern with the class [:^punct:]: [[:^punct:]]");
  EXPECT_EQ(error("(?x: a)"), "f: pattern with extended syntax: (?x: a)");
  EXPECT_EQ(error("a(?i)b|c"), "f: pattern with options in the midst of a group: a(?i)b|c");
  for (const char* bad : {"(", ")", "[", "[]", "a)b", "(?", "(?<", "\\", "(?i", "\\p{", "\\x{", "\\u", "*", "{1}+",
                          "+{2}+", "(?#", "[[:", "[\\"}) {
    (void)Regex::Compile(bad, "f");  // an error or not, as PCRE2 sees it
  }
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
