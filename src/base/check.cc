#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace headwise {

void CheckFailed(const char* condition, const char* file, int line, const std::string& message) {
  std::fprintf(stderr, "headwise: internal error at %s:%d: %s%s%s\n", file, line, condition,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace headwise
