// headwise plan zigzag: whole layers full or streaming, from DuoAttention's gates [zigzag §2.2-2.3].
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include "base/json.h"
#include "grad/grad_decoder.h"
#include "planner/budget.h"
#include "planner/duo_method.h"
#include "planner/gates.h"
#include "planner/methods.h"
#include "planner/zigzag.h"

namespace headwise {
namespace {

struct LayerChoice {
  std::vector<int64_t> order;  // layers, the first to stay full first
  int64_t num_full = 0;
};

// Layers by what making them full saves, where DuoAttention has as many full heads as `num_full` layers.
Result<LayerChoice> OrderLayers(const PlannerInput& input, const std::vector<double>& gates, int64_t num_full) {
  TransportProblem problem{.num_layers = input.shape.num_layers,
                           .heads_per_layer = input.shape.num_kv_heads,
                           .gates = gates,
                           .is_retrieval = std::vector<bool>(gates.size(), false)};
  HW_ASSIGN_OR_RETURN(problem.omega, input.options.DoubleOr("omega", problem.omega, 0.0, 1.0));
  const std::vector<size_t> by_gate = HeadsByGate(gates);
  for (int64_t i = 0; i < num_full * input.shape.num_kv_heads; ++i) {
    problem.is_retrieval[by_gate[static_cast<size_t>(i)]] = true;
  }
  return LayerChoice{.order = LayersBySaving(problem), .num_full = num_full};
}

// How many layers stay full, and which first.
Result<LayerChoice> ChooseLayers(const PlannerInput& input, const std::vector<double>& gates, const HeadRule& rule,
                                 const std::optional<KvBudget>& budget) {
  const int64_t num_layers = input.shape.num_layers;
  if (!budget) {
    HW_ASSIGN_OR_RETURN(const double sparsity, input.options.DoubleOr("sparsity", 0.5, 0.0, 1.0));
    return OrderLayers(input, gates, num_layers - std::llround(sparsity * static_cast<double>(num_layers)));
  }
  // Which layers come first depends on how many there are, and how many fit on which come first: layers with windows of
  // the model's own cost less. The most whose first layers fit.
  for (int64_t num_full = num_layers;; --num_full) {
    HW_ASSIGN_OR_RETURN(const LayerChoice choice, OrderLayers(input, gates, num_full));
    int64_t bytes = 0;
    for (int64_t i = 0; i < num_layers; ++i) {
      bytes += RuleBytesAt(i < num_full ? HeadRule::Full() : rule, input.shape, *budget,
                           choice.order[static_cast<size_t>(i)]) *
               input.shape.num_kv_heads;
    }
    if (num_full == 0 || bytes <= budget->bytes) return choice;
  }
}

// Layers that all or none of the training wanted have the same gate: they stay in the order that they have.
void SortByLayerGates(const std::vector<double>& gates, const ModelShape& shape, std::vector<int64_t>& order) {
  const auto gate_of = [&](int64_t layer_idx) { return gates[static_cast<size_t>(layer_idx * shape.num_kv_heads)]; };
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return gate_of(a) > gate_of(b); });
}

// In a report's "retraining": the layers as duo's gates order them, of which the layers' own have many alike.
constexpr const char* kLayerOrder = "layer_order";

// Of a plan that was re-trained; none of one that was not, or by a version that did not say it.
std::optional<std::vector<int64_t>> LayerOrderOf(const HeadPlan& plan) {
  const Result<Json> report = ParseJson(plan.report_json, "report");
  if (!report.ok() || !report->is_object() || !report->contains("retraining")) return std::nullopt;
  const Json& retraining = report->at("retraining");
  if (!retraining.is_object() || !retraining.contains(kLayerOrder)) return std::nullopt;
  const Json& found = retraining.at(kLayerOrder);
  std::vector<int64_t> layers(static_cast<size_t>(plan.shape.num_layers));
  std::iota(layers.begin(), layers.end(), 0);
  const bool are_numbers =
      found.is_array() && std::ranges::all_of(found, [](const Json& each) { return each.is_number_integer(); });
  if (!are_numbers) return std::nullopt;
  const auto order = found.get<std::vector<int64_t>>();
  if (!std::ranges::is_permutation(order, layers)) return std::nullopt;
  return order;
}

// Re-training with one gate a layer, from the choice as it stands [zigzag §2.3]; the layers' order is then that of
// their gates.
Status Retrain(const PlannerInput& input, int64_t num_steps, LayerChoice& choice, GateRun& run) {
  RunLog log;
  HW_ASSIGN_OR_RETURN(const PlannerModel model, OpenPlannerModel(input));
  HW_RETURN_IF_ERROR(CheckHasGradients(model.model->config, "plan zigzag"));
  HW_ASSIGN_OR_RETURN(const CalibrationOptions calibration, ReadCalibration(input, model));
  HW_ASSIGN_OR_RETURN(const CalibrationSamples samples, CalibrationSamples::Open(model, calibration));
  HW_ASSIGN_OR_RETURN(DuoOptions options, ReadDuoOptions(input, model, samples));
  options.num_steps = num_steps;
  options.sharing = GateSharing::kPerLayer;
  // The gates begin where a settled training ends.
  options.early_stop = DuoOptions::EarlyStop::kNo;
  const auto heads_per_layer = static_cast<size_t>(input.shape.num_kv_heads);
  std::vector<double> initial(static_cast<size_t>(input.shape.num_layers) * heads_per_layer, 0.0);
  for (int64_t i = 0; i < choice.num_full; ++i) {
    const auto begin = initial.begin() + choice.order[static_cast<size_t>(i)] * input.shape.num_kv_heads;
    std::fill(begin, begin + input.shape.num_kv_heads, 1.0);
  }
  HW_ASSIGN_OR_RETURN(const Training training,
                      TrainWithCheckpoints(input, model, samples, options, "layer gates", std::move(initial)));
  const DuoState& state = training.state;
  run.notes.insert(run.notes.end(), training.notes.begin(), training.notes.end());
  log.EndStep("train");
  const std::vector<int64_t> order_before = choice.order;
  SortByLayerGates(state.gates, input.shape, choice.order);
  run.gates = state.gates;
  run.data_hash = samples.DataHash();
  run.seed = calibration.seed;
  run.report["retraining"] =
      log.ToJson({{"training", DescribeTraining(state, options, samples)}, {kLayerOrder, order_before}});
  return Status::Ok();
}

