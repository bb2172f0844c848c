#include "base/no_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/format_bytes.h"

namespace headwise {
namespace {

// Short enough to lie within the string itself.
Status Short(StatusCode code) {
  return {code, "out of memory"};
}

}  // namespace

NoMemory::NoMemory(size_t bytes, const char* purpose) noexcept {
  char* end = text_;
  try {
    end = fmt::format_to_n(text_, sizeof(text_) - 1, "could not allocate {} for {}",
                           FormatBytes(static_cast<int64_t>(bytes)), purpose)
              .out;
  } catch (const std::exception&) {  // what is there so far must do
  }
  *end = '\0';
}

Status NoMemoryStatus(const std::bad_alloc& error, const char* purpose) noexcept {
  try {
    const auto* known = dynamic_cast<const NoMemory*>(&error);
    if (known != nullptr) return Status::OutOfMemory(known->what());
    return Status::OutOfMemory(fmt::format("could not allocate memory for {}", purpose));
  } catch (const std::bad_alloc&) {
    return Short(StatusCode::kOutOfMemory);
  }
}

Status CopyOf(const Status& status) noexcept {
  try {
    return status;
  } catch (const std::bad_alloc&) {
    return Short(status.code());
  }
}

}  // namespace headwise
