// Status and Result<T>: how every headwise call reports someone else's mistake (a file, a flag, a request, a full
// disk). A message says where, what was found and what was expected. Our own mistakes abort instead: base/check.h. No
// exception leaves the library.
#ifndef HEADWISE_STATUS_H_
#define HEADWISE_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace headwise {

enum class StatusCode {
  kOk = 0,
  kInvalidInput,  // a file, flag or request says something that cannot be
  kNotFound,      // a file, tensor or name that should exist does not
  kIo,            // the operating system refused to read or write
  kOutOfMemory,   // it would not fit under the KV limit; nothing was started
  kUnsupported,   // well formed, but this build or backend cannot do it
  kCancelled,     // the caller asked to stop
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }
  static Status InvalidInput(std::string message) { return {StatusCode::kInvalidInput, std::move(message)}; }
  static Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
  static Status Io(std::string message) { return {StatusCode::kIo, std::move(message)}; }
  static Status OutOfMemory(std::string message) { return {StatusCode::kOutOfMemory, std::move(message)}; }
  static Status Unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }
  static Status Cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with "where: " in front; an OK status stays as it is.
  Status Annotate(std::string_view where) && {
    if (!ok()) message_ = std::string(where) + ": " + message_;
    return std::move(*this);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A T or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit, so that `return value;` works
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit, so that `return Status::...;` works

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }

  // Requires: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace headwise

// Leaves the enclosing function with the error, if there is one.
#define HW_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                     \
    if (::headwise::Status hw_status_ = (expression); !hw_status_.ok()) return hw_status_; \
  } while (false)

// HW_ASSIGN_OR_RETURN(const auto plan, ReadHeadPlan(path)): declares `plan`, or leaves with the error.
#define HW_STATUS_CONCAT_INNER_(a, b) a##b
#define HW_STATUS_CONCAT_(a, b) HW_STATUS_CONCAT_INNER_(a, b)
#define HW_ASSIGN_OR_RETURN(declaration, expression) \
  HW_ASSIGN_OR_RETURN_IMPL_(HW_STATUS_CONCAT_(hw_result_, __LINE__), declaration, expression)
#define HW_ASSIGN_OR_RETURN_IMPL_(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) return std::move(result).status();             \
  declaration = std::move(result).value()

#endif  // HEADWISE_STATUS_H_
