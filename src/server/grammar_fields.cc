#include "server/grammar_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

namespace headwise {
namespace {

// What stands at a path of keys, as the client wrote it: a schema may be given as a text too.
std::string TextAt(std::string_view body, std::initializer_list<const char*> path) {
  auto value = nlohmann::ordered_json::parse(body, nullptr, false);
  for (const char* key : path) value = nlohmann::ordered_json(value[key]);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

class GrammarReader {
 public:
  GrammarReader(JsonFields& fields, std::string_view body) : fields_(fields), body_(body) {}

  std::optional<ApiGrammar> Read() {
    ReadResponseFormat();
    if (const Json* options = fields_.Object("structured_outputs")) ReadStructuredOutputs(*options);
    ReadSchema("guided_json");
    ReadSchema("json_schema");
    ReadText("guided_regex", GrammarKind::kRegex);
    ReadText("guided_grammar", GrammarKind::kGbnf);
    ReadText("grammar", GrammarKind::kGbnf);
    if (const Json* choices = fields_.Find("guided_choice")) AddChoices("guided_choice", *choices);
    if (grammars_.size() > 1) {
      fields_.Fail(grammars_[1].param.c_str(),
                   fmt::format("stands beside {}, expected one of the two", grammars_[0].param));
    }
    if (grammars_.empty() || fields_.failed()) return std::nullopt;
    ApiGrammar& grammar = grammars_.front();
    const Status status = CheckGrammar(grammar.source);
    if (!status.ok()) fields_.Fail(grammar.param.c_str(), status.message());
    return std::move(grammar);
  }

 private:
  void Add(std::string param, GrammarSource source) {
    grammars_.push_back({.source = std::move(source), .param = std::move(param)});
  }

  void ReadSchema(const char* name) {
    const Json* schema = fields_.Find(name);
    if (schema == nullptr) return;
    if (!schema->is_object() && !schema->is_string()) return fields_.FailValue(name, *schema, "a JSON schema");
    Add(name, {.kind = GrammarKind::kJsonSchema, .text = TextAt(body_, {name})});
  }

  void ReadText(const char* name, GrammarKind kind) {
    if (auto text = fields_.String(name); text && !text->empty()) Add(name, {.kind = kind, .text = *std::move(text)});
  }

  void AddChoices(const std::string& name, const Json& choices) {
    const bool are_texts =
        choices.is_array() && std::ranges::all_of(choices, [](const Json& each) { return each.is_string(); });
    if (!are_texts) return fields_.FailValue(name.c_str(), choices, "a list of texts");
    Add(name, {.kind = GrammarKind::kChoice, .choices = choices.get<std::vector<std::string>>()});
  }

  void ReadResponseFormat() {
    const Json* format = fields_.Object("response_format");
    if (format == nullptr) return;
    JsonFields inner(*format, "response_format.");
    const std::string type = inner.String("type").value_or("");
    // llama.cpp's way to give a schema.
    const Json* schema = inner.Object("schema");
    const Json* named = inner.Object("json_schema");
    if (type == "json_object" && schema != nullptr) {
      Add("response_format", {.kind = GrammarKind::kJsonSchema, .text = TextAt(body_, {"response_format", "schema"})});
    } else if (type == "json_object") {
      Add("response_format", {.kind = GrammarKind::kJson});
    } else if (type == "json_schema" && named != nullptr) {
      ReadNamedSchema(*named);
    } else if (type == "json_schema") {
      inner.Fail("json_schema", "is missing, expected an object with a name and a schema");
    } else if (type != "text") {
      inner.Fail("type", fmt::format("is \"{}\", expected text, json_object or json_schema", type.substr(0, 60)));
    }
    if (auto error = inner.Finish()) fields_.Fail(*std::move(error));
  }

  void ReadNamedSchema(const Json& named) {
    JsonFields inner(named, "response_format.json_schema.");
    inner.String("name");
    inner.Ignore({"description"});
    const bool strict = inner.Bool("strict").value_or(false);
    if (inner.Object("schema") == nullptr) inner.Fail("schema", "is missing, expected a JSON schema");
    if (auto error = inner.Finish()) return fields_.Fail(*std::move(error));
    Add("response_format", {.kind = GrammarKind::kJsonSchema,
                            .text = TextAt(body_, {"response_format", "json_schema", "schema"}),
                            .strict = strict});
  }

  // vLLM's.
  void ReadStructuredOutputs(const Json& options) {
    JsonFields inner(options, "structured_outputs.");
    const std::string param = "structured_outputs";
    if (const Json* schema = inner.Find("json")) {
      if (!schema->is_object() && !schema->is_string()) inner.FailValue("json", *schema, "a JSON schema");
      Add(param, {.kind = GrammarKind::kJsonSchema, .text = TextAt(body_, {"structured_outputs", "json"})});
    }
    if (auto regex = inner.String("regex")) Add(param, {.kind = GrammarKind::kRegex, .text = *std::move(regex)});
    if (auto text = inner.String("grammar")) Add(param, {.kind = GrammarKind::kGbnf, .text = *std::move(text)});
    if (const Json* choices = inner.Find("choice")) AddChoices(param, *choices);
    if (inner.Bool("json_object").value_or(false)) Add(param, {.kind = GrammarKind::kJson});
    if (auto error = inner.Finish()) fields_.Fail(*std::move(error));
  }

  JsonFields& fields_;
  std::string_view body_;
  std::vector<ApiGrammar> grammars_;
};

}  // namespace

std::optional<ApiGrammar> ReadGrammar(JsonFields& fields, std::string_view body) {
  return GrammarReader(fields, body).Read();
}

}  // namespace headwise
