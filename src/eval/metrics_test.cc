#include "eval/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// SQuAD [1606.05250]: lower case, punctuation away, the articles away, white space.
TEST(NormalisedWords, HandWorked) {
  EXPECT_THAT(NormalisedWords("The  Eiffel-Tower,\tin \"Paris\"!\n"), ElementsAre("eiffeltower", "in", "paris"));
  EXPECT_THAT(NormalisedWords("A man, an apple AND the Theatre of a."),
              ElementsAre("man", "apple", "and", "theatre", "of"));
  EXPECT_THAT(NormalisedWords("the (a) An ... "), IsEmpty());
  EXPECT_THAT(NormalisedWords("$1,234.50"), ElementsAre("123450"));
  EXPECT_THAT(NormalisedWords(""), IsEmpty());
}

TEST(NormalisedWords, BeyondAscii) {
  // A no-break space parts words; letters and punctuation outside ASCII stay as they are.
  EXPECT_THAT(NormalisedWords("Caf\u00e9\u00a0\u00c9tude \u2013 \u00e1"),
              ElementsAre("caf\u00e9", "\u00c9tude", "\u2013", "\u00e1"));
  EXPECT_THAT(NormalisedWords("a\xff the\xc3 \xe4\xbd"), ElementsAre("a\xff", "the\xc3", "\xe4\xbd"));
}

// SQuAD's F1: precision = shared / words of the answer, recall = shared / words of the reference, F1 = 2 P R / (P + R).
TEST(TokenF1, HandWorked) {
  // Shared: "cat", "sat". P = 2/3, R = 2/4, F1 = 4/7.
  EXPECT_DOUBLE_EQ(TokenF1("The cat sat down.", "a cat sat quietly there"), 4.0 / 7);
  EXPECT_DOUBLE_EQ(TokenF1("Paris", "the PARIS!"), 1);
  EXPECT_EQ(TokenF1("London", "Paris"), 0);
}

TEST(TokenF1, CountsRepeatedWordsAsOftenAsBothHaveThem) {
  // "no" twice in both: P = 2/4, R = 2/2.
  EXPECT_DOUBLE_EQ(TokenF1("no no no no", "no no"), 2.0 / 3);
  // P = 2/2, R = 2/4.
  EXPECT_DOUBLE_EQ(TokenF1("no no", "no no no no"), 2.0 / 3);
  // Order does not count.
  EXPECT_DOUBLE_EQ(TokenF1("one two three", "three one two"), 1);
}

TEST(TokenF1, WithoutWords) {
  EXPECT_EQ(TokenF1("", ""), 1);
  EXPECT_EQ(TokenF1("the", "..."), 1);
  EXPECT_EQ(TokenF1("", "Paris"), 0);
  EXPECT_EQ(TokenF1("Paris", ""), 0);
}

// SQuAD's exact match: the normalised texts are equal.
TEST(ExactMatch, HandWorked) {
  EXPECT_EQ(ExactMatch("The Eiffel Tower.", "eiffel tower"), 1);
  EXPECT_EQ(ExactMatch("tower eiffel", "eiffel tower"), 0);
  EXPECT_EQ(ExactMatch("eiffel tower", "eiffel tower tower"), 0);
  EXPECT_EQ(ExactMatch("", "a"), 1);
  EXPECT_EQ(ExactMatch("", "b"), 0);
}

// ROUGE-L [Lin 2004 §3, beta = 1]: P = LCS / words of the answer, R = LCS / words of the reference, F = 2 P R / (P +
// R).
TEST(RougeL, HandWorked) {
  // LCS "police the gunman", then "the gunman": of four words each.
  EXPECT_DOUBLE_EQ(RougeL("police kill the gunman", "police killed the gunman"), 3.0 / 4);
  EXPECT_DOUBLE_EQ(RougeL("the gunman kill police", "police killed the gunman"), 2.0 / 4);
  // LCS "b d": P = 2/3, R = 2/5, F = 4/8.
  EXPECT_DOUBLE_EQ(RougeL("b x d", "a b c d e"), 0.5);
  EXPECT_DOUBLE_EQ(RougeL("a b c d e", "b x d"), 0.5);
  EXPECT_EQ(RougeL("x y", "a b"), 0);
  EXPECT_EQ(RougeL("a b", "b  \n a"), 0.5);
}

