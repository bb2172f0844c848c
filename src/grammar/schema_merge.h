// allOf as one schema, where it is simple.
#ifndef HEADWISE_GRAMMAR_SCHEMA_MERGE_H_
#define HEADWISE_GRAMMAR_SCHEMA_MERGE_H_

#include <headwise/status.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace headwise {

using OrderedSchema = nlohmann::ordered_json;

// Whether a keyword says what is valid; all others describe, or are somebody's own.
bool IsKeyword(std::string_view name);
// What would say something that cannot be held to.
bool IsUnsupported(std::string_view keyword);
// By the type that they speak of: {"properties", "object"}, ...
std::span<const std::pair<std::string_view, std::string_view>> TypedKeywords();

// Where "#/..." leads in `root`. The message has no "where" in front.
Result<const OrderedSchema*> ResolveReference(const OrderedSchema& root, const std::string& reference);

// A schema with allOf as one without: its parts, references among them followed once, and what stands beside them.
// Properties and required names are put together; of other keywords two have to say the same.
Result<OrderedSchema> MergeAllOf(const OrderedSchema& root, const OrderedSchema& schema);

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_SCHEMA_MERGE_H_
