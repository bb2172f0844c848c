// Progress of long work, told to a function of Python.
#ifndef HEADWISE_PYTHON_PYTHON_PROGRESS_H_
#define HEADWISE_PYTHON_PYTHON_PROGRESS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/progress.h"
#include "calls.h"
#include "python_errors.h"

namespace headwise::python {

// Borrows both. What the function throws is kept in `pending`, by which the work ends.
class PythonProgress final : public ProgressLine {
 public:
  PythonProgress(const nanobind::object& function, PendingError& pending) : function_(function), pending_(pending) {}

  int Columns() override { return 0; }
  void Draw(std::string_view) override {}
  void Wipe() override {}
  void Count(std::string_view label, int64_t done, int64_t total) override {
    if (function_.is_none() || pending_.is_set() || AreCallsRefused()) return;
    const GilInCall gil;
    if (!gil.is_held()) return;
    try {
      function_(std::string(label), done, total);
    } catch (...) {
      pending_.KeepCurrent();
    }
  }

 private:
  const nanobind::object& function_;
  PendingError& pending_;
};

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_PYTHON_PROGRESS_H_