TEST(RougeL, WordsAsTheyStand) {
  EXPECT_EQ(RougeL("The end.", "the end"), 0);
  EXPECT_EQ(RougeL("the the the", "the"), 0.5);  // P = 1/3, R = 1
}

TEST(RougeL, WithoutWords) {
  EXPECT_EQ(RougeL("", " \n"), 1);
  EXPECT_EQ(RougeL("", "a"), 0);
  EXPECT_EQ(RougeL("a", ""), 0);
}

// LongBench's "edit similarity" is the ratio 2 M / T: M characters common in order, T characters in both. Whoever keeps
// those M inserts and deletes the other T - 2 M, so that it is 1 - distance / T as well.
TEST(EditSimilarity, HandWorked) {
  // "ittn" is common: distance 2 + 3 ("k", "e" away; "s", "i", "g" in), 1 - 5/13 = 8/13.
  EXPECT_DOUBLE_EQ(EditSimilarity("kitten", "sitting"), 8.0 / 13);
  EXPECT_DOUBLE_EQ(EditSimilarity("sitting", "kitten"), 8.0 / 13);
  // An exchange is a deletion and an insertion: 1 - 2/6.
  EXPECT_DOUBLE_EQ(EditSimilarity("abc", "abd"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(EditSimilarity("ab", "ba"), 0.5);
  EXPECT_DOUBLE_EQ(EditSimilarity("a", "aaaa"), 0.4);
  EXPECT_DOUBLE_EQ(EditSimilarity("abc", "aa"), 0.4);  // one "a" is not common twice
  EXPECT_EQ(EditSimilarity("same", "same"), 1);
  EXPECT_EQ(EditSimilarity("abc", "xyz"), 0);
}

TEST(EditSimilarity, Empty) {
  EXPECT_EQ(EditSimilarity("", ""), 1);
  EXPECT_EQ(EditSimilarity("", "a"), 0);
  EXPECT_EQ(EditSimilarity("a", ""), 0);
}

TEST(EditSimilarity, CountsCodePoints) {
  // The two letters share their first byte of two; they are different all the same.
  EXPECT_EQ(EditSimilarity("\u00e9", "\u00e8"), 0);
  EXPECT_DOUBLE_EQ(EditSimilarity("caf\u00e9", "cafe"), 0.75);
  EXPECT_DOUBLE_EQ(EditSimilarity("\u5317\u4eac", "\u5317"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(EditSimilarity("\U0001F600x", "x"), 2.0 / 3);
}

TEST(EditSimilarity, BadBytesCountOneEach) {
  EXPECT_EQ(EditSimilarity("\xff", "\xff"), 1);
  EXPECT_EQ(EditSimilarity("\xff", "\xfe"), 0);
  EXPECT_DOUBLE_EQ(EditSimilarity("a\xe4\xbd", "a"), 0.5);  // the text ends inside a character
  EXPECT_DOUBLE_EQ(EditSimilarity("\xe4\xbd"
                                  "a",
                                  "a"),
                   0.5);  // and so does what is before "a"
  EXPECT_EQ(EditSimilarity("\xff", "\u00ff"), 0);
  EXPECT_EQ(EditSimilarity("\x80\xc0\xed\xa0\x80", "x"), 0);
}

TEST(EditSimilarity, LongTexts) {
  // A table of all prefixes would take 3.2 GB.
  const std::string ones(20000, '1');
  std::string mixed;
  for (int i = 0; i < 10000; ++i) mixed += "10";
  EXPECT_DOUBLE_EQ(EditSimilarity(ones, mixed), 0.5);
}

// LongBench's code score: the first line of the answer that is code, against the line that follows in the repository.
TEST(CodeSimilarity, TakesTheFirstLineOfCode) {
  const std::string reference = "  return x;";
  EXPECT_EQ(CodeSimilarity("  return x;\n  }\n", reference), 1);
  EXPECT_EQ(CodeSimilarity("\n \t\r\n  return x;", reference), 1);
  EXPECT_EQ(CodeSimilarity("// as above\n  # or so\n```cpp\n  return x;\n```", reference), 1);
  EXPECT_EQ(CodeSimilarity("  return x;", "  return x;"), 1);
  // The indentation counts: 9 of 9 and 11 characters.
  EXPECT_DOUBLE_EQ(CodeSimilarity("return x;\n", reference), 18.0 / 20);
  // Only the first line: "y" and "  return x;" share nothing.
  EXPECT_EQ(CodeSimilarity("y\n  return x;", reference), 0);
}

TEST(CodeSimilarity, MarksInsideALineAreCode) {
  EXPECT_EQ(CodeSimilarity("url = \"http://x\"\nother", "url = \"http://x\""), 1);
  EXPECT_EQ(CodeSimilarity("x = 1  # one\nother", "x = 1  # one"), 1);
  EXPECT_EQ(CodeSimilarity("`ls`\nother", "`ls`"), 1);
}

TEST(CodeSimilarity, WithoutCode) {
  EXPECT_EQ(CodeSimilarity("", "x"), 0);
  EXPECT_EQ(CodeSimilarity("# only\n// comments\n\n", "x"), 0);
  EXPECT_EQ(CodeSimilarity("\n", ""), 1);
}

// LongBench's count and retrieval scores: right numbers / numbers, a number being a run of digits.
TEST(CountScore, HandWorked) {
  EXPECT_EQ(CountScore("There are 7 paragraphs.", "7"), 1);
  EXPECT_EQ(CountScore("7 or 8", "7"), 0.5);
  EXPECT_DOUBLE_EQ(CountScore("7, 17, 7", "7"), 2.0 / 3);
  EXPECT_EQ(CountScore("Paragraph 12", "Paragraph 12"), 1);
  EXPECT_EQ(CountScore("17", "7"), 0);
  EXPECT_EQ(CountScore("07", "7"), 0);
  EXPECT_EQ(CountScore("3.7", "7"), 0.5);  // two numbers
  EXPECT_EQ(CountScore("seven", "7"), 0);
  EXPECT_EQ(CountScore("", "7"), 0);
  EXPECT_EQ(CountScore("7", "seven"), 0);
}

// LongBench's classification score: of the classes that the answer contains, those that are a proper part of the
// reference are left out; 1 / number of the rest if the reference is one of them.
TEST(ClassScore, HandWorked) {
  const std::vector<std::string> classes = {"Date", "City", "Other location", "location", "Other location in space"};
  EXPECT_EQ(ClassScore("Type: City", "City", classes), 1);
  EXPECT_EQ(ClassScore("Date or City", "City", classes), 0.5);
  EXPECT_EQ(ClassScore("Date", "City", classes), 0);
  EXPECT_EQ(ClassScore("city", "City", classes), 0);  // case counts
  EXPECT_EQ(ClassScore("", "City", classes), 0);
  // "location" is a part of the reference, and named with it.
  EXPECT_EQ(ClassScore("Other location", "Other location", classes), 1);
  EXPECT_EQ(ClassScore("Other location, Date", "Other location", classes), 0.5);
  // But where "location" is asked for, "Other location" is a second answer.
  EXPECT_EQ(ClassScore("Other location", "location", classes), 0.5);
  EXPECT_DOUBLE_EQ(ClassScore("Other location in space", "Other location", classes), 0.5);
  // A part of the reference alone is not the reference.
  EXPECT_EQ(ClassScore("location", "Other location", classes), 0);
}

TEST(HoldsWhole, NumbersInsideNumbers) {
  EXPECT_TRUE(HoldsWhole("123", "123"));
  EXPECT_FALSE(HoldsWhole("41234", "123"));
  EXPECT_FALSE(HoldsWhole("4123", "123"));
  EXPECT_FALSE(HoldsWhole("1234", "123"));
  EXPECT_FALSE(HoldsWhole("12", "123"));
  EXPECT_FALSE(HoldsWhole("5km", "5"));
  EXPECT_FALSE(HoldsWhole("x5", "5"));
  EXPECT_FALSE(HoldsWhole("5e3", "5"));
}

TEST(HoldsWhole, Decimals) {
  EXPECT_TRUE(HoldsWhole("it is 1.5", "1.5"));
  EXPECT_FALSE(HoldsWhole("11.5", "1.5"));
  EXPECT_FALSE(HoldsWhole("1.55", "1.5"));
  EXPECT_FALSE(HoldsWhole("1.5", "1"));
  EXPECT_FALSE(HoldsWhole("1.5", "5"));
  EXPECT_FALSE(HoldsWhole(".5", "5"));
  EXPECT_FALSE(HoldsWhole("about .5", "5"));
  EXPECT_FALSE(HoldsWhole("2.1.5", "1.5"));
  EXPECT_FALSE(HoldsWhole("1.5", ".5"));
  EXPECT_FALSE(HoldsWhole("5.5", "5."));
}

TEST(HoldsWhole, PointsOfSentences) {
  EXPECT_TRUE(HoldsWhole("The number is 123.", "123"));
  EXPECT_TRUE(HoldsWhole("123. 456", "456"));
  EXPECT_TRUE(HoldsWhole("123.\n", "123"));
  EXPECT_TRUE(HoldsWhole("it is...5", "5"));
  EXPECT_TRUE(HoldsWhole("No.5", "5"));
  EXPECT_TRUE(HoldsWhole("123.It is", "123"));
  EXPECT_TRUE(HoldsWhole("this is it.5 of them", "it"));
}

TEST(HoldsWhole, ThousandsSeparators) {
  EXPECT_FALSE(HoldsWhole("1,234", "234"));
  EXPECT_FALSE(HoldsWhole("1,234", "1"));
  EXPECT_FALSE(HoldsWhole("1,234,567", "234"));
  EXPECT_FALSE(HoldsWhole("1,234", "1234"));
  EXPECT_TRUE(HoldsWhole("1,234", "1,234"));
  EXPECT_TRUE(HoldsWhole("1, 234", "234"));
  EXPECT_TRUE(HoldsWhole("1, 234", "1"));
  EXPECT_TRUE(HoldsWhole("234, or so", "234"));
  EXPECT_TRUE(HoldsWhole("red,234", "234"));
}

TEST(HoldsWhole, Signs) {
  EXPECT_FALSE(HoldsWhole("-5", "5"));
  EXPECT_FALSE(HoldsWhole("it is -5", "5"));
  EXPECT_FALSE(
      HoldsWhole("\u2212"
                 "5",
                 "5"));  // the minus sign of typography
  EXPECT_FALSE(HoldsWhole("-.5", "5"));
  EXPECT_TRUE(HoldsWhole("-5", "-5"));
  EXPECT_FALSE(HoldsWhole("3-5", "-5"));
  EXPECT_TRUE(HoldsWhole("- 5", "5"));
  EXPECT_TRUE(HoldsWhole("+5", "5"));
  EXPECT_TRUE(HoldsWhole("$5", "5"));
  EXPECT_TRUE(HoldsWhole("-word", "word"));
}

TEST(HoldsWhole, WordsInsideWords) {
  EXPECT_TRUE(HoldsWhole("a cat sat", "cat"));
  EXPECT_FALSE(HoldsWhole("concatenate", "cat"));
  EXPECT_FALSE(HoldsWhole("cats", "cat"));
  EXPECT_FALSE(HoldsWhole("bobcat", "cat"));
  EXPECT_FALSE(HoldsWhole("Cat", "cat"));
  EXPECT_TRUE(HoldsWhole("John's", "John"));
}

TEST(HoldsWhole, Joints) {
  EXPECT_FALSE(HoldsWhole("twenty-one", "one"));
  EXPECT_FALSE(HoldsWhole("twenty-one", "twenty"));
  EXPECT_FALSE(HoldsWhole("3-5", "3"));
  EXPECT_FALSE(HoldsWhole("3-5", "5"));
  EXPECT_FALSE(HoldsWhole("x_1", "x"));
  EXPECT_FALSE(HoldsWhole("x_1", "1"));
  EXPECT_TRUE(HoldsWhole("the twenty-one cats", "twenty-one"));
  EXPECT_TRUE(HoldsWhole("Paris--the capital", "Paris"));
  EXPECT_TRUE(HoldsWhole("123- or so", "123"));
}

TEST(HoldsWhole, PunctuationRoundIt) {
  for (const char* answer : {"(123)", "[123]", "\"123\"", "'123'", "**123**", "_123_", "<123>", "123!", "123?", "123;",
                             "=123", "#123", "\t123\n",
                             "\u201c"
                             "123\u201d",
                             "{\"key\": 123}"}) {
    EXPECT_TRUE(HoldsWhole(answer, "123")) << answer;
  }
  // What begins or ends with punctuation is whole on that side.
  EXPECT_TRUE(HoldsWhole("US$5", "$5"));
  EXPECT_TRUE(HoldsWhole("(5)-fold", "(5)"));
}

TEST(HoldsWhole, SeveralWords) {
  EXPECT_TRUE(HoldsWhole("I love New York.", "New York"));
  EXPECT_FALSE(HoldsWhole("New Yorker", "New York"));
  EXPECT_FALSE(HoldsWhole("Brave-New York", "New York"));
  EXPECT_FALSE(HoldsWhole("York New", "New York"));
  EXPECT_TRUE(HoldsWhole("9 10 11", "10 11"));
  EXPECT_FALSE(HoldsWhole("10 110", "10 11"));
}

TEST(HoldsWhole, ALaterOccurrenceStandsAlone) {
  EXPECT_TRUE(HoldsWhole("1234, -123, 123.4 and 123", "123"));
  EXPECT_FALSE(HoldsWhole("1234, -123, 123.4 and 9123", "123"));
  EXPECT_TRUE(HoldsWhole("aaa aa", "aa"));
  EXPECT_TRUE(HoldsWhole("xa a a", "a a"));  // it overlaps an occurrence inside a word
}

TEST(HoldsWhole, NothingIsNotHeld) {
  EXPECT_FALSE(HoldsWhole("", ""));
  EXPECT_FALSE(HoldsWhole("abc", ""));
  EXPECT_FALSE(HoldsWhole("a b", " "));
  EXPECT_FALSE(HoldsWhole("a\u00a0\nb", "\u00a0\n"));
  EXPECT_FALSE(HoldsWhole("", "abc"));
}

TEST(HoldsWhole, BeyondAscii) {
  EXPECT_FALSE(HoldsWhole("caf\u00e9", "caf"));
  EXPECT_FALSE(HoldsWhole("caf\u00e9s", "caf\u00e9"));
  EXPECT_TRUE(HoldsWhole("un caf\u00e9.", "caf\u00e9"));
  EXPECT_FALSE(HoldsWhole("vi\u1ec7t", "t"));
  // Scripts without spaces: whole is what is there.
  EXPECT_TRUE(
      HoldsWhole("\u7b54\u6848\u662f"
                 "5\u4e2a\u3002",
                 "5"));
  EXPECT_FALSE(
      HoldsWhole("\u7b54\u6848\u662f"
                 "15\u4e2a\u3002",
                 "5"));
  EXPECT_TRUE(HoldsWhole("\u5728\u5317\u4eac\u5e02", "\u5317\u4eac"));
}

TEST(HoldsWhole, BadBytes) {
  EXPECT_TRUE(
      HoldsWhole("\xff"
                 "5\xc3",
                 "5"));
  EXPECT_FALSE(HoldsWhole("\xe4\xbd\xa0", "\xe4"));  // a byte of a character is no byte by itself
  EXPECT_TRUE(HoldsWhole("\xe4 \xbd", "\xe4"));
}

}  // namespace
}  // namespace headwise
