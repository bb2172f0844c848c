#include "text/tokenizer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/file.h"
#include "text/test_tokenizers.h"
#include "text/utf8.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

Ids MustEncode(const Tokenizer& tokenizer, std::string_view text, SpecialText special = SpecialText::kParse) {
  auto ids = tokenizer.Encode(text, special);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

std::string ParseError(const Json& json) {
  const auto tokenizer = ParseTokenizerJson(json.dump(), "test.json");
  return tokenizer.ok() ? "no error" : tokenizer.status().message();
}

TEST(Tokenizer, InvalidUtf8IsNamedByItsOffset) {
  const auto tokenizer = MustParse(ByteTokenizerJson({}));
  for (const char* bad : {"abc\xff", "abc\xe2\x82", "abc\xed\xa0\x80", "abc\xc0\x80", "abc\xf4\x90\x80\x80"}) {
    EXPECT_EQ(tokenizer->Encode(bad, SpecialText::kParse).status().message(), "invalid UTF-8 at byte 3 of the prompt");
  }
}

TEST(Tokenizer, MergesByRankAndThenFromTheLeft) {
  const auto tokenizer = MustParse(PieceTokenizerJson({"\u2581", "a", "b", "aa", "ab", "aab"}, {"a b", "a a", "a ab"}));
  // "ab" first although "aa" is further left; then the rest.
  EXPECT_THAT(MustEncode(*tokenizer, "aab"), ElementsAre(259, 264));
  EXPECT_THAT(MustEncode(*tokenizer, "aaa"), ElementsAre(259, 262, 260));
  // A character without a token is its bytes.
  EXPECT_THAT(MustEncode(*tokenizer, "\u00e9"), ElementsAre(259, 3 + 0xc3, 3 + 0xa9));
  EXPECT_EQ(tokenizer->Decode(MustEncode(*tokenizer, "aab \u00e9"), SpecialDisplay::kShow), "aab \u00e9");
}

TEST(Tokenizer, UnknownTextIsFusedOrAnError) {
  Json json = PieceTokenizerJson({"\u2581", "a"}, {});
  json["model"]["byte_fallback"] = false;
  EXPECT_THAT(MustEncode(*MustParse(json), "xya"), ElementsAre(259, 0, 260));
  json["model"]["fuse_unk"] = false;
  EXPECT_THAT(MustEncode(*MustParse(json), "xya"), ElementsAre(259, 0, 0, 260));
  json["model"].erase("unk_token");
  EXPECT_THAT(MustParse(json)->Encode("xya", SpecialText::kParse).status().message(), HasSubstr("no token for \"x\""));
}

TEST(Tokenizer, TextTakenAsTextNeverBecomesASpecialToken) {
  // The vocabulary knows the token, merges lead to it, and words in the vocabulary need no merges.
  Json json = PieceTokenizerJson({"<", "s", ">", "<s"}, {"< s", "<s >"});
  json.erase("normalizer");
  json["model"]["ignore_merges"] = true;
  const auto tokenizer = MustParse(json);
  EXPECT_THAT(MustEncode(*tokenizer, "<s>"), ElementsAre(1));
  EXPECT_THAT(MustEncode(*tokenizer, "<s>", SpecialText::kAsText), ElementsAre(262, 261));
}

TEST(Tokenizer, AWordMayBeAsLongAsABook) {
  const auto tokenizer = MustParse(PieceTokenizerJson({"\u2581", "a", "aa", "aaaa"}, {"a a", "aa aa"}));
  const std::string text(1 << 20, 'a');
  const Ids ids = MustEncode(*tokenizer, text);
  EXPECT_EQ(ids.size(), 1 + text.size() / 4);
  EXPECT_EQ(tokenizer->Decode(ids, SpecialDisplay::kShow), text);
}

TEST(Tokenizer, ALongRunOfCombiningMarksIsPutInOrder) {
  Json json = ByteTokenizerJson({});
  json["normalizer"] = {{"type", "NFD"}};
  const auto tokenizer = MustParse(json);
  std::string text = "a", above, below;
  for (int i = 0; i < 100'000; ++i) {
    text += "\u0301\u0323";
    above += "\u0301";
    below += "\u0323";
  }
  EXPECT_EQ(tokenizer->Decode(MustEncode(*tokenizer, text), SpecialDisplay::kShow), "a" + below + above);
}

TEST(Tokenizer, WhatIsNotKnownIsRefusedByName) {
  const Json good = ByteTokenizerJson({});
  const auto with = [&](const char* key, const Json& value) {
    Json json = good;
    json[key] = value;
    return ParseError(json);
  };
  const Json other = {{"type", "Other"}};
  EXPECT_EQ(with("normalizer", other), "test.json: normalizer: type \"Other\" is not supported");
  EXPECT_EQ(with("pre_tokenizer", other), "test.json: pre_tokenizer: type \"Other\" is not supported");
  EXPECT_EQ(with("decoder", other), "test.json: decoder: type \"Other\" is not supported");
  EXPECT_EQ(with("post_processor", other), "test.json: post_processor: type \"Other\" is not supported");
  EXPECT_EQ(with("model", {{"type", "WordPiece"}}),
            "test.json: model of type \"WordPiece\", expected \"BPE\" or \"Unigram\"");
  const auto split = [&](const char* pattern) {
    return with("pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
  };
  EXPECT_EQ(split("[a\\]b]"), "no error");
  EXPECT_THAT(split("(a"), HasSubstr("bad pattern at byte 2"));
  EXPECT_THAT(split("[a&&b]"), HasSubstr("set operation"));
  EXPECT_THAT(split("[a[b]]"), HasSubstr("set operation"));
}

TEST(Tokenizer, MalformedVocabulariesAreRefused) {
  Json json = PieceTokenizerJson({"a", "b"}, {"a b"});
  EXPECT_THAT(ParseError(json), HasSubstr("needs the token \"ab\", which is not in the vocabulary"));
  json["model"]["merges"] = {"ab"};
  EXPECT_THAT(ParseError(json), HasSubstr("merge 0 is \"ab\""));
  json["model"]["merges"] = Json::array();
  json["model"]["vocab"]["c"] = 260;
  EXPECT_THAT(ParseError(json), HasSubstr("id 260 belongs to"));
  json["model"]["vocab"]["c"] = 1'000'000'000;
  EXPECT_THAT(ParseError(json), HasSubstr("id 1000000000 among"));
  json["model"]["vocab"]["c"] = -1;
  EXPECT_THAT(ParseError(json), HasSubstr("token \"c\" has the id -1, expected 0 to"));
  for (const Json& id : {Json(4294967556), Json(18446744073709551615u), Json(260.0), Json("260")}) {
    json["model"]["vocab"]["c"] = id;
    EXPECT_THAT(ParseError(json), HasSubstr("has the id " + id.dump()));
  }
}

TEST(Tokenizer, AHostilePatternEndsInAnError) {
  Json json = ByteTokenizerJson({});
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a|aa)+[bc]"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = MustParse(json);
  EXPECT_THAT(tokenizer->Encode(std::string(200, 'a'), SpecialText::kParse).status().message(),
              HasSubstr("the pattern (?:a|aa)+[bc] failed on a text of 200 bytes"));
}

TEST(Tokenizer, TextMustNotGrowWithoutBound) {
  Json json = ByteTokenizerJson({});
  Json steps = Json::array();
  for (int i = 0; i < 40; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  }
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  EXPECT_THAT(MustParse(json)->Encode("a", SpecialText::kParse).status().message(), HasSubstr("expected at most"));
}

// What a step would make is refused before it is made: a megabyte for each of a million characters fills no memory.
TEST(Tokenizer, TextMustNotGrowAtOnce) {
  const std::string megabyte(1 << 20, 'b');
  const std::string million(1 << 20, 'a');
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", megabyte}};
  Json json = ByteTokenizerJson({});
  json["normalizer"] = replace;
  EXPECT_THAT(MustParse(json)->Encode(million, SpecialText::kParse).status().message(),
              HasSubstr("test.json: normalizer: made 1099511627776 bytes out of 1048576, expected at most"));
  json = ByteTokenizerJson({});
  json["model"]["vocab"][million] = 256;
  json["decoder"] = replace;
  EXPECT_THAT(ParseError(json), HasSubstr("test.json: decoder: made 1"));
  // Many tokens that each grow as far as one may: from one byte to 1,000.
  json = ByteTokenizerJson({});
  json["decoder"] = replace;
  json["decoder"]["content"] = std::string(1000, 'b');
  json["decoder"]["pattern"]["String"] = "x";
  for (int i = 0; i < 3000; ++i) json["model"]["vocab"][fmt::format("{}x", i)] = 256 + i;
  EXPECT_THAT(ParseError(json), HasSubstr("test.json: decoder: made "));
  json = ByteTokenizerJson({});
  json["model"]["continuing_subword_prefix"] = megabyte;
  EXPECT_THAT(ParseError(json), HasSubstr("continuing_subword_prefix of 1048576 bytes"));
}

TEST(Tokenizer, KnowsWhatTextsBeginWith) {
  Json json = PieceTokenizerJson({"a"}, {});
  EXPECT_FALSE(MustParse(json)->AddsBos());
  EXPECT_FALSE(MustParse(json)->OmitsBos());  // it does not say
  EXPECT_EQ(MustParse(json)->bos_id(), 1);
  EXPECT_EQ(MustParse(json)->eos_id(), 2);
  json["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
                                           {"Sequence": {"id": "A"}}]})");
  const auto tokenizer = MustParse(json);
  EXPECT_TRUE(tokenizer->AddsBos());
  EXPECT_FALSE(tokenizer->OmitsBos());
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  EXPECT_FALSE(tokenizer->IsSpecial(259));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_THAT(tokenizer->start_ids(), ElementsAre(1));
  json["post_processor"]["single"] = Json::parse(R"([{"SpecialToken": {"id": "</s>"}}, {"SpecialToken": {"id": "<s>"}},
                                                     {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<unk>"}}])");
  EXPECT_THAT(MustParse(json)->start_ids(), ElementsAre(2, 1));
  EXPECT_EQ(MustParse(json)->bos_id(), 2);
  json["post_processor"] = {{"type", "ByteLevel"}};
  EXPECT_TRUE(MustParse(json)->OmitsBos());
  EXPECT_TRUE(MustParse(json)->start_ids().empty());
}

