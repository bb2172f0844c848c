#include "data/token_samples.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include "text/test_tokenizers.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

const Tokenizer& BundledTokenizer() {
  static const std::unique_ptr<Tokenizer> kTokenizer = [] {
    auto tokenizer = LoadTokenizer(HEADWISE_SOURCE_DIR "/models/headwise-17m");
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    return std::move(tokenizer).value();
  }();
  return *kTokenizer;
}

std::string Decode(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  return tokenizer.Decode(ids, SpecialDisplay::kSkip);
}

// The labelled tokens, a bar where other tokens are between them.
std::string LabelledText(const Tokenizer& tokenizer, const TokenSample& sample) {
  std::string text;
  Ids run;
  for (size_t i = 0; i < sample.labels.size(); ++i) {
    const auto pos = static_cast<size_t>(sample.labels[i]);
    run.push_back(sample.ids.at(pos + 1));
    if (i + 1 == sample.labels.size() || sample.labels[i + 1] != sample.labels[i] + 1) {
      text += Decode(tokenizer, run) + "|";
      run.clear();
    }
  }
  return text;
}

std::string ToldPasskeys(const std::string& context) {
  std::string told[3];
  const std::regex reminder("it's the (first|second|third) passkey to the vault: ([a-z ]+)\n");
  for (auto it = std::sregex_iterator(context.begin(), context.end(), reminder); it != std::sregex_iterator(); ++it) {
    told[(*it)[1] == "first" ? 0 : (*it)[1] == "second" ? 1 : 2] = (*it)[2];
  }
  return " " + told[0] + "| " + told[1] + "| " + told[2] + "|";
}

TEST(EncodeSegments, LabelsPointAtTheTokenBefore) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<s>"}));
  const RecallPrompt prompt = {{"Q<s>:", false}, {" ab", true}, {"\nR:", false}, {" c", true}};
  const auto sample = EncodeSegments(*tokenizer, prompt, std::vector{256});
  ASSERT_TRUE(sample.ok());
  EXPECT_EQ(sample->ids.front(), 256);
  EXPECT_EQ(Decode(*tokenizer, sample->ids), "Q<s>: ab\nR: c");  // text stays text
  EXPECT_THAT(sample->labels, ElementsAre(5, 6, 7, 11, 12));
  EXPECT_EQ(LabelledText(*tokenizer, *sample), " ab| c|");
}

// Some models' texts begin with more than one token.
TEST(EncodeSegments, EveryStartTokenStandsInFront) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<s>", "<t>"}));
  const RecallPrompt prompt = {{"Q:", false}, {" ab", true}};
  const auto sample = EncodeSegments(*tokenizer, prompt, std::vector{256, 257});
  ASSERT_TRUE(sample.ok());
  EXPECT_THAT(sample->ids, ElementsAre(256, 257, 'Q', ':', ' ', 'a', 'b'));
  EXPECT_THAT(sample->labels, ElementsAre(3, 4, 5));
  Rng rng(1);
  const auto text =
      MakeTextSample(*tokenizer, TextSource::Generator(), rng, {.num_tokens = 12, .start_ids = {256, 257}});
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_EQ(text->ids.size(), 12u);
  EXPECT_EQ(text->ids[1], 257);
  EXPECT_FALSE(
      MakeTextSample(*tokenizer, TextSource::Generator(), rng, {.num_tokens = 2, .start_ids = {256, 257}}).ok());
}

TEST(EncodeSegments, AnswerWithoutAnythingBeforeItHasNoFirstLabel) {
  const auto tokenizer = MustParse(ByteTokenizerJson({}));
  const RecallPrompt prompt = {{"abc", true}};
  EXPECT_THAT(EncodeSegments(*tokenizer, prompt, {})->labels, ElementsAre(0, 1));
}