// Layers in the order of the choice, as many full as it says or as the budget has room for.
Result<HeadPlan> PlanOfLayers(const PlannerInput& input, LayerChoice choice, const HeadRule& rule,
                              const std::optional<KvBudget>& budget) {
  HeadPlan plan = HeadPlan::Dense(input.shape);
  std::vector<std::vector<size_t>> layers;
  for (const int64_t layer_idx : choice.order) {
    std::vector<size_t>& heads = layers.emplace_back();
    for (int64_t kv_head = 0; kv_head < input.shape.num_kv_heads; ++kv_head) {
      heads.push_back(static_cast<size_t>(layer_idx * input.shape.num_kv_heads + kv_head));
    }
  }
  if (budget) {
    HW_ASSIGN_OR_RETURN(choice.num_full, FitFullGroups(plan, layers, rule, *budget));
    plan.notes.push_back(DescribeBudget(plan, *budget));
  } else {
    for (size_t i = static_cast<size_t>(choice.num_full); i < layers.size(); ++i) {
      for (const size_t head : layers[i]) plan.rules[head] = rule;
    }
  }
  const bool has_no_room = budget && choice.num_full == 0;
  plan.notes.push_back(fmt::format("{} of {} layers are full{}", choice.num_full, input.shape.num_layers,
                                   has_no_room ? ": the budget has no room for a whole layer" : ""));
  return plan;
}

// With --retrain-steps the training options are those of the re-training; gates come from --from then.
Result<int64_t> ReadRetrainSteps(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const int64_t retrain_steps, input.options.IntOr("retrain-steps", 0, 0, 1'000'000));
  if (retrain_steps == 0) return retrain_steps;
  if (!input.options.Has("from")) {
    return Status::InvalidInput(
        "--retrain-steps: needs the gates of an earlier run of plan duo, expected --from with its plan");
  }
  if (input.options.Has("steps")) {
    return Status::InvalidInput("found --steps and --retrain-steps; with --from nothing but a re-training has steps");
  }
  return retrain_steps;
}

Result<HeadPlan> MakeZigzag(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(input.options.Without("from"), kDuoSink, kDuoRecent));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (budget && input.options.Has("sparsity")) {
    return Status::InvalidInput("found --sparsity and a KV budget, expected one");
  }
  HW_ASSIGN_OR_RETURN(const int64_t retrain_steps, ReadRetrainSteps(input));
  // Before minutes of training: what the plan will be made of must be right.
  const std::vector<double> no_gates(static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads));
  HW_ASSIGN_OR_RETURN(LayerChoice choice, ChooseLayers(input, no_gates, rule, budget));
  HW_RETURN_IF_ERROR(PlanOfLayers(input, choice, rule, budget).status());

  PlannerInput gates_input = input;
  if (retrain_steps > 0) {
    gates_input.options =
        NamedOptions(std::map<std::string, std::string>{{"from", input.options.StringOr("from", "")}});
    gates_input.resume = PlannerInput::Resume::kNo;
  }
  HW_ASSIGN_OR_RETURN(GateRun run, ReadOrTrainGates(gates_input));
  HW_ASSIGN_OR_RETURN(choice, ChooseLayers(input, run.gates, rule, budget));
  if (retrain_steps > 0) HW_RETURN_IF_ERROR(Retrain(input, retrain_steps, choice, run));
  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanOfLayers(input, choice, rule, budget));
  plan.scores = std::move(run.gates);
  plan.data_hash = std::move(run.data_hash);
  plan.seed = run.seed;
  plan.report_json = run.report.dump();
  plan.notes.insert(plan.notes.end(), run.notes.begin(), run.notes.end());
  return plan;
}

// Layers rank by the gates that the plan carries; after a re-training those are the layers' own.
Result<HeadPlan> RefitZigzag(const PlannerInput& input, const HeadPlan& earlier) {
  HW_RETURN_IF_ERROR(RequireScores(earlier));
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(input.options.Without("from"), kDuoSink, kDuoRecent));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  HW_ASSIGN_OR_RETURN(LayerChoice choice, ChooseLayers(input, earlier.scores, rule, budget));
  if (std::optional<std::vector<int64_t>> order = LayerOrderOf(earlier)) {
    choice.order = *std::move(order);
    SortByLayerGates(earlier.scores, input.shape, choice.order);
  }
  return PlanOfLayers(input, std::move(choice), rule, budget);
}

}  // namespace

const PlannerMethod kZigzagMethod = {
    .name = "zigzag",
    .description = "whole layers full or streaming, from duo's gates (--from, or trained) [zigzag]",
    .options =
        JoinLists<std::string_view>(std::to_array<std::string_view>({"from", "sparsity", "omega", "retrain-steps",
                                                                     "sink", "recent", "positions", "compensate"}),
                                    kBudgetOptions, kTrainingOptions, kCalibrationOptions),
    .make = MakeZigzag,
    .runs = PlannerMethod::Runs::kModelResumably,
    .refit = {.make = RefitZigzag, .replaced = {"sparsity"}},
};

}  // namespace headwise
