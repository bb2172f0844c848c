// Templates in the style of published ones, and what they must not let happen.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headwise/chat.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "text/test_tokenizers.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kChatMl =
    "{%- for message in messages %}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n";
constexpr const char* kLlama3 =
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}\n"
    "    {{- message.content | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}";
constexpr const char* kMistral =
    "{%- set ns = namespace(system='') %}\n"
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "  {%- if message.role == 'system' %}\n"
    "    {%- set ns.system = message.content + '\\n\\n' %}\n"
    "  {%- elif (message.role == 'user') != (loop.index0 % 2 == (1 if messages[0].role == 'system' else 0)) %}\n"
    "    {{- raise_exception('Roles must take turns') }}\n"
    "  {%- elif message.role == 'user' %}\n"
    "    {{- '[INST] ' + ns.system + message.content + ' [/INST]' }}\n"
    "    {%- set ns.system = '' %}\n"
    "  {%- else %}\n"
    "    {{- ' ' + message.content + eos_token }}\n"
    "  {%- endif %}\n"
    "{%- endfor %}";
// Thoughts are shown in the last answer alone.
constexpr const char* kForgetful =
    "{%- for message in messages %}\n"
    "{%- set text = message.content.split('</think>')[-1] if not loop.last else message.content %}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n";

const std::vector<std::string> kMarkers = {
    "<s>",        "</s>",         "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<|im_start|>", "<|im_end|>"};

std::unique_ptr<Tokenizer> BundledTokenizer() {
  auto tokenizer = LoadTokenizer(fs::path(HEADWISE_SOURCE_DIR) / "models/headwise-17m");
  EXPECT_TRUE(tokenizer.ok());
  return *std::move(tokenizer);
}

Result<ChatFormat> Find(const Tokenizer& tokenizer, const std::string& source) {
  return ChatFormat::Find(tokenizer, {.chat_template = ChatTemplateText{"default", source, "f.jinja"}});
}

ChatFormat MustFind(const Tokenizer& tokenizer, const std::string& source) {
  auto format = Find(tokenizer, source);
  EXPECT_TRUE(format.ok()) << format.status().message();
  return *format;
}

std::vector<int32_t> MustEncode(const ChatFormat& format, const ChatPrompt& prompt) {
  const auto ids = format.Encode(prompt);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

std::string Show(const Tokenizer& tokenizer, const ChatFormat& format, const ChatPrompt& prompt) {
  return tokenizer.Decode(MustEncode(format, prompt), SpecialDisplay::kShow);
}

std::string ErrorOf(const ChatFormat& format, const ChatPrompt& prompt) {
  return format.Encode(prompt).status().message();
}

std::ptrdiff_t NumSpecial(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  return std::ranges::count_if(ids, [&](int32_t id) { return tokenizer.IsSpecial(id); });
}

class ChatTemplateFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "additional_chat_templates");
    Write("tokenizer.json", ByteTokenizerJson({"<s>", "</s>", "<img>"}).dump());
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(folder_ / name, text).ok());
  }
  // What the model's own templates write of one message; or the error.
  std::string Written(std::string_view tools = "") {
    const auto tokenizer = LoadTokenizer(folder_);
    if (!tokenizer.ok()) return tokenizer.status().message();
    const auto format = ChatFormat::Find(**tokenizer);
    if (!format.ok()) return format.status().message();
    const ChatMessage messages[] = {{"user", "x"}};
    const auto ids = format->Encode({.messages = messages, .tools = tools});
    return ids.ok() ? (*tokenizer)->Decode(*ids, SpecialDisplay::kShow) : ids.status().message();
  }

  const fs::path folder_ = fs::path(::testing::TempDir()) /
                           fmt::format("headwise_{}", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST(ChatTemplates, WriteWhatBuiltInFormsWrite) {
  const std::vector<ChatMessage> talk = {{"system", "Be brief,  <|im_end|> please."},
                                         {"user", "  What's 12345 in Gr\xc3\xbc\xc3\x9f-\xe6\x97\xa5?\n\n"},
                                         {"assistant", "Nothing; isn't it?"},
                                         {"user", "And\t</s>now? "}};
  const auto bundled = BundledTokenizer();
  const auto bytes = MustParse(ByteTokenizerJson(kMarkers));
  const auto pieces =
      MustParse(PieceTokenizerJson({"\u2581", "a", "n", "\u2581a", "[", "\u2581["}, {"\u2581 a", "\u2581 ["}));
  const auto compare = [&](const Tokenizer& tokenizer, const char* form, const char* source) {
    const auto built_in = ChatFormat::Find(tokenizer, {.form = form});
    ASSERT_TRUE(built_in.ok());
    const ChatFormat format = MustFind(tokenizer, source);
    EXPECT_TRUE(format.is_template());
    for (const size_t num_messages : {2, 4}) {
      for (const ChatEnd end : {ChatEnd::kOpenAssistantTurn, ChatEnd::kAsGiven}) {
        const ChatPrompt prompt = {.messages = std::span(talk).first(num_messages), .end = end};
        EXPECT_EQ(MustEncode(format, prompt), MustEncode(*built_in, prompt)) << form;
      }
    }
  };
  compare(*bundled, "chatml", kChatMl);
  compare(*bytes, "chatml", kChatMl);
  compare(*bytes, "llama-3", kLlama3);
  compare(*bytes, "mistral", kMistral);
  compare(*pieces, "mistral", kMistral);
}

TEST(ChatTemplates, NoMessageForgesAMarker) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));
  std::string forged;
  for (const std::string& marker : kMarkers) forged += marker;
  for (const char* source : {kChatMl, kLlama3, kMistral}) {
    const ChatFormat format = MustFind(*tokenizer, source);
    const auto count = [&](const std::string& content) {
      const ChatMessage messages[] = {
          {"system", content}, {"user", content}, {"assistant", content}, {"user", content}};
      return NumSpecial(*tokenizer, MustEncode(format, {.messages = messages}));
    };
    EXPECT_EQ(count(forged), count("x"));
  }
  // Nor does a role, a tool or a variable.
  const ChatFormat format = MustFind(*tokenizer, std::string(kChatMl) + "{{ tools }}{{ more }}");
  const ChatMessage messages[] = {{"user<|im_end|>", "x"}};
  const auto ids = MustEncode(
      format, {.messages = messages, .tools = R"(["<|im_end|>"])", .variables = R"({"more": "<|im_start|>"})"});
  EXPECT_EQ(NumSpecial(*tokenizer, ids), 3);
}

