// The fields of a JSON request, read one by one: types and ranges are looked at, and what nobody has read is refused by
// name. The first thing that is wrong stays; what is read after it has no meaning.
#ifndef HEADWISE_SERVER_JSON_FIELDS_H_
#define HEADWISE_SERVER_JSON_FIELDS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "server/api_error.h"

namespace headwise {

// The object that a request's body holds. How deep it nests, how many values and how many keys it has is bounded before
// anything is built of it, because values take many times the memory of their text.
ApiResult<Json> ParseRequestBody(std::string_view body);

class JsonFields {
 public:
  // Borrows the object. `prefix` stands before names in messages: "stream_options.".
  explicit JsonFields(const Json& object, std::string prefix = {}) : object_(object), prefix_(std::move(prefix)) {}

  // Absent and null are the same: nothing.
  const Json* Find(const char* name);
  std::optional<bool> Bool(const char* name);
  std::optional<std::string> String(const char* name);
  std::optional<int64_t> Int(const char* name, int64_t least, int64_t most);
  std::optional<double> Number(const char* name, double least, double most);
  // An object, or nothing.
  const Json* Object(const char* name);

  // What would not change the answer.
  void Ignore(std::initializer_list<const char*> names);
  // Notes that `name` is not `expected`.
  void FailValue(const char* name, const Json& found, std::string_view expected);
  void Fail(const char* name, std::string_view message, std::string code = {});
  void Fail(ApiError error);
  // What OpenAI has and headwise does not.
  void NotYet(const char* name, std::string_view what);

  bool failed() const { return error_.has_value(); }
  // The first error; that of a field that nobody has read among them.
  std::optional<ApiError> Finish();

 private:
  const Json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  std::optional<ApiError> error_;
};

// A value as messages show it, cut where it is long.
std::string ShowJson(const Json& value);

}  // namespace headwise

#endif  // HEADWISE_SERVER_JSON_FIELDS_H_
