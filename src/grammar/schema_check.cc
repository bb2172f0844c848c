#include "grammar/schema_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/json.h"
#include "grammar/gbnf_check.h"
#include "grammar/schema_merge.h"

namespace headwise {
namespace {

constexpr size_t kMaxBytes = 256 << 10;
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxParts = 4096;
constexpr int64_t kMaxValues = 2048;
constexpr size_t kMaxValueBytes = 128 << 10;
constexpr size_t kMaxPatternBytes = 512;
constexpr size_t kMaxPatterns = 64;     // different ones
constexpr size_t kMaxLengths = 16;      // the same
constexpr size_t kMaxReferences = 128;  // the same
constexpr int64_t kMaxLength = 100'000;

constexpr std::string_view kTypes[] = {"object", "array", "string", "integer", "number", "boolean", "null"};
constexpr std::string_view kFormats[] = {
    "date",         "date-time", "duration", "email",         "hostname",     "ipv4", "ipv6",
    "json-pointer", "time",      "uri",      "uri-reference", "uri-template", "uuid", "relative-json-pointer"};

std::string Show(const OrderedSchema& value) {
  if (value.is_structured() && value.size() > 16) {
    return fmt::format("a JSON {} of {}", value.type_name(), value.size());
  }
  std::string text = value.dump(-1, ' ', true, OrderedSchema::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

bool IsOfType(const OrderedSchema& value, std::string_view type) {
  if (type == "integer") return value.is_number_integer();
  if (type == "number") return value.is_number();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  return value.is_null();
}

// Objects that keep their order look through their keys for each one.
bool HasLongList(const Json& json) {
  if (!json.is_structured()) return false;
  return static_cast<int64_t>(json.size()) > kMaxParts || std::ranges::any_of(json, HasLongList);
}

class Normaliser {
 public:
  Normaliser(OrderedSchema& root, bool strict) : root_(root), original_(root), strict_(strict) {}

  Status Run() {
    HW_RETURN_IF_ERROR(Visit(root_, "#", 0));
    return CheckFinite();
  }

 private:
  static Status Fail(const std::string& where, std::string_view message) {
    return Status::InvalidInput(fmt::format("schema: {}: {}", where, message));
  }
  static Status FailValue(const std::string& where, const char* key, const OrderedSchema& found,
                          std::string_view expected) {
    return Fail(where, fmt::format("{}: is {}, expected {}", key, Show(found), expected));
  }

  Status Visit(OrderedSchema& schema, const std::string& where, int depth) {
    if (depth > kMaxDepth) return Fail(where, fmt::format("nests deeper than {} levels", kMaxDepth));
    if (++num_parts_ > kMaxParts) return Fail(where, fmt::format("the schema has more than {} parts", kMaxParts));
    if (schema.is_boolean()) return Status::Ok();
    if (!schema.is_object()) {
      return Fail(where, fmt::format("is {}, expected a schema: an object, true or false", Show(schema)));
    }
    visited_.insert(where);
    if (schema.contains("allOf")) {
      Result<OrderedSchema> merged = MergeAllOf(original_, schema);
      if (!merged.ok()) return Fail(where, merged.status().message());
      schema = *std::move(merged);
    }
    // What only describes would make schemas that mean the same different ones to the compiler's cache.
    for (auto it = schema.begin(); it != schema.end();) it = IsKeyword(it.key()) ? std::next(it) : schema.erase(it);
    HW_RETURN_IF_ERROR(VisitDefinitions(schema, where, depth));
    for (const auto& [key, value] : schema.items()) {
      if (!IsUnsupported(key)) continue;
      if (value == false && (key.starts_with("unevaluated") || key == "nullable")) continue;
      return Fail(where, fmt::format("{}: not supported", key));
    }
    for (const char* key : {"$ref", "const", "enum", "anyOf", "oneOf"}) {
      if (schema.contains(key)) return VisitAlternative(schema, key, where, depth);
    }
    return VisitTyped(schema, where, depth);
  }

  Status VisitDefinitions(OrderedSchema& schema, const std::string& where, int depth) {
    for (const char* key : {"$defs", "definitions"}) {
      if (!schema.contains(key)) continue;
      if (!schema[key].is_object()) return FailValue(where, key, schema[key], "an object");
      for (auto& [name, value] : schema[key].items()) {
        HW_RETURN_IF_ERROR(Visit(value, fmt::format("{}/{}/{}", where, key, name), depth + 1));
      }
    }
    return Status::Ok();
  }

  // A schema that is one of several things: what stands beside would be passed over.
  Status VisitAlternative(OrderedSchema& schema, const std::string& key, const std::string& where, int depth) {
    const bool has_values = key == "const" || key == "enum";
    for (const auto& [other, value] : schema.items()) {
      const bool is_place = other == "$defs" || other == "definitions" || IsUnsupported(other);
      if (other == key || is_place || (has_values && other == "type")) continue;
      return Fail(where, fmt::format("{}: stands beside {}, expected one of the two", other, key));
    }
    OrderedSchema& value = schema[key];
    if (key == "$ref") return VisitReference(value, where);
    if (has_values) return VisitValues(schema, key, where);
    if (!value.is_array() || value.empty()) {
      return FailValue(where, key.c_str(), value, "a list of at least one schema");
    }
    for (size_t i = 0; i < value.size(); ++i) {
      HW_RETURN_IF_ERROR(Visit(value[i], fmt::format("{}/{}/{}", where, key, i), depth + 1));
    }
    return Status::Ok();
  }

  Status VisitReference(const OrderedSchema& value, const std::string& where) {
    if (!value.is_string()) return FailValue(where, "$ref", value, "a text");
    const auto target = ResolveReference(original_, value.get<std::string>());
    if (!target.ok()) return Fail(where, target.status().message());
    references_.insert(value.get<std::string>());
    if (references_.size() > kMaxReferences) {
      return Fail(where, fmt::format("$ref: there are more than {} different ones", kMaxReferences));
    }
    return Status::Ok();
  }

  Status VisitValues(OrderedSchema& schema, const std::string& key, const std::string& where) {
    OrderedSchema values = key == "enum" ? schema[key] : OrderedSchema::array({schema[key]});
    if (!values.is_array() || values.empty()) return FailValue(where, "enum", values, "a list of at least one value");
    num_values_ += static_cast<int64_t>(values.size());
    value_bytes_ += values.dump(-1, ' ', false, OrderedSchema::error_handler_t::replace).size();
    if (num_values_ > kMaxValues || value_bytes_ > kMaxValueBytes) {
      return Fail(where, fmt::format("{}: the schema has more than {} values, or {} bytes of them and of names", key,
                                     kMaxValues, kMaxValueBytes));
    }
    if (!schema.contains("type")) return Status::Ok();
    HW_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, where));
    OrderedSchema left = OrderedSchema::array();
    for (const OrderedSchema& value : values) {
      const auto is_of = [&](const std::string& type) { return IsOfType(value, type); };
      if (std::ranges::any_of(types, is_of)) left.push_back(value);
    }
    if (left.empty()) return Fail(where, fmt::format("{}: has no value of type {}", key, fmt::join(types, " or ")));
    if (key == "enum") schema[key] = std::move(left);
    schema.erase("type");
    return Status::Ok();
  }

  Result<std::vector<std::string>> TypesOf(const OrderedSchema& schema, const std::string& where) const {
    const OrderedSchema& type = schema["type"];
    const OrderedSchema list = type.is_array() ? type : OrderedSchema::array({type});
    std::vector<std::string> types;
    for (const OrderedSchema& each : list) {
      const bool is_known = each.is_string() && std::ranges::find(kTypes, each.get<std::string>()) != std::end(kTypes);
      if (!is_known) return FailValue(where, "type", each, fmt::format("{}", fmt::join(kTypes, ", ")));
      types.push_back(each.get<std::string>());
    }
    if (types.empty()) return FailValue(where, "type", type, "at least one");
    return types;
  }

  // Where there is no type: the one that the keywords speak of.
  Status InferType(OrderedSchema& schema, const std::string& where) {
    std::string type;
    for (const auto& [key, of] : TypedKeywords()) {
      if (!schema.contains(std::string(key))) continue;
      if (!type.empty() && type != of) {
        return Fail(where, fmt::format("type: is missing, and {} is said of another type than {}", key, type));
      }
      type = of;
    }
    if (!type.empty()) schema["type"] = type;
    return Status::Ok();
  }

  Status VisitTyped(OrderedSchema& schema, const std::string& where, int depth) {
    if (!schema.contains("type")) HW_RETURN_IF_ERROR(InferType(schema, where));
    if (!schema.contains("type")) return Status::Ok();  // anything
    HW_ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(schema, where));
    const auto has = [&](std::string_view type) { return std::ranges::find(types, type) != types.end(); };
    if (has("object")) HW_RETURN_IF_ERROR(VisitObject(schema, where, depth));
    if (has("array")) HW_RETURN_IF_ERROR(VisitArray(schema, where, depth));
    if (has("string")) {
      HW_RETURN_IF_ERROR(VisitString(schema, where));
    } else {
      schema.erase("format");  // of numbers: how wide they are in memory
    }
    if (has("number") || has("integer")) HW_RETURN_IF_ERROR(VisitNumber(schema, where, has("number")));
    return Status::Ok();
  }

