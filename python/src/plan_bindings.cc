// Head plans and planners.
#include <headwise/head_plan.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "calls.h"
#include "kv/plan_bytes.h"
#include "kv/plan_svg.h"
#include "kv/plan_view.h"
#include "model/load_config.h"
#include "model/model_config.h"
#include "planner/gates.h"
#include "planner/plan_compare.h"
#include "planner/plan_run.h"
#include "planner/planner.h"
#include "planner/planner_help.h"
#include "python_progress.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headwise::python {
namespace {

using Options = std::map<std::string, std::string>;

BoundPlan Bound(HeadPlan plan) {
  return {std::make_shared<const HeadPlan>(std::move(plan))};
}

std::string Svg(const BoundPlan& plan) {
  return PlanSvg(*plan.plan);
}

// As `plan compare` counts them.
int64_t BytesAt(const BoundPlan& plan, int64_t num_tokens, const std::optional<std::string>& model) {
  if (num_tokens < 1 || num_tokens > (int64_t{1} << 40)) {
    Raise(Status::InvalidInput(fmt::format("tokens: found {}, expected 1 to 2^40", num_tokens)));
  }
  LayerWindows windows;
  if (model) {
    const ModelConfig config = Value(WithoutGil([&] { return ReadModelConfig(*model); }));
    Check(CheckPlanFits(*plan.plan, config.shape(), "plan"));
    windows = LayerWindowsOf(config);
  }
  return PlanBytesAt(*plan.plan, num_tokens, windows);
}

std::vector<std::tuple<std::string, std::string, std::string>> MethodOptions(const PlannerMethod& method) {
  std::vector<std::tuple<std::string, std::string, std::string>> options;
  for (const std::string_view option : method.options) {
    options.emplace_back(std::string(option), std::string(HelpFor(method.name, option)),
                         DefaultFor(method.name, option));
  }
  return options;
}

nb::typed<nb::list, Row> Methods() {
  nb::list methods;
  for (const PlannerMethod& method : PlannerMethods()) {
    std::vector<std::string> required;
    for (const std::string_view option : method.options) {
      if (IsRequired(method.name, option)) required.emplace_back(option);
    }
    nb::dict row;
    row["name"] = std::string(method.name);
    row["description"] = std::string(method.description);
    row["options"] = MethodOptions(method);
    row["required"] = required;
    row["runs_model"] = method.runs != PlannerMethod::Runs::kNothing;
    row["resumes"] = method.runs == PlannerMethod::Runs::kModelResumably;
    methods.append(row);
  }
  return methods;
}

std::pair<BoundPlan, std::vector<std::string>> MakeBoundPlan(const std::string& method, const std::string& model,
                                                             const Options& options, const std::string& out,
                                                             int num_threads, bool resume, const nb::object& progress) {
  Warnings warnings;
  PendingError pending;
  PythonProgress line(progress, pending);
  const PlanRun run{.method = method,
                    .model = model,
                    .options = NamedOptions(options),
                    .out = out,
                    .num_threads = num_threads,
                    .resume = resume ? PlannerInput::Resume::kYes : PlannerInput::Resume::kNo,
                    .should_stop = [&] { return pending.Poll(); },
                    .progress = &line,
                    .on_warning = [&](std::string_view message) { warnings.Add(message); }};
  Result<HeadPlan> plan = WithoutGil([&] { return RunPlanner(run); });
  pending.Rethrow();
  return {Bound(Value(std::move(plan))), warnings.Take()};
}

BoundPlan Refit(const std::string& model, const BoundPlan& earlier, const Options& budget, const std::string& origin) {
  const PlanPointer plan = earlier.plan;
  return Bound(Value(WithoutGil([&] { return RefitPlanOf(model, *plan, NamedOptions(budget), origin); })));
}

// Gates that come as numbers, where `plan import-duo` reads them from a file: the same rules and the same provenance.
Result<HeadPlan> FromGates(const std::string& model, const std::vector<double>& gates, const Options& options) {
  static constexpr std::string_view kOptions[] = {"sparsity", "threshold", "kv-ratio",  "at",        "kv-bytes-at",
                                                  "sink",     "recent",    "positions", "compensate"};
  HW_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(model));
  PlannerInput input;
  input.shape = config.shape();
  input.windows = LayerWindowsOf(config);
  input.options = NamedOptions(options);
  HW_RETURN_IF_ERROR(input.options.CheckKnown("gates", kOptions));
  const auto num_heads = static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads);
  if (gates.size() != num_heads) {
    return Status::InvalidInput(fmt::format("gates: found {} numbers, expected {} ({} layers of {} KV heads)",
                                            gates.size(), num_heads, input.shape.num_layers, input.shape.num_kv_heads));
  }
  for (size_t head = 0; head < num_heads; ++head) {
    if (std::isfinite(gates[head])) continue;
    return Status::InvalidInput(fmt::format("gates: that of layer {}, KV head {} is {}, expected a finite number",
                                            head / static_cast<size_t>(input.shape.num_kv_heads),
                                            head % static_cast<size_t>(input.shape.num_kv_heads), gates[head]));
  }
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(input.options, kDuoSink, kDuoRecent));
  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanFromGates(input, gates, rule, 0.5));
  plan.shape = input.shape;
  plan.method = "import-duo";
  plan.parameters_json = input.options.ToJson();
  HW_RETURN_IF_ERROR(ValidatePlan(plan, "gates"));
  return plan;
}