TEST(ChatTemplates, RolesMakeMarkersWhereTheyAreKnown) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<|user|>", "<|admin|>", "<|tool|>"}));
  const ChatFormat format =
      MustFind(*tokenizer, "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{% endfor %}");
  const ChatMessage messages[] = {{"user", "x"}, {"admin", "x"}, {"tool", "x"}};
  EXPECT_EQ(NumSpecial(*tokenizer, MustEncode(format, {.messages = messages})), 2);
}

TEST(ChatTemplates, NoMessageUndoesAMarker) {
  Json json = ByteTokenizerJson({"<a", "<a>", "<|end|>"});
  json["added_tokens"].push_back({{"id", 259}, {"content", "y<"}, {"special", false}, {"normalized", false}});
  json["added_tokens"].push_back({{"id", 260}, {"content", "pq"}, {"special", false}, {"normalized", false}});
  const auto tokenizer = MustParse(json);
  const ChatFormat format = MustFind(*tokenizer, "<a{{ messages[0].content }}<|end|>p{{ messages[1].content }}");
  const ChatMessage messages[] = {{"user", ">y"}, {"user", "q"}};
  // The shorter marker stands, and the one behind a text that wants its beginning; tokens that are no markers are found
  // across the joint.
  EXPECT_THAT(MustEncode(format, {.messages = messages}), ElementsAre(256, '>', 'y', 258, 260));
}

// As in old Llama files: <s> is looked for in normalized text, where it begins with a space.
TEST(ChatTemplates, MarkersOfNormalizedTextAreTheTemplatesToo) {
  Json json = PieceTokenizerJson({}, {});
  for (Json& token : json["added_tokens"]) token["normalized"] = true;
  const auto tokenizer = MustParse(json);
  const ChatFormat format = MustFind(*tokenizer, "<s>a{{ messages[0].content }} </s> <s>");
  const ChatMessage messages[] = {{"user", "       <s> </s>"}};
  const auto ids = MustEncode(format, {.messages = messages});
  EXPECT_EQ(NumSpecial(*tokenizer, ids), 3);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 1);
  EXPECT_EQ(ids[ids.size() - 2], 2);
}

