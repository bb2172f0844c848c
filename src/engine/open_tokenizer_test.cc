#include "engine/open_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "support/golden.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufMetadata Sample() {
  GgufMetadata metadata("f");
  metadata.SetString("general.architecture", "llama");
  metadata.SetString("tokenizer.ggml.model", "gpt2");
  metadata.SetString("tokenizer.ggml.pre", "gpt-2");
  metadata.Set("tokenizer.ggml.tokens", {GgufType::kString, std::vector<std::string>{"<go>", "a", "b", "ab", "<end>"}});
  metadata.Set("tokenizer.ggml.token_type", {GgufType::kI32, std::vector<int64_t>{3, 1, 1, 1, 3}});
  metadata.Set("tokenizer.ggml.merges", {GgufType::kString, std::vector<std::string>{"a b"}});
  metadata.SetU32("tokenizer.ggml.bos_token_id", 0);
  metadata.SetU32("tokenizer.ggml.eos_token_id", 4);
  metadata.SetBool("tokenizer.ggml.add_bos_token", true);
  metadata.SetString("tokenizer.chat_template", "<|im_start|>");
  return metadata;
}

TEST(TokenizerFromMetadata, ReadsEveryKey) {
  const auto tokenizer = TokenizerFromMetadata(Sample());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  EXPECT_THAT((*tokenizer)->Encode("<go>aba", SpecialText::kParse).value(), ElementsAre(0, 3, 1));
  EXPECT_EQ((*tokenizer)->bos_id(), 0);
  EXPECT_EQ((*tokenizer)->eos_id(), 4);
  EXPECT_TRUE((*tokenizer)->AddsBos());
  EXPECT_EQ((*tokenizer)->chat_templates()[0].source, "<|im_start|>");
}

TEST(TokenizerFromMetadata, ReadsNamedTemplatesAndTokens) {
  GgufMetadata metadata = Sample();
  metadata.SetU32("tokenizer.ggml.padding_token_id", 4);
  metadata.SetU32("tokenizer.ggml.unknown_token_id", 77);  // names nothing
  metadata.Set("tokenizer.chat_templates", {GgufType::kString, std::vector<std::string>{"default", "tool_use"}});
  metadata.SetString("tokenizer.chat_template.tool_use", "tools");
  const auto tokenizer = TokenizerFromMetadata(metadata);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const auto templates = (*tokenizer)->chat_templates();
  ASSERT_EQ(templates.size(), 2);
  EXPECT_EQ(templates[0].name, "default");
  EXPECT_EQ(templates[0].origin, "f: \"tokenizer.chat_template\"");
  EXPECT_EQ(templates[1].name, "tool_use");
  EXPECT_EQ(templates[1].source, "tools");
  EXPECT_EQ(templates[1].origin, "f: \"tokenizer.chat_template.tool_use\"");
  std::string names;
  for (const NamedToken& token : (*tokenizer)->named_tokens()) names += token.name + "=" + token.token + " ";
  EXPECT_EQ(names, "bos_token=<go> eos_token=<end> pad_token=<end> ");
  metadata.Set("tokenizer.chat_templates", {GgufType::kString, std::vector<std::string>{"rag"}});
  EXPECT_THAT(TokenizerFromMetadata(metadata).status().message(), HasSubstr("tokenizer.chat_template.rag"));
}

TEST(TokenizerFromMetadata, AFileMayHaveNone) {
  EXPECT_EQ(TokenizerFromMetadata(GgufMetadata("f")).status().code(), StatusCode::kNotFound);
  GgufMetadata metadata("f");
  metadata.SetString("tokenizer.ggml.model", "no_vocab");
  EXPECT_EQ(TokenizerFromMetadata(metadata).status().code(), StatusCode::kNotFound);
}

TEST(TokenizerFromMetadata, WrongValuesAreRefusedByName) {
  const auto error_with = [](const char* key, GgufValue value) {
    GgufMetadata metadata = Sample();
    metadata.Set(key, std::move(value));
    return TokenizerFromMetadata(metadata).status().message();
  };
  const GgufValue text{GgufType::kString, std::string("x")};
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
                          "tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.scores"}) {
    EXPECT_THAT(error_with(key, text), HasSubstr(key));
  }
  EXPECT_THAT(error_with("tokenizer.ggml.remove_extra_whitespaces", {GgufType::kBool, true}),
              HasSubstr("\"tokenizer.ggml.remove_extra_whitespaces\" is true"));
}

TEST(OpenTokenizer, FoldersAndFiles) {
  const auto folder = OpenTokenizer(BundledModel());
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(OpenTokenizer(SourcePath("tests/golden/tiny/llama-mha")).status().code(), StatusCode::kNotFound);

  const std::string path = SourcePath("../shared/models/gguf/headwise-17m-q8_0.gguf");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "the file is not beside the project (" << path << ")";
  const auto file = OpenTokenizer(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ((*file)->vocab_size(), (*folder)->vocab_size());
  EXPECT_EQ((*file)->bos_id(), (*folder)->bos_id());
  EXPECT_EQ((*file)->eos_id(), (*folder)->eos_id());
  const Json cases = ReadJsonFile(SourcePath("tests/golden/tokenizer/encode.json")).value();
  ASSERT_GT(cases.size(), 50u);
  for (const Json& one : cases) {
    const auto text = one.at("text").get<std::string>();
    const auto ids = (*file)->Encode(text, SpecialText::kParse);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, one.at("ids").get<std::vector<int32_t>>()) << text;
    EXPECT_EQ((*file)->Decode(*ids, SpecialDisplay::kShow), one.at("decoded").get<std::string>()) << text;
  }
}

}  // namespace
}  // namespace headwise
