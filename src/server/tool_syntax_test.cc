#include "server/tool_syntax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ToolSyntax, IsFoundInTheTemplate) {
  const std::pair<const char*, ToolSyntax> cases[] = {
      {"", ToolSyntax::kGeneric},
      {"{{ messages }} <tool_call>", ToolSyntax::kGeneric},
      {"{% if tools %}... <tool_call>{\"name\": ...}", ToolSyntax::kHermes},
      {"{% if tools %}... <tool_call><function=f>", ToolSyntax::kGeneric},
      {"{% if tools %}... <tool_call>f\n<arg_key>", ToolSyntax::kGeneric},
      {"{% if tools %}[AVAILABLE_TOOLS] [TOOL_CALLS] [", ToolSyntax::kMistral},
      {"{% if tools %}[TOOL_CALLS]name[ARGS]", ToolSyntax::kGeneric},
      {"{% if tools is not none %}<|start_header_id|>ipython {{ '\"parameters\": ' }}", ToolSyntax::kLlama},
      {"{% if tools %}functools[", ToolSyntax::kGeneric},
  };
  for (const auto& [text, syntax] : cases) EXPECT_EQ(FindToolSyntax(text), syntax) << text;
}

// What a reader makes of a text in pieces of some size: text, then "name(arguments)" of each call.
std::vector<std::string> Read(ToolSyntax syntax, const std::string& text, size_t piece_bytes,
                              std::vector<std::string> beginnings = {}) {
  ToolCallReader reader(syntax, std::move(beginnings));
  std::vector<std::string> found = {""};
  const auto take = [&](const ToolCallReader::Piece& piece) {
    found[0] += piece.text;
    for (const ToolCallDelta& call : piece.calls) {
      if (call.begins()) {
        EXPECT_FALSE(call.id.empty());
        found.push_back(call.name + "(");
      }
      EXPECT_EQ(call.index + 2, found.size());
      found.back() += call.arguments;
    }
  };
  for (size_t i = 0; i < text.size(); i += piece_bytes) take(reader.Push(text.substr(i, piece_bytes)));
  take(reader.Finish());
  EXPECT_EQ(reader.num_calls() + 1, found.size());
  return found;
}

struct ReadCase {
  ToolSyntax syntax;
  std::string text;
  std::vector<std::string> found;
};

TEST(ToolCallReader, TellsTextFromCalls) {
  const std::string odd = R"({"s": "}]</tool_call>\"\\", "l": [{"x": 1}]})";
  const std::string hermes = "<tool_call>\n{\"name\": \"f\", \"arguments\": " + odd + "}\n</tool_call>";
  const std::string second = "<tool_call>\n{\"name\": \"g.h-1\", \"arguments\": {}}\n</tool_call>";
  const ReadCase cases[] = {
      {ToolSyntax::kHermes, "Hello <b> there.\n", {"Hello <b> there.\n"}},
      {ToolSyntax::kHermes, "So <tool_", {"So <tool_"}},
      {ToolSyntax::kHermes, hermes, {"", "f(" + odd}},
      {ToolSyntax::kHermes, "\n\n" + hermes + "\n" + second, {"", "f(" + odd, "g.h-1({}"}},
      {ToolSyntax::kGeneric, "Let me see.\n" + second + "\nDone. ", {"Let me see.\nDone.", "g.h-1({}"}},
      {ToolSyntax::kHermes, "<tool_call>\n{\"name\": \"f\", \"argu", {""}},
      {ToolSyntax::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b", {"", "f({\"a\": \"b"}},
      {ToolSyntax::kLlama, "{\"name\": \"f\", \"parameters\": " + odd + "}", {"", "f(" + odd}},
      {ToolSyntax::kLlama, "Not {a call}", {"Not {a call}"}},
      {ToolSyntax::kMistral,
       "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": " + odd + "}, {\"name\": \"g\", \"arguments\": {}}]",
       {"", "f(" + odd, "g({}"}},
      {ToolSyntax::kMistral, "Text [TOOL_ or [1].", {"Text [TOOL_ or [1]."}},
      {ToolSyntax::kMistral, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": 5}]", {"", "f(5"}},
      {ToolSyntax::kHermes, " \n", {" \n"}},
  };
  for (const auto& [syntax, text, found] : cases) {
    for (const size_t piece_bytes : {size_t{1}, size_t{3}, size_t{7}, text.size()}) {
      EXPECT_EQ(Read(syntax, text, piece_bytes), found) << text << " in pieces of " << piece_bytes;
    }
  }
}

