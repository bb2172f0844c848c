// Answers of a form that a request asks for: JSON, schemas, grammars, calls of functions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/test_api.h"
#include "support/validate_schema.h"

namespace headwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const char* const kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "likes": {"type": "array", "items": {"enum": ["tea", "snow", "C++"]}, "maxItems": 3}},
    "required": ["name", "age", "likes"], "additionalProperties": false})";

const char* const kTools = R"([
    {"type": "function", "function": {"name": "get_weather", "description": "Of a town.", "parameters":
        {"type": "object", "properties": {"town": {"type": "string", "maxLength": 10}, "days": {"enum": [1, 2, 3]}},
         "required": ["town", "days"], "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now"}}])";

class AnswerForm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!GrammarCompiler::IsBuilt()) GTEST_SKIP() << "built without xgrammar";
  }
};

Json Chat(Json more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "Tell me of a house."}}}},
               {"max_tokens", 400},
               {"temperature", 1.5},
               {"seed", 3}};
  body.update(more);
  return body;
}
Json AskChat(TestApi& api, const Json& body) {
  return api.Must("POST", "/v1/chat/completions", body.dump())["choices"][0];
}
Json Schema(const std::string& schema) {
  return {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", Json::parse(schema)}, {"strict", true}}}};
}

TEST_F(AnswerForm, IsTheSchemas) {
  const SchemaValidator validator(Json::parse(kPerson));
  for (const int seed : {1, 2, 3, 4}) {
    const Json choice =
        AskChat(Shared(), Chat({{"response_format", Schema(kPerson)}, {"temperature", 2}, {"seed", seed}}));
    EXPECT_EQ(choice["finish_reason"], "stop");
    const Json answer = Json::parse(choice["message"]["content"].get<std::string>());
    EXPECT_TRUE(validator.Accepts(answer)) << answer;
  }
}

TEST_F(AnswerForm, KeepsTheOrderOfTheSchema) {
  const std::string schema = R"({"type": "object", "properties": {"z": {"type": "null"}, "a": {"type": "null"}},
                                 "required": ["z", "a"], "additionalProperties": false})";
  // As a text: this JSON library sorts keys.
  const std::string body = R"({"prompt": "x", "max_tokens": 100, "json_schema": )" + schema + "}";
  const std::string text = Shared().Must("POST", "/v1/completions", body)["choices"][0]["text"];
  EXPECT_LT(text.find("\"z\""), text.find("\"a\""));
}

