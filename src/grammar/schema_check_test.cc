#include "grammar/schema_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

std::string Must(const std::string& text, bool strict = false) {
  const auto made = NormaliseSchema(text, strict);
  EXPECT_TRUE(made.ok()) << text << ": " << made.status().message();
  return made.ok() ? *made : "";
}

TEST(SchemaCheck, SaysWhatFollows) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", R"({})"},
      {R"(true)", R"(true)"},
      {R"({"type": "object"})", R"({"type":"object","additionalProperties":true})"},
      {R"({"properties": {"b": {}, "a": {"title": "A", "x-own": [1]}}})",
       R"({"properties":{"b":{},"a":{}},"type":"object"})"},
      {R"({"maxLength": 3})", R"({"maxLength":3,"type":"string"})"},
      {R"({"type": "array"})", R"({"type":"array","items":true})"},
      {R"({"type": "integer", "format": "int32"})", R"({"type":"integer"})"},
      {R"({"type": ["string", "null"], "enum": ["a", 1, null]})", R"({"enum":["a",null]})"},
      {R"({"allOf": [{"type": "object", "properties": {"a": {}}, "required": ["a"]},
                     {"properties": {"b": {}}, "required": ["b", "a"]}]})",
       R"({"type":"object","properties":{"a":{},"b":{}},"required":["a","b"]})"},
      {R"({"allOf": [{"$ref": "#/$defs/x"}], "description": "d", "$defs": {"x": {"type": "null"}}})",
       R"({"type":"null","$defs":{"x":{"type":"null"}}})"},
      {R"({"items": {"$ref": "#"}, "type": "array"})", R"({"items":{"$ref":"#"},"type":"array"})"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(Must(text), expected);
}

TEST(SchemaCheck, TakesStrictSchemas) {
  Must(R"({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"],
           "additionalProperties": false})",
       true);
  EXPECT_THAT(
      NormaliseSchema(R"({"type": "object", "properties": {"a": {}}, "required": ["a"]})", true).status().message(),
      HasSubstr("schema: #: additionalProperties: expected false"));
  EXPECT_THAT(NormaliseSchema(R"({"properties": {"a": {}}, "additionalProperties": false})", true).status().message(),
              HasSubstr("required: lacks \"a\""));
}

TEST(SchemaCheck, SaysWhereAndWhat) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "schema: not valid JSON"},
      {"[]", "#: is [], expected a schema"},
      {R"({"a": 1, "a": 2})", "stands there twice"},
      {R"({"type": "widget"})", "#: type: is \"widget\", expected object"},
      {R"({"type": []})", "at least one"},
      {R"({"properties": {"a": {"items": {"not": {}}}}})", "#/properties/a/items: not: not supported"},
      {R"({"type": "array", "uniqueItems": true})", "uniqueItems: not supported"},
      {R"({"type": "number", "multipleOf": 0.1})", "multipleOf"},
      {R"({"type": "string", "format": "klingon"})", "format: is \"klingon\", expected date"},
      {R"({"type": "string", "pattern": "a", "maxLength": 3})", "pattern: beside minLength or maxLength"},
      {R"({"type": "string", "minLength": 4, "maxLength": 3})", "minLength: is more than maxLength"},
      {R"({"type": "string", "maxLength": -1})", "maxLength: is -1"},
      {R"({"type": "string", "maxLength": 1e300})", "maxLength: is 1e+300"},
      {R"({"type": "integer", "minimum": 1e17})", "minimum: is 1e+17"},
      {R"({"type": "integer", "minimum": "1"})", "minimum: is \"1\", expected a number"},
      {R"({"maxLength": 3, "minimum": 1})", "type: is missing"},
      {R"({"type": "object", "required": ["a"]})", "required: \"a\" is none of properties"},
      {R"({"properties": []})", "properties: is [], expected an object"},
      {R"({"$ref": "other.json#/a"})", "$ref: is \"other.json#/a\""},
      {R"({"$ref": "#/$defs/a"})", "the schema has no \"$defs\" there"},
      {R"({"enum": [{"a": {}}], "$defs": {"b": {"$ref": "#/enum"}}})", "is no place where a schema stands"},
      {R"({"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": {}}})", "stands beside $ref"},
      {R"({"anyOf": [{}], "properties": {}})", "properties: stands beside anyOf"},
      {R"({"anyOf": []})", "anyOf: is [], expected a list"},
      {R"({"enum": []})", "enum: is []"},
      {R"({"type": "string", "enum": [1]})", "enum: has no value of type string"},
      {R"({"type": "array", "items": [{}]})", "prefixItems"},
      {R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "allOf: two parts have type"},
      {R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b": {}}}]})",
       "forbids the properties of the others"},
  };
  for (const auto& [text, message] : cases) {
    const auto made = NormaliseSchema(text, false);
    ASSERT_FALSE(made.ok()) << text;
    EXPECT_THAT(made.status().message(), HasSubstr(message)) << text;
  }
}

TEST(SchemaCheck, RefusesWhatNoTextSatisfies) {
  for (
      const char* text : {
          R"({"$ref": "#"})",
          R"(false)",
          R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
          R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})",
          R"({"anyOf": [{"$ref": "#/$defs/a"}, false], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})",
      }) {
    EXPECT_THAT(NormaliseSchema(text, false).status().message(), HasSubstr("no text satisfies it")) << text;
  }
  // These end.
  Must(R"({"type": "object", "properties": {"a": {"$ref": "#"}}})");
  Must(R"({"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["a"]})");
}

