// Errors of the library as Python's exceptions, and the signals that Python has noted while the library worked.
#ifndef HEADWISE_PYTHON_PYTHON_ERRORS_H_
#define HEADWISE_PYTHON_PYTHON_ERRORS_H_

#include <headwise/status.h>
#include <nanobind/nanobind.h>

#include <exception>
#include <utility>

namespace headwise::python {

// Throws the exception of headwise.errors that stands for the status' code. Requires: the GIL, an error.
[[noreturn]] void Raise(const Status& status);

// Requires: the GIL.
inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T Value(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// What Python has to say to work under way: Ctrl-C, or an exception of a callback. The first is kept, the work told to
// end, and the exception thrown on when it has.
class PendingError {
 public:
  // Whether there is one, or the process ends; runs the handlers of signals that have come. From any thread, with the
  // GIL or without.
  bool Poll();
  // Keeps what a callback has thrown, as the current exception. Requires: the GIL.
  void KeepCurrent();
  bool is_set() const { return static_cast<bool>(error_); }
  // Requires: the GIL.
  void Rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_PYTHON_ERRORS_H_