TEST(Tokenizer, SpecialTokensAreFoundOutsideOfRanges) {
  Json json = ByteTokenizerJson({"<x>", "<y>"});
  json["added_tokens"][0]["rstrip"] = true;
  json["added_tokens"][1]["lstrip"] = true;
  const auto tokenizer = MustParse(json);
  const auto encode = [&](std::string_view text, std::vector<ByteRange> ordinary) {
    const auto ids = tokenizer->Encode(text, ordinary);
    EXPECT_TRUE(ids.ok()) << ids.status().message();
    return *ids;
  };
  EXPECT_THAT(encode("<x>a", {}), ElementsAre(256, 'a'));
  EXPECT_THAT(encode("<x>a", {{0, 4}}), ElementsAre('<', 'x', '>', 'a'));
  // One byte of another is enough.
  for (size_t at = 0; at < 3; ++at) EXPECT_THAT(encode("<x>", {{at, at + 1}}), ElementsAre('<', 'x', '>')) << at;
  EXPECT_THAT(encode("<x><x><x>", {{3, 6}}), ElementsAre(256, '<', 'x', '>', 256));
  // White space that one swallows may be another's.
  EXPECT_THAT(encode("<x>  a  <y>", {{3, 8}}), ElementsAre(256, 'a', 257));
  EXPECT_THAT(encode("<x>  <y>", {{4, 5}}), ElementsAre(256, 257));
  EXPECT_FALSE(tokenizer->Encode("a\xff", std::vector<ByteRange>{{0, 1}}).ok());
}

