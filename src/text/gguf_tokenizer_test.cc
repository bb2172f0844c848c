// Tokenizers to the arrays of a .gguf file and from them. The goldens are those of tokenizer.json and tokenizer.model:
// what these files say is turned into arrays, and the ids must be the same.
#include "text/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/json.h"
#include "support/tokenizer_cases.h"
#include "text/gguf_tokenizer_export.h"
#include "text/test_tokenizers.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Ids = std::vector<int32_t>;

const fs::path kRoot = HEADWISE_SOURCE_DIR;

enum Type : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// The arrays that GgufTokenizer borrows.
struct Arrays {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<double> scores;
  std::vector<std::string> merges;
  GgufTokenizer file{.origin = "f", .architecture = "llama"};

  void Add(const std::string& token, int64_t type = kNormal, double score = 0) {
    tokens.push_back(token);
    types.push_back(type);
    scores.push_back(score);
  }
  Result<std::unique_ptr<Tokenizer>> Make() {
    file.tokens = tokens;
    file.token_types = types;
    file.scores = scores;
    file.merges = merges;
    return MakeGgufTokenizer(file);
  }
  std::unique_ptr<Tokenizer> MustMake() {
    auto tokenizer = Make();
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
    return tokenizer.ok() ? std::move(tokenizer).value() : nullptr;
  }
  std::string Error() {
    const auto tokenizer = Make();
    return tokenizer.ok() ? "no error" : tokenizer.status().message();
  }
};

Json Read(const fs::path& path) {
  auto json = ReadJsonFile(path.string());
  EXPECT_TRUE(json.ok()) << json.status().message();
  return json.ok() ? *json : Json::object();
}

// The arrays that a folder's tokenizer becomes.
Arrays Exported(const fs::path& folder, const std::string& architecture = "llama") {
  const auto tokenizer = LoadTokenizer(folder);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  auto exported = ExportTokenizer(folder, (*tokenizer)->vocab_size(), architecture);
  EXPECT_TRUE(exported.ok()) << exported.status().message();
  Arrays arrays;
  arrays.tokens = std::move(exported->tokens);
  arrays.types = std::move(exported->token_types);
  arrays.scores = std::move(exported->scores);
  arrays.merges = std::move(exported->merges);
  arrays.file.architecture = architecture;
  arrays.file.kind = exported->kind;
  arrays.file.splitting = exported->splitting;
  arrays.file.bos_id = exported->bos_id;
  arrays.file.eos_id = exported->eos_id;
  arrays.file.unknown_id = exported->unknown_id;
  arrays.file.adds_bos = exported->adds_bos;
  arrays.file.adds_space_prefix = exported->adds_space_prefix;
  arrays.file.tokenizer_json = exported->tokenizer_json;
  return arrays;
}
// The same without the tokenizer.json that may go along.
Arrays ExportedArrays(const fs::path& folder, const std::string& architecture = "llama") {
  Arrays arrays = Exported(folder, architecture);
  arrays.file.tokenizer_json.clear();
  return arrays;
}

// Files have no flags of added tokens: white space that one swallows, words it must not be part of, normalization.
bool NeedsFlags(const std::string& text) {
  for (const char* token : {"<mask>", "word", "NORM"}) {
    if (text.find(token) != std::string::npos) return true;
  }
  return false;
}

enum class Texts { kAll, kWithoutFlags };

// Returns how many texts were compared.
size_t CheckCases(const Tokenizer& tokenizer, const Json& encode, const Json& decode,
                  Texts texts = Texts::kWithoutFlags) {
  size_t num_compared = 0;
  for (const Json& one : encode) {
    const auto text = one.at("text").get<std::string>();
    if (texts == Texts::kWithoutFlags && NeedsFlags(text)) continue;
    const auto ids = tokenizer.Encode(text, SpecialText::kParse);
    const auto as_text = tokenizer.Encode(text, SpecialText::kAsText);
    EXPECT_TRUE(ids.ok() && as_text.ok()) << ids.status().message() << as_text.status().message();
    if (!ids.ok() || !as_text.ok()) continue;
    EXPECT_EQ(*ids, one.at("ids").get<Ids>()) << text;
    EXPECT_EQ(*as_text, one.at(one.contains("ids_special_as_text") ? "ids_special_as_text" : "ids").get<Ids>()) << text;
    if (one.contains("decoded")) {
      EXPECT_EQ(tokenizer.Decode(*ids, SpecialDisplay::kShow), DecodedOf(one, "decoded"));
    }
    ++num_compared;
  }
  for (const Json& one : decode) {
    EXPECT_EQ(tokenizer.Decode(one.at("ids").get<Ids>(), SpecialDisplay::kShow), one.at("decoded").get<std::string>());
  }
  return num_compared;
}

