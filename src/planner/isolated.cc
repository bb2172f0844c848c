#include "planner/isolated.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace headwise {
namespace {

Status Refused(const char* what) {
  return Status::Io(fmt::format("cannot start a process of its own: {}: {}", what, std::strerror(errno)));
}

bool WriteAll(int fd, const std::string& text) {
  for (size_t begin = 0; begin < text.size();) {
    const ssize_t written = write(fd, text.data() + begin, text.size() - begin);
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) begin += static_cast<size_t>(written);
  }
  return true;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t num_read = read(fd, buffer, sizeof buffer);
    if (num_read == 0 || (num_read < 0 && errno != EINTR)) return text;
    if (num_read > 0) text.append(buffer, static_cast<size_t>(num_read));
  }
}

// Leaves no trace of a death that is expected: no message, no core file, no clean-up of what the parent still uses.
[[noreturn]] void RunChild(int fd, const std::function<std::string()>& work) {
  const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) dup2(nowhere, STDERR_FILENO);
  _exit(WriteAll(fd, work()) ? 0 : 1);
}

}  // namespace

Result<std::optional<std::string>> RunIsolated(const std::function<std::string()>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Refused("pipe");
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return Refused("fork");
  }
  if (child == 0) {
    close(ends[0]);
    RunChild(ends[1], work);
  }
  close(ends[1]);
  std::string text = ReadAll(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::optional<std::string>();
  return std::optional<std::string>(std::move(text));
}

}  // namespace headwise