// Parts joined are tokenised as the whole text is, where a space is marked before a text's first word too.
TEST(EncodeSegments, LaterPartsAreNotTakenForAText) {
  const auto tokenizer = MustParse(PieceTokenizerJson({"\u2581", "a", "b", "\u2581a"}, {"\u2581 a"}));
  const RecallPrompt prompt = {{"b", false}, {" ab", true}, {" a", false}};
  const auto sample = EncodeSegments(*tokenizer, prompt, std::vector{1});
  ASSERT_TRUE(sample.ok());
  Ids whole = {1};
  const auto ids = tokenizer->Encode("b ab a", SpecialText::kAsText);
  whole.insert(whole.end(), ids->begin(), ids->end());
  EXPECT_EQ(sample->ids, whole);
  EXPECT_THAT(sample->labels, ElementsAre(2, 3));
}

TEST(MakePasskeySample, LengthsLabelsAndTokensOfTheWholeText) {
  const Tokenizer& tokenizer = BundledTokenizer();
  for (const int64_t num_tokens : {700, 1000, 1777, 4096, 32768}) {
    Rng rng(static_cast<uint64_t>(num_tokens)), same(static_cast<uint64_t>(num_tokens));
    const PasskeySampleOptions options = {
        .num_tokens = num_tokens, .num_passkeys = 3, .words_per_passkey = 16, .start_ids = {0}};
    const auto sample = MakePasskeySample(tokenizer, TextSource::Generator(), rng, options);
    ASSERT_TRUE(sample.ok()) << sample.status().message();
    EXPECT_LE(static_cast<int64_t>(sample->ids.size()), num_tokens);
    EXPECT_GE(static_cast<int64_t>(sample->ids.size()), num_tokens - 64);
    EXPECT_EQ(sample->ids[0], 0);
    const std::string text = Decode(tokenizer, sample->ids);
    const std::string labelled = LabelledText(tokenizer, *sample);
    EXPECT_EQ(labelled, ToldPasskeys(text));
    EXPECT_EQ(std::count(labelled.begin(), labelled.end(), ' '), 3 * 16);
    // The last token is an answer's.
    EXPECT_EQ(sample->labels.back() + 2, static_cast<int64_t>(sample->ids.size()));
    const auto whole = tokenizer.Encode(text, SpecialText::kAsText);
    EXPECT_EQ(Ids(sample->ids.begin() + 1, sample->ids.end()), *whole);
    const auto again = MakePasskeySample(tokenizer, TextSource::Generator(), same, options);
    EXPECT_EQ(again->ids, sample->ids);
    EXPECT_EQ(again->labels, sample->labels);
    EXPECT_EQ(rng.Below(1 << 30), same.Below(1 << 30));
    EXPECT_NE(MakePasskeySample(tokenizer, TextSource::Generator(), rng, options)->ids, sample->ids);
  }
}

TEST(MakePasskeySample, HasRoomFromTheFewestTokensOn) {
  const auto byte_tokenizer = MustParse(ByteTokenizerJson({}));
  for (const Tokenizer* tokenizer : {&BundledTokenizer(), static_cast<const Tokenizer*>(byte_tokenizer.get())}) {
    PasskeySampleOptions options = {.start_ids = {0}};
    const auto min_tokens = MinPasskeyTokens(*tokenizer, options);
    ASSERT_TRUE(min_tokens.ok());
    for (uint64_t seed = 0; seed < 20; ++seed) {
      Rng rng(seed);
      options.num_tokens = *min_tokens + static_cast<int64_t>(seed) * 7;
      const auto sample = MakePasskeySample(*tokenizer, TextSource::Generator(), rng, options);
      ASSERT_TRUE(sample.ok()) << sample.status().message();
      EXPECT_LE(static_cast<int64_t>(sample->ids.size()), options.num_tokens);
      EXPECT_GE(static_cast<int64_t>(sample->ids.size()), options.num_tokens - 64);
    }
    Rng rng(0);
    options.num_tokens = *min_tokens - 1;
    EXPECT_THAT(MakePasskeySample(*tokenizer, TextSource::Generator(), rng, options).status().message(),
                HasSubstr(fmt::format("{} tokens for 10 passkeys of 32 words, expected {} or more", *min_tokens - 1,
                                      *min_tokens)));
  }
}

