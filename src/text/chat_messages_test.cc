#include "text/chat_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace headwise {
namespace {

using ::testing::HasSubstr;

Result<std::vector<ChatMessage>> Read(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text;
  return ReadChatMessages(json, "talk.json");
}

TEST(ChatMessages, ComeBackAsTheyWere) {
  const std::vector<ChatMessage> messages = {{"system", "Be brief."},
                                             {"user",
                                              "Gr\xc3\xbc\xc3\x9f"
                                              "e, \"you\"\n"},
                                             {"assistant", ""}};
  const auto read = Read(ToJson(messages).dump());
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->size(), messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ((*read)[i].role, messages[i].role);
    EXPECT_EQ((*read)[i].content, messages[i].content);
  }
  EXPECT_TRUE(Read("[]")->empty());
}

TEST(ChatMessages, WhatIsMoreThanATextIsKeptAsItStands) {
  const std::string text =
      R"([{"role":"user","content":"x","name":"b"},{"role":"assistant","tool_calls":[{"z":1,"a":2}]},)"
      R"({"content":"","role":"tool"},{"role":"user","content":[{"type":"text","text":"y"}]}])";
  const auto read = Read(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ((*read)[0].content, "x");
  EXPECT_EQ((*read)[0].json, R"({"role":"user","content":"x","name":"b"})");
  EXPECT_EQ((*read)[1].json, R"({"role":"assistant","tool_calls":[{"z":1,"a":2}]})");
  EXPECT_EQ((*read)[2].role, "tool");
  EXPECT_EQ((*read)[2].json, "");
  EXPECT_EQ((*read)[3].json, R"({"role":"user","content":[{"type":"text","text":"y"}]})");
  EXPECT_EQ(ToJson(*read)[1].dump(), (*read)[1].json);
}

TEST(ChatMessages, WhatIsWrongIsNamed) {
  const auto error = [](const std::string& text) { return Read(text).status().message(); };
  const std::string first = R"({"role": "user", "content": "x"})";
  EXPECT_THAT(error("{}"), HasSubstr("talk.json: expected a list of messages"));
  EXPECT_THAT(error("[" + first + ", 3]"), HasSubstr("talk.json: message 1"));
  EXPECT_THAT(error("[" + first + R"(, {"role": 3, "content": "x"}])"), HasSubstr("talk.json: message 1: "));
  EXPECT_THAT(error(R"([{"role": "", "content": "x"}])"), HasSubstr("message 0: role is empty"));
  EXPECT_THAT(error(R"([{"content": "x"}])"), HasSubstr("message 0: "));
  EXPECT_THAT(error(R"([{"role": "user"}])"), HasSubstr("message 0: "));
  EXPECT_THAT(error(R"([{"role": "user", "content": null}])"), HasSubstr("content"));
  EXPECT_THAT(error(R"([{"role": "user", "content": 3}])"), HasSubstr("content"));
}

// As front ends send a field that nobody filled in.
TEST(ChatMessages, AnEmptyContentIsAText) {
  const auto messages = Read(R"([{"role": "system", "content": ""}, {"role": "user", "content": ""}])");
  ASSERT_TRUE(messages.ok()) << messages.status().message();
  EXPECT_EQ(messages->at(0).content + messages->at(1).content, "");
}

TEST(ChatMessages, WholeTurnsAlternateAndEndWithAnAnswer) {
  const auto check = [](const std::vector<std::string>& roles) {
    std::vector<ChatMessage> messages;
    for (const std::string& role : roles) messages.push_back({role, "x"});
    return CheckWholeTurns(messages, "talk.json").message();
  };
  EXPECT_EQ(check({}), "");
  EXPECT_EQ(check({"system"}), "");
  EXPECT_EQ(check({"system", "user", "assistant"}), "");
  EXPECT_EQ(check({"user", "assistant", "user", "assistant"}), "");
  EXPECT_EQ(check({"developer", "user", "assistant", "tool", "assistant"}), "");
  EXPECT_THAT(check({"user", "assistant", "tool"}), HasSubstr("message 2 is the last and tool's"));
  EXPECT_THAT(check({"assistant"}), HasSubstr("message 0: role is \"assistant\", expected user"));
  EXPECT_THAT(check({"system", "user", "user"}), HasSubstr("message 2: role is \"user\", expected assistant"));
  EXPECT_THAT(check({"user", "assistant", "user"}), HasSubstr("message 2 is the last and a user's"));
}

}  // namespace
}  // namespace headwise