TEST(LoadTokenizer, TheConfigFileHasTheLastWord) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "headwise_load_tokenizer_test";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.json", ByteTokenizerJson({"<go>", "<stop>"}).dump()).ok());
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer_config.json",
                                  R"({"bos_token": {"content": "<go>"}, "eos_token": "<stop>", "add_bos_token": true,
                                      "chat_template": [{"name": "default", "template": "[INST]"}]})")
                  .ok());
  const auto tokenizer = LoadTokenizer(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_EQ((*tokenizer)->bos_id(), 256);
  EXPECT_EQ((*tokenizer)->eos_id(), 257);
  EXPECT_TRUE((*tokenizer)->AddsBos());
  EXPECT_EQ((*tokenizer)->chat_templates()[0].source, "[INST]");
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer_config.json", R"({"add_bos_token": false})").ok());
  EXPECT_TRUE((*LoadTokenizer(folder))->OmitsBos());
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer_config.json", R"({"add_bos_token": null})").ok());
  EXPECT_FALSE((*LoadTokenizer(folder))->OmitsBos());
  EXPECT_EQ(LoadTokenizer(folder / "none").status().code(), StatusCode::kNotFound);
}

TEST(LoadTokenizer, ABrokenSentencePieceModelIsAnError) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "headwise_broken_sentencepiece_test";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.model", "not a model").ok());
  EXPECT_THAT(LoadTokenizer(folder).status().message(), HasSubstr("not a SentencePiece model"));
}