std::string Compare(const std::vector<std::pair<std::string, BoundPlan>>& plans, const std::vector<int64_t>& lengths) {
  std::vector<NamedPlan> named;
  for (const auto& [name, plan] : plans) named.push_back({name, *plan.plan});
  const PlanComparison comparison = Value(ComparePlans(named, lengths));
  return ComparisonJson(named, comparison).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ShapeJson(const std::string& model) {
  const ModelShape shape = Value(WithoutGil([&] { return ReadModelConfig(model); })).shape();
  return Json({{"architecture", shape.architecture},
               {"num_layers", shape.num_layers},
               {"num_q_heads", shape.num_q_heads},
               {"num_kv_heads", shape.num_kv_heads},
               {"head_dim", shape.head_dim}})
      .dump();
}

}  // namespace

void BindPlans(nb::module_& module) {
  nb::class_<BoundPlan>(module, "Plan")
      .def_static(
          "parse",
          [](const std::string& text, const std::string& origin) { return Bound(Value(ParseHeadPlan(text, origin))); },
          "text"_a, "origin"_a)
      .def_static(
          "read", [](const std::string& path) { return Bound(Value(WithoutGil([&] { return ReadHeadPlan(path); }))); },
          "path"_a)
      .def(
          "write",
          [](const BoundPlan& plan, const std::string& path) {
            Check(WithoutGil([&, kept = plan.plan] { return WriteHeadPlan(*kept, path); }));
          },
          "path"_a)
      .def("to_json", [](const BoundPlan& plan) { return SerializeHeadPlan(*plan.plan); })
      .def("svg", Svg)
      .def("map", [](const BoundPlan& plan) { return FormatPlanMap(*plan.plan); })
      .def("score_map", [](const BoundPlan& plan) { return FormatScoreMap(*plan.plan); })
      .def("kv_bytes_at", BytesAt, "tokens"_a, "model"_a.none());
  module.def("planner_methods", Methods);
  module.def("make_plan", MakeBoundPlan, "method"_a, "model"_a, "options"_a, "out"_a, "num_threads"_a, "resume"_a,
             "progress"_a.none());
  module.def("refit", Refit, "model"_a, "plan"_a, "budget"_a, "origin"_a);
  module.def(
      "plan_from_gates",
      [](const std::string& model, const std::vector<double>& gates, const Options& options) {
        return Bound(Value(WithoutGil([&] { return FromGates(model, gates, options); })));
      },
      "model"_a, "gates"_a, "options"_a);
  module.def("compare_plans", Compare, "plans"_a, "lengths"_a);
  module.def("model_shape", ShapeJson, "model"_a);
}

}  // namespace headwise::python