  Status VisitObject(OrderedSchema& schema, const std::string& where, int depth) {
    if (!schema.contains("properties") && !schema.contains("required") && !schema.contains("additionalProperties") &&
        !schema.contains("patternProperties") && !schema.contains("propertyNames") && !strict_) {
      schema["additionalProperties"] = true;
    }
    for (const char* key : {"properties", "patternProperties"}) {
      if (!schema.contains(key)) continue;
      if (!schema[key].is_object()) return FailValue(where, key, schema[key], "an object");
      for (auto& [name, value] : schema[key].items()) {
        value_bytes_ += name.size();
        const std::string at = fmt::format("{}/{}/{}", where, key, name);
        if (value_bytes_ > kMaxValueBytes) {
          return Fail(at, fmt::format("names and values have more than {} bytes", kMaxValueBytes));
        }
        if (*key == 'p' && key[1] == 'a') HW_RETURN_IF_ERROR(NotePattern(name, at));
        HW_RETURN_IF_ERROR(Visit(value, at, depth + 1));
      }
    }
    for (const char* key : {"additionalProperties", "propertyNames"}) {
      if (schema.contains(key)) HW_RETURN_IF_ERROR(Visit(schema[key], fmt::format("{}/{}", where, key), depth + 1));
    }
    HW_RETURN_IF_ERROR(CheckCount(schema, "minProperties", where));
    HW_RETURN_IF_ERROR(CheckCount(schema, "maxProperties", where));
    HW_RETURN_IF_ERROR(CheckRequired(schema, where));
    return strict_ ? CheckStrict(schema, where) : Status::Ok();
  }

