// What the golden cases of tests/golden/tokenizer_styles do not show: errors, bounds, and long texts.
#include "text/unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/test_tokenizers.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

Result<UnigramModel> Read(const Json& model, const std::unordered_set<std::string>& reserved = {}) {
  const auto object = JsonObject::Of(model, "f: model");
  EXPECT_TRUE(object.ok());
  return UnigramModel::FromJson(*object, reserved);
}

// `pieces` as JSON writes them.
Json Model(std::string_view pieces) {
  return {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", Json::parse(pieces)}};
}

Json Piece(std::string_view text, const Json& score) {
  return Json::array({text, score});
}

Ids MustEncode(const Json& model, std::string_view word, const std::unordered_set<std::string>& reserved = {}) {
  const auto unigram = Read(model, reserved);
  EXPECT_TRUE(unigram.ok()) << unigram.status().message();
  Ids ids;
  if (!unigram.ok()) return ids;
  const Status status = unigram->Encode(word, ids);
  EXPECT_TRUE(status.ok()) << status.message();
  return ids;
}

std::string Error(const Json& model) {
  const auto unigram = Read(model);
  return unigram.ok() ? "no error" : unigram.status().message();
}

TEST(Unigram, TheBestSumOfScoresCounts) {
  const Json model = Model(R"([["<unk>", 0], ["a", -1], ["b", -1], ["ab", -3], ["abc", -5], ["c", -2.5], ["bc", -3]])");
  EXPECT_THAT(MustEncode(model, "ab"), ElementsAre(1, 2));
  EXPECT_THAT(MustEncode(model, "abc"), ElementsAre(1, 6));  // -4, before a b c and ab c
  // Of equal sums the longest last piece.
  EXPECT_THAT(MustEncode(Model(R"([["<unk>", 0], ["a", -1], ["b", -1], ["ab", -2]])"), "ab"), ElementsAre(3));
}

TEST(Unigram, WhatIsUnknownIsFusedOrBytes) {
  Json model = Model(R"([["<unk>", 0], ["a", -1]])");
  EXPECT_THAT(MustEncode(model, "xyaz"), ElementsAre(0, 1, 0));
  for (int byte = 0; byte < 256; ++byte) model["vocab"].push_back(Piece(fmt::format("<0x{:02X}>", byte), 0));
  model["byte_fallback"] = true;
  EXPECT_THAT(MustEncode(model, "\u00e9a"), ElementsAre(2 + 0xc3, 2 + 0xa9, 1));
  // All of a run, or none of it.
  model["vocab"][2 + 'y'] = Piece("other", 0);
  EXPECT_THAT(MustEncode(model, "xya"), ElementsAre(0, 1));
  EXPECT_THAT(MustEncode(model, "xax"), ElementsAre(2 + 'x', 1, 2 + 'x'));
  model.erase("unk_id");
  Ids ids;
  EXPECT_THAT(Read(model)->Encode("ax", ids).message(), HasSubstr("f: model: no piece for \"x\""));
}

TEST(Unigram, ReservedPiecesAreNotForText) {
  const Json model = Model(R"([["<unk>", 0], ["<s>", 0], ["<", -1], ["s", -1], [">", -1]])");
  EXPECT_THAT(MustEncode(model, "<s>"), ElementsAre(1));
  EXPECT_THAT(MustEncode(model, "<s>", {"<s>"}), ElementsAre(2, 3, 4));
}

TEST(Unigram, AWordMayBeAsLongAsABook) {
  Json model = Model(R"([["<unk>", 0]])");
  for (size_t size = 1; size <= 512; size *= 2) model["vocab"].push_back(Piece(std::string(size, 'a'), -1));
  EXPECT_EQ(MustEncode(model, std::string(1 << 18, 'a')).size(), size_t{1} << 9);
}

TEST(Unigram, MalformedModelsAreRefused) {
  EXPECT_EQ(Error(Json::object()), "f: model: \"vocab\" is missing or not a list");
  for (const char* piece : {"[\"a\"]", "[1, 2]", "[\"a\", \"b\"]", "[\"a\", null]", "\"a\""}) {
    EXPECT_THAT(Error(Model(fmt::format("[[\"<unk>\", 0], {}]", piece))),
                HasSubstr("f: model: vocab: piece 1, expected [\"text\", score]"));
  }
  Json model = Model(R"([["<unk>", 0], ["a", -1]])");
  model["vocab"][1] = Piece(std::string(513, 'a'), 0);
  EXPECT_THAT(Error(model), HasSubstr("f: model: vocab: piece 1 has 513 bytes"));
  model["vocab"][1] = Piece("a", 0);
  for (const int unknown : {-1, 2}) {
    model["unk_id"] = unknown;
    EXPECT_EQ(Error(model), fmt::format("f: model: unk_id {} of 2 pieces", unknown));
  }
  EXPECT_EQ(Error(Model("[]")), "f: model: unk_id 0 of 0 pieces");
  model["unk_id"] = 0;
  model["byte_fallback"] = 1;
  EXPECT_THAT(Error(model), HasSubstr("byte_fallback"));
}

TEST(Unigram, CharacterMapsInFilesAreLookedThrough) {
  Json json = ByteTokenizerJson({});
  const auto error = [&](const Json& map) {
    json["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", map}};
    const auto tokenizer = ParseTokenizerJson(json.dump(), "f");
    return tokenizer.ok() ? "no error" : tokenizer.status().message();
  };
  EXPECT_EQ(error("a"), "f: normalizer: precompiled_charsmap of 1 characters, expected base64");
  EXPECT_THAT(error(""), HasSubstr("f: normalizer: its character map is cut short"));
  EXPECT_THAT(error("CAAAAGFiY2Q="), HasSubstr("f: normalizer: its character map says that its trie has 8 of 4 bytes"));
  EXPECT_THAT(error(nullptr), HasSubstr("precompiled_charsmap"));
}

}  // namespace
}  // namespace headwise
