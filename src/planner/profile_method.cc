// headwise plan profile: heads ranked by the attention that leaves sinks and window, the baseline that DuoAttention
// compares its optimisation with [duo §3.5]. One forward pass per sample; what the attention carries, and whether the
// output needs it, is not looked at: that is its weakness.
#include <fmt/format.h>

#include <cmath>

#include "base/progress.h"
#include "grad/grad_decoder.h"
#include "planner/calibration.h"
#include "planner/duo_method.h"
#include "planner/gates.h"
#include "planner/methods.h"
#include "planner/run_log.h"

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;
constexpr double kDefaultSparsity = 0.5;

// Adds, per query head, the mean over the labelled queries of the attention to keys that `rule` would hide: its softmax
// denominator is the share of the full one that it keeps, so no probability needs to be looked at.
void AddHiddenMass(GradDecoder<float>& decoder, const TokenSample& sample, const HeadRule& rule,
                   std::vector<double>& mass) {
  const ModelConfig& config = decoder.model().config;
  const auto num_tokens = static_cast<int64_t>(sample.ids.size());
  const SequenceLimits limits{.prompt_tokens = num_tokens, .max_tokens = num_tokens};
  const LayerWindows windows = LayerWindowsOf(config);
  std::vector<float> out(static_cast<size_t>(num_tokens * config.num_q_heads * config.head_dim));
  std::vector<float> lse(static_cast<size_t>(num_tokens * config.num_q_heads));
  std::vector<float> hidden;
  decoder.Forward(
      {.ids = sample.ids,
       .wanted = {},
       .on_attention =
           [&](const AttentionView<float>& view) {
             AttentionShape<float> shape = view.shape;
             shape.rule = ResolveRule(rule, limits, windows.At(view.layer_idx));
             AttentionForward(
                 AttentionForwardArgs<float>{
                     .shape = shape, .q = view.q, .k = view.k, .v = view.v, .out = out.data(), .lse = lse.data()},
                 decoder.pool());
             for (int64_t q_head = 0; q_head < config.num_q_heads; ++q_head) {
               double sum = 0;
               for (const int32_t query : sample.labels) {
                 const int64_t at = query * config.num_q_heads + q_head;
                 sum -= std::expm1(static_cast<double>(lse[static_cast<size_t>(at)]) - view.lse[at]);
               }
               mass[static_cast<size_t>(view.layer_idx * config.num_q_heads + q_head)] +=
                   sum / static_cast<double>(sample.labels.size());
             }
           }},
      hidden);
}

Result<HeadPlan> MakeProfile(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const HeadRule deployed, StreamRuleFromOptions(input.options, /*default_sink=*/64,
                                                                     /*default_recent=*/256));
  HeadRule hidden_beyond = HeadRule::Stream(128, 256);  // as DuoAttention identifies
  HW_ASSIGN_OR_RETURN(hidden_beyond.sink, input.options.IntOr("train-sink", hidden_beyond.sink, 0, kMaxTokens));
  HW_ASSIGN_OR_RETURN(hidden_beyond.recent, input.options.IntOr("train-recent", hidden_beyond.recent, 1, kMaxTokens));
  HW_ASSIGN_OR_RETURN(const int64_t num_samples, input.options.IntOr("samples", 8, 1, 100'000));
  const auto num_kv_heads = static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads);
  // Before the work: what the plan will be made of must be right.
  HW_RETURN_IF_ERROR(PlanFromGates(input, std::vector<double>(num_kv_heads), deployed, kDefaultSparsity).status());
  RunLog log;
  HW_ASSIGN_OR_RETURN(const PlannerModel model, OpenPlannerModel(input));
  HW_ASSIGN_OR_RETURN(const CalibrationOptions calibration, ReadCalibration(input, model));
  HW_ASSIGN_OR_RETURN(const CalibrationSamples samples, CalibrationSamples::Open(model, calibration));
  log.EndStep("load");
  ThreadPool pool(model.num_threads);
  GradDecoder<float> decoder(*model.model, pool, model.compute);
  std::vector<double> mass(static_cast<size_t>(input.shape.num_layers * input.shape.num_q_heads));
  ProgressBar progress(input.progress, "profile", num_samples);
  for (int64_t i = 0; i < num_samples; ++i) {
    HW_ASSIGN_OR_RETURN(const TokenSample sample, samples.Make(static_cast<uint64_t>(i)));
    AddHiddenMass(decoder, sample, hidden_beyond, mass);
    progress.Update(i + 1);
    if (input.should_stop && input.should_stop()) return Status::Cancelled("plan profile: interrupted");
  }
  for (double& each : mass) {
    each /= static_cast<double>(num_samples);
    if (!std::isfinite(each)) {
      return Status::InvalidInput("profile: an attention mass is not finite, expected finite weights and texts");
    }
  }
  log.EndStep("profile");
  // A KV head is as important as its most far-sighted query head.
  const auto group = static_cast<size_t>(input.shape.num_q_heads / input.shape.num_kv_heads);
  std::vector<double> scores(num_kv_heads, 0.0);
  for (size_t q_head = 0; q_head < mass.size(); ++q_head) {
    scores[q_head / group] = std::max(scores[q_head / group], mass[q_head]);
  }
  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanFromGates(input, scores, deployed, kDefaultSparsity));
  plan.data_hash = samples.DataHash();
  plan.seed = calibration.seed;
  plan.report_json = log.ToJson({{"hidden_mass_by_query_head", mass}, {"samples", num_samples}}).dump();
  return plan;
}

}  // namespace

const PlannerMethod kProfileMethod = {
    .name = "profile",
    .description = "heads with the most attention beyond sinks and window stay full: the baseline of [duo §3.5]",
    .options = JoinLists<std::string_view>(
        std::to_array<std::string_view>(
            {"samples", "train-sink", "train-recent", "sink", "recent", "positions", "from", "compensate", "compute"}),
        kSelectionOptions, kCalibrationOptions),
    .make = MakeProfile,
    .runs = PlannerMethod::Runs::kModel,
    .refit = {.make = RefitGates, .replaced = {"sparsity", "threshold"}},
};

}  // namespace headwise
