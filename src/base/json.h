// JSON reading with errors in our own words: every getter says which file, which key, what was found and what was
// expected. nlohmann-json does the parsing; its exceptions stop here.
#ifndef HEADWISE_BASE_JSON_H_
#define HEADWISE_BASE_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

namespace headwise {

using Json = nlohmann::json;

// `origin` is the file's name, or what else the text came from; it opens every message.
Result<Json> ParseJson(std::string_view text, std::string_view origin);
// The same, and a key that stands twice in an object is an error: the last must not silently win.
Result<Json> ParseJsonUniqueKeys(std::string_view text, std::string_view origin);
Result<Json> ReadJsonFile(const std::string& path);

// One JSON object being read. Borrows the object; `origin` is copied.
class JsonObject {
 public:
  // An error if `value` is not an object.
  static Result<JsonObject> Of(const Json& value, std::string_view origin);

  const std::string& origin() const { return origin_; }
  const Json& json() const { return *object_; }
  // Absent and null are the same: most published configs write null for "not set".
  bool Has(const char* key) const;
  // True for null too, for the few keys where an absent one has a default and null says "none".
  bool Names(const char* key) const;
  // An error that names a key which is none of `keys`.
  Status ExpectOnly(std::span<const std::string_view> keys) const;
  // Requires: Has(key).
  const Json& At(const char* key) const { return *object_->find(key); }

  // Required values: absent, of another type, out of int64 range or not finite is an error.
  Result<int64_t> Int(const char* key) const;
  Result<double> Double(const char* key) const;
  Result<bool> Bool(const char* key) const;
  Result<std::string> String(const char* key) const;
  Result<JsonObject> Object(const char* key) const;
  Result<std::vector<double>> Doubles(const char* key) const;  // a list of finite numbers

  // The same with a default for absent or null; a wrong type is still an error.
  Result<int64_t> IntOr(const char* key, int64_t otherwise) const;
  Result<double> DoubleOr(const char* key, double otherwise) const;
  Result<bool> BoolOr(const char* key, bool otherwise) const;
  Result<std::string> StringOr(const char* key, std::string otherwise) const;

 private:
  JsonObject(const Json& object, std::string_view origin) : object_(&object), origin_(origin) {}
  Status Missing(const char* key) const;
  Status WrongType(const char* key, const char* expected) const;

  const Json* object_;
  std::string origin_;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_JSON_H_
