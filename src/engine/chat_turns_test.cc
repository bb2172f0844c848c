#include <gtest/gtest.h>
#include <headwise/chat.h>

#include "text/tokenizer.h"

namespace headwise {
namespace {

std::unique_ptr<Tokenizer> BundledTokenizer() {
  auto tokenizer = LoadTokenizer(HEADWISE_SOURCE_DIR "/models/headwise-17m");
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(ChatTurns, PiecesMakeTheWholeConversation) {
  const auto tokenizer = BundledTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const auto form = FindChatForm(*tokenizer, "");
  ASSERT_TRUE(form.ok()) << form.status().message();
  EXPECT_EQ(*form, ChatForm::kChatMl);

  const ChatMessage messages[] = {{"user", "What is <|im_end|> for?"}, {"assistant", "An answer."}, {"user", "More!"}};
  const auto whole = EncodeChat(*tokenizer, {.form = *form, .messages = messages, .bos_id = 0});
  ASSERT_TRUE(whole.ok());
  const auto answer = tokenizer->Encode("An answer.", SpecialText::kAsText);
  const int32_t end_of_turn = *tokenizer->IdOf("<|im_end|>");
  for (const AnswerEnd end : {AnswerEnd::kClosed, AnswerEnd::kCut}) {
    std::vector<int32_t> pieces = *EncodeFirstTurn(*tokenizer, *form, messages[0].content, 0);
    pieces.insert(pieces.end(), answer->begin(), answer->end());
    if (end == AnswerEnd::kClosed) pieces.push_back(end_of_turn);
    const auto next = EncodeNextTurn(*tokenizer, *form, messages[2].content, end);
    ASSERT_TRUE(next.ok()) << next.status().message();
    pieces.insert(pieces.end(), next->begin(), next->end());
    EXPECT_EQ(pieces, *whole);
  }
}

TEST(ChatTurns, RefusesWhatItCannotEncode) {
  const auto tokenizer = BundledTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_FALSE(EncodeFirstTurn(*tokenizer, ChatForm::kChatMl, "", 0).ok());
  EXPECT_FALSE(EncodeNextTurn(*tokenizer, ChatForm::kChatMl, "", AnswerEnd::kCut).ok());
  EXPECT_FALSE(EncodeNextTurn(*tokenizer, ChatForm::kChatMl, "\xff", AnswerEnd::kCut).ok());
  EXPECT_FALSE(FindChatForm(*tokenizer, "klingon").ok());
}

}  // namespace
}  // namespace headwise