TEST(ChatTemplates, GetWhatTransformersGivesThem) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<s>", "</s>"}));
  const auto written = [&](const char* source, ChatPrompt prompt = {}) {
    const ChatMessage messages[] = {{"user", "x"}};
    prompt.messages = messages;
    return Show(*tokenizer, MustFind(*tokenizer, source), prompt);
  };
  EXPECT_EQ(written("{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}"), "<s>|</s>|False");
  EXPECT_EQ(written("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}"), "True True True");
  EXPECT_EQ(written("{{ add_generation_prompt }}", {.end = ChatEnd::kAsGiven}), "False");
  EXPECT_EQ(written("{{ tools | tojson }}", {.tools = R"([{"z": 1, "a": "<b>"}])"}), R"([{"z": 1, "a": "<b>"}])");
  EXPECT_EQ(written("{{ documents[0].text }}", {.documents = R"([{"text": "t"}])"}), "t");
  EXPECT_EQ(written("{{ think }} {{ bos_token }}", {.variables = R"({"think": false, "bos_token": "b"})"}), "False b");
  EXPECT_EQ(written("{{ strftime_now('%Y') | length }}"), "4");
}

TEST(ChatTemplates, SeeAllOfAMessage) {
  const auto tokenizer = MustParse(ByteTokenizerJson({}));
  const ChatFormat format = MustFind(*tokenizer,
                                     "{% for m in messages %}{{ m.role }}:{{ m.content }}:{{ m.tool_calls | tojson "
                                     "}}:{{ m.tool_call_id }};{% endfor %}");
  const ChatMessage messages[] = {
      {"assistant", "",
       R"({"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": {"b": 1, "a": 2}}]})"},
      {"tool", "4", R"({"role": "tool", "content": "4", "tool_calls": [], "tool_call_id": "c1"})"}};
  EXPECT_EQ(Show(*tokenizer, format, {.messages = messages}),
            R"(assistant:None:[{"name": "f", "arguments": {"b": 1, "a": 2}}]:;tool:4:[]:c1;)");
  const ChatMessage other[] = {{"user", "x", R"({"role": "system", "content": "x"})"}};
  EXPECT_THAT(ErrorOf(format, {.messages = other}),
              HasSubstr("message 0: its JSON is no object with the role \"user\""));
}

TEST(ChatTemplates, WhatIsWrongIsNamed) {
  const auto tokenizer = MustParse(ByteTokenizerJson({"<s>", "</s>"}));
  const ChatMessage messages[] = {{"user", "x"}};
  const auto error = [&](const char* source, ChatPrompt prompt = {}) {
    prompt.messages = messages;
    const auto format = Find(*tokenizer, source);
    return format.ok() ? ErrorOf(*format, prompt) : format.status().message();
  };
  const std::string unclosed = error("\n{% if x %}");
  EXPECT_THAT(unclosed, HasSubstr("f.jinja: line 2: "));
  EXPECT_THAT(unclosed, HasSubstr("--chat-form"));
  EXPECT_EQ(error("\n{{ raise_exception('No tools here') }}"), "f.jinja: line 2: the template says: No tools here");
  EXPECT_THAT(error("{{ x.y.z }}"), HasSubstr("f.jinja: line 1: "));
  EXPECT_THAT(error("{{ '' }}"), HasSubstr("f.jinja: the template wrote nothing"));
  EXPECT_THAT(error("x", {.tools = "[]"}), HasSubstr("f.jinja: tools: the template has no use for it"));
  EXPECT_THAT(error("x", {.documents = "[]"}), HasSubstr("f.jinja: documents: the template has no use for it"));
  EXPECT_THAT(error("x", {.variables = R"({"think": 1})"}),
              HasSubstr("f.jinja: think: the template has no use for it"));
  EXPECT_THAT(error("{{ tools }}", {.tools = "{}"}), HasSubstr("tools: found object, expected a list"));
  EXPECT_THAT(error("{{ tools }}", {.tools = "["}), HasSubstr("tools: not valid JSON"));
  EXPECT_THAT(error("{{ x }}", {.variables = "[]"}), HasSubstr("variables: found array, expected an object"));
  EXPECT_THAT(error("{{ x }}", {.variables = R"({"messages": []})"}),
              HasSubstr("\"messages\" is given by other means"));
  EXPECT_THAT(
      ChatFormat::Find(*tokenizer, {.form = "chatml", .chat_template = ChatTemplateText{"default", "x", "f.jinja"}})
          .status()
          .message(),
      HasSubstr("both a chat template (f.jinja) and the chat form chatml"));
}

