#include "generate.h"

#include <csignal>
#include <utility>

namespace headwise {
namespace {

// A signal handler can only reach a global.
volatile std::sig_atomic_t g_interrupted = 0;

void NoteInterrupt(int) {
  g_interrupted = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  g_interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = NoteInterrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
}

bool InterruptGuard::interrupted() const {
  return g_interrupted != 0;
}

Result<RequestResult> Generate(Engine& engine, Request request) {
  const InterruptGuard guard;
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

const char* FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning:
      return "running";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kEos:
      return "eos";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

}  // namespace headwise
