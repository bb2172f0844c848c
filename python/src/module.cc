// headwise._core: see bindings.h.
#include "bindings.h"

NB_MODULE(_core, module) {
  module.doc() = "The C++ library as headwise's Python sources use it; no part of the API.";
  module.attr("VERSION") = HEADWISE_VERSION;
  headwise::python::BindPlans(module);
  headwise::python::BindEngine(module);
  headwise::python::BindRequests(module);
  headwise::python::BindEvaluation(module);
}