TEST(ChatTemplates, AnswersEndWithWhatTheTemplateWritesBehindThem) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));  // </s> ends its texts
  const auto stops = [&](const std::string& source) { return MustFind(*tokenizer, source).stop_ids(); };
  const int32_t eos = *tokenizer->IdOf("</s>");
  EXPECT_THAT(stops(kChatMl), ElementsAre(*tokenizer->IdOf("<|im_end|>"), eos));
  EXPECT_THAT(stops(kLlama3), ElementsAre(*tokenizer->IdOf("<|eot_id|>"), eos));
  EXPECT_THAT(stops(kMistral), ElementsAre(eos));
  EXPECT_THAT(stops("{% for m in messages %}{{ m.content }} \n <|eot_id|>{% endfor %}"),
              ElementsAre(*tokenizer->IdOf("<|eot_id|>"), eos));
  // Text comes first; nothing comes; the template refuses the exchange; it answers something else.
  EXPECT_THAT(stops("{% for m in messages %}{{ m.content }}.<|eot_id|>{% endfor %}"), ElementsAre(eos));
  EXPECT_THAT(stops("{% for m in messages %}<|eot_id|>{{ m.content }}{% endfor %}"), ElementsAre(eos));
  EXPECT_THAT(stops("{{ raise_exception('no') if messages[1:] }}<|eot_id|>"), ElementsAre(eos));
  EXPECT_THAT(stops("Answer.<|eot_id|>"), ElementsAre(eos));
  const auto more = ChatFormat::Find(
      *tokenizer, {.chat_template = ChatTemplateText{"default", kMistral, "f.jinja"}, .eos_ids = {eos, 7}});
  EXPECT_THAT(more->stop_ids(), ElementsAre(eos, 7));
}

// What the cache has: the prompt before, the answer, its end token where the model wrote one.
TEST(ChatTemplates, ConversationsGoOnWhereNothingIsRewritten) {
  const auto bundled = BundledTokenizer();
  const auto bytes = MustParse(ByteTokenizerJson(kMarkers));
  const auto check = [](const Tokenizer& tokenizer, const char* source, const char* end_token, const char* space = "") {
    const ChatFormat format = MustFind(tokenizer, source);
    const ChatMessage talk[] = {{"user", "Hi <|im_end|>"}, {"assistant", "Well,\n\nyes."}, {"user", "More! "}};
    for (const AnswerEnd end : {AnswerEnd::kClosed, AnswerEnd::kCut}) {
      std::vector<int32_t> read = MustEncode(format, {.messages = std::span(talk).first(1)});
      const auto answer = tokenizer.Encode(space + talk[1].content);
      read.insert(read.end(), answer->begin(), answer->end());
      if (end == AnswerEnd::kClosed) read.push_back(*tokenizer.IdOf(end_token));
      const auto next = format.EncodeNextTurn({.messages = talk}, end);
      ASSERT_TRUE(next.ok()) << next.status().message();
      EXPECT_TRUE(next->goes_on);
      read.insert(read.end(), next->ids.begin(), next->ids.end());
      EXPECT_EQ(read, MustEncode(format, {.messages = talk})) << source;
    }
  };
  check(*bundled, kChatMl, "<|im_end|>");
  check(*bytes, kLlama3, "<|eot_id|>");
  // The space before an answer is not shown as a part of it.
  check(*bytes, kMistral, "</s>", " ");
  // White space before the end token, too, is the answer's.
  const char* spaced = "{% for m in messages %}{{ m.role }}:{{ m.content }} </s>{% endfor %}assistant:";
  const ChatMessage talk[] = {{"user", "a"}, {"assistant", "b\n"}, {"user", "c"}};
  const auto closed = MustFind(*bytes, spaced).EncodeNextTurn({.messages = talk}, AnswerEnd::kClosed);
  EXPECT_EQ(bytes->Decode(closed->ids, SpecialDisplay::kShow), "user:c </s>assistant:");
  const auto cut = MustFind(*bytes, spaced).EncodeNextTurn({.messages = talk}, AnswerEnd::kCut);
  EXPECT_EQ(bytes->Decode(cut->ids, SpecialDisplay::kShow), "</s>user:c </s>assistant:");
}

TEST(ChatTemplates, ATemplateWithoutAnEndTokenLosesNothing) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));
  const ChatFormat format =
      MustFind(*tokenizer, "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}assistant:");
  const ChatMessage talk[] = {{"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  for (const AnswerEnd end : {AnswerEnd::kClosed, AnswerEnd::kCut}) {
    const auto next = format.EncodeNextTurn({.messages = talk}, end);
    EXPECT_TRUE(next->goes_on);
    EXPECT_EQ(tokenizer->Decode(next->ids, SpecialDisplay::kShow), "\nuser:c\nassistant:");
  }
}

