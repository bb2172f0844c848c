// Typed access to the metadata of a GGUF file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "weights/gguf.h"
#include "weights/gguf_format.h"

namespace headwise {
namespace {

template <typename T>
constexpr bool kIsList = false;
template <typename T>
constexpr bool kIsList<std::vector<T>> = true;

// "5 (u32)", "an array of 7 (string)".
std::string Describe(const GgufValue& value) {
  const std::string held = std::visit(
      [](const auto& v) {
        using Held = std::decay_t<decltype(v)>;
        if constexpr (kIsList<Held>) {
          return fmt::format("an array of {}", v.size());
        } else if constexpr (std::is_same_v<Held, std::string>) {
          return GgufQuoted(v);
        } else {
          return fmt::format("{}", v);
        }
      },
      value.value);
  return fmt::format("{} ({})", held, NameOf(value.type));
}

Status WrongValue(const GgufMetadata& metadata, std::string_view key, const GgufValue& value, const char* expected) {
  return Status::InvalidInput(
      fmt::format("{}: {} is {}, expected {}", metadata.origin(), GgufQuoted(key), Describe(value), expected));
}

Result<const GgufValue*> Find(const GgufMetadata& metadata, std::string_view key) {
  const auto it = metadata.values().find(key);
  if (it != metadata.values().end()) return &it->second;
  return Status::InvalidInput(fmt::format("{}: {} is missing", metadata.origin(), GgufQuoted(key)));
}

// What the key holds, borrowed; `expected` is how messages call a T.
template <typename T>
Result<const T*> GetAs(const GgufMetadata& metadata, std::string_view key, const char* expected) {
  HW_ASSIGN_OR_RETURN(const GgufValue* value, Find(metadata, key));
  const T* held = std::get_if<T>(&value->value);
  if (held != nullptr) return held;
  return WrongValue(metadata, key, *value, expected);
}

}  // namespace

Result<int64_t> GgufMetadata::Int(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const int64_t* number, GetAs<int64_t>(*this, key, "a whole number"));
  return *number;
}

Result<double> GgufMetadata::Double(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const GgufValue* value, Find(*this, key));
  if (const auto* integer = std::get_if<int64_t>(&value->value)) return static_cast<double>(*integer);
  const auto* number = std::get_if<double>(&value->value);
  if (number == nullptr || !std::isfinite(*number)) return WrongValue(*this, key, *value, "a finite number");
  return *number;
}

Result<std::string> GgufMetadata::String(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const std::string* text, GetAs<std::string>(*this, key, "a string"));
  return *text;
}

Result<std::span<const int64_t>> GgufMetadata::Ints(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const auto* list, GetAs<std::vector<int64_t>>(*this, key, "an array of whole numbers"));
  return std::span<const int64_t>(*list);
}

Result<std::span<const double>> GgufMetadata::Doubles(std::string_view key) const {
  constexpr const char* kExpected = "an array of finite floats";
  HW_ASSIGN_OR_RETURN(const auto* list, GetAs<std::vector<double>>(*this, key, kExpected));
  const auto bad = std::find_if(list->begin(), list->end(), [](double number) { return !std::isfinite(number); });
  if (bad == list->end()) return std::span<const double>(*list);
  return Status::InvalidInput(
      fmt::format("{}: {} has {} at {}, expected {}", origin_, GgufQuoted(key), *bad, bad - list->begin(), kExpected));
}

Result<std::span<const std::string>> GgufMetadata::Strings(std::string_view key) const {
  HW_ASSIGN_OR_RETURN(const auto* list, GetAs<std::vector<std::string>>(*this, key, "an array of strings"));
  return std::span<const std::string>(*list);
}

Result<int64_t> GgufMetadata::IntOr(std::string_view key, int64_t otherwise) const {
  return Has(key) ? Int(key) : Result<int64_t>(otherwise);
}
Result<double> GgufMetadata::DoubleOr(std::string_view key, double otherwise) const {
  return Has(key) ? Double(key) : Result<double>(otherwise);
}
Result<bool> GgufMetadata::BoolOr(std::string_view key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  HW_ASSIGN_OR_RETURN(const bool* held, GetAs<bool>(*this, key, "true or false"));
  return *held;
}
Result<std::string> GgufMetadata::StringOr(std::string_view key, std::string otherwise) const {
  return Has(key) ? String(key) : Result<std::string>(std::move(otherwise));
}

}  // namespace headwise
