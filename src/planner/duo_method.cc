#include "planner/duo_method.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/progress.h"
#include "grad/grad_decoder.h"
#include "planner/checkpoint.h"
#include "planner/gates.h"
#include "planner/methods.h"

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;

Json Identity(const std::string& what, const DuoOptions& options, const CalibrationSamples& samples,
              const std::vector<double>& initial) {
  const CalibrationOptions& data = samples.options();
  return {{"work", what},
          {"initial", initial},
          {"steps", options.num_steps},
          {"batch", options.samples_per_step},
          {"learning_rate", options.learning_rate},
          {"lambda", options.regulariser},
          {"train_sink", options.train_rule.sink},
          {"train_recent", options.train_rule.recent},
          {"data", data.data == CalibrationOptions::Data::kPasskeys ? "passkeys" : "text"},
          {"data_hash", samples.DataHash()},
          {"lengths", data.lengths},
          {"passkeys", data.num_passkeys},
          {"passkey_words", data.words_per_passkey},
          {"seed", data.seed}};
}

Result<GateRun> ReadGates(const PlannerInput& input, const std::string& path) {
  HW_ASSIGN_OR_RETURN(HeadPlan source, ReadHeadPlan(path));
  HW_RETURN_IF_ERROR(CheckPlanFits(source, input.shape, path));
  if (source.scores.empty()) {
    return Status::InvalidInput(fmt::format("{}: has no \"scores\", expected the gates of a duo plan", path));
  }
  const auto [least, most] = std::minmax_element(source.scores.begin(), source.scores.end());
  if (*least < 0 || *most > 1) {
    return Status::InvalidInput(
        fmt::format("{}: scores from {} to {}, expected gates from 0 to 1", path, *least, *most));
  }
  GateRun run;
  run.gates = std::move(source.scores);
  run.data_hash = std::move(source.data_hash);
  run.seed = source.seed;
  HW_ASSIGN_OR_RETURN(run.report, ParseJson(source.report_json, path));
  run.notes.push_back(fmt::format("gates from {}, a plan of method {}", path, source.method));
  if (source.source_hash && input.source_hash && *source.source_hash != *input.source_hash) {
    run.notes.push_back("the gates were found on other weights than this model's");
  }
  return run;
}

Result<HeadPlan> MakeDuo(const PlannerInput& input) {
  // Before minutes of training: what the plan will be made of must be right.
  HW_ASSIGN_OR_RETURN(const HeadRule rule, StreamRuleFromOptions(input.options.Without("from"), kDuoSink, kDuoRecent));
  HW_RETURN_IF_ERROR(
      PlanFromGates(input, std::vector<double>(static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads)),
                    rule, /*default_sparsity=*/0.5)
          .status());
  HW_ASSIGN_OR_RETURN(GateRun run, ReadOrTrainGates(input));
  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanFromGates(input, run.gates, rule, /*default_sparsity=*/0.5));
  plan.data_hash = std::move(run.data_hash);
  plan.seed = run.seed;
  plan.report_json = run.report.dump();
  plan.notes.insert(plan.notes.end(), run.notes.begin(), run.notes.end());
  return plan;
}

Result<HeadPlan> RefitDuo(const PlannerInput& input, const HeadPlan& earlier) {
  PlannerInput stream = input;  // the gates' "from" is a file, not where a rule begins
  stream.options = input.options.Without("from");
  return RefitGates(stream, earlier);
}

}  // namespace

Result<DuoOptions> ReadDuoOptions(const PlannerInput& input, const PlannerModel& model,
                                  const CalibrationSamples& samples) {
  DuoOptions duo;
  const NamedOptions& options = input.options;
  HW_ASSIGN_OR_RETURN(duo.num_steps, options.IntOr("steps", duo.num_steps, 1, 1'000'000));
  HW_ASSIGN_OR_RETURN(duo.samples_per_step, options.IntOr("batch", duo.samples_per_step, 1, 4096));
  HW_ASSIGN_OR_RETURN(duo.learning_rate, options.DoubleOr("learning-rate", duo.learning_rate, 1e-9, 1.0));
  duo.lowest_learning_rate = duo.learning_rate / 10;  // the paper's 0.002 of 0.02
  HW_ASSIGN_OR_RETURN(duo.regulariser, options.DoubleOr("lambda", duo.regulariser, 0.0, 1e6));
  HW_ASSIGN_OR_RETURN(duo.train_rule.sink, options.IntOr("train-sink", duo.train_rule.sink, 0, kMaxTokens));
  HW_ASSIGN_OR_RETURN(duo.train_rule.recent, options.IntOr("train-recent", duo.train_rule.recent, 1, kMaxTokens));
  HW_ASSIGN_OR_RETURN(duo.memory_bytes, options.BytesOr("memory-bytes", 0));
  duo.num_threads = model.num_threads;
  duo.compute = model.compute;
  duo.max_tokens = samples.max_tokens();
  return duo;
}

