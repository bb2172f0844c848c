#include "base/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <vector>

#include "base/file.h"

namespace headwise {
namespace {

// Copying and printing a value recurse once per level, so a hostile file could exhaust the stack.
constexpr int kMaxDepth = 256;

bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

Result<Json> Parse(std::string_view text, std::string_view origin, const Json::parser_callback_t& on_event) {
  if (NestsTooDeep(text)) {
    return Status::InvalidInput(fmt::format("{}: JSON nested deeper than {} levels", origin, kMaxDepth));
  }
  try {
    return Json::parse(text, on_event);
  } catch (const nlohmann::json::exception& error) {
    return Status::InvalidInput(fmt::format("{}: not valid JSON: {}", origin, error.what()));
  }
}

}  // namespace

Result<Json> ParseJson(std::string_view text, std::string_view origin) {
  return Parse(text, origin, nullptr);
}

Result<Json> ParseJsonUniqueKeys(std::string_view text, std::string_view origin) {
  std::vector<std::set<std::string, std::less<>>> keys;  // of the objects that are open, outermost first
  std::optional<std::string> duplicate;
  HW_ASSIGN_OR_RETURN(Json json, Parse(text, origin, [&](int, Json::parse_event_t event, Json& parsed) {
                        if (event == Json::parse_event_t::object_start) keys.emplace_back();
                        if (event == Json::parse_event_t::object_end) keys.pop_back();
                        if (event != Json::parse_event_t::key) return true;
                        const auto& key = parsed.get_ref<const std::string&>();
                        if (!keys.back().insert(key).second && !duplicate) duplicate = key;
                        return true;
                      }));
  if (!duplicate) return json;
  return Status::InvalidInput(fmt::format("{}: \"{}\" stands there twice", origin, *duplicate));
}

Result<Json> ReadJsonFile(const std::string& path) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseJson(text, path);
}

Result<JsonObject> JsonObject::Of(const Json& value, std::string_view origin) {
  if (!value.is_object()) {
    return Status::InvalidInput(fmt::format("{}: found a JSON {}, expected an object", origin, value.type_name()));
  }
  return JsonObject(value, origin);
}

bool JsonObject::Has(const char* key) const {
  const auto it = object_->find(key);
  return it != object_->end() && !it->is_null();
}

bool JsonObject::Names(const char* key) const {
  return object_->contains(key);
}

Status JsonObject::ExpectOnly(std::span<const std::string_view> keys) const {
  for (const auto& [key, value] : object_->items()) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    return Status::InvalidInput(
        fmt::format("{}: key \"{}\" is unknown, expected one of: {}", origin_, key, fmt::join(keys, ", ")));
  }
  return Status::Ok();
}

Status JsonObject::Missing(const char* key) const {
  return Status::InvalidInput(fmt::format("{}: \"{}\" is missing", origin_, key));
}

Status JsonObject::WrongType(const char* key, const char* expected) const {
  std::string found = At(key).dump(-1, ' ', false, Json::error_handler_t::replace);
  if (found.size() > 60) found = found.substr(0, 57) + "...";
  return Status::InvalidInput(fmt::format("{}: \"{}\" is {}, expected {}", origin_, key, found, expected));
}

Result<int64_t> JsonObject::Int(const char* key) const {
  if (!Has(key)) return Missing(key);
  const Json& value = At(key);
  // 4096.0 is how some writers spell a whole number.
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::nearbyint(number) != number || std::abs(number) > 9.0e15) return WrongType(key, "a whole number");
    return static_cast<int64_t>(number);
  }
  if (!value.is_number_integer()) return WrongType(key, "a whole number");
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return WrongType(key, "a whole number below 2^63");
  }
  return value.get<int64_t>();
}

Result<double> JsonObject::Double(const char* key) const {
  if (!Has(key)) return Missing(key);
  const Json& value = At(key);
  if (!value.is_number()) return WrongType(key, "a number");
  const double number = value.get<double>();
  if (!std::isfinite(number)) return WrongType(key, "a finite number");
  return number;
}

Result<bool> JsonObject::Bool(const char* key) const {
  if (!Has(key)) return Missing(key);
  if (!At(key).is_boolean()) return WrongType(key, "true or false");
  return At(key).get<bool>();
}

Result<std::string> JsonObject::String(const char* key) const {
  if (!Has(key)) return Missing(key);
  if (!At(key).is_string()) return WrongType(key, "a string");
  return At(key).get<std::string>();
}

Result<JsonObject> JsonObject::Object(const char* key) const {
  if (!Has(key)) return Missing(key);
  return Of(At(key), fmt::format("{}: \"{}\"", origin_, key));
}

Result<std::vector<double>> JsonObject::Doubles(const char* key) const {
  if (!Has(key)) return Missing(key);
  const Json& list = At(key);
  if (!list.is_array()) return WrongType(key, "a list of numbers");
  std::vector<double> numbers;
  for (const Json& value : list) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) return WrongType(key, "a list of finite numbers");
    numbers.push_back(value.get<double>());
  }
  return numbers;
}

Result<int64_t> JsonObject::IntOr(const char* key, int64_t otherwise) const {
  return Has(key) ? Int(key) : Result<int64_t>(otherwise);
}
Result<double> JsonObject::DoubleOr(const char* key, double otherwise) const {
  return Has(key) ? Double(key) : Result<double>(otherwise);
}
Result<bool> JsonObject::BoolOr(const char* key, bool otherwise) const {
  return Has(key) ? Bool(key) : Result<bool>(otherwise);
}
Result<std::string> JsonObject::StringOr(const char* key, std::string otherwise) const {
  return Has(key) ? String(key) : Result<std::string>(std::move(otherwise));
}

}  // namespace headwise
