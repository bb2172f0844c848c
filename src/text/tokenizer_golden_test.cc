// Golden cases from outside implementations: the bundled model's tokenizer, and small ones in the style of each
// published family (tools/make_tokenizer_golden.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/json.h"
#include "support/tokenizer_cases.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

const fs::path kRoot = HEADWISE_SOURCE_DIR;

std::unique_ptr<Tokenizer> Load(const fs::path& folder) {
  auto tokenizer = LoadTokenizer(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
}

Json Read(const fs::path& path) {
  auto json = ReadJsonFile(path.string());
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? *json : Json::array();
}

std::string DecodeAsStream(const Tokenizer& tokenizer, const Ids& ids, SpecialDisplay special) {
  StreamDecoder decoder(tokenizer, special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = decoder.Push(id);
    EXPECT_EQ(FindInvalidUtf8(part), std::nullopt) << "a character was split";
    text += part;
  }
  return text + decoder.Flush();
}

void CheckDecode(const Tokenizer& tokenizer, const Json& one, const char* key, SpecialDisplay special) {
  if (!one.contains(key)) return;
  const Ids ids = one.at("ids").get<Ids>();
  EXPECT_EQ(tokenizer.Decode(ids, special), DecodedOf(one, key)) << one.dump();
  EXPECT_EQ(DecodeAsStream(tokenizer, ids, special), DecodedOf(one, key)) << one.dump();
}

void CheckEncode(const Tokenizer& tokenizer, const Json& one, const char* key, SpecialText special) {
  const auto ids = tokenizer.Encode(one.at("text").get<std::string>(), special);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  // Where it does not say, text as text has the same ids.
  EXPECT_EQ(*ids, one.at(one.contains(key) ? key : "ids").get<Ids>()) << one.dump();
}

void CheckCases(const Tokenizer& tokenizer, const Json& encode, const Json& decode) {
  ASSERT_FALSE(encode.empty());
  for (const Json& one : encode) {
    CheckEncode(tokenizer, one, "ids", SpecialText::kParse);
    CheckEncode(tokenizer, one, "ids_special_as_text", SpecialText::kAsText);
    CheckDecode(tokenizer, one, "decoded", SpecialDisplay::kShow);
    CheckDecode(tokenizer, one, "decoded_skip_special", SpecialDisplay::kSkip);
  }
  for (const Json& one : decode) CheckDecode(tokenizer, one, "decoded", SpecialDisplay::kShow);
}

TEST(TokenizerGolden, BundledModel) {
  const auto tokenizer = Load(kRoot / "models/headwise-17m");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 8192);
  EXPECT_EQ(tokenizer->bos_id(), 0);
  const fs::path golden = kRoot / "tests/golden/tokenizer";
  CheckCases(*tokenizer, Read(golden / "encode.json"), Read(golden / "decode.json"));
}

class TokenizerStyle : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerStyle, MatchesTheOutsideImplementation) {
  const fs::path folder = kRoot / "tests/golden/tokenizer_styles" / GetParam();
  const auto tokenizer = Load(folder);
  ASSERT_NE(tokenizer, nullptr);
  const Json cases = Read(folder / "cases.json");
  CheckCases(*tokenizer, cases.at("encode"), cases.at("decode"));
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerStyle,
                         ::testing::Values("llama2", "metaspace", "metaspace_split", "llama3", "gpt2", "gpt2_prefix",
                                           "falcon", "qwen2", "pieces", "sentencepiece", "unigram", "unigram_bytes",
                                           "gemma", "phi3", "phi2", "o200k", "cl100k", "cohere"),
                         [](const auto& one) { return std::string(one.param); });

// Whatever the pattern, no character of a text is lost.
TEST(TokenizerStyles, ByteLevelTextComesBack) {
  constexpr char32_t kFirstOf[] = {0, 0x20, 0x80, 0x300, 0x600, 0x2000, 0x3040, 0xAC00, 0xE000, 0x1F300};
  std::mt19937 random(7);
  for (const char* style : {"llama3", "gpt2", "phi2", "o200k", "cl100k"}) {
    const auto tokenizer = Load(kRoot / "tests/golden/tokenizer_styles" / style);
    ASSERT_NE(tokenizer, nullptr);
    for (int i = 0; i < 300; ++i) {
      std::string text;
      for (auto size = random() % 40; size > 0; --size) {
        AppendUtf8(kFirstOf[random() % std::size(kFirstOf)] + random() % 96, text);
      }
      const auto ids = tokenizer->Encode(text, SpecialText::kAsText);
      ASSERT_TRUE(ids.ok()) << ids.status().message();
      EXPECT_EQ(tokenizer->Decode(*ids, SpecialDisplay::kShow), text) << style;
    }
  }
}

}  // namespace
}  // namespace headwise
