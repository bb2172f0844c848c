// HW_CHECK: for our own mistakes. Prints the condition, the place and the given values, then aborts. It must not be
// reachable from any input: input errors are a Status (headwise/status.h), and the fuzzers hunt for the difference.
#ifndef HEADWISE_BASE_CHECK_H_
#define HEADWISE_BASE_CHECK_H_

#include <fmt/format.h>

#include <string>

namespace headwise {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line, const std::string& message);
}  // namespace headwise

// HW_CHECK(a == b, "a {} b {}", a, b)
#define HW_CHECK(condition, ...)                                                              \
  do {                                                                                        \
    if (!(condition)) [[unlikely]]                                                            \
      ::headwise::CheckFailed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)

#endif  // HEADWISE_BASE_CHECK_H_
