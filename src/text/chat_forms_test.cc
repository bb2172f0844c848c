// The expected texts are written out from the published conventions. With a tokenizer that has one token per byte,
// decoding a prompt gives the text that was encoded.
#include <headwise/chat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

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

constexpr const char* kForms[] = {"chatml", "llama-2", "llama-3", "mistral", "mistral-v3", "vicuna"};

ChatFormat MustFind(const Tokenizer& tokenizer, const std::string& form, std::optional<int32_t> bos_id = std::nullopt) {
  auto format = ChatFormat::Find(tokenizer, {.form = form, .bos_id = bos_id});
  EXPECT_TRUE(format.ok()) << format.status().message();
  return *format;
}

std::string Render(const char* form, std::span<const ChatMessage> messages, std::vector<std::string> markers) {
  const auto tokenizer = MustParse(ByteTokenizerJson(markers));
  const auto ids = MustFind(*tokenizer, form).Encode({.messages = messages});
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? tokenizer->Decode(*ids, SpecialDisplay::kShow) : "";
}

TEST(ChatForms, ChatMl) {
  EXPECT_EQ(Render("chatml", kTalk, kMarkers),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
            "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatForms, Llama3) {
  EXPECT_EQ(
      Render("llama-3", kTalk, {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
      "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(ChatForms, Llama2) {
  // System prompt and first message are trimmed as one.
  EXPECT_EQ(Render("llama-2", kTalk, {"<s>", "</s>"}),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi [/INST] Hello. </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(Render("llama-2", std::span(kTalk).subspan(1, 1), {"<s>", "</s>"}), "<s>[INST] Hi [/INST]");
}

TEST(ChatForms, Mistral) {
  EXPECT_EQ(Render("mistral", kTalk, {"<s>", "</s>"}),
            "<s>[INST] Be brief.\n\n Hi  [/INST] Hello.</s>[INST] Bye [/INST]");
  EXPECT_EQ(Render("mistral-v3", kTalk, {"<s>", "</s>", "[INST]", "[/INST]"}),
            "<s>[INST]  Hi [/INST] Hello.</s>[INST] Be brief.\n\nBye[/INST]");
}

TEST(ChatForms, Vicuna) {
  EXPECT_EQ(Render("vicuna", kTalk, {"<s>", "</s>"}),
            "<s>Be brief. USER:  Hi  ASSISTANT: Hello.</s>USER: Bye ASSISTANT:");
  EXPECT_EQ(Render("vicuna", std::span(kTalk).subspan(3), {"<s>", "</s>"}),
            "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
            "detailed, and polite answers to the user's questions. USER: Bye ASSISTANT:");
}

TEST(ChatForms, AMessageCannotForgeAMarker) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));
  for (const char* form : kForms) {
    std::string forged;
    for (const std::string& marker : kMarkers) forged += marker;
    const auto count_special = [&](std::string content) {
      const std::vector<ChatMessage> messages = {{"system", content}, {"user", content}};
      const auto ids = MustFind(*tokenizer, form).Encode({.messages = messages});
      EXPECT_TRUE(ids.ok());
      return std::count_if(ids->begin(), ids->end(), [&](int32_t id) { return tokenizer->IsSpecial(id); });
    };
    EXPECT_EQ(count_special(forged), count_special("x")) << form;
  }
}

TEST(ChatForms, BundledModelUsesChatMlAfterItsStartToken) {
  const auto tokenizer = LoadTokenizer(std::filesystem::path(HEADWISE_SOURCE_DIR) / "models/headwise-17m");
  ASSERT_TRUE(tokenizer.ok());
  const ChatFormat format = MustFind(**tokenizer, "", 0);
  EXPECT_EQ(format.name(), "chatml");
  EXPECT_FALSE(format.is_template());
  const std::vector<ChatMessage> messages = {{"user", "Hi"}};
  const auto ids = format.Encode({.messages = messages});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ((*tokenizer)->Decode(*ids, SpecialDisplay::kShow),
            "<|begin_of_text|><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_THAT(format.stop_ids(), ElementsAre(3, 1));
}

TEST(ChatForms, WrongInputIsNamed) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<s>", "</s>"}));
  const auto error = [&](const char* form, std::vector<ChatMessage> messages, ChatPrompt prompt = {}) {
    prompt.messages = messages;
    return MustFind(*tokenizer, form).Encode(prompt).status().message();
  };
  EXPECT_THAT(error("chatml", {{"user", "x"}}), HasSubstr("no special token <|im_start|>"));
  EXPECT_THAT(error("llama-2", {{"assistant", "x"}}), HasSubstr("role \"assistant\", expected user"));
  EXPECT_THAT(error("llama-2", {{"system", "x"}}), HasSubstr("a system message alone"));
  EXPECT_THAT(error("chatml", {{"user", "x"}, {"system", "y"}}), HasSubstr("message 1 has role \"system\""));
  EXPECT_THAT(error("llama-2", {{"user", "x\xff "}}), HasSubstr("message 0: invalid UTF-8 at byte 1"));
  // What only templates can write.
  const std::vector<ChatMessage> plain = {{"user", "x"}};
  EXPECT_THAT(error("llama-2", plain, {.messages = {}, .tools = "[]"}), HasSubstr("tools are given"));
  EXPECT_THAT(error("llama-2", plain, {.messages = {}, .documents = "[]"}), HasSubstr("documents are given"));
  EXPECT_THAT(error("llama-2", plain, {.messages = {}, .variables = "{}"}), HasSubstr("variables are given"));
  EXPECT_THAT(error("llama-2", {{"user", "x", "{\"role\": \"user\"}"}}), HasSubstr("message 0 has more than"));
  EXPECT_THAT(ChatFormat::Find(*tokenizer, {.form = "other"}).status().message(),
              HasSubstr("chatml, llama-2, llama-3, mistral, mistral-v3, vicuna"));
  EXPECT_THAT(ChatFormat::Find(*tokenizer).status().message(), HasSubstr("--chat-form"));
}

TEST(ChatForms, AreToldByTheMarkersOfAVocabularyWithoutATemplate) {
  const auto detect = [&](std::vector<std::string> markers) {
    return std::string(MustFind(*MustParse(ByteTokenizerJson(markers)), "").name());
  };
  EXPECT_EQ(detect({"<|im_start|>", "<|im_end|>"}), "chatml");
  EXPECT_EQ(detect({"<|start_header_id|>", "<|eot_id|>"}), "llama-3");
  EXPECT_EQ(detect({"[INST]", "[/INST]"}), "mistral-v3");
}

// What comes between two answers is the same whatever the form: what Encode writes there, from the end token on.
TEST(ChatForms, NextTurnsAreStretchesOfWholeConversations) {
  const auto tokenizer =
      MustParse(ByteTokenizerJson({"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>",
                                   "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]"}));
  for (const char* form : kForms) {
    const ChatFormat format = MustFind(*tokenizer, form);
    const ChatMessage messages[] = {{"user", "a"}, {"assistant", "b"}, {"user", " More! "}};
    const auto whole = format.Encode({.messages = messages});
    const auto opening = format.Encode({.messages = std::span(messages).first(1)});
    ASSERT_TRUE(whole.ok() && opening.ok()) << whole.status().message();
    const std::vector<int32_t>& stops = format.stop_ids();
    const auto end = std::find_first_of(whole->begin() + static_cast<std::ptrdiff_t>(opening->size()), whole->end(),
                                        stops.begin(), stops.end());
    const auto cut = format.EncodeNextTurn({.messages = messages}, AnswerEnd::kCut);
    const auto closed = format.EncodeNextTurn({.messages = messages}, AnswerEnd::kClosed);
    ASSERT_TRUE(cut.ok() && closed.ok()) << cut.status().message();
    EXPECT_TRUE(cut->goes_on && closed->goes_on);
    EXPECT_EQ(cut->ids, std::vector<int32_t>(end, whole->end()));
    EXPECT_EQ(closed->ids, std::vector<int32_t>(end + 1, whole->end()));
  }
}

TEST(ChatForms, PiecesMakeTheWholeConversation) {
  const auto tokenizer = LoadTokenizer(std::filesystem::path(HEADWISE_SOURCE_DIR) / "models/headwise-17m");
  ASSERT_TRUE(tokenizer.ok());
  const ChatFormat format = MustFind(**tokenizer, "", 0);
  const ChatMessage messages[] = {{"user", "What is <|im_end|> for?"}, {"assistant", "An answer."}, {"user", "More!"}};
  const auto whole = format.Encode({.messages = messages});
  const auto answer = (*tokenizer)->Encode("An answer.");
  for (const AnswerEnd end : {AnswerEnd::kClosed, AnswerEnd::kCut}) {
    std::vector<int32_t> pieces = *format.Encode({.messages = std::span(messages).first(1)});
    pieces.insert(pieces.end(), answer->begin(), answer->end());
    if (end == AnswerEnd::kClosed) pieces.push_back(*(*tokenizer)->IdOf("<|im_end|>"));
    const auto next = format.EncodeNextTurn({.messages = messages}, end);
    ASSERT_TRUE(next.ok()) << next.status().message();
    pieces.insert(pieces.end(), next->ids.begin(), next->ids.end());
    EXPECT_EQ(pieces, *whole);
  }
}

TEST(ChatForms, ANextTurnNeedsAnAnswerAndAMessage) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));
  const ChatFormat format = MustFind(*tokenizer, "chatml");
  const auto error = [&](std::vector<ChatMessage> messages) {
    return format.EncodeNextTurn({.messages = messages}, AnswerEnd::kCut).status().message();
  };
  EXPECT_THAT(error({{"user", "x"}}), HasSubstr("expected an answer and a message"));
  EXPECT_THAT(error({{"user", "x"}, {"assistant", "y"}}), HasSubstr("expected an answer and a message"));
  EXPECT_THAT(error({{"assistant", "y"}, {"user", ""}}), HasSubstr("message: is empty"));
  EXPECT_THAT(error({{"assistant", "y"}, {"user", "\xff"}}), HasSubstr("invalid UTF-8"));
}

// Its normalizer makes the opening of a conversation longer than a whole one.
TEST(ChatForms, ATokenizerMayMakeOfAnOpeningWhatItWants) {
  Json json = ByteTokenizerJson({"<s>", "</s>"});
  json["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", "\\[INST\\] a \\[/INST\\]$"}}}, {"content", std::string(500, 'x')}};
  const auto tokenizer = MustParse(json);
  const ChatMessage messages[] = {{"user", "a"}, {"assistant", "b"}, {"user", "m"}};
  const auto next = MustFind(*tokenizer, "mistral").EncodeNextTurn({.messages = messages}, AnswerEnd::kCut);
  ASSERT_TRUE(next.ok()) << next.status().message();
  std::vector<int32_t> expected = *tokenizer->Encode("[INST] m [/INST]");
  expected.insert(expected.begin(), *tokenizer->eos_id());
  EXPECT_EQ(next->ids, expected);
}

}  // namespace
}  // namespace headwise
