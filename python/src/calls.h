// Calls that work without the GIL, and their way back to Python, which ends before the interpreter does: CPython up
// to 3.13 ends a thread that asks for the GIL after that in the middle of its C++ frames, and the process with it.
#ifndef HEADWISE_PYTHON_CALLS_H_
#define HEADWISE_PYTHON_CALLS_H_

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace headwise::python {

// Whether a call may begin while the process ends.
enum class AtTheEnd { kRefused, kRuns };

// A call under way. A fork has none of the threads that its parent's run on.
struct Call {
  PyThreadState* thread;  // null: it has kept the GIL
  pid_t process;
};

// Lets go of the GIL; throws Cancelled where the process ends. Requires: the GIL.
Call BeginCall(AtTheEnd at_the_end);
// Takes the GIL back. Never returns where nobody waits for that any more.
void EndCall(const Call& call);

// The GIL in the middle of a call, for a signal or a function of Python's.
class GilInCall {
 public:
  GilInCall();
  GilInCall(const GilInCall&) = delete;
  GilInCall& operator=(const GilInCall&) = delete;
  ~GilInCall();

  // False where the process ends.
  bool is_held() const { return is_held_; }

 private:
  bool is_held_;
  PyGILState_STATE state_ = PyGILState_UNLOCKED;
  pid_t process_;
};

// From now on calls are refused, and those under way are told to end. Requires: the GIL.
void RefuseCalls();
// From any thread, with the GIL or without.
bool AreCallsRefused();
// Until none is under way, or those that are have had their time: they never come back then. Requires: RefuseCalls()
// was called, the GIL.
void WaitForCalls();

// Runs `work` without the GIL. Nothing in it may touch Python's objects.
template <AtTheEnd kAtTheEnd = AtTheEnd::kRefused, typename Work>
auto WithoutGil(const Work& work) {
  using Answer = std::invoke_result_t<const Work&>;
  if constexpr (std::is_void_v<Answer>) {
    WithoutGil<kAtTheEnd>([&] {
      work();
      return true;
    });
  } else {
    // No destructor takes the GIL back: a thread that is ended there ends the process.
    const Call call = BeginCall(kAtTheEnd);
    std::optional<Answer> answer;
    std::exception_ptr thrown;
    try {
      answer.emplace(work());
    } catch (...) {
      thrown = std::current_exception();
    }
    EndCall(call);
    if (thrown) std::rethrow_exception(thrown);
    return *std::move(answer);
  }
}

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_CALLS_H_