// The same under every name that others have for it, and the same text streamed.
TEST_F(AnswerForm, HasManyNames) {
  const Json schema = Json::parse(kPerson);
  const SchemaValidator validator(schema);
  const Json forms[] = {
      {{"response_format", {{"type", "json_object"}, {"schema", schema}}}},
      {{"structured_outputs", {{"json", schema}}}},
      {{"guided_json", schema}},
      {{"guided_json", kPerson}},
      {{"json_schema", schema}},
  };
  for (const Json& form : forms) {
    Json body = {{"prompt", kStory}, {"max_tokens", 400}, {"temperature", 1}, {"seed", 5}};
    body.update(form);
    const Json choice = Shared().Complete(body)["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    const std::string text = choice["text"];
    EXPECT_TRUE(validator.Accepts(Json::parse(text))) << text;
    body["stream"] = true;
    std::string streamed;
    for (const Json& event : Shared().Ask("POST", "/v1/completions", body.dump())->Events()) {
      if (event.is_object()) streamed += event["choices"][0]["text"];
    }
    EXPECT_EQ(streamed, text);
  }
  const std::pair<Json, const char*> texts[] = {
      {{{"guided_regex", "[ab]{3}-[0-9]"}}, "[ab][ab][ab]-[0-9]"},
      {{{"structured_outputs", {{"regex", "x+y"}}}}, "x+y"},
      {{{"guided_choice", {"left", "right"}}}, "left|right"},
      {{{"structured_outputs", {{"choice", {"left", "right"}}}}}, "left|right"},
      {{{"grammar", "root ::= \"yes\" | \"no\" \"!\"{2,3}"}}, "yes|no!!!?"},
      {{{"guided_grammar", "root ::= [0-9]"}}, "[0-9]"},
      {{{"structured_outputs", {{"grammar", "root ::= [0-9]"}}}}, "[0-9]"},
  };
  for (const auto& [form, expected] : texts) {
    Json body = {{"prompt", kStory}, {"max_tokens", 100}, {"temperature", 1}, {"seed", 6}, {"n", 2}};
    body.update(form);
    const Json answer = Shared().Complete(body);
    for (const Json& choice : answer["choices"]) EXPECT_THAT(choice["text"].get<std::string>(), MatchesRegex(expected));
  }
  const Json object = AskChat(Shared(), Chat({{"response_format", {{"type", "json_object"}}}, {"temperature", 0.5}}));
  EXPECT_EQ(object["message"]["content"].get<std::string>()[0], '{');
}

TEST_F(AnswerForm, HasLogprobsOfTheModel) {
  Json body = Chat({{"response_format", Schema(kPerson)}, {"logprobs", true}, {"top_logprobs", 2}});
  const Json choice = AskChat(Shared(), body);
  std::string text;
  bool was_unlikely = false;
  for (const Json& token : choice["logprobs"]["content"]) {
    text += token["token"];
    was_unlikely = was_unlikely || token["logprob"] < token["top_logprobs"][1]["logprob"];
  }
  EXPECT_EQ(text, choice["message"]["content"]);
  EXPECT_TRUE(was_unlikely) << "a model of stories would not have written this JSON";
}

TEST_F(AnswerForm, SaysWhatIsWrong) {
  const std::tuple<Json, const char*, const char*> cases[] = {
      {{{"response_format", {{"type", "xml"}}}}, "response_format.type", "expected text, json_object or json_schema"},
      {{{"response_format", {{"type", "json_schema"}}}}, "response_format.json_schema", "is missing"},
      {{{"response_format", Schema(R"({"type": "widget"})")}}, "response_format", "schema: #: type: is \"widget\""},
      {{{"response_format", Schema(R"({"type": "object"})")}}, "response_format", "as strict schemas have it"},
      {{{"response_format", {{"type", "text"}, {"schemas", 1}}}}, "response_format.schemas", "Unrecognized"},
      {{{"guided_regex", "(a"}}, "guided_regex", "regex:"},
      {{{"grammar", "root ::= x"}}, "grammar", "grammar:"},
      {{{"grammar", "root ::= \"a\""}, {"guided_regex", "a"}}, "grammar", "stands beside guided_regex"},
      {{{"guided_choice", Json::array()}}, "guided_choice", "expected 1 to"},
      {{{"guided_json", {{"not", Json::object()}}}}, "guided_json", "not: not supported"},
      {{{"guided_regex", "a"}, {"ignore_eos", true}}, "ignore_eos", "says where it ends"},
      {{{"tools", 5}}, "tools", "expected a list"},
      {{{"tools", {{{"type", "retrieval"}}}}}, "tools[0].type", "expected \"function\""},
      {{{"tools", {{{"type", "function"}, {"function", {{"name", "a b"}}}}}}}, "tools[0].function.name", "is \"a b\""},
      {{{"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"type", "x"}}}}}}}}},
       "tools[0].function.parameters",
       "type: is \"x\""},
      {{{"tools", Json::parse(kTools)}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "fly"}}}}}},
       "tool_choice",
       "\"fly\" is none of tools"},
      {{{"tools", Json::parse(kTools)}, {"tool_choice", "sometimes"}}, "tool_choice", "is \"sometimes\""},
      {{{"tool_choice", "required"}}, "tool_choice", "without tools"},
      {{{"tools", Json::parse(kTools)}, {"response_format", Schema(R"({"type": "widget"})")}},
       "response_format",
       "schema: #: type: is \"widget\""},
      {{{"tools", Json::parse(kTools)}, {"grammar", "root ::= x"}}, "grammar", "grammar:"},
      {{{"functions", {1}}}, "functions", "not supported"},
  };
  for (const auto& [fields, param, message] : cases) {
    const Json error = Shared().Fail(400, "POST", "/v1/chat/completions", Chat(fields).dump());
    EXPECT_EQ(error["param"], param) << fields;
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message)) << fields;
  }
}

