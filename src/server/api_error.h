// Errors as clients of OpenAI's API know them: a status and {"error": {"message", "type", "param", "code"}}.
#ifndef HEADWISE_SERVER_API_ERROR_H_
#define HEADWISE_SERVER_API_ERROR_H_

#include <headwise/status.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "server/http.h"

namespace headwise {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field that it is about; empty: null
  std::string code = {};   // for programs; empty: null
};

// A field of a request that is wrong: 400.
ApiError InvalidField(std::string param, std::string message, std::string code = {});
// What a status of the library means to a client: his mistake is a 400, what the machine lacks now a 503.
ApiError ToApiError(const Status& status);
// Of a request that was refused before it began. Memory that it could never have is the client's mistake then: he can
// ask for less.
ApiError RefusedError(const Status& status);

// "invalid_request_error", "authentication_error", ...: what clients sort errors by, from the status.
std::string_view ErrorType(int status);

nlohmann::ordered_json ErrorJson(const ApiError& error);
HttpResponse ErrorResponse(const ApiError& error);
// HttpServerOptions::error_body.
std::string CarrierErrorBody(int status, std::string_view message);

// A T or the error that the client is told. Works with HW_ASSIGN_OR_RETURN and HW_RETURN_IF_ERROR, whose Status becomes
// what ToApiError makes of it.
template <typename T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : value_(std::move(value)) {}                 // NOLINT: implicit, as Result's
  ApiResult(ApiError error) : error_(std::move(error)) {}          // NOLINT: the same
  ApiResult(const Status& status) : error_(ToApiError(status)) {}  // NOLINT: the same

  bool ok() const { return value_.has_value(); }
  const ApiError& status() const& { return error_; }
  ApiError&& status() && { return std::move(error_); }

  // Requires: ok().
  T& value() & { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  ApiError error_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_API_ERROR_H_