TEST(ChatTemplates, WhatIsRewrittenIsReadAgain) {
  const auto tokenizer = MustParse(ByteTokenizerJson(kMarkers));
  const auto next = [&](const char* source, std::vector<ChatMessage> talk) {
    const ChatFormat format = MustFind(*tokenizer, source);
    const auto turn = format.EncodeNextTurn({.messages = talk}, AnswerEnd::kClosed);
    EXPECT_TRUE(turn.ok()) << turn.status().message();
    EXPECT_EQ(turn->goes_on, turn->ids != MustEncode(format, {.messages = talk}));
    return turn->goes_on;
  };
  EXPECT_FALSE(next(kForgetful, {{"user", "a"}, {"assistant", "<think>b</think>c"}, {"user", "d"}}));
  EXPECT_TRUE(next(kForgetful, {{"user", "a"}, {"assistant", "c"}, {"user", "d"}}));
  // Earlier messages count too.
  EXPECT_FALSE(next("{{ messages | length }}{% for m in messages %}{{ m.content }}</s>{% endfor %}",
                    {{"user", "a"}, {"assistant", "c"}, {"user", "d"}}));
  // The answer is a part of something; it was more than a text.
  EXPECT_FALSE(next("{% for m in messages %}{{ m.content }}{{ messages[0].content }}</s>{% endfor %}",
                    {{"user", "a"}, {"assistant", "c"}, {"user", "d"}}));
  EXPECT_FALSE(
      next(kChatMl, {{"user", "a"}, {"assistant", "c", R"({"role": "assistant", "content": "c"})"}, {"user", "d"}}));
  // Text that was the template's is the message's now.
  EXPECT_FALSE(
      next("{{ 'a' if messages | length == 1 else messages[0].content }}"
           "{% for m in messages[1:] %}{{ m.content }}</s>{% endfor %}",
           {{"user", "a"}, {"assistant", "c"}, {"user", "d"}}));
}

TEST_F(ChatTemplateFiles, TheConfigHasOneOrSeveral) {
  Write("tokenizer_config.json", R"({"chat_template": "one:{{ messages[0].content }}"})");
  EXPECT_EQ(Written(), "one:x");
  EXPECT_THAT(Written("[]"), HasSubstr("tokenizer_config.json: chat_template: tools: the template has no use for it"));
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools:{{ tools }}"},
                                                       {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(Written(), "plain");
  EXPECT_EQ(Written("[1]"), "tools:[1]");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "tools:{{ tools }}"}]})");
  EXPECT_THAT(Written(), HasSubstr("the model's chat templates are named tool_use, expected one named default"));
  EXPECT_EQ(Written("[1]"), "tools:[1]");
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "{%"},
                                                       {"name": "default", "template": "plain"}]})");
  EXPECT_EQ(Written(), "plain");
  EXPECT_THAT(Written("[1]"), HasSubstr("tokenizer_config.json: chat_template \"tool_use\": line 1: "));
  Write("tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(Written(), HasSubstr("chat_template"));
}

TEST_F(ChatTemplateFiles, FilesOfTheirOwnWin) {
  Write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "config"},
                                                       {"name": "default", "template": "config"}]})");
  Write("chat_template.jinja", "file{{ tools }}");
  EXPECT_EQ(Written(), "fileNone");
  EXPECT_EQ(Written("[]"), "file[]");
  Write("additional_chat_templates/tool_use.jinja", "more{{ tools }}");
  EXPECT_EQ(Written(), "fileNone");
  EXPECT_EQ(Written("[]"), "more[]");
  Write("chat_template.jinja", "\n\n{% endif %}");
  EXPECT_THAT(Written(), HasSubstr("chat_template.jinja: line 3: "));
}

TEST_F(ChatTemplateFiles, NamedTokensAreTheTemplatesOwn) {
  Write("chat_template.jinja", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ image_token }}|{{ add_bos_token }}");
  EXPECT_EQ(Written(), "<s>|</s>|||");
  Write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "</s>"}, "pad_token": "</s>",
                                     "add_bos_token": true, "extra_special_tokens": {"image_token": "<img>"}})");
  EXPECT_EQ(Written(), "|</s>|</s>|<img>|");
  const auto tokenizer = LoadTokenizer(folder_);
  const ChatMessage messages[] = {{"user", "x"}};
  const auto ids = MustEncode(*ChatFormat::Find(**tokenizer), {.messages = messages});
  EXPECT_EQ(NumSpecial(**tokenizer, ids), 3);
}

}  // namespace
}  // namespace headwise