// Templates that write as those of known families, each with a system prompt of its own for tools.
struct SyntaxCase {
  ToolSyntax syntax;
  const char* chat_template;
};
const SyntaxCase kSyntaxes[] = {
    {ToolSyntax::kHermes,
     "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}Say <tool_call>{\"name\"...}\n{% endif %}"
     "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
     "<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}{% endif %}\n{% endfor %}assistant: "},
    {ToolSyntax::kLlama,
     "{% if tools is not none %}{{ tools | tojson }} in ipython {{ '\"parameters\": ' }}{% endif %}"
     "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "},
    {ToolSyntax::kMistral,
     "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}{% if false %}[TOOL_CALLS]{% endif %}"
     "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "},
    {ToolSyntax::kGeneric, nullptr},
};

std::unique_ptr<ModelHost> HostWith(const SyntaxCase& syntax) {
  EngineOptions options = ExactOptions(BundledModel(), {"cpu"});
  options.num_threads = 2;
  auto service = Service::Create(MustCreate(options));
  ServedModel::Options served = {.name = kModel};
  if (syntax.chat_template != nullptr) {
    served.chat.chat_template = {.name = "default", .source = syntax.chat_template, .origin = "test"};
  }
  auto model = ServedModel::Create(*std::move(service), std::move(served));
  EXPECT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->tool_syntax(), syntax.syntax);
  auto host = std::make_unique<ModelHost>();
  EXPECT_TRUE(host->Add(*std::move(model)).ok());
  return host;
}

Json Post(ApiServer& server, const Json& body) {
  const Reply reply = std::make_shared<FakeReply>();
  server.Handle(RequestTo("POST", "/v1/chat/completions", body.dump(), {}), reply);
  reply->Await();
  EXPECT_EQ(reply->status(), 200) << reply->Text();
  return body.value("stream", false) ? Json(reply->Events()) : reply->Object()["choices"][0];
}

