#include "lost_mapping.h"

#include <unistd.h>

#include <csignal>
#include <cstring>

#include "base/file.h"

namespace headwise {
namespace {

constexpr int kInputError = 1;

// Nothing here may allocate or take a lock: the signal comes in the middle of anything.
void Print(const char* text) {
  // Nobody is left who could be told of a failure.
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;
}

void OnBusError(int signal, siginfo_t* info, void* /*context*/) {
  const char* path = PathOfMapping(info->si_addr);
  if (path == nullptr) {
    // No file of ours: what happens without a handler.
    std::signal(signal, SIG_DFL);
    return;
  }
  Print("headwise: error: ");
  Print(path);
  Print(
      ": has become shorter or unreadable while it was in use, expected it to stay as it was (--no-mmap reads "
      "weights into memory first)\n");
  ::_exit(kInputError);
}

}  // namespace

void ReportLostMappings() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace headwise
