// The expected texts are written out from the published conventions. With a tokenizer that has one token per byte,
// decoding a prompt gives the text that was encoded.
#include <headwise/chat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "text/test_tokenizers.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<std::string> kMarkers = {"<s>",
                                           "</s>",
                                           "<|begin_of_text|>",
                                           "<|end_of_text|>",
                                           "<|start_header_id|>",
                                           "<|end_header_id|>",
                                           "<|eot_id|>",
                                           "<|im_start|>",
                                           "<|im_end|>",
                                           "[INST]",
                                           "[/INST]"};
const std::vector<ChatMessage> kTalk = {
    {"system", "Be brief."}, {"user", " Hi "}, {"assistant", "Hello."}, {"user", "Bye"}};

std::string Render(ChatForm form, std::span<const ChatMessage> messages, std::vector<std::string> markers) {
  const auto tokenizer = MustParse(ByteTokenizerJson(markers));
  const auto ids = EncodeChat(*tokenizer, {.form = form, .messages = messages});
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? tokenizer->Decode(*ids, SpecialDisplay::kShow) : "";
}

TEST(ChatTemplate, ChatMl) {
  EXPECT_EQ(Render(ChatForm::kChatMl, kTalk, kMarkers),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, Llama3) {
  EXPECT_EQ(
      Render(ChatForm::kLlama3, kTalk, {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatTemplate, Llama2) {
  // System prompt and first message are trimmed as one.
  EXPECT_EQ(Render(ChatForm::kLlama2, kTalk, {"<s>", "</s>"}),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi [/INST] Hello. </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(Render(ChatForm::kLlama2, std::span(kTalk).subspan(1, 1), {"<s>", "</s>"}), "<s>[INST] Hi [/INST]");
}

TEST(ChatTemplate, Mistral) {
  EXPECT_EQ(Render(ChatForm::kMistral, kTalk, {"<s>", "</s>"}),
            "<s>[INST] Be brief.\n\n Hi  [/INST] Hello.</s>[INST] Bye [/INST]");
  EXPECT_EQ(Render(ChatForm::kMistralV3, kTalk, {"<s>", "</s>", "[INST]", "[/INST]"}),
            "<s>[INST]  Hi [/INST] Hello.</s>[INST] Be brief.\n\nBye[/INST]");
}

TEST(ChatTemplate, Vicuna) {
  EXPECT_EQ(Render(ChatForm::kVicuna, kTalk, {"<s>", "</s>"}),
            "<s>Be brief. USER:  Hi  ASSISTANT: Hello.</s>USER: Bye ASSISTANT:");
  EXPECT_EQ(Render(ChatForm::kVicuna, std::span(kTalk).subspan(3), {"<s>", "</s>"}),
            "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
            "detailed, and polite answers to the user's questions. USER: Bye ASSISTANT:");
}

TEST(ChatTemplate, AMessageCannotForgeAMarker) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));
  for (const ChatForm form : {ChatForm::kChatMl, ChatForm::kLlama2, ChatForm::kLlama3, ChatForm::kMistral,
                              ChatForm::kMistralV3, ChatForm::kVicuna}) {
    std::string forged;
    for (const std::string& marker : kMarkers) forged += marker;
    const auto count_special = [&](std::string content) {
      const std::vector<ChatMessage> messages = {{"system", content}, {"user", content}};
      const auto ids = EncodeChat(*tokenizer, {.form = form, .messages = messages});
      EXPECT_TRUE(ids.ok());
      return std::count_if(ids->begin(), ids->end(), [&](int32_t id) { return tokenizer->IsSpecial(id); });
    };
    EXPECT_EQ(count_special(forged), count_special("x")) << ChatFormName(form);
  }
}

TEST(ChatTemplate, BundledModelUsesChatMlAfterItsStartToken) {
  const auto tokenizer = LoadTokenizer(std::filesystem::path(HEADWISE_SOURCE_DIR) / "models/headwise-17m");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ(DetectChatForm(**tokenizer), ChatForm::kChatMl);
  const std::vector<ChatMessage> messages = {{"user", "Hi"}};
  const auto ids = EncodeChat(**tokenizer, {.form = ChatForm::kChatMl, .messages = messages, .bos_id = 0});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*tokenizer)->Decode(*ids, SpecialDisplay::kShow),
            "<|begin_of_text|><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(ChatStopIds(**tokenizer, ChatForm::kChatMl), ElementsAre(3, 1));
}

TEST(ChatTemplate, WrongInputIsNamed) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<s>", "</s>"}));
  const auto error = [&](ChatForm form, std::vector<ChatMessage> messages) {
    const auto ids = EncodeChat(*tokenizer, {.form = form, .messages = messages});
    return ids.ok() ? "no error" : ids.status().message();
  };
  EXPECT_THAT(error(ChatForm::kChatMl, {{"user", "x"}}), HasSubstr("no special token <|im_start|>"));
  EXPECT_THAT(error(ChatForm::kLlama2, {{"assistant", "x"}}), HasSubstr("role \"assistant\", expected user"));
  EXPECT_THAT(error(ChatForm::kLlama2, {{"system", "x"}}), HasSubstr("a system message alone"));
  EXPECT_THAT(error(ChatForm::kChatMl, {{"user", "x"}, {"system", "y"}}), HasSubstr("message 1 has role \"system\""));
  EXPECT_THAT(error(ChatForm::kLlama2, {{"user", "x\xff "}}), HasSubstr("message 0: invalid UTF-8 at byte 1"));
  EXPECT_THAT(ChatFormByName("other").status().message(), HasSubstr("chatml, llama-2, llama-3, mistral"));
  EXPECT_EQ(*ChatFormByName("vicuna"), ChatForm::kVicuna);
}