// The message that the chunks of a stream make together.
Json Assemble(const Json& events) {
  Json message = {{"content", ""}, {"tool_calls", Json::array()}};
  for (const Json& event : events) {
    if (!event.is_object()) continue;
    const Json& choice = event["choices"][0];
    if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
    message["content"] = message["content"].get<std::string>() + choice["delta"].value("content", "");
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      const size_t index = call["index"];
      if (call.contains("id")) {
        EXPECT_EQ(message["tool_calls"].size(), index);
        message["tool_calls"].push_back({{"name", call["function"]["name"]}, {"arguments", ""}});
      }
      Json& whole = message["tool_calls"][index]["arguments"];
      whole = whole.get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  return message;
}

TEST_F(AnswerForm, IsACallWhereOneIsAskedFor) {
  const SchemaValidator validator(Json::parse(kTools)[0]["function"]["parameters"]);
  for (const SyntaxCase& syntax : kSyntaxes) {
    SCOPED_TRACE(static_cast<int>(syntax.syntax));
    const auto host = HostWith(syntax);
    ApiServer server(*host, {});
    const Json named = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
    Json body = Chat({{"tools", Json::parse(kTools)}, {"tool_choice", named}, {"temperature", 2}});
    const Json choice = Post(server, body);
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_TRUE(choice["message"]["content"].is_null());
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
    const Json& call = choice["message"]["tool_calls"][0];
    EXPECT_EQ(call["type"], "function");
    EXPECT_EQ(call["function"]["name"], "get_weather");
    EXPECT_THAT(call["id"].get<std::string>(),
                MatchesRegex(syntax.syntax == ToolSyntax::kMistral ? "[a-zA-Z0-9]+" : "call_[a-zA-Z0-9]+"));
    const std::string arguments = call["function"]["arguments"];
    EXPECT_TRUE(validator.Accepts(Json::parse(arguments))) << arguments;

    body["stream"] = true;
    const Json message = Assemble(Post(server, body));
    EXPECT_EQ(message["finish_reason"], "tool_calls");
    EXPECT_EQ(message["content"], "");
    ASSERT_EQ(message["tool_calls"].size(), 1u);
    EXPECT_EQ(message["tool_calls"][0]["name"], "get_weather");
    EXPECT_EQ(message["tool_calls"][0]["arguments"], arguments);

    body["tool_choice"] = "required";
    body["parallel_tool_calls"] = false;
    EXPECT_EQ(Assemble(Post(server, body))["tool_calls"].size(), 1u);

    // The result goes back, and text is allowed.
    Json message_of_call = choice["message"];
    body["messages"].push_back(message_of_call);
    body["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "rain"}});
    body["tool_choice"] = "auto";
    body["max_tokens"] = 20;
    const Json after = Assemble(Post(server, body));
    EXPECT_THAT(after["finish_reason"], ::testing::AnyOf("stop", "length", "tool_calls"));
    server.Shutdown();
  }
}

// A model that is pushed to the beginning of a call has to go on with one.
TEST_F(AnswerForm, IsACallOnceOneHasBegun) {
  const auto host = HostWith(kSyntaxes[1]);
  ApiServer server(*host, {});
  const auto& model = *host->models().front();
  const auto brace = model.engine().tokenizer().Encode("{");
  ASSERT_TRUE(brace.ok() && !brace->empty());
  Json body = Chat({{"tools", Json::parse(kTools)}, {"max_tokens", 200}});
  body["logit_bias"] = {{std::to_string(brace->back()), 100}};
  const Json choice = Post(server, body);
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
  EXPECT_GE(choice["message"]["tool_calls"].size(), 1u);
  server.Shutdown();
}

// An answer is calls, or a text of the form: nothing else, in no syntax.
TEST_F(AnswerForm, IsACallOrTheSchemas) {
  const SchemaValidator of_call(Json::parse(kTools)[0]["function"]["parameters"]);
  const SchemaValidator of_text(Json::parse(kPerson));
  for (const SyntaxCase& syntax : kSyntaxes) {
    SCOPED_TRACE(static_cast<int>(syntax.syntax));
    const auto host = HostWith(syntax);
    ApiServer server(*host, {});
    Json body = Chat(
        {{"tools", {Json::parse(kTools)[0]}}, {"response_format", Schema(kPerson)}, {"parallel_tool_calls", false}});
    int num_calls = 0;
    int num_texts = 0;
    for (const int seed : {1, 2, 3, 4}) {
      body["seed"] = seed;
      // The first token of calls, in three syntaxes not that of the form.
      if (seed > 2 && syntax.syntax != ToolSyntax::kLlama) {
        const std::string begin = syntax.syntax == ToolSyntax::kMistral ? "[" : "<";
        const auto ids = host->models().front()->engine().tokenizer().Encode(begin);
        ASSERT_TRUE(ids.ok());
        body["logit_bias"] = {{std::to_string(ids->back()), 100}};
      }
      const Json choice = Post(server, body);
      const Json& message = choice["message"];
      if (choice["finish_reason"] == "tool_calls") {
        ++num_calls;
        EXPECT_TRUE(message["content"].is_null());
        for (const Json& call : message["tool_calls"]) {
          EXPECT_TRUE(of_call.Accepts(Json::parse(call["function"]["arguments"].get<std::string>())));
        }
      } else {
        ++num_texts;
        EXPECT_EQ(choice["finish_reason"], "stop");
        EXPECT_FALSE(message.contains("tool_calls"));
        EXPECT_TRUE(of_text.Accepts(Json::parse(message["content"].get<std::string>()))) << message;
      }
      Json streamed = body;
      streamed["stream"] = true;
      const Json assembled = Assemble(Post(server, streamed));
      EXPECT_EQ(assembled["finish_reason"], choice["finish_reason"]);
      EXPECT_EQ(assembled["content"], message["content"].is_null() ? Json("") : message["content"]);
    }
    EXPECT_GT(num_texts, 0);
    EXPECT_TRUE(num_calls > 0 || syntax.syntax == ToolSyntax::kLlama);
    // Nobody has to be asked for both: a call that has to come is one, and without functions it is the form's.
    body.erase("logit_bias");
    body["tool_choice"] = "required";
    EXPECT_EQ(Post(server, body)["finish_reason"], "tool_calls");
    body["tool_choice"] = "none";
    EXPECT_TRUE(of_text.Accepts(Json::parse(Post(server, body)["message"]["content"].get<std::string>())));
    server.Shutdown();
  }
}

TEST(AnswerFormOfABuildWithout, IsRefusedByName) {
  if (GrammarCompiler::IsBuilt()) GTEST_SKIP() << "built with xgrammar";
  const Json error =
      Shared().Fail(400, "POST", "/v1/chat/completions", Chat({{"response_format", {{"type", "json_object"}}}}).dump());
  EXPECT_EQ(error["param"], "response_format");
  EXPECT_EQ(error["code"], "unsupported");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("without constrained decoding"));
}

}  // namespace
}  // namespace headwise
