#include "server/api_error.h"

namespace headwise {

ApiError InvalidField(std::string param, std::string message, std::string code) {
  return {.status = 400, .message = std::move(message), .param = std::move(param), .code = std::move(code)};
}

ApiError ToApiError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      break;  // no error at all: ours to mend
    case StatusCode::kInvalidInput:
      return {.status = 400, .message = status.message()};
    case StatusCode::kNotFound:
      return {.status = 404, .message = status.message()};
    case StatusCode::kUnsupported:
      return {.status = 400, .message = status.message(), .code = "unsupported"};
    case StatusCode::kOutOfMemory:
      return {.status = 503, .message = status.message(), .code = "out_of_memory"};
    case StatusCode::kCancelled:
      return {.status = 503, .message = "the server is shutting down", .code = "shutting_down"};
    case StatusCode::kIo:
      break;
  }
  return {.status = 500, .message = status.message()};
}

ApiError RefusedError(const Status& status) {
  ApiError error = ToApiError(status);
  if (status.code() == StatusCode::kOutOfMemory) {
    error.status = 400;
    error.code = "kv_limit_exceeded";
  }
  return error;
}

std::string_view ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

nlohmann::ordered_json ErrorJson(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return {{"error",
           {{"message", error.message},
            {"type", ErrorType(error.status)},
            {"param", text_or_null(error.param)},
            {"code", text_or_null(error.code)}}}};
}

HttpResponse ErrorResponse(const ApiError& error) {
  // Messages quote what came in, which may be no UTF-8.
  HttpResponse response{.status = error.status,
                        .body = ErrorJson(error).dump(-1, ' ', false, Json::error_handler_t::replace)};
  if (error.status == 401) response.fields.push_back({"WWW-Authenticate", "Bearer"});
  if (error.status == 429 || error.status == 503) response.fields.push_back({"Retry-After", "1"});
  return response;
}

std::string CarrierErrorBody(int status, std::string_view message) {
  return ErrorResponse({.status = status, .message = std::string(message)}).body;
}

}  // namespace headwise
