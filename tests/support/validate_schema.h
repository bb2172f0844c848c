// Whether JSON is what a schema asks for: by the words of the specification, and by no other code of this project.
#ifndef HEADWISE_TESTS_SUPPORT_VALIDATE_SCHEMA_H_
#define HEADWISE_TESTS_SUPPORT_VALIDATE_SCHEMA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace headwise {

class SchemaValidator {
 public:
  explicit SchemaValidator(nlohmann::json root) : root_(std::move(root)) {}

  bool Accepts(const nlohmann::json& value) const { return Accepts(root_, value); }

 private:
  using Json = nlohmann::json;

  static bool IsOf(const std::string& type, const Json& value) {
    if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    if (type == "number") return value.is_number();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    return type == "null" && value.is_null();
  }

  bool Accepts(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    const auto all = [&](const char* key, bool otherwise) {
      int64_t num_accepted = 0;
      for (const Json& each : schema.value(key, Json::array())) num_accepted += Accepts(each, value) ? 1 : 0;
      return schema.contains(key) ? num_accepted : static_cast<int64_t>(otherwise);
    };
    if (schema.contains("$ref")) {
      const std::string reference = schema["$ref"];
      if (!Accepts(root_.at(Json::json_pointer(reference.substr(1))), value)) return false;
    }
    if (schema.contains("const") && schema["const"] != value) return false;
    if (schema.contains("enum") && std::ranges::find(schema["enum"], value) == schema["enum"].end()) return false;
    if (all("anyOf", true) < 1 || all("oneOf", true) != 1) return false;
    if (schema.contains("allOf") && all("allOf", true) != static_cast<int64_t>(schema["allOf"].size())) return false;
    if (schema.contains("type")) {
      const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
      if (std::ranges::none_of(types, [&](const Json& type) { return IsOf(type, value); })) return false;
    }
    return Numbers(schema, value) && Strings(schema, value) && Arrays(schema, value) && Objects(schema, value);
  }

  static bool Numbers(const Json& schema, const Json& value) {
    if (!value.is_number()) return true;
    const double number = value.get<double>();
    // Beyond what doubles tell apart nobody can say.
    const bool is_exact = std::abs(number) < 9e15;
    if (is_exact && schema.contains("multipleOf") && std::fmod(number, schema["multipleOf"].get<double>()) != 0)
      return false;
    return number >= schema.value("minimum", -INFINITY) && number <= schema.value("maximum", INFINITY) &&
           number > schema.value("exclusiveMinimum", -INFINITY) && number < schema.value("exclusiveMaximum", INFINITY);
  }

  static bool Strings(const Json& schema, const Json& value) {
    if (!value.is_string()) return true;
    const std::string text = value;
    const auto length =
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    if (schema.contains("pattern") && !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) {
      return false;
    }
    return length >= schema.value("minLength", int64_t{0}) && length <= schema.value("maxLength", INT64_MAX);
  }

  bool Arrays(const Json& schema, const Json& value) const {
    if (!value.is_array()) return true;
    const Json first = schema.value("prefixItems", Json::array());
    for (size_t i = 0; i < value.size(); ++i) {
      if (!Accepts(i < first.size() ? first[i] : schema.value("items", Json(true)), value[i])) return false;
    }
    return static_cast<int64_t>(value.size()) >= schema.value("minItems", int64_t{0}) &&
           static_cast<int64_t>(value.size()) <= schema.value("maxItems", INT64_MAX);
  }

  bool Objects(const Json& schema, const Json& value) const {
    if (!value.is_object()) return true;
    const Json properties = schema.value("properties", Json::object());
    for (const Json& name : schema.value("required", Json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    for (const auto& [name, each] : value.items()) {
      if (!Accepts(properties.contains(name) ? properties[name] : schema.value("additionalProperties", Json(true)),
                   each)) {
        return false;
      }
    }
    return static_cast<int64_t>(value.size()) >= schema.value("minProperties", int64_t{0}) &&
           static_cast<int64_t>(value.size()) <= schema.value("maxProperties", INT64_MAX);
  }

  Json root_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_VALIDATE_SCHEMA_H_
