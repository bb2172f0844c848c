#include "base/named_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/format_bytes.h"
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

Result<NamedOptions> NamedOptions::FromJson(std::string_view json, const std::string& origin) {
  HW_ASSIGN_OR_RETURN(const Json parsed, ParseJson(json, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(parsed, origin));
  NamedOptions options;
  for (const auto& [name, value] : parsed.items()) {
    HW_ASSIGN_OR_RETURN(options.values_[name], object.String(name.c_str()));
  }
  return options;
}

Result<std::string> NamedOptions::Required(const std::string& name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) return Status::InvalidInput(fmt::format("--{}: is missing", name));
  return it->second;
}

std::string NamedOptions::StringOr(const std::string& name, const std::string& otherwise) const {
  const auto it = values_.find(name);
  return it == values_.end() ? otherwise : it->second;
}

Result<int64_t> NamedOptions::IntOr(const std::string& name, int64_t otherwise, int64_t lowest, int64_t highest) const {
  return Has(name) ? ParseNumber<int64_t>(name, values_.at(name), lowest, highest) : Result<int64_t>(otherwise);
}

Result<double> NamedOptions::DoubleOr(const std::string& name, double otherwise, double lowest, double highest) const {
  return Has(name) ? ParseNumber<double>(name, values_.at(name), lowest, highest) : Result<double>(otherwise);
}

Result<int64_t> NamedOptions::BytesOr(const std::string& name, int64_t otherwise) const {
  if (!Has(name)) return otherwise;
  auto bytes = ParseBytes(values_.at(name));
  if (bytes.ok()) return bytes;
  return Status::InvalidInput(fmt::format("--{}: {}", name, bytes.status().message()));
}

std::vector<std::string> NamedOptions::StringsOr(const std::string& name, const std::string& otherwise) const {
  const std::string text = StringOr(name, otherwise);
  std::vector<std::string> parts;
  for (size_t begin = 0;;) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, comma - begin));
    if (comma == text.size()) return parts;
    begin = comma + 1;
  }
}

Result<std::vector<int64_t>> NamedOptions::IntsOr(const std::string& name, std::vector<int64_t> otherwise,
                                                  int64_t lowest, int64_t highest) const {
  if (!Has(name)) return otherwise;
  std::vector<int64_t> numbers;
  for (const std::string& part : StringsOr(name, "")) {
    HW_ASSIGN_OR_RETURN(const int64_t number, ParseNumber<int64_t>(name, part, lowest, highest));
    numbers.push_back(number);
  }
  return numbers;
}

Result<std::vector<int64_t>> NamedOptions::RisingIntsOr(const std::string& name, std::vector<int64_t> otherwise,
                                                        int64_t lowest, int64_t highest) const {
  HW_ASSIGN_OR_RETURN(std::vector<int64_t> numbers, IntsOr(name, std::move(otherwise), lowest, highest));
  for (size_t i = 1; i < numbers.size(); ++i) {
    if (numbers[i] > numbers[i - 1]) continue;
    return Status::InvalidInput(
        fmt::format("--{}: found {} after {}, expected rising numbers", name, numbers[i], numbers[i - 1]));
  }
  return numbers;
}

Result<std::string> NamedOptions::ChoiceOr(const std::string& name, std::span<const std::string_view> choices) const {
  const std::string value = StringOr(name, std::string(choices.front()));
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  return Status::InvalidInput(
      fmt::format("--{}: found \"{}\", expected one of: {}", name, value, fmt::join(choices, ", ")));
}

Status NamedOptions::CheckKnown(std::string_view command, std::span<const std::string_view> known) const {
  for (const auto& [name, value] : values_) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return Status::InvalidInput(
        fmt::format("--{}: {} does not have this option, expected --{}", name, command, fmt::join(known, ", --")));
  }
  return Status::Ok();
}

NamedOptions NamedOptions::Without(const std::string& name) const {
  NamedOptions rest = *this;
  rest.values_.erase(name);
  return rest;
}

NamedOptions NamedOptions::With(const std::string& name, const std::string& value) const {
  NamedOptions more = *this;
  more.values_[name] = value;
  return more;
}

std::string NamedOptions::ToJson() const {
  return Json(values_).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace headwise