  Status CheckRequired(const OrderedSchema& schema, const std::string& where) const {
    if (!schema.contains("required")) return Status::Ok();
    const OrderedSchema& required = schema["required"];
    if (!required.is_array()) return FailValue(where, "required", required, "a list of names");
    for (const OrderedSchema& name : required) {
      if (!name.is_string()) return FailValue(where, "required", name, "a name");
      const bool is_there = schema.contains("properties") && schema["properties"].contains(name.get<std::string>());
      if (!is_there) return Fail(where, fmt::format("required: {} is none of properties", Show(name)));
    }
    return Status::Ok();
  }

  static Status CheckStrict(const OrderedSchema& schema, const std::string& where) {
    if (!schema.contains("additionalProperties") || schema["additionalProperties"] != false) {
      return Fail(where, "additionalProperties: expected false, as strict schemas have it");
    }
    const OrderedSchema none = OrderedSchema::array();
    const OrderedSchema& required = schema.contains("required") ? schema["required"] : none;
    if (!schema.contains("properties")) return Status::Ok();
    for (const auto& [name, value] : schema["properties"].items()) {
      if (std::ranges::find(required, OrderedSchema(name)) != required.end()) continue;
      return Fail(where, fmt::format("required: lacks {}, expected every property, as strict schemas have it",
                                     Show(OrderedSchema(name))));
    }
    return Status::Ok();
  }

