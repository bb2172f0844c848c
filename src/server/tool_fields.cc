#include "server/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "grammar/schema_check.h"

namespace headwise {
namespace {

constexpr size_t kMaxName = 64;

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxName && std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
}

// Arguments are an object, whether the schema says so or not; without one there are none.
std::string ArgumentsSchema(const nlohmann::ordered_json& function) {
  if (!function.contains("parameters") || function["parameters"].is_null()) {
    return R"({"type":"object","properties":{},"additionalProperties":false})";
  }
  nlohmann::ordered_json schema = function["parameters"];
  const bool says_nothing = schema.is_object() && !schema.contains("type") && !schema.contains("$ref") &&
                            !schema.contains("anyOf") && !schema.contains("oneOf") && !schema.contains("allOf");
  if (says_nothing) schema["type"] = "object";
  return schema.dump();
}

std::optional<ApiTool> ReadTool(JsonFields& fields, const Json& tool, const nlohmann::ordered_json& ordered,
                                const std::string& prefix) {
  if (!tool.is_object()) {
    fields.Fail("tools", fmt::format("item {} is {}, expected an object", prefix, ShowJson(tool)));
    return std::nullopt;
  }
  JsonFields outer(tool, prefix);
  if (outer.String("type").value_or("") != "function") outer.Fail("type", "expected \"function\"");
  const Json* function = outer.Object("function");
  if (function == nullptr) outer.Fail("function", "is missing, expected an object");
  if (auto error = outer.Finish()) {
    fields.Fail(*std::move(error));
    return std::nullopt;
  }
  JsonFields inner(*function, prefix + "function.");
  ApiTool read;
  read.name = inner.String("name").value_or("");
  if (!IsToolName(read.name)) {
    inner.Fail("name", fmt::format("is \"{}\", expected 1 to {} letters, digits, \".\", \"_\" or \"-\"",
                                   read.name.substr(0, kMaxName), kMaxName));
  }
  inner.String("description");
  inner.Object("parameters");
  const bool strict = inner.Bool("strict").value_or(false);
  auto error = inner.Finish();
  if (!error) {
    Result<std::string> schema = NormaliseSchema(ArgumentsSchema(ordered["function"]), strict);
    if (!schema.ok()) inner.Fail("parameters", schema.status().message());
    if (schema.ok()) read.schema = *std::move(schema);
    error = inner.Finish();
  }
  if (!error) return read;
  fields.Fail(*std::move(error));
  return std::nullopt;
}

// Which of them the choice leaves.
void Choose(JsonFields& fields, const Json& choice, ApiTools& tools) {
  if (choice == "auto") return;
  if (choice == "none") {
    tools.tools.clear();
    return;
  }
  tools.must_call = true;
  if (choice == "required") return;
  const bool names_one = choice.is_object() && choice.value("type", Json()) == "function" &&
                         choice.contains("function") && choice["function"].is_object() &&
                         choice["function"].contains("name") && choice["function"]["name"].is_string();
  if (!names_one) {
    return fields.FailValue("tool_choice", choice,
                            "\"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": "
                            "...}}");
  }
  const auto name = choice["function"]["name"].get<std::string>();
  std::erase_if(tools.tools, [&](const ApiTool& tool) { return tool.name != name; });
  tools.several = false;
  if (tools.tools.empty()) fields.Fail("tool_choice", fmt::format("\"{}\" is none of tools", name.substr(0, kMaxName)));
}

}  // namespace

ApiTools ReadTools(JsonFields& fields, std::string_view body) {
  ApiTools tools;
  const Json* list = fields.Find("tools");
  const Json* choice = fields.Find("tool_choice");
  tools.several = fields.Bool("parallel_tool_calls").value_or(true);
  if (list != nullptr && !list->is_array()) {
    fields.FailValue("tools", *list, "a list of functions");
    return tools;
  }
  const bool has_tools = list != nullptr && !list->empty();
  if (!has_tools) {
    const bool wants_one = choice != nullptr && *choice != "none" && *choice != "auto";
    if (wants_one) fields.Fail("tool_choice", fmt::format("is {} without tools", ShowJson(*choice)));
    return tools;
  }
  if (choice != nullptr && *choice == "none") return tools;
  if (list->size() > kMaxTools) {
    fields.Fail("tools", fmt::format("has {} functions, expected at most {}", list->size(), kMaxTools));
    return tools;
  }
  const auto ordered = nlohmann::ordered_json::parse(body, nullptr, false)["tools"];
  for (size_t i = 0; i < list->size(); ++i) {
    auto tool = ReadTool(fields, (*list)[i], ordered[i], fmt::format("tools[{}].", i));
    if (!tool) return tools;
    const bool is_twice = std::ranges::find(tools.tools, tool->name, &ApiTool::name) != tools.tools.end();
    if (is_twice) fields.Fail("tools", fmt::format("two functions are called \"{}\"", tool->name));
    tools.tools.push_back(*std::move(tool));
  }
  tools.json = ordered.dump();
  if (choice != nullptr) Choose(fields, *choice, tools);
  return tools;
}

}  // namespace headwise