Result<Training> TrainWithCheckpoints(const PlannerInput& input, const PlannerModel& model,
                                      const CalibrationSamples& samples, const DuoOptions& options,
                                      const std::string& what, std::vector<double> initial) {
  Checkpoint checkpoint(input, Identity(what, options, samples, initial));
  HW_ASSIGN_OR_RETURN(const std::optional<Json> saved, checkpoint.Load());
  DuoState state;
  state.gates = std::move(initial);
  if (saved) {
    HW_ASSIGN_OR_RETURN(state, DuoState::FromJson(*saved, input.checkpoint + ": state"));
    if (static_cast<int64_t>(state.gates.size()) != input.shape.num_layers * input.shape.num_kv_heads) {
      return Status::InvalidInput(fmt::format("{}: {} gates, the model has {} layers of {} KV heads", input.checkpoint,
                                              state.gates.size(), input.shape.num_layers, input.shape.num_kv_heads));
    }
  }
  ProgressBar progress(input.progress, what, options.num_steps);
  const SampleMaker make_sample = [&](int64_t step, int64_t sample_idx) {
    return samples.Make(static_cast<uint64_t>(step * options.samples_per_step + sample_idx));
  };
  const DuoProgress on_step = [&](const DuoState& now, int64_t num_planned_steps) {
    progress.Update(options.num_steps - num_planned_steps + now.num_steps_done);
    return checkpoint.SaveNowAndThen([&] { return now.ToJson(); });
  };
  const int64_t num_steps_before = state.num_steps_done;
  const Status status = TrainGates(*model.model, options, make_sample, on_step, state);
  if (!status.ok()) {
    // The last good state stays, whatever ended the run; of one that ended before its first step that of an earlier
    // one.
    if (state.num_steps_done > num_steps_before) HW_RETURN_IF_ERROR(checkpoint.Save(state.ToJson()));
    return status;
  }
  // Kept until the plan is written: a plan that cannot be written must not cost the training.
  HW_RETURN_IF_ERROR(checkpoint.Save(state.ToJson()));
  return Training{.state = std::move(state), .notes = checkpoint.Notes()};
}

Json DescribeTraining(const DuoState& state, const DuoOptions& options, const CalibrationSamples& samples) {
  return {{"steps", state.num_steps_done},
          {"planned_steps", options.num_steps},
          {"decay_start", state.decay_start},
          {"samples_per_step", options.samples_per_step},
          {"min_tokens", samples.options().lengths.front()},
          {"max_tokens", samples.options().lengths.back()},
          {"losses", state.losses},
          {"seconds", state.seconds}};
}

Result<GateRun> ReadOrTrainGates(const PlannerInput& input) {
  if (input.options.Has("from")) {
    for (const std::string_view name : JoinLists<std::string_view>(kTrainingOptions, kCalibrationOptions)) {
      if (!input.options.Has(std::string(name))) continue;
      return Status::InvalidInput(
          fmt::format("--{}: has no effect on gates that are read with --from, expected one of the two", name));
    }
    if (input.resume == PlannerInput::Resume::kYes) {
      return Status::InvalidInput("--resume: nothing is trained with --from, expected one of the two");
    }
    return ReadGates(input, input.options.StringOr("from", ""));
  }
  RunLog log;
  HW_ASSIGN_OR_RETURN(const PlannerModel model, OpenPlannerModel(input));
  HW_RETURN_IF_ERROR(CheckHasGradients(model.model->config, "plan duo"));
  HW_ASSIGN_OR_RETURN(const CalibrationOptions calibration, ReadCalibration(input, model));
  HW_ASSIGN_OR_RETURN(const CalibrationSamples samples, CalibrationSamples::Open(model, calibration));
  HW_ASSIGN_OR_RETURN(const DuoOptions options, ReadDuoOptions(input, model, samples));
  log.EndStep("load");
  HW_ASSIGN_OR_RETURN(Training training, TrainWithCheckpoints(input, model, samples, options, "gates", {}));
  const DuoState& state = training.state;
  log.EndStep("train");
  GateRun run;
  run.notes = std::move(training.notes);
  run.gates = state.gates;
  run.data_hash = samples.DataHash();
  run.seed = calibration.seed;
  run.report = log.ToJson({{"training", DescribeTraining(state, options, samples)}});
  if (state.decay_start >= 0) {
    run.notes.push_back(fmt::format("training ended after {} of {} steps: the large gates had long been the same",
                                    state.num_steps_done, options.num_steps));
  }
  return run;
}

const PlannerMethod kDuoMethod = {
    .name = "duo",
    .description = "gates trained on passkeys decide which heads stay full [duo]; --from re-plans without training",
    .options = JoinLists<std::string_view>(
        std::to_array<std::string_view>({"from", "sink", "recent", "positions", "compensate"}), kSelectionOptions,
        kTrainingOptions, kCalibrationOptions),
    .make = MakeDuo,
    .runs = PlannerMethod::Runs::kModelResumably,
    .refit = {.make = RefitDuo, .replaced = {"sparsity", "threshold"}},
};

}  // namespace headwise