TEST(MakePasskeySample, RefusesOptionsOutOfRange) {
  Rng rng(0);
  const TextSource source = TextSource::Generator();
  const auto message = [&](const PasskeySampleOptions& options) {
    return MakePasskeySample(BundledTokenizer(), source, rng, options).status().message();
  };
  EXPECT_THAT(message({.num_tokens = 5000, .num_passkeys = 21}), HasSubstr("number of passkeys is 21"));
  EXPECT_THAT(message({.num_tokens = 5000, .words_per_passkey = 0}), HasSubstr("words per passkey is 0"));
  EXPECT_THAT(message({.num_tokens = int64_t{1} << 40}), HasSubstr("number of tokens is"));
}

class OwnText : public testing::Test {
 protected:
  TextSource Open(const std::string& paragraph, int64_t num_paragraphs) {
    const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "own.txt";
    std::ofstream file(path, std::ios::binary);
    for (int64_t i = 0; i < num_paragraphs; ++i) file << paragraph;
    file.close();
    auto source = TextSource::FromFile(path);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? std::move(source).value() : TextSource::Generator();
  }
};

TEST_F(OwnText, AnyTextIsFitted) {
  const std::string wrapped = "It was a fine day, he said,\nand <|im_end|> nobody knew why.\r\n\r\n";
  const std::string no_spaces = "\xE6\x96\x87\xE5\xAD\x97\xE3\x80\x82";
  for (const std::string& paragraph : {wrapped, no_spaces, std::string("abcdefghij0123456789")}) {
    const TextSource source = Open(paragraph, 4000);
    for (const int64_t num_tokens : {1500, 3000}) {
      Rng rng(5);
      const auto sample =
          MakePasskeySample(BundledTokenizer(), source, rng, {.num_tokens = num_tokens, .start_ids = {0}});
      ASSERT_TRUE(sample.ok()) << sample.status().message();
      EXPECT_LE(static_cast<int64_t>(sample->ids.size()), num_tokens);
      EXPECT_GE(static_cast<int64_t>(sample->ids.size()), num_tokens - 64);
      for (size_t i = 1; i < sample->ids.size(); ++i) ASSERT_FALSE(BundledTokenizer().IsSpecial(sample->ids[i]));
    }
  }
}

TEST_F(OwnText, TooShortIsAnError) {
  const TextSource source = Open("A few words.\n", 50);
  Rng rng(5);
  EXPECT_THAT(MakePasskeySample(BundledTokenizer(), source, rng, {.num_tokens = 3000}).status().message(),
              HasSubstr("own.txt: 650 bytes of text, expected "));
  EXPECT_THAT(MakeTextSample(BundledTokenizer(), source, rng, {.num_tokens = 700}).status().message(),
              HasSubstr("own.txt: 650 bytes of text, expected "));
  EXPECT_TRUE(MakeTextSample(BundledTokenizer(), source, rng, {.num_tokens = 100}).ok());
}

TEST(MakeTextSample, ExactLengthAllLabelled) {
  for (const int64_t num_tokens : {2, 500, 4096}) {
    Rng rng(1);
    const auto sample =
        MakeTextSample(BundledTokenizer(), TextSource::Generator(), rng, {.num_tokens = num_tokens, .start_ids = {0}});
    ASSERT_TRUE(sample.ok()) << sample.status().message();
    EXPECT_EQ(static_cast<int64_t>(sample->ids.size()), num_tokens);
    EXPECT_EQ(sample->ids[0], 0);
    ASSERT_EQ(static_cast<int64_t>(sample->labels.size()), num_tokens - 1);
    for (size_t i = 0; i < sample->labels.size(); ++i) EXPECT_EQ(sample->labels[i], static_cast<int32_t>(i));
  }
  Rng rng(1);
  EXPECT_THAT(MakeTextSample(BundledTokenizer(), TextSource::Generator(), rng, {.num_tokens = 1}).status().message(),
              HasSubstr("number of tokens is 1, expected 2"));
}