struct Style {
  const char* folder;
  const char* splitting;
  const char* architecture;
  bool adds_space_prefix = false;
};

// Whatever a folder has, what it becomes gives the same ids to the last.
TEST(GgufTokenizer, EveryStyleComesBackWhole) {
  int num_styles = 0;
  for (const auto& entry : fs::directory_iterator(kRoot / "tests/golden/tokenizer_styles")) {
    SCOPED_TRACE(entry.path().string());
    const auto tokenizer = Exported(entry.path()).MustMake();
    ASSERT_NE(tokenizer, nullptr);
    const Json cases = Read(entry.path() / "cases.json");
    EXPECT_GT(CheckCases(*tokenizer, cases.at("encode"), cases.at("decode"), Texts::kAll), 50u);
    ++num_styles;
  }
  EXPECT_GE(num_styles, 18);
}

TEST(GgufTokenizer, SplittingsAreNamedAndWhatHasNoNameGoesAlong) {
  const fs::path styles = kRoot / "tests/golden/tokenizer_styles";
  EXPECT_EQ(Exported(styles / "qwen2", "qwen2").file.splitting, "qwen2");
  EXPECT_EQ(Exported(styles / "llama3").file.splitting, "llama-bpe");
  EXPECT_EQ(Exported(styles / "falcon", "falcon").file.splitting, "falcon");
  EXPECT_EQ(Exported(styles / "gpt2").file.splitting, "gpt-2");
  const Arrays pieces = Exported(styles / "pieces");
  EXPECT_EQ(pieces.file.splitting, "");
  EXPECT_FALSE(pieces.file.tokenizer_json.empty());
  const Arrays bundled = Exported(kRoot / "models/headwise-17m");
  EXPECT_EQ(bundled.file.splitting, "qwen2");
  EXPECT_TRUE(bundled.file.tokenizer_json.empty()) << "its arrays say it all";
}

TEST(GgufTokenizer, ByteLevelStylesGiveTheGoldenIds) {
  const Style styles[] = {{"llama3", "llama-bpe", "llama"},
                          {"gpt2", "gpt-2", "llama"},
                          {"gpt2", "mpt", "llama"},
                          {"gpt2_prefix", "gpt-2", "llama", true},
                          {"falcon", "falcon", "falcon"},
                          {"falcon", "default", "falcon"},
                          {"falcon", "", "falcon"},
                          {"qwen2", "qwen2", "qwen2"},
                          {"qwen2", "", "qwen2"}};
  for (const Style& style : styles) {
    SCOPED_TRACE(std::string(style.folder) + " " + style.splitting);
    const fs::path folder = kRoot / "tests/golden/tokenizer_styles" / style.folder;
    Arrays arrays = ExportedArrays(folder, style.architecture);
    EXPECT_EQ(arrays.file.kind, "gpt2");
    arrays.file.splitting = style.splitting;
    arrays.file.adds_space_prefix = style.adds_space_prefix;
    const auto tokenizer = arrays.MustMake();
    ASSERT_NE(tokenizer, nullptr);
    const Json cases = Read(folder / "cases.json");
    EXPECT_GT(CheckCases(*tokenizer, cases.at("encode"), cases.at("decode")), 120u);
  }
}

TEST(GgufTokenizer, TheBundledModelGivesTheGoldenIds) {
  Arrays arrays = Exported(kRoot / "models/headwise-17m");
  arrays.file.bos_id.reset();
  const auto tokenizer = arrays.MustMake();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 8192);
  EXPECT_EQ(tokenizer->bos_id(), 0);  // by its name, as in the folder
  const fs::path golden = kRoot / "tests/golden/tokenizer";
  EXPECT_GT(CheckCases(*tokenizer, Read(golden / "encode.json"), Read(golden / "decode.json")), 50u);
}

