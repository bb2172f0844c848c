// The module headwise._core: what of the library Python's sources in ../headwise are written on. It checks what the
// library would end the process for, and leaves names, defaults and shapes to those sources. One file per subject.
//
// Threads of the library never touch Python: what they have to say waits in queues of C++ until a thread of Python
// asks.
#ifndef HEADWISE_PYTHON_BINDINGS_H_
#define HEADWISE_PYTHON_BINDINGS_H_

#include <headwise/head_plan.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headwise::python {

// A row of a table, as Python has them.
using Row = nanobind::typed<nanobind::dict, nanobind::str, nanobind::any>;

using PlanPointer = std::shared_ptr<const HeadPlan>;

// A plan as Python holds it: it never changes.
struct BoundPlan {
  PlanPointer plan;
};

// None, where Python means every head full, is null.
inline PlanPointer PlanOf(const BoundPlan* plan) {
  return plan == nullptr ? nullptr : plan->plan;
}

// Warnings of the library until Python takes them. From any thread.
class Warnings {
 public:
  void Add(std::string_view message) {
    const std::lock_guard lock(mutex_);
    messages_.emplace_back(message);
  }
  std::vector<std::string> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(messages_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> messages_;
};

void BindPlans(nanobind::module_& module);
void BindEngine(nanobind::module_& module);
void BindRequests(nanobind::module_& module);
void BindEvaluation(nanobind::module_& module);

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_BINDINGS_H_