TEST(MakeRecallPromptIds, LengthsAndQuestions) {
  const Tokenizer& tokenizer = BundledTokenizer();
  const TextSource source = TextSource::Generator();
  for (const RecallKind kind : kRecallKinds) {
    for (const int64_t num_tokens : {300, 1000, 3000, 8192}) {
      Rng rng(9), same(9);
      const RecallPromptOptions options = {.kind = kind, .num_tokens = num_tokens, .start_ids = {0}};
      const auto ids = MakeRecallPromptIds(tokenizer, source, rng, options);
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      EXPECT_LE(static_cast<int64_t>(ids->size()), num_tokens);
      EXPECT_GE(static_cast<int64_t>(ids->size()), num_tokens - 96);
      EXPECT_EQ(*MakeRecallPromptIds(tokenizer, source, same, options), *ids);
      const std::string text = Decode(tokenizer, *ids);
      std::smatch asked;
      switch (kind) {
        case RecallKind::kLines:
          ASSERT_TRUE(std::regex_search(text, asked, std::regex("in line ([a-z-]+)\\? I need the number\\. $")));
          EXPECT_THAT(text, HasSubstr("\nline " + asked[1].str() + ": REGISTER_CONTENT is <"));
          break;
        case RecallKind::kPasskey:
          EXPECT_TRUE(text.ends_with("\n\nWhat is the pass key? The pass key is"));
          ASSERT_TRUE(std::regex_search(text, asked, std::regex("The pass key is ([0-9]{5})\\. Remember it\\.")));
          EXPECT_THAT(text, HasSubstr(asked[1].str() + " is the pass key. "));
          break;
        case RecallKind::kJsonKeys:
          ASSERT_TRUE(std::regex_search(text, asked, std::regex("object\\?\n(\"[a-z-]+\":)$")));
          EXPECT_THAT(text, HasSubstr("\n" + asked[1].str() + " \""));
          break;
      }
    }
  }
}

// What is asked for stands where the depth says, whatever the kind.
TEST(MakeRecallPromptIds, DepthsAreKept) {
  const std::pair<RecallKind, std::regex> told[] = {
      {RecallKind::kLines, std::regex("in line ([a-z-]+)\\?")},
      {RecallKind::kPasskey, std::regex("The (pass key is [0-9]{5})\\.")},
      {RecallKind::kJsonKeys, std::regex("object\\?\n(\"[a-z-]+\":)")},
  };
  for (const auto& [kind, question] : told) {
    for (const double depth : {0.0, 0.3, 0.9}) {
      Rng rng(9);
      const auto ids = MakeRecallPromptIds(BundledTokenizer(), TextSource::Generator(), rng,
                                           {.kind = kind, .num_tokens = 4096, .depth = depth});
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      const std::string text = Decode(BundledTokenizer(), *ids);
      std::smatch asked;
      ASSERT_TRUE(std::regex_search(text, asked, question));
      const auto place = static_cast<double>(text.find(asked[1].str())) / static_cast<double>(text.size());
      EXPECT_NEAR(place, depth, 0.06) << static_cast<int>(kind);  // the opening and the question count in
    }
  }
}

TEST(MakeRecallPromptIds, ErrorsNameTheTokens) {
  const auto message = [](RecallKind kind, int64_t num_tokens) {
    Rng rng(0);
    return MakeRecallPromptIds(BundledTokenizer(), TextSource::Generator(), rng,
                               {.kind = kind, .num_tokens = num_tokens})
        .status()
        .message();
  };
  for (const RecallKind kind : kRecallKinds) EXPECT_THAT(message(kind, 8), HasSubstr("expected at most 8"));
  EXPECT_THAT(message(RecallKind::kLines, 0), HasSubstr("number of tokens is 0"));
  EXPECT_THAT(message(RecallKind::kLines, 1'000'000), HasSubstr("further lines give"));
}

}  // namespace
}  // namespace headwise
