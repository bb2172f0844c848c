#include "output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "text/escape.h"

namespace headwise {
namespace {

// The errno of the first write that failed.
int g_error = 0;

void Remember(bool is_written) {
  if (!is_written && g_error == 0) g_error = errno;
}

}  // namespace

void KeepStandardFiles() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The other way round: what is written or read there must still fail, not vanish.
    static_cast<void>(::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

bool WriteOutput(std::string_view text) {
  Remember(std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0);
  return g_error == 0;
}

void PrintText(std::string_view text) {
  WriteOutput(EscapeControls(text));
}

Status CheckOutput() {
  if (g_error == 0) return Status::Ok();
  return Status::Io(fmt::format("standard output: cannot write: {}", std::strerror(g_error)));
}

Status PrintJson(const Json& json) {
  PrintText(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  return CheckOutput();
}

Status CloseOutput() {
  // The help texts of the parser go the way of std::cout, which ends in the same place.
  Remember(std::ferror(stdout) == 0 && std::fflush(stdout) == 0);
  Remember(::close(STDOUT_FILENO) == 0);
  return CheckOutput();
}

}  // namespace headwise