TEST(GgufTokenizer, SentencePieceGivesTheGoldenIds) {
  const fs::path folder = kRoot / "tests/golden/tokenizer_styles/sentencepiece";
  const auto tokenizer = Exported(folder).MustMake();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(tokenizer->AddsBos());
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  const Json cases = Read(folder / "cases.json");
  EXPECT_GT(CheckCases(*tokenizer, cases.at("encode"), cases.at("decode")), 110u);
}

// Tokens that a folder adds, which its SentencePiece model does not know, have no place in the arrays.
TEST(GgufTokenizer, WhatArraysCannotSayOfSentencePieceIsAnError) {
  const fs::path folder = fs::path(::testing::TempDir()) / "headwise_gguf_tokenizer_added";
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy_file(kRoot / "tests/golden/tokenizer_styles/sentencepiece/tokenizer.model", folder / "tokenizer.model");
  std::ofstream(folder / "tokenizer_config.json") << R"({"added_tokens_decoder": {"700": {"content": "<|im_start|>",
    "special": true, "lstrip": false, "rstrip": false, "single_word": false, "normalized": false}}})";
  const Status status = ExportTokenizer(folder, 701, "llama").status();
  fs::remove_all(folder);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("expected a folder with a tokenizer.json"));
}

// Its merges were learnt in the order of its tokens; text that one of them leads to by another way than the one it was
// learnt by is where scores and merges may differ, and there is none in the texts.
TEST(GgufTokenizer, Llama2StyleWithScoresInTheOrderOfTokensGivesTheGoldenIds) {
  const fs::path folder = kRoot / "tests/golden/tokenizer_styles/llama2";
  Arrays arrays = ExportedArrays(folder);
  EXPECT_EQ(arrays.file.kind, "llama");
  const auto tokenizer = arrays.MustMake();
  ASSERT_NE(tokenizer, nullptr);
  const Json cases = Read(folder / "cases.json");
  EXPECT_GT(CheckCases(*tokenizer, cases.at("encode"), Json::array()), 110u);
}

// "▁", letters, and `pieces` with their scores, behind <unk>, <s>, </s>.
Arrays Pieces(const std::vector<std::pair<std::string, double>>& pieces) {
  Arrays arrays;
  arrays.file.kind = "llama";
  arrays.Add("<unk>", kUnknown);
  arrays.Add("<s>", kControl);
  arrays.Add("</s>", kControl);
  for (const char* letter : {"\u2581", "a", "b", "c"}) arrays.Add(letter, kNormal, -100);
  for (const auto& [piece, score] : pieces) arrays.Add(piece, kNormal, score);
  return arrays;
}

