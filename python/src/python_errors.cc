#include "python_errors.h"

#include "calls.h"

namespace nb = nanobind;

namespace headwise::python {
namespace {

const char* ClassOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidInput:
      return "InvalidInput";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kIo:
      return "IoError";
    case StatusCode::kOutOfMemory:
      return "OutOfMemory";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kCancelled:
      return "Cancelled";
    case StatusCode::kOk:
      break;
  }
  return "HeadwiseError";
}

}  // namespace

void Raise(const Status& status) {
  const nb::object type = nb::module_::import_("headwise.errors").attr(ClassOf(status.code()));
  // What a file's name may hold is not always UTF-8.
  const nb::object message = nb::steal(
      PyUnicode_DecodeUTF8(status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "replace"));
  if (message.is_valid()) PyErr_SetObject(type.ptr(), message.ptr());
  throw nb::python_error();
}

bool PendingError::Poll() {
  if (error_ || AreCallsRefused()) return true;
  const GilInCall gil;
  if (!gil.is_held()) return true;
  if (PyErr_CheckSignals() == 0) return false;
  error_ = std::make_exception_ptr(nb::python_error());
  return true;
}

void PendingError::KeepCurrent() {
  if (!error_) error_ = std::current_exception();
}

}  // namespace headwise::python
