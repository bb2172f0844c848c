#include "text/sentencepiece_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "text/chars_map.h"
#include "text/tokenizer_files.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHasValue = 1u << 8;

// A double array by hand: blocks of 256 units, place k at unit 256 * (k + 1).
struct RawMap {
  explicit RawMap(size_t num_places) : units(256 * (num_places + 1)) {
    // One that is not used has the label of its neighbour, which nothing looks for there.
    for (size_t i = 0; i < units.size(); ++i) units[i] = static_cast<uint32_t>(i & 0xFF) ^ 1;
    units[0] = Offset(PlaceOf(0));
  }

  static uint32_t PlaceOf(size_t k) { return static_cast<uint32_t>(256 * (k + 1)); }
  static uint32_t Offset(uint32_t offset) { return offset << 10; }
  // From place `from`, `label` leads to place `to`.
  uint32_t& Edge(size_t from, char label, size_t to, uint32_t flags = 0) {
    const auto byte = static_cast<unsigned char>(label);
    uint32_t& unit = units[PlaceOf(from) ^ byte];
    unit = byte | flags | Offset(PlaceOf(from) ^ byte ^ PlaceOf(to));
    return unit;
  }
  void SetValue(size_t place, uint32_t value) { units[PlaceOf(place)] = 0x8000'0000u | value; }

  std::string Bytes() const {
    const auto trie_bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
    std::string bytes(reinterpret_cast<const char*>(&trie_bytes), sizeof(trie_bytes));
    bytes.append(reinterpret_cast<const char*>(units.data()), trie_bytes);
    return bytes + replacements;
  }

  std::vector<uint32_t> units;
  std::string replacements = std::string("b\0", 2);
};

// "a" becomes "b".
RawMap OneRule() {
  RawMap map(2);
  map.Edge(0, 'a', 1, kHasValue);
  map.SetValue(1, 0);
  return map;
}

// "a", "aa", ... are all rules.
RawMap Chain(size_t num_rules) {
  RawMap map(num_rules + 1);
  for (size_t i = 0; i < num_rules; ++i) {
    map.Edge(i, 'a', i + 1, kHasValue);
    map.SetValue(i + 1, 0);
  }
  return map;
}

std::string Error(const std::string& bytes) {
  const Status status = CheckCharsMap(bytes, "f");
  return status.ok() ? "no error" : status.message();
}

TEST(CharsMap, SoundOnesPass) {
  EXPECT_EQ(Error(OneRule().Bytes()), "no error");
  EXPECT_EQ(Error(Chain(32).Bytes()), "no error");
  // Two ways that meet, as those of words with the same ends do.
  RawMap map(4);
  map.Edge(0, 'a', 1);
  map.Edge(0, 'b', 1);
  map.Edge(1, 'c', 2, kHasValue);
  map.SetValue(2, 0);
  EXPECT_EQ(Error(map.Bytes()), "no error");
}

TEST(CharsMap, WhatALibraryWouldFollowOutOfItIsRefused) {
  EXPECT_THAT(Error(""), HasSubstr("f: its character map is cut short"));
  EXPECT_THAT(Error(std::string("\x08\0\0\0abcd", 8)), HasSubstr("its trie has 8 of 4 bytes"));
  EXPECT_THAT(Error(std::string("\0\0\0\0b\0", 6)), HasSubstr("has no trie"));
  RawMap map = OneRule();
  map.units[0] = RawMap::Offset(1 << 20);
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("leads beyond its trie"));
  map = OneRule();
  map.Edge(0, 'a', 100, kHasValue);
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("leads beyond its trie"));
  map = OneRule();
  map.units.resize(map.units.size() - 1);  // a byte of text may lead to any unit of a block
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("leads beyond its trie"));
  map = OneRule();
  map.SetValue(1, 2);
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("has a replacement that is too long, not UTF-8 or beyond its end"));
  map = OneRule();
  map.replacements = "b";
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("has a replacement"));
  map.replacements = std::string(1 << 20, 'b') + std::string(1, '\0');
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("too long"));
  map.replacements = std::string("\xE2\x96\0", 3);
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("not UTF-8"));
  map = OneRule();
  map.Edge(1, 'a', 0);
  EXPECT_THAT(Error(map.Bytes()), HasSubstr("leads back to where it was"));
  EXPECT_THAT(Error(Chain(33).Bytes()), HasSubstr("too many matches"));
}

TEST(CharsMap, TheShortestRuleCounts) {
  RawMap rules = Chain(2);
  rules.SetValue(2, 1);
  rules.replacements = std::string("b\0", 2);
  const auto map = CharsMap::Of(rules.Bytes(), "f");
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map->ShortestRule("a"), "b");
  EXPECT_EQ(map->ShortestRule("aa"), "b");
  EXPECT_EQ(map->ShortestRule("xa"), std::nullopt);
  EXPECT_EQ(map->ShortestRule(""), std::nullopt);
  EXPECT_EQ(map->ShortestRule(std::string_view("\0a", 2)), std::nullopt);
}

// ---- A whole model, by hand. ----

std::string Field(int number, const std::string& bytes) {
  std::string field(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size();; size >>= 7) {
    field.push_back(static_cast<char>((size & 0x7F) | (size >= 0x80 ? 0x80 : 0)));
    if (size < 0x80) break;
  }
  return field + bytes;
}

std::string Piece(const std::string& text, int type) {
  return Field(1, Field(1, text) + std::string("\x15\0\0\0\0\x18", 6) + static_cast<char>(type));
}

std::string Model(int spec, const std::string& map) {
  constexpr int kNormal = 1, kUnknown = 2, kControl = 3;
  return Piece("<unk>", kUnknown) + Piece("<s>", kControl) + Piece("</s>", kControl) + Piece("\u2581", kNormal) +
         Piece("a", kNormal) + Piece("b", kNormal) + Field(spec, Field(1, "hand-made") + Field(2, map));
}

TEST(SentencePiece, ModelsAreLookedThroughFirst) {
  constexpr int kNormalizer = 3, kDenormalizer = 5;
  const auto parts = ReadSentencePieceModel(Model(kNormalizer, OneRule().Bytes()), {}, "f");
  ASSERT_TRUE(parts.ok()) << parts.status().message();
  std::vector<int32_t> ids;
  ASSERT_TRUE(parts->word_encoder->Encode("ab", ids).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{3, 5, 5}));
  RawMap bad = OneRule();
  bad.SetValue(1, 1 << 30);
  for (const int spec : {kNormalizer, kDenormalizer}) {
    const std::string model = Model(spec, bad.Bytes());
    EXPECT_THAT(LoadSentencePiece(model, "f").status().message(), HasSubstr("f: its character map has a replacement"));
    // Another one behind it does not hide it.
    EXPECT_FALSE(LoadSentencePiece(model + Field(spec, Field(2, OneRule().Bytes())), "f").ok());
    EXPECT_FALSE(LoadSentencePiece(Model(spec, OneRule().Bytes()) + Field(spec, Field(2, bad.Bytes())), "f").ok());
  }
  EXPECT_THAT(LoadSentencePiece("\x1a\x05", "f").status().message(), HasSubstr("f: not a SentencePiece model"));
  EXPECT_THAT(LoadSentencePiece("\x03", "f").status().message(), HasSubstr("f: not a SentencePiece model"));
}

}  // namespace
}  // namespace headwise