  static Status CheckCount(const OrderedSchema& schema, const char* key, const std::string& where) {
    if (!schema.contains(key)) return Status::Ok();
    const OrderedSchema& value = schema[key];
    const bool is_count = value.is_number_integer() && value >= 0 && value <= kMaxLength;
    return is_count ? Status::Ok() : FailValue(where, key, value, fmt::format("0 to {}", kMaxLength));
  }

  Status VisitArray(OrderedSchema& schema, const std::string& where, int depth) {
    if (schema.contains("items")) {
      if (schema["items"].is_array()) return FailValue(where, "items", schema["items"], "a schema, or prefixItems");
      HW_RETURN_IF_ERROR(Visit(schema["items"], where + "/items", depth + 1));
    } else if (!schema.contains("prefixItems")) {
      schema["items"] = true;
    }
    if (schema.contains("prefixItems")) {
      OrderedSchema& items = schema["prefixItems"];
      if (!items.is_array()) return FailValue(where, "prefixItems", items, "a list of schemas");
      for (size_t i = 0; i < items.size(); ++i) {
        HW_RETURN_IF_ERROR(Visit(items[i], fmt::format("{}/prefixItems/{}", where, i), depth + 1));
      }
    }
    if (schema.contains("uniqueItems")) {
      if (schema["uniqueItems"] != false) return Fail(where, "uniqueItems: not supported");
      schema.erase("uniqueItems");
    }
    HW_RETURN_IF_ERROR(CheckCount(schema, "minItems", where));
    HW_RETURN_IF_ERROR(CheckCount(schema, "maxItems", where));
    if (schema.value("minItems", int64_t{0}) <= schema.value("maxItems", kMaxLength)) return Status::Ok();
    return Fail(where, "minItems: is more than maxItems");
  }

  Status NotePattern(const std::string& pattern, const std::string& where) {
    if (pattern.size() > kMaxPatternBytes) {
      return Fail(where, fmt::format("pattern: has {} bytes, expected at most {}", pattern.size(), kMaxPatternBytes));
    }
    patterns_.insert(pattern);
    if (patterns_.size() > kMaxPatterns) {
      return Fail(where, fmt::format("pattern: there are more than {} different ones", kMaxPatterns));
    }
    const Status repetition = CheckRepetition(pattern, "pattern");
    return repetition.ok() ? repetition : Fail(where, repetition.message());
  }

  Status VisitString(const OrderedSchema& schema, const std::string& where) {
    HW_RETURN_IF_ERROR(CheckCount(schema, "minLength", where));
    HW_RETURN_IF_ERROR(CheckCount(schema, "maxLength", where));
    const auto least = schema.value("minLength", int64_t{0});
    const auto most = schema.value("maxLength", std::numeric_limits<int64_t>::max());
    const bool has_length = schema.contains("minLength") || schema.contains("maxLength");
    if (least > most) return Fail(where, "minLength: is more than maxLength");
    if (has_length) lengths_.emplace(least, most);
    if (lengths_.size() > kMaxLengths) {
      return Fail(where, fmt::format("maxLength: strings have more than {} different lengths", kMaxLengths));
    }
    for (const char* key : {"pattern", "format"}) {
      if (!schema.contains(key)) continue;
      const OrderedSchema& value = schema[key];
      if (!value.is_string()) return FailValue(where, key, value, "a text");
      if (has_length) return Fail(where, fmt::format("{}: beside minLength or maxLength: not supported", key));
    }
    if (schema.contains("pattern")) {
      if (schema.contains("format")) return Fail(where, "format: beside pattern: not supported");
      return NotePattern(schema["pattern"].get<std::string>(), where);
    }
    if (!schema.contains("format")) return Status::Ok();
    const auto format = schema["format"].get<std::string>();
    if (std::ranges::find(kFormats, format) != std::end(kFormats)) return Status::Ok();
    return FailValue(where, "format", schema["format"], fmt::format("{}", fmt::join(kFormats, ", ")));
  }