TEST(StreamDecoder, ShowsCharactersWhenTheyAreWhole) {
  const auto tokenizer = MustParse(ByteTokenizerJson({}));
  StreamDecoder decoder(*tokenizer, SpecialDisplay::kShow);
  EXPECT_EQ(decoder.Push(0xe2), "");
  EXPECT_EQ(decoder.Push(0x82), "");
  EXPECT_EQ(decoder.Push(0xac), "\u20ac");
  EXPECT_EQ(decoder.Push(0xf0), "");
  EXPECT_EQ(decoder.Push('a'), "\ufffda");
  EXPECT_EQ(decoder.Push(0xff), "\ufffd");
  EXPECT_EQ(decoder.Push(0xe2), "");
  EXPECT_EQ(decoder.Push(0x82), "");
  EXPECT_EQ(decoder.Flush(), "\ufffd");
  EXPECT_EQ(decoder.Push(-1) + decoder.Push(100'000), "");
}

// What stands inside a text: a blank in front stays, a part of a character is its bytes.
TEST(Tokenizer, BytesOfATokenAreWhatItAdds) {
  const auto bytes = MustParse(ByteTokenizerJson({"<end>"}));
  EXPECT_EQ(bytes->BytesOf(0xe2), "\xe2");
  EXPECT_EQ(bytes->BytesOf(256), "<end>");
  EXPECT_EQ(bytes->BytesOf(257), "");
  EXPECT_EQ(bytes->BytesOf(-1), "");
  const auto pieces = MustParse(PieceTokenizerJson({"\u2581a"}, {}));
  EXPECT_EQ(pieces->BytesOf(259), " a");
  EXPECT_EQ(pieces->Decode(Ids{259}), "a");
}

TEST(StreamDecoder, StripsBothEndsOfTheWholeText) {
  Json json = PieceTokenizerJson({"\u2581", "a"}, {});
  json["decoder"]["decoders"][3]["stop"] = 2;
  const auto tokenizer = MustParse(json);
  const Ids ids = {259, 259, 260, 259, 259, 259, 260, 259, 259, 259};
  StreamDecoder decoder(*tokenizer, SpecialDisplay::kShow);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  EXPECT_EQ(text + decoder.Flush(), " a   a ");
  EXPECT_EQ(tokenizer->Decode(ids, SpecialDisplay::kShow), " a   a ");
}

TEST(StreamDecoder, ByteTokensThatAreNotTextDoNotSpoilTheirNeighbours) {
  const auto tokenizer = MustParse(PieceTokenizerJson({"a"}, {}));
  EXPECT_EQ(tokenizer->Decode(Ids{3 + 0xff, 3 + 0xc3, 3 + 0xa9, 3 + 0xe2, 3 + 0x82, 259}, SpecialDisplay::kShow),
            "\ufffd\u00e9\ufffda");
}

}  // namespace
}  // namespace headwise
