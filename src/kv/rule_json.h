// Head rules as JSON (docs/head-plan.md). Plan files, hand-written rule tables and reports share this one reader and
// writer. It is not the plan file itself: that is kv/plan_io.cc.
#ifndef HEADWISE_KV_RULE_JSON_H_
#define HEADWISE_KV_RULE_JSON_H_

#include <headwise/head_plan.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace headwise {

// One rule. A key that is not known, or one that says nothing about such a rule, is an error: a policy option is never
// ignored. The result passes ValidateRule.
Result<HeadRule> ParseHeadRule(const Json& value, std::string_view origin);

// A table [L][Hkv] of rules, layer-major in the result; L and Hkv come from `shape`.
Result<std::vector<HeadRule>> ParseRuleTable(const Json& value, const ModelShape& shape, std::string_view origin);

// {"special": [ids], "punctuation": [ids]}; whether they are in order ValidatePlan says.
Result<TokenLists> ParseTokenLists(const Json& value, std::string_view origin);

// The rule as one line of JSON, with every key that its kind has. ParseHeadRule gives the same rule back.
// Requires: ValidateRule(rule).ok().
std::string FormatHeadRule(const HeadRule& rule);

// Shortest text that reads back as the same number: 1024, 0.125. Requires: finite.
std::string FormatNumber(double value);

// An error naming the first key of `object` that is not in `known`. Requires: object.is_object().
Status RefuseUnknownKeys(const Json& object, std::string_view origin, std::initializer_list<std::string_view> known);

}  // namespace headwise

#endif  // HEADWISE_KV_RULE_JSON_H_
