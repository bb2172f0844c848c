#include "server/json_fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace headwise {
namespace {

// A prompt of ids is the longest list that has a use.
constexpr int64_t kMaxValues = int64_t{4} << 20;
constexpr size_t kMaxDepth = 64;
// An ordered object looks through its keys for each new one. logit_bias may name so many ids.
constexpr int64_t kMaxKeyPairs = int64_t{16384} * 16384;

// Counts values and keys without building them. Of text that is no JSON any count will do: the parser refuses it.
class SizeCounter {
 public:
  // What is too large, or nothing.
  std::optional<std::string> Count(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (c == '"') {
        for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      } else if (c == '{' || c == '[') {
        if (keys_.size() == kMaxDepth) return fmt::format("nests deeper than {} levels", kMaxDepth);
        keys_.push_back(0);
        ++num_values_;
      } else if (c == '}' || c == ']') {
        if (!keys_.empty()) Close();
      } else if (c == ',') {
        ++num_values_;
      } else if (c == ':') {
        if (!keys_.empty()) ++keys_.back();
      }
      if (num_values_ > kMaxValues) return fmt::format("has more than {} values", kMaxValues);
      if (num_pairs_ > kMaxKeyPairs) return std::string("has too many keys in its objects");
    }
    while (!keys_.empty()) Close();
    if (num_pairs_ > kMaxKeyPairs) return std::string("has too many keys in its objects");
    return std::nullopt;
  }

 private:
  void Close() {
    num_pairs_ += keys_.back() * keys_.back();
    keys_.pop_back();
  }

  std::vector<int64_t> keys_;  // of what is open, outermost first
  int64_t num_values_ = 0;
  int64_t num_pairs_ = 0;
};

}  // namespace

ApiResult<Json> ParseRequestBody(std::string_view body) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return InvalidField({}, "body: is empty, expected a JSON object");
  }
  if (const auto too_large = SizeCounter().Count(body)) {
    return InvalidField({}, fmt::format("body: {}, expected less", *too_large));
  }
  HW_ASSIGN_OR_RETURN(Json json, ParseJsonUniqueKeys(body, "body"));
  if (json.is_object()) return json;
  return InvalidField({}, fmt::format("body: found a JSON {}, expected an object", json.type_name()));
}

std::string ShowJson(const Json& value) {
  // Only the beginning of what is long is of use, and of what is large not even that is cheap.
  if (value.is_structured() && value.size() > 16)
    return fmt::format("a JSON {} of {}", value.type_name(), value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

const Json* JsonFields::Find(const char* name) {
  known_.emplace(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<bool> JsonFields::Bool(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  FailValue(name, *value, "true or false");
  return std::nullopt;
}

std::optional<std::string> JsonFields::String(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  FailValue(name, *value, "a string");
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Int(const char* name, int64_t least, int64_t most) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  std::optional<int64_t> number;
  if (value->is_number_unsigned()) {
    const auto unsigned_number = value->get<uint64_t>();
    if (unsigned_number <= uint64_t{std::numeric_limits<int64_t>::max()}) number = value->get<int64_t>();
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float()) {
    // 16.0 is how some languages write a whole number.
    const double real = value->get<double>();
    if (std::nearbyint(real) == real && std::abs(real) < 9.0e15) number = static_cast<int64_t>(real);
  }
  if (number && *number >= least && *number <= most) return number;
  FailValue(name, *value, fmt::format("a whole number from {} to {}", least, most));
  return std::nullopt;
}

std::optional<double> JsonFields::Number(const char* name, double least, double most) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (number >= least && number <= most) return number;
  FailValue(name, *value, fmt::format("a number from {} to {}", least, most));
  return std::nullopt;
}

const Json* JsonFields::Object(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr || value->is_object()) return value;
  FailValue(name, *value, "an object");
  return nullptr;
}

void JsonFields::Ignore(std::initializer_list<const char*> names) {
  for (const char* name : names) known_.emplace(name);
}

void JsonFields::FailValue(const char* name, const Json& found, std::string_view expected) {
  if (!error_) Fail(name, fmt::format("is {}, expected {}", ShowJson(found), expected));
}

void JsonFields::Fail(const char* name, std::string_view message, std::string code) {
  const std::string param = prefix_ + name;
  Fail(InvalidField(param, fmt::format("{}: {}", param, message), std::move(code)));
}

void JsonFields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void JsonFields::NotYet(const char* name, std::string_view what) {
  Fail(name, fmt::format("{}: not supported yet", what), "unsupported");
}

std::optional<ApiError> JsonFields::Finish() {
  for (auto it = object_.begin(); it != object_.end() && !error_; ++it) {
    if (known_.contains(it.key())) continue;
    const std::string param = prefix_ + it.key().substr(0, 60);
    // As OpenAI says it.
    Fail(InvalidField(param, fmt::format("Unrecognized request argument supplied: {}", param)));
  }
  return error_;
}

}  // namespace headwise