TEST(SchemaCheck, RefusesWhatIsTooLarge) {
  std::string deep = "{}";
  for (int i = 0; i < 60; ++i) deep = R"({"type": "array", "items": )" + deep + "}";
  Json values = Json::array();
  Json parts = Json::object();
  Json halves = Json::object();
  Json lengths = Json::object();
  Json patterns = Json::object();
  for (int i = 0; i < 4200; ++i) {
    if (i % 2 == 0) values.push_back(i);
    parts[fmt::format("p{}", i)] = {{"type", "null"}};
    if (i % 2 == 0) halves[fmt::format("p{}", i)] = {{"type", "null"}};
  }
  for (int i = 0; i < 100; ++i) {
    lengths[fmt::format("p{}", i)] = {{"type", "string"}, {"maxLength", i}};
    patterns[fmt::format("p{}", i)] = {{"type", "string"}, {"pattern", fmt::format("a{}", i)}};
  }
  // Every part of it is twice the one before.
  Json doubled = {{"$defs", {{"d0", {{"type", "object"}, {"properties", {{"a", Json::object()}}}}}}}};
  for (int i = 1; i < 30; ++i) {
    const Json part = {{"$ref", fmt::format("#/$defs/d{}", i - 1)}};
    doubled["$defs"][fmt::format("d{}", i)] = {{"allOf", {part, part}}};
  }
  doubled["allOf"] = {{{"$ref", "#/$defs/d29"}}};
  const std::pair<std::string, const char*> cases[] = {
      {std::string(300 << 10, ' ') + "{}", "bytes, expected at most"},
      {std::string(100000, '['), "nested deeper"},
      {deep, "nests deeper than 32 levels"},
      {Json{{"enum", values}}.dump(), "more than 2048 values"},
      {Json{{"properties", parts}}.dump(), "more than 4096 entries"},
      {Json{{"properties", {{"a", {{"properties", halves}}}, {"b", {{"properties", halves}}}}}}.dump(),
       "more than 4096 parts"},
      {Json{{"properties", lengths}}.dump(), "different lengths"},
      {Json{{"properties", patterns}}.dump(), "different ones"},
      {Json{{"const", std::string(200000, 'a')}}.dump(), "bytes of them"},
      {R"({"type": "string", "pattern": "(a{500}){500}"})", "repetitions"},
      {doubled.dump(), "allOf: expected at most"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(NormaliseSchema(text, false).status().message(), HasSubstr(message)) << text.substr(0, 80);
  }
}

}  // namespace
}  // namespace headwise
