// headwise._core: see bindings.h.
#include "bindings.h"
#include "bound_engine.h"
#include "calls.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ library as headwise's Python sources use it; no part of the API.";
#ifdef NDEBUG
  // A thread that the end of the interpreter cuts off in the middle of Python's code never lets go of what it had.
  nanobind::set_leak_warnings(false);
#endif
  module.attr("VERSION") = HEADWISE_VERSION;
  headwise::python::BindPlans(module);
  headwise::python::BindEngine(module);
  headwise::python::BindRequests(module);
  headwise::python::BindEvaluation(module);
  module.def("end_calls", [] {
    headwise::python::RefuseCalls();
    headwise::python::BoundEngine::CloseAll();
    headwise::python::WaitForCalls();
  });
}
