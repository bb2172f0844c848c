#include "calls.h"

#include <headwise/status.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "python_errors.h"

namespace nb = nanobind;

namespace headwise::python {
namespace {

// For calls to end when the process does. Those on engines end within a step; a planner's step and the loading of a
// model may take minutes, for which nobody waits who has left them to a daemon thread.
constexpr std::chrono::seconds kGrace(2);
// How long a wait lasts before signals are looked for.
constexpr std::chrono::milliseconds kSignalInterval(50);

struct Calls {
  std::mutex mutex;
  std::condition_variable changed;
  // All guarded by mutex.
  pid_t process = ::getpid();  // whose calls are counted
  int64_t num_under_way = 0;
  int64_t num_in_python = 0;  // of these, that wait for the GIL or have it
  bool are_refused = false;
  bool are_left = false;  // nobody waits for those that are not over
};

// It is never destroyed: threads come here while the process ends.
Calls& AllCalls() {
  static Calls& calls = [&]() -> Calls& {
    Calls& made = *new Calls;
    // A fork by another thread must not find it locked.
    ::pthread_atfork([] { AllCalls().mutex.lock(); }, [] { AllCalls().mutex.unlock(); },
                     [] { AllCalls().mutex.unlock(); });
    return made;
  }();
  return calls;
}

// Requires: calls.mutex is held.
void ForgetParentsCalls(Calls& calls) {
  if (calls.process == ::getpid()) return;
  calls.process = ::getpid();
  calls.num_under_way = calls.num_in_python = 0;
}

bool EnterPython() {
  Calls& calls = AllCalls();
  const std::lock_guard lock(calls.mutex);
  ForgetParentsCalls(calls);
  if (calls.are_left) return false;
  ++calls.num_in_python;
  return true;
}

// `entered`: the process in which it came there; `began`: that of the call which has ended with it. What a fork does
// not know it does not count.
void LeavePython(pid_t entered, std::optional<pid_t> began = std::nullopt) {
  Calls& calls = AllCalls();
  const std::lock_guard lock(calls.mutex);
  ForgetParentsCalls(calls);
  if (entered == calls.process) --calls.num_in_python;
  if (began == calls.process) --calls.num_under_way;
  calls.changed.notify_all();
}

// In place of destructors of what calls that are left still use: it runs before them.
void EndAtOnce(int status, void*) {
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace

Call BeginCall(AtTheEnd at_the_end) {
  const bool is_refused = AreCallsRefused();
  if (is_refused && at_the_end == AtTheEnd::kRefused) {
    Raise(Status::Cancelled("the process is ending, expected no more calls"));
  }
  Call call{.thread = nullptr, .process = ::getpid()};
  {
    Calls& calls = AllCalls();
    const std::lock_guard lock(calls.mutex);
    ForgetParentsCalls(calls);
    if (calls.are_left) return call;
    ++calls.num_under_way;
  }
  call.thread = PyEval_SaveThread();
  return call;
}

void EndCall(const Call& call) {
  if (call.thread == nullptr) return;
  while (!EnterPython()) ::pause();
  PyEval_RestoreThread(call.thread);
  LeavePython(::getpid(), call.process);
}

GilInCall::GilInCall() : is_held_(EnterPython()), process_(::getpid()) {
  if (is_held_) state_ = PyGILState_Ensure();
}

GilInCall::~GilInCall() {
  if (!is_held_) return;
  PyGILState_Release(state_);
  LeavePython(process_);
}

void RefuseCalls() {
  Calls& calls = AllCalls();
  const std::lock_guard lock(calls.mutex);
  calls.are_refused = true;
}

bool AreCallsRefused() {
  Calls& calls = AllCalls();
  const std::lock_guard lock(calls.mutex);
  return calls.are_refused;
}

void WaitForCalls() {
  Calls& calls = AllCalls();
  PyThreadState* thread = PyEval_SaveThread();
  {
    std::unique_lock lock(calls.mutex);
    ForgetParentsCalls(calls);
    const bool are_over = calls.changed.wait_for(lock, kGrace, [&] { return calls.num_under_way == 0; });
    calls.are_left = true;
    if (!are_over) ::on_exit(EndAtOnce, nullptr);
  }
  // These have the GIL, or get it now. A function of Python's that waits for something itself may never let go of it.
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  bool is_over = false;
  while (!is_over) {
    {
      std::unique_lock lock(calls.mutex);
      is_over = calls.changed.wait_for(lock, kSignalInterval, [&] { return calls.num_in_python == 0; });
    }
    if (!is_over && std::chrono::steady_clock::now() >= deadline) {
      ::on_exit(EndAtOnce, nullptr);
      is_over = true;
    }
    PyEval_RestoreThread(thread);
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!is_over) thread = PyEval_SaveThread();
  }
}

}  // namespace headwise::python
