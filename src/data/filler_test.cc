#include "data/filler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "data/passkeys.h"
#include "text/utf8.h"

namespace headwise {
namespace {

using testing::HasSubstr;

std::string Filler(uint64_t seed, int64_t min_chars) {
  Rng rng(seed);
  return MakeFiller(rng, min_chars);
}

std::string WriteText(const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

TextSource MustOpen(const std::string& path) {
  auto source = TextSource::FromFile(path);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return source.ok() ? std::move(source).value() : TextSource::Generator();
}

// Plans name the text they were made from by the generator's version: the text of a version never changes. A mismatch
// here means that the version must.
TEST(MakeFiller, TextOfThisVersion) {
  Rng rng(0);
  EXPECT_EQ(TextSource::Generator().Hash(), "generator-1");
  EXPECT_EQ(Sha256Hex(MakeFiller(rng, 100'000)), "d59862b862bd9b966844da40043f6aa1111da6c488c699647a61952a6afb5674");
}

TEST(MakeFiller, SeedFixesItAndLongerBeginsWithShorter) {
  EXPECT_EQ(Filler(3, 5000), Filler(3, 5000));
  EXPECT_NE(Filler(3, 5000), Filler(4, 5000));
  const std::string shorter = Filler(3, 2000);
  EXPECT_GE(shorter.size(), 2000U);
  EXPECT_EQ(Filler(3, 9000).substr(0, shorter.size()), shorter);
  EXPECT_EQ(Filler(3, 0), "");
}

TEST(MakeFiller, NoParagraphTwiceAndHardlyASentence) {
  const std::string text = Filler(1, 200'000);  // more than 32k tokens
  std::set<std::string> paragraphs, sentences;
  int num_sentences = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    EXPECT_TRUE(paragraphs.insert(text.substr(begin, end - begin)).second);
    begin = end + 2;
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(".?", begin), text.size());
    sentences.insert(text.substr(begin, end - begin));
    ++num_sentences;
    begin = end + 1;
  }
  EXPECT_GT(paragraphs.size(), 300U);
  EXPECT_GT(static_cast<double>(sentences.size()), 0.9 * num_sentences);
}

TEST(MakeFiller, HasNothingThatIsAskedFor) {
  std::string text = Filler(2, 200'000);
  EXPECT_EQ(text.find_first_of("0123456789%"), std::string::npos);
  std::set<std::string> words;
  std::string word;
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      words.insert(std::exchange(word, ""));
    }
  }
  for (const std::string_view passkey_word : PasskeyWords()) EXPECT_FALSE(words.contains(std::string(passkey_word)));
}

TEST(BoundaryBefore, TakesTheBestPlaceCloseBy) {
  const std::string text = "One two. \"Three four.\" Five\nsix.\n\nSeven eight";
  const auto before = [&](const char* at, TextBoundary boundary) {
    return text.substr(BoundaryBefore(text, text.find(at), boundary));
  };
  EXPECT_EQ(before("ght", TextBoundary::kWord), "eight");
  EXPECT_EQ(before("eight", TextBoundary::kWord), "eight");
  EXPECT_EQ(before("ght", TextBoundary::kSentence), "Seven eight");
  EXPECT_EQ(before("six", TextBoundary::kSentence), "Five\nsix.\n\nSeven eight");
  EXPECT_EQ(before("four", TextBoundary::kSentence), "\"Three four.\" Five\nsix.\n\nSeven eight");
  EXPECT_EQ(before("ght", TextBoundary::kParagraph), "Seven eight");
  EXPECT_EQ(before("six", TextBoundary::kParagraph), text);
  EXPECT_EQ(BoundaryBefore(text, text.size(), TextBoundary::kWord), text.find("eight"));
  EXPECT_EQ(BoundaryBefore("", 0, TextBoundary::kParagraph), 0U);
}

TEST(BoundaryBefore, FallsBackToWeakerPlacesAndNeverCutsACharacter) {
  std::string words;
  while (words.size() < 5000) words += "word ";
  EXPECT_EQ(BoundaryBefore(words, 4002, TextBoundary::kParagraph), 4000U);
  std::string cjk;
  while (cjk.size() < 3000) cjk += "\xE6\x96\x87";
  for (const size_t offset : {900U, 901U, 902U}) EXPECT_EQ(BoundaryBefore(cjk, offset, TextBoundary::kSentence), 900U);
}

TEST(TextSource, PassagesOfTheGenerator) {
  const TextSource source = TextSource::Generator();
  for (const int64_t num_chars : {0, 1, 60, 5000}) {
    Rng rng(7), same(7);
    const auto passage = source.Passage(rng, num_chars);
    ASSERT_TRUE(passage.ok());
    EXPECT_LE(static_cast<int64_t>(passage->size()), num_chars);
    EXPECT_GE(static_cast<int64_t>(passage->size()), num_chars - 48);
    EXPECT_EQ(*passage, *source.Passage(same, num_chars));
  }
}

TEST(TextSource, PassagesOfAFile) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "Paragraph " + std::to_string(i) + " has a caf\xC3\xA9. And more.\n\n";
  const std::string path = WriteText("passages.txt", text);
  const TextSource source = MustOpen(path);
  EXPECT_EQ(source.Hash(), Sha256Hex(text));
  std::set<std::string> different;
  Rng rng(1);
  for (int i = 0; i < 50; ++i) {
    const auto passage = source.Passage(rng, 1000);
    ASSERT_TRUE(passage.ok()) << passage.status().message();
    EXPECT_LE(passage->size(), 1000U);
    EXPECT_GE(passage->size(), 952U);
    EXPECT_TRUE(passage->starts_with("Paragraph ")) << *passage;
    EXPECT_TRUE(passage->ends_with(' ') || passage->ends_with('\n')) << *passage;
    EXPECT_NE(text.find(*passage), std::string::npos);
    EXPECT_FALSE(FindInvalidUtf8(*passage).has_value());
    different.insert(*passage);
  }
  EXPECT_GT(different.size(), 40U);
  // The whole file is a passage, and the only one of its length.
  EXPECT_EQ(*source.Passage(rng, static_cast<int64_t>(text.size())), text);
}

TEST(TextSource, ErrorsNameTheFile) {
  Rng rng(0);
  const TextSource source = MustOpen(WriteText("short.txt", "Short.\n"));
  EXPECT_THAT(source.Passage(rng, 8).status().message(),
              testing::AllOf(HasSubstr("short.txt: 7 bytes"), HasSubstr("expected 8")));
  EXPECT_THAT(TextSource::FromFile(WriteText("bad.txt", "ab\xff")).status().message(),
              HasSubstr("bad.txt: invalid UTF-8 at byte 2"));
  EXPECT_FALSE(TextSource::FromFile("/nonexistent.txt").ok());
}

TEST(HideSentences, ByDepthAtStartsOfSentences) {
  const std::string text = "One two. Three four. Five.";
  EXPECT_EQ(HideSentences(text, {}), text);
  const std::vector<HiddenSentence> sentences = {
      {.text = "D.", .depth = 1.0}, {.text = "B.", .depth = 0.5}, {.text = "C.", .depth = 0.5}, {.text = "A."}};
  EXPECT_EQ(HideSentences(text, sentences), "A. One two. B. C. Three four. D. Five.");
  EXPECT_EQ(HideSentences("", sentences), "A. B. C. D. ");
  EXPECT_EQ(HideSentences("One.\n\n", sentences), "A. B. C. One.\n\nD. ");
}

TEST(WithoutSpaceAtEnd, OnlyThere) {
  EXPECT_EQ(WithoutSpaceAtEnd(" a b.\n\t \r"), " a b.");
  EXPECT_EQ(WithoutSpaceAtEnd("a"), "a");
  EXPECT_EQ(WithoutSpaceAtEnd(" \n"), "");
}

}  // namespace
}  // namespace headwise