  static Status VisitNumber(const OrderedSchema& schema, const std::string& where, bool has_fractions) {
    for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
      if (!schema.contains(key)) continue;
      const OrderedSchema& value = schema[key];
      if (!value.is_number()) return FailValue(where, key, value, "a number");
      // As far as whole numbers are told apart.
      const double number = value.get<double>();
      if (!(number >= -9.0e15 && number <= 9.0e15)) return FailValue(where, key, value, "-9e15 to 9e15");
    }
    if (has_fractions && schema.contains("multipleOf")) {
      return Fail(where, "multipleOf: of numbers that may have fractions: not supported");
    }
    return Status::Ok();
  }

  // Whether there is a finite text: a part has one if what it cannot do without has. References begin without, and get
  // one as long as another of them can.
  Status CheckFinite() {
    bool has_changed = true;
    while (has_changed) {
      has_changed = false;
      for (const std::string& reference : references_) {
        if (finite_.contains(reference)) continue;
        const auto target = ResolveReference(root_, reference);
        // A place inside a value, or one that is gone since allOf was merged.
        if (!target.ok() || !visited_.contains(reference)) {
          return Fail("#", fmt::format("$ref: \"{}\": is no place where a schema stands", reference));
        }
        if (!IsFinite(**target)) continue;
        finite_.insert(reference);
        has_changed = true;
      }
    }
    if (IsFinite(root_)) return Status::Ok();
    return Fail("#", "no text satisfies it: a part of it needs itself, or one that is false");
  }

  bool IsFinite(const OrderedSchema& schema) const {
    if (schema.is_boolean()) return schema == true;
    if (schema.contains("$ref")) return finite_.contains(schema["$ref"].get<std::string>());
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema.contains(key)) continue;
      return std::ranges::any_of(schema[key], [&](const OrderedSchema& each) { return IsFinite(each); });
    }
    if (!schema.contains("type")) return true;
    const OrderedSchema& type = schema["type"];
    if (type.is_array() && type.size() > 1) return true;  // texts of another type
    const auto name = (type.is_array() ? type[0] : type).get<std::string>();
    if (name == "object" && schema.contains("required")) {
      return std::ranges::all_of(schema["required"], [&](const OrderedSchema& each) {
        return IsFinite(schema["properties"][each.get<std::string>()]);
      });
    }
    if (name != "array") return true;
    const auto least = schema.value("minItems", int64_t{0});
    const OrderedSchema none = OrderedSchema::array();
    const OrderedSchema& first = schema.contains("prefixItems") ? schema["prefixItems"] : none;
    for (size_t i = 0; i < first.size() && static_cast<int64_t>(i) < least; ++i) {
      if (!IsFinite(first[i])) return false;
    }
    return least <= static_cast<int64_t>(first.size()) || !schema.contains("items") || IsFinite(schema["items"]);
  }

  OrderedSchema& root_;
  const OrderedSchema original_;  // as it was: references lead into it
  bool strict_;
  int64_t num_parts_ = 0;
  int64_t num_values_ = 0;
  size_t value_bytes_ = 0;
  std::set<std::string> visited_;  // as references name them
  std::set<std::string> references_;
  std::set<std::string> finite_;  // of these, with a finite text
  std::set<std::string> patterns_;
  std::set<std::pair<int64_t, int64_t>> lengths_;
};

}  // namespace

Result<std::string> NormaliseSchema(std::string_view text, bool strict) {
  if (text.size() > kMaxBytes) {
    return Status::InvalidInput(fmt::format("schema: has {} bytes, expected at most {}", text.size(), kMaxBytes));
  }
  HW_ASSIGN_OR_RETURN(const Json json, ParseJsonUniqueKeys(text, "schema"));
  if (HasLongList(json)) {
    return Status::InvalidInput(fmt::format("schema: a list or an object has more than {} entries", kMaxParts));
  }
  OrderedSchema schema = OrderedSchema::parse(text, nullptr, false);
  HW_RETURN_IF_ERROR(Normaliser(schema, strict).Run());
  return schema.dump();
}

}  // namespace headwise