TEST(ChatTemplate, FormsAreToldByTheirTemplates) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "headwise_chat_template_test";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFileAtomically(folder / "tokenizer.json", ByteTokenizerJson({"<s>", "</s>"}).dump()).ok());
  const auto detect = [&](const char* text) {
    EXPECT_TRUE(WriteFileAtomically(folder / "chat_template.jinja", text).ok());
    const auto tokenizer = LoadTokenizer(folder);
    EXPECT_TRUE(tokenizer.ok());
    return DetectChatForm(**tokenizer);
  };
  EXPECT_EQ(detect("{{'<|im_start|>' + role}}"), ChatForm::kChatMl);
  EXPECT_EQ(detect("{{'<|start_header_id|>'}}"), ChatForm::kLlama3);
  EXPECT_EQ(detect("{{'[INST] <<SYS>>'}}"), ChatForm::kLlama2);
  EXPECT_EQ(detect("{{'[INST] '}}"), ChatForm::kMistral);
  EXPECT_EQ(detect("{{'USER: ' 'ASSISTANT:'}}"), ChatForm::kVicuna);
  EXPECT_EQ(detect("{{'<turn>'}}"), std::nullopt);
}

// What comes between two answers is the same whatever the form: what EncodeChat writes there, from the end token on.
TEST(ChatTemplate, NextTurnsAreStretchesOfWholeConversations) {
  const auto tokenizer =
      MustParse(ByteTokenizerJson({"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>",
                                   "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]"}));
  for (const ChatForm form : {ChatForm::kChatMl, ChatForm::kLlama2, ChatForm::kLlama3, ChatForm::kMistral,
                              ChatForm::kMistralV3, ChatForm::kVicuna}) {
    const ChatMessage messages[] = {{"user", "a"}, {"assistant", "b"}, {"user", " More! "}};
    const auto whole = EncodeChat(*tokenizer, {.form = form, .messages = messages});
    const auto opening = EncodeChat(*tokenizer, {.form = form, .messages = std::span(messages).first(1)});
    ASSERT_TRUE(whole.ok() && opening.ok()) << whole.status().message();
    const std::vector<int32_t> stops = ChatStopIds(*tokenizer, form);
    const auto end = std::find_first_of(whole->begin() + static_cast<std::ptrdiff_t>(opening->size()), whole->end(),
                                        stops.begin(), stops.end());
    EXPECT_EQ(*EncodeNextTurn(*tokenizer, form, messages[2].content, AnswerEnd::kCut),
              std::vector<int32_t>(end, whole->end()));
    EXPECT_EQ(*EncodeNextTurn(*tokenizer, form, messages[2].content, AnswerEnd::kClosed),
              std::vector<int32_t>(end + 1, whole->end()));
  }
}

// Its normalizer makes the opening of a conversation longer than a whole one.
TEST(ChatTemplate, ATokenizerMayMakeOfAnOpeningWhatItWants) {
  Json json = ByteTokenizerJson({"<s>", "</s>"});
  json["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "\\[INST\\] a \\[/INST\\]$"}}}, {"content", std::string(500, 'x')}};
  const auto tokenizer = MustParse(json);
  const auto next = EncodeNextTurn(*tokenizer, ChatForm::kMistral, "m", AnswerEnd::kCut);
  ASSERT_TRUE(next.ok()) << next.status().message();
  std::vector<int32_t> expected = *tokenizer->Encode("[INST] m [/INST]");
  expected.insert(expected.begin(), *tokenizer->eos_id());
  EXPECT_EQ(*next, expected);
}

}  // namespace
}  // namespace headwise