Ids MustEncode(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.Encode(text, SpecialText::kParse);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

TEST(GgufTokenizer, TheBestScoreIsMergedFirstAndOfEqualOnesTheLeftmost) {
  // "bc" has the better score.
  EXPECT_THAT(MustEncode(*Pieces({{"ab", -2}, {"bc", -1}}).MustMake(), "abc"), ElementsAre(3, 4, 8));
  // Equal scores in either order of tokens: "ab" is further left.
  EXPECT_THAT(MustEncode(*Pieces({{"ab", -1}, {"bc", -1}}).MustMake(), "abc"), ElementsAre(3, 7, 6));
  EXPECT_THAT(MustEncode(*Pieces({{"bc", -1}, {"ab", -1}}).MustMake(), "abc"), ElementsAre(3, 8, 6));
  // "abc" by either way of putting it together.
  EXPECT_THAT(MustEncode(*Pieces({{"ab", -2}, {"bc", -1}, {"abc", -3}}).MustMake(), "abc"), ElementsAre(3, 9));
  EXPECT_THAT(MustEncode(*Pieces({{"ab", -1}, {"bc", -2}, {"abc", -3}}).MustMake(), "abc"), ElementsAre(3, 9));
}

TEST(GgufTokenizer, SpacePrefixes) {
  Arrays arrays = Pieces({{"\u2581a", -1}});
  EXPECT_THAT(MustEncode(*arrays.MustMake(), "a a"), ElementsAre(7, 7));
  EXPECT_EQ(arrays.MustMake()->Decode(Ids{7, 7}, SpecialDisplay::kShow), "a a");
  arrays.file.adds_space_prefix = false;
  EXPECT_THAT(MustEncode(*arrays.MustMake(), "a a"), ElementsAre(4, 7));
  EXPECT_EQ(arrays.MustMake()->Decode(Ids{7, 7}, SpecialDisplay::kShow), " a a");
}

TEST(GgufTokenizer, UnknownTextWithAndWithoutBytes) {
  Arrays arrays = Pieces({});
  EXPECT_THAT(MustEncode(*arrays.MustMake(), "axya"), ElementsAre(3, 4, 0, 4));
  for (int byte = 0; byte < 256; ++byte) arrays.Add(fmt::format("<0x{:02X}>", byte), kByte);
  EXPECT_THAT(MustEncode(*arrays.MustMake(), "ax"), ElementsAre(3, 4, 7 + 'x'));
  EXPECT_EQ(arrays.MustMake()->Decode(Ids{3, 4, 7 + 0xc3, 7 + 0xa9}, SpecialDisplay::kShow), "a\u00e9");
  // The name of a byte token is text like any other.
  EXPECT_EQ(MustEncode(*arrays.MustMake(), "<0x41>").size(), 7u);
}

TEST(GgufTokenizer, TextTakenAsTextNeverBecomesASpecialToken) {
  Arrays arrays = Pieces({{"<", -1}, {"s", -1}, {">", -1}, {"<s", -1}});
  const auto tokenizer = arrays.MustMake();
  EXPECT_THAT(MustEncode(*tokenizer, "<s>"), ElementsAre(1));
  EXPECT_THAT(tokenizer->Encode("<s>", SpecialText::kAsText).value(), ElementsAre(3, 10, 9));
  EXPECT_TRUE(tokenizer->IsSpecial(1));
}

TEST(GgufTokenizer, IdsFlagsAndTemplate) {
  Arrays arrays = Pieces({});
  arrays.file.bos_id = 2;
  arrays.file.eos_id = 1;
  arrays.file.adds_bos = false;
  arrays.file.chat_templates = {{.name = "default", .source = "[INST]", .origin = "f"}};
  const auto tokenizer = arrays.MustMake();
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_FALSE(tokenizer->AddsBos());
  EXPECT_TRUE(tokenizer->OmitsBos());
  EXPECT_EQ(tokenizer->chat_templates()[0].source, "[INST]");
}

TEST(GgufTokenizer, AWholeTokenizerJsonComesFirst) {
  const fs::path folder = kRoot / "tests/golden/tokenizer_styles/pieces";  // no splitting of the table
  GgufTokenizer file{.origin = "f", .architecture = "llama", .kind = "gpt2", .splitting = "unheard-of"};
  file.tokenizer_json = ReadFile(folder / "tokenizer.json").value();
  file.eos_id = 1;
  file.adds_bos = true;
  const auto tokenizer = MakeGgufTokenizer(file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const Json cases = Read(folder / "cases.json");
  for (const Json& one : cases.at("encode")) {
    EXPECT_EQ((*tokenizer)->Encode(one.at("text").get<std::string>(), SpecialText::kParse).value(),
              one.at("ids").get<Ids>());
  }
  EXPECT_TRUE((*tokenizer)->AddsBos());
  EXPECT_EQ((*tokenizer)->eos_id(), 1);
}

TEST(GgufTokenizer, UnknownSplittingsAreRefusedWithTheKnownOnes) {
  Arrays arrays;
  arrays.file.kind = "gpt2";
  arrays.Add("a");
  arrays.file.splitting = "unheard-of";
  EXPECT_THAT(arrays.Error(), AllOf(StartsWith("f: \"unheard-of\" does not tell"), HasSubstr("llama-bpe"),
                                    HasSubstr("qwen2"), HasSubstr("gpt-2")));
  for (const char* name : {"llama3", "smollm", "tekken", "falcon", "olmo"}) {
    arrays.file.splitting = name;
    EXPECT_EQ(arrays.Error(), "no error") << name;
  }
}

// Files from before there was the key.
TEST(GgufTokenizer, ASplittingThatNobodyNamesIsGuessedWithAWarning) {
  Arrays arrays;
  std::string warnings;
  arrays.file.kind = "gpt2";
  arrays.file.on_warning = [&](std::string_view warning) { warnings += warning; };
  for (const char* token : {"a", "\u0120", "b", "\u0120b"}) arrays.Add(token);
  arrays.merges = {"\u0120 b"};
  arrays.file.splitting = "gpt-2";
  const Ids expected = arrays.MustMake()->Encode("a b  a", SpecialText::kParse).value();
  for (const char* name : {"default", ""}) {
    for (const auto& [architecture, is_guess] : {std::pair("llama", true), std::pair("mpt", false)}) {
      warnings.clear();
      arrays.file.splitting = name;
      arrays.file.architecture = architecture;
      const auto tokenizer = arrays.MustMake();
      ASSERT_NE(tokenizer, nullptr);
      EXPECT_EQ(tokenizer->Encode("a b  a", SpecialText::kParse).value(), expected);
      EXPECT_EQ(warnings.find("f: \"tokenizer.ggml.pre\" does not say") == 0, is_guess) << warnings;
    }
  }
}

TEST(GgufTokenizer, MalformedArraysAreRefused) {
  EXPECT_THAT(Arrays().Error(), HasSubstr("f: a tokenizer of kind \"\" is not supported"));
  Arrays arrays = Pieces({});
  arrays.file.kind = "bert";
  EXPECT_THAT(arrays.Error(), HasSubstr("\"bert\" is not supported, expected gpt2 or llama"));
  arrays = Pieces({});
  arrays.types.pop_back();
  EXPECT_EQ(arrays.Error(), "f: 6 token types for 7 tokens");
  arrays = Pieces({});
  arrays.scores.clear();
  EXPECT_EQ(arrays.Error(), "f: a tokenizer of kind \"llama\" without scores");
  arrays = Pieces({{"\xff", 0}});
  EXPECT_EQ(arrays.Error(), "f: token 7 has invalid UTF-8 at byte 0");
  arrays = Pieces({{"x", std::nan("")}});
  EXPECT_THAT(arrays.Error(), HasSubstr("f: token 7 has 1 bytes and the score nan"));
  arrays = Pieces({{std::string(5000, 'x'), 0}});
  EXPECT_THAT(arrays.Error(), HasSubstr("f: token 7 has 5000 bytes"));
  arrays = Pieces({});
  arrays.file.bos_id = 7;
  EXPECT_EQ(arrays.Error(), "f: the bos token is 7, expected an id below 7");
  arrays.file.bos_id.reset();
  arrays.file.unknown_id = -1;
  EXPECT_EQ(arrays.Error(), "f: the unknown token is -1, expected an id below 7");
  arrays = Arrays();
  arrays.file.kind = "gpt2";
  arrays.file.splitting = "gpt-2";
  EXPECT_THAT(arrays.Error(), HasSubstr("f: 0 tokens"));
  arrays.Add("a");
  arrays.merges = {"a"};
  EXPECT_EQ(arrays.Error(), "f: merge 0 is \"a\", expected two tokens and a space");
  arrays.merges = {"a b"};
  EXPECT_THAT(arrays.Error(), HasSubstr("f: merge 0 needs the token \"b\""));
}

TEST(GgufTokenizer, UnusedTokensAreNone) {
  Arrays arrays = Pieces({});
  arrays.Add("[PAD7]", kUnused);
  arrays.Add("");
  arrays.Add("abc");
  const auto tokenizer = arrays.MustMake();
  EXPECT_EQ(tokenizer->TokenOf(7), nullptr);
  EXPECT_EQ(tokenizer->Decode(Ids{4, 7, 8, 9}, SpecialDisplay::kShow), "aabc");
}

}  // namespace
}  // namespace headwise
