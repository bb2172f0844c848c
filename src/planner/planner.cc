#include "planner/planner.h"

#include <fmt/format.h>

#include <cmath>

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;

}  // namespace

Status CheckReportedTokens(const char* key, double value) {
  if (value >= 1 && value <= static_cast<double>(kMaxTokens) && std::trunc(value) == value) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("report: \"{}\" has {}, expected whole numbers of tokens, 1 to {}", key, value, kMaxTokens));
}

Result<HeadRule> StreamRuleFromOptions(const NamedOptions& options, int64_t default_sink, int64_t default_recent) {
  HeadRule rule = HeadRule::Stream(0, 1);
  HW_ASSIGN_OR_RETURN(rule.sink, options.IntOr("sink", default_sink, 0, kMaxTokens));
  HW_ASSIGN_OR_RETURN(rule.recent, options.IntOr("recent", default_recent, 0, kMaxTokens));
  const auto choice = [&](const char* name, const char* first, const char* second) -> Result<bool> {
    const std::string value = options.StringOr(name, first);
    if (value == first || value == second) return value == second;
    return Status::InvalidInput(fmt::format("--{}: found \"{}\", expected {} or {}", name, value, first, second));
  };
  HW_ASSIGN_OR_RETURN(const bool in_cache, choice("positions", "text", "cache"));
  HW_ASSIGN_OR_RETURN(const bool from_end, choice("from", "first_token", "end_of_prompt"));
  HW_ASSIGN_OR_RETURN(rule.compensate, choice("compensate", "false", "true"));
  if (in_cache) rule.positions = Positions::kCache;
  if (from_end) rule.start = RuleStart::kEndOfPrompt;
  HW_RETURN_IF_ERROR(ValidateRule(rule));
  return rule;
}

}  // namespace headwise