// Where an answer is calls or a text of a form, a text may hold what looks like a call.
TEST(ToolCallReader, TellsTextsOfAFormFromCalls) {
  ApiTools tools;
  tools.tools = {{.name = "f", .schema = "{}"}, {.name = "go", .schema = "{}"}};
  const std::string hermes = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string llama = "{\"name\": \"go\", \"parameters\": {\"a\": 1}}";
  const ReadCase cases[] = {
      {ToolSyntax::kHermes, hermes, {"", "f({\"a\": 1}"}},
      {ToolSyntax::kGeneric, hermes + "\n" + hermes, {"", "f({\"a\": 1}", "f({\"a\": 1}"}},
      {ToolSyntax::kHermes, "{\"x\": \"" + hermes + "\"} ", {"{\"x\": \"" + hermes + "\"} "}},
      {ToolSyntax::kHermes, "<tool_call>\nfly", {"<tool_call>\nfly"}},
      {ToolSyntax::kHermes, "<tool_", {"<tool_"}},
      {ToolSyntax::kLlama, llama, {"", "go({\"a\": 1}"}},
      {ToolSyntax::kLlama, "{\"name\": \"gone\", \"parameters\": {}}", {"{\"name\": \"gone\", \"parameters\": {}}"}},
      {ToolSyntax::kLlama, "{\"name\": \"go\"}", {"{\"name\": \"go\"}"}},
      {ToolSyntax::kLlama, "[" + llama + "]", {"[" + llama + "]"}},
      {ToolSyntax::kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", {"", "f({}"}},
      {ToolSyntax::kMistral, "[\"[TOOL_CALLS] [\"]", {"[\"[TOOL_CALLS] [\"]"}},
  };
  for (const auto& [syntax, text, found] : cases) {
    for (const size_t piece_bytes : {size_t{1}, size_t{3}, size_t{7}, text.size()}) {
      EXPECT_EQ(Read(syntax, text, piece_bytes, CallBeginnings(syntax, tools)), found) << text << " " << piece_bytes;
    }
  }
}

TEST(ToolMessages, HaveArgumentsAsObjects) {
  const std::vector<ChatMessage> messages = {
      {.role = "user", .content = "Hi"},
      {.role = "assistant",
       .content = "",
       .json = R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":
                   {"name":"f","arguments":"{\"b\": 1, \"a\": 2}"}},{"function":{"name":"g","arguments":"no JSON"}}]})"}};
  const auto opened = MessagesWithTools(ToolSyntax::kHermes, messages, "[]");
  EXPECT_EQ(opened[0].content, "Hi");
  EXPECT_THAT(opened[1].json, AllOf(HasSubstr(R"("arguments":{"b":1,"a":2})"), HasSubstr(R"("arguments":"no JSON")")));
}

TEST(ToolMessages, BecomeTextWhereTheTemplateHasNoTools) {
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = "Be brief."},
      {.role = "user", .content = "Hi"},
      {.role = "assistant",
       .content = "",
       .json =
           R"({"role":"assistant","content":"Hm.","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]})"},
      {.role = "tool", .content = "42", .json = R"({"role":"tool","content":"42","tool_call_id":"x"})"},
      {.role = "tool", .content = "43"},
      {.role = "user", .content = "So?"}};
  const auto plain = MessagesWithTools(ToolSyntax::kGeneric, messages,
                                       R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])");
  ASSERT_EQ(plain.size(), 4u);
  EXPECT_THAT(plain[0].content, AllOf(HasSubstr("Be brief.\n\nYou can call functions."),
                                      HasSubstr(R"({"name":"f","parameters":{"z":1,"a":2}})")));
  EXPECT_EQ(plain[2].content, "Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>");
  EXPECT_EQ(plain[2].json, "");
  EXPECT_EQ(plain[3].role, "user");
  EXPECT_EQ(plain[3].content, "<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response>\nSo?");
  // Without tools and calls nothing is said of them.
  const std::vector<ChatMessage> simple = {{.role = "user", .content = "Hi"}};
  EXPECT_EQ(MessagesWithTools(ToolSyntax::kGeneric, simple, "").size(), 1u);
  EXPECT_EQ(MessagesWithTools(ToolSyntax::kGeneric, simple, "[]").size(), 2u);
}

}  // namespace
}  // namespace headwise
