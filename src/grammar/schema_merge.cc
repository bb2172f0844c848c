#include "grammar/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace headwise {
namespace {

// Parts of parts, and references to them.
constexpr int kMaxMergeDepth = 16;
constexpr int kMaxMergeParts = 256;

// Besides those of one type.
constexpr std::string_view kGeneral[] = {"type",  "$ref",  "const", "enum",       "anyOf",
                                         "oneOf", "allOf", "$defs", "definitions"};
constexpr std::string_view kUnsupported[] = {"not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "dependencies",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "unevaluatedProperties",
                                             "unevaluatedItems",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "additionalItems",
                                             "nullable"};
using Typed = std::pair<std::string_view, std::string_view>;
constexpr Typed kKeywordTypes[] = {{"properties", "object"},
                                   {"required", "object"},
                                   {"additionalProperties", "object"},
                                   {"patternProperties", "object"},
                                   {"propertyNames", "object"},
                                   {"minProperties", "object"},
                                   {"maxProperties", "object"},
                                   {"items", "array"},
                                   {"prefixItems", "array"},
                                   {"minItems", "array"},
                                   {"maxItems", "array"},
                                   {"uniqueItems", "array"},
                                   {"minLength", "string"},
                                   {"maxLength", "string"},
                                   {"pattern", "string"},
                                   {"format", "string"},
                                   {"minimum", "number"},
                                   {"maximum", "number"},
                                   {"exclusiveMinimum", "number"},
                                   {"exclusiveMaximum", "number"},
                                   {"multipleOf", "number"}};

Status MergeKeyword(const std::string& key, const OrderedSchema& value, OrderedSchema& into) {
  if (!into.contains(key)) {
    into[key] = value;
    return Status::Ok();
  }
  OrderedSchema& there = into[key];
  if (key == "properties" && value.is_object() && there.is_object()) {
    for (const auto& [name, property] : value.items()) {
      if (there.contains(name) && there[name] != property) {
        return Status::InvalidInput(
            fmt::format("allOf: property \"{}\" stands in two parts, expected it in one", name));
      }
      there[name] = property;
    }
    return Status::Ok();
  }
  if (key == "required" && value.is_array() && there.is_array()) {
    for (const OrderedSchema& name : value) {
      if (std::ranges::find(there, name) == there.end()) there.push_back(name);
    }
    return Status::Ok();
  }
  if (there == value) return Status::Ok();
  return Status::InvalidInput(fmt::format("allOf: two parts have {}, expected it in one", key));
}

Status MergeInto(const OrderedSchema& root, const OrderedSchema& part, int depth, int& num_parts, OrderedSchema& into) {
  if (depth == kMaxMergeDepth || ++num_parts > kMaxMergeParts) {
    return Status::InvalidInput(
        fmt::format("allOf: expected at most {} parts, and {} levels of them", kMaxMergeParts, kMaxMergeDepth));
  }
  if (part == true) return Status::Ok();
  if (!part.is_object()) {
    return Status::InvalidInput(fmt::format("allOf: a part is {}, expected an object", part.type_name()));
  }
  for (const auto& [key, value] : part.items()) {
    if (!IsKeyword(key) || (depth > 0 && (key == "$defs" || key == "definitions"))) continue;
    if (key == "allOf") {
      if (!value.is_array() || value.empty()) {
        return Status::InvalidInput("allOf: expected a list of at least one schema");
      }
      for (const OrderedSchema& each : value) {
        HW_RETURN_IF_ERROR(MergeInto(root, each, depth + 1, num_parts, into));
      }
    } else if (key == "$ref" && value.is_string()) {
      HW_ASSIGN_OR_RETURN(const OrderedSchema* target, ResolveReference(root, value.get<std::string>()));
      HW_RETURN_IF_ERROR(MergeInto(root, *target, depth + 1, num_parts, into));
    } else {
      HW_RETURN_IF_ERROR(MergeKeyword(key, value, into));
    }
  }
  return Status::Ok();
}

}  // namespace

bool IsKeyword(std::string_view name) {
  return std::ranges::find(kGeneral, name) != std::end(kGeneral) || IsUnsupported(name) ||
         std::ranges::find(kKeywordTypes, name, &Typed::first) != std::end(kKeywordTypes);
}

bool IsUnsupported(std::string_view keyword) {
  return std::ranges::find(kUnsupported, keyword) != std::end(kUnsupported);
}

std::span<const Typed> TypedKeywords() {
  return kKeywordTypes;
}

Result<const OrderedSchema*> ResolveReference(const OrderedSchema& root, const std::string& reference) {
  const OrderedSchema* at = &root;
  if (reference == "#") return at;
  if (!reference.starts_with("#/") || reference.find_first_of("~%") != std::string::npos) {
    return Status::InvalidInput(
        fmt::format("$ref: is \"{}\", expected \"#\" or a plain path inside the schema: \"#/$defs/name\"", reference));
  }
  for (size_t begin = 2; begin <= reference.size();) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    const std::string name = reference.substr(begin, end - begin);
    if (name.empty() || !at->is_object() || !at->contains(name)) {
      return Status::InvalidInput(fmt::format("$ref: \"{}\": the schema has no \"{}\" there", reference, name));
    }
    at = &(*at)[name];
    begin = end + 1;
  }
  return at;
}

Result<OrderedSchema> MergeAllOf(const OrderedSchema& root, const OrderedSchema& schema) {
  OrderedSchema merged = OrderedSchema::object();
  int num_parts = 0;
  HW_RETURN_IF_ERROR(MergeInto(root, schema, 0, num_parts, merged));
  const size_t num_said = schema["allOf"].size() + (schema.contains("properties") ? 1 : 0);
  if (num_said > 1 && merged.contains("additionalProperties") && merged["additionalProperties"] == false) {
    return Status::InvalidInput(
        "allOf: a part has \"additionalProperties\": false, which forbids the properties of the others");
  }
  return merged;
}

}  // namespace headwise
