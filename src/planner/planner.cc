#include "planner/planner.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/json.h"

namespace headwise {
namespace {

template <typename Number>
Result<Number> ParseNumber(const std::string& name, const std::string& text, Number lowest, Number highest) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= lowest && number <= highest)) {
    return Status::InvalidInput(
        fmt::format("--{}: found \"{}\", expected a number from {} to {}", name, text, lowest, highest));
  }
  return number;
}

}  // namespace

Result<std::string> PlannerOptions::Required(const std::string& name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return Status::InvalidInput(fmt::format("--{}: is missing", name));
  return it->second;
}

std::string PlannerOptions::StringOr(const std::string& name, const std::string& otherwise) const {
  const auto it = values_.find(name);
  return it == values_.end() ? otherwise : it->second;
}

Result<int64_t> PlannerOptions::IntOr(const std::string& name, int64_t otherwise, int64_t lowest,
                                      int64_t highest) const {
  return Has(name) ? ParseNumber<int64_t>(name, values_.at(name), lowest, highest) : Result<int64_t>(otherwise);
}

Result<double> PlannerOptions::DoubleOr(const std::string& name, double otherwise, double lowest,
                                        double highest) const {
  return Has(name) ? ParseNumber<double>(name, values_.at(name), lowest, highest) : Result<double>(otherwise);
}

Status PlannerOptions::CheckKnown(std::string_view method, std::span<const std::string_view> known) const {
  for (const auto& [name, value] : values_) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return Status::InvalidInput(
        fmt::format("--{}: plan {} does not have this option, expected --{}", name, method, fmt::join(known, ", --")));
  }
  return Status::Ok();
}

PlannerOptions PlannerOptions::Without(const std::string& name) const {
  PlannerOptions rest = *this;
  rest.values_.erase(name);
  return rest;
}

PlannerOptions PlannerOptions::With(const std::string& name, const std::string& value) const {
  PlannerOptions more = *this;
  more.values_[name] = value;
  return more;
}

std::string PlannerOptions::ToJson() const {
  return Json(values_).dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<HeadRule> StreamRuleFromOptions(const PlannerOptions& options, int64_t default_sink, int64_t default_recent) {
  constexpr int64_t kMaxTokens = int64_t{1} << 40;
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
