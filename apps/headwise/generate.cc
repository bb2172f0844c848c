#include "generate.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace headwise {
namespace {

// A signal handler can only reach a global.
volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_pipe = -1;

// On whichever thread the system picks: a wait in another is not interrupted by it, but sees the pipe.
void NoteInterrupt(int number) {
  // The other signal came before: by now this one's handler is its usual one again.
  if (g_interrupted != 0) std::raise(number);
  g_interrupted = 1;
  const int error = errno;
  const char byte = 0;
  // One is enough; where it cannot be written, the pipe has one.
  if (g_pipe >= 0) [[maybe_unused]]
    const auto num_written = ::write(g_pipe, &byte, 1);
  errno = error;
}

}  // namespace

InterruptGuard::InterruptGuard(Signals signals) : signals_(signals) {
  if (::pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0) pipe_[0] = pipe_[1] = -1;
  g_pipe = pipe_[1];
  Await();
}

void InterruptGuard::Await() {
  g_interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = NoteInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  if (signals_ == Signals::kInterruptAndTermination) sigaction(SIGTERM, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
  if (signals_ == Signals::kInterruptAndTermination) std::signal(SIGTERM, SIG_DFL);
  g_pipe = -1;
  for (const int fd : pipe_) {
    if (fd >= 0) ::close(fd);
  }
}

void InterruptGuard::Forget() {
  // Until a handler is there again nothing is written.
  for (char byte = 0; pipe_[0] >= 0 && ::read(pipe_[0], &byte, 1) == 1;) {
  }
  if (interrupted()) Await();
}

bool InterruptGuard::interrupted() const {
  return g_interrupted != 0;
}

Result<RequestResult> Generate(Engine& engine, Request request, const InterruptGuard& guard) {
  HW_ASSIGN_OR_RETURN(const RequestId id, engine.Submit(std::move(request)));
  bool is_cancelled = false;
  while (engine.Peek(id)->finish == FinishReason::kRunning) {
    if (guard.interrupted() && !is_cancelled) {
      engine.Cancel(id);
      is_cancelled = true;
    }
    const Result<bool> step = engine.Step();
    if (!step.ok()) {
      static_cast<void>(engine.Take(id));
      return step.status();
    }
  }
  HW_ASSIGN_OR_RETURN(RequestResult result, engine.Take(id));
  HW_RETURN_IF_ERROR(result.status);
  return result;
}

}  // namespace headwise
