#include "eval/evaluation.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <set>
#include <utility>

#include "base/cpu_info.h"
#include "base/sha256.h"
#include "eval/run_folder.h"
#include "eval/task_run.h"

namespace headwise {
namespace {

// The engine's, and the batch: how many rows a step has says in which order, and under bf16 products in which numbers,
// a matrix product is summed.
Json ArithmeticOf(const Engine& engine, const EvaluationOptions& options) {
  const Arithmetic arithmetic = engine.arithmetic();
  Json json = {{"backend", arithmetic.backend},           {"isa", arithmetic.isa},
               {"compute", arithmetic.compute},           {"kv_dtype", arithmetic.kv_dtype},
               {"chunk_tokens", arithmetic.chunk_tokens}, {kBatchInvariantKey, arithmetic.batch_invariant}};
  const bool has_batch = std::ranges::any_of(options.task->options,
                                             [](const TaskOption& option) { return option.name == kBatchOption.name; });
  // As a task reads it, which has done so before.
  if (has_batch) json["batch"] = options.task_options.IntOr(std::string(kBatchOption.name), 1, 1, kMaxBatch).value();
  return json;
}

// Results are kept by the names of the plans: two of one name would be taken for one.
Status CheckNamesDiffer(std::span<const Subject> subjects) {
  std::set<std::string> names;
  for (const Subject& subject : subjects) {
    if (names.insert(subject.info.name).second) continue;
    return Status::InvalidInput(fmt::format(
        "--plan: two of those compared are called \"{}\", expected files of different names", subject.info.name));
  }
  return Status::Ok();
}

// Everything that decides a result, so that a run is never gone on with as another one.
Json DecidingOptions(const Engine& engine, const EvaluationOptions& options, const Task& task,
                     std::span<const Subject> subjects) {
  Json json = {{"no_bos", options.bos == Bos::kNever},
               {"backend", options.engine.backend},
               {"compute", options.engine.compute},
               {"kv_dtype", options.engine.kv_dtype},
               {kArithmeticKey, ArithmeticOf(engine, options)},
               {"task", Json::parse(options.task_options.Without("batch").ToJson())},
               {"data", task.Identity()},
               {"plans", Json::object()}};
  // Runs from when all pages had 32 tokens do not say so.
  if (engine.page_tokens() != 32) json["page_tokens"] = engine.page_tokens();
  for (const Subject& subject : subjects) {
    for (const auto& [length, plan] : subject.plans) {
      if (plan == nullptr) continue;
      json["plans"][subject.info.files.at(length)] = Sha256Hex(SerializeHeadPlan(*plan));
    }
  }
  return json;
}

Json Environment(const Engine& engine, const EngineOptions& options) {
  return {{"version", HEADWISE_VERSION},
          {"machine", CpuModelName()},
          {"cores", NumUsableCores()},
          {"threads", options.num_threads == 0 ? NumUsableCores() : options.num_threads},
          {"backend", engine.backend_description()},
          {"started", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)))}};
}

}  // namespace

Result<EvaluationOutcome> Evaluate(Engine& engine, const EvaluationOptions& options) {
  const bool resumes = options.resume == EvaluationOptions::Resume::kYes;
  if (resumes && options.out.empty()) {
    return Status::InvalidInput("--resume: needs the folder of the earlier run, --out");
  }
  HW_RETURN_IF_ERROR(RequireTokenizer(engine));
  std::vector<std::string_view> known;
  for (const TaskOption& option : options.task->options) known.push_back(option.name);
  HW_RETURN_IF_ERROR(options.task_options.CheckKnown(fmt::format("eval {}", options.task->name), known));
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Task> task,
                      options.task->make({.engine = engine, .options = options.task_options, .bos = options.bos}));
  WarnBeyondTrainedLength(engine, task->lengths().back());
  HW_ASSIGN_OR_RETURN(std::vector<Subject> subjects,
                      MakeSubjects(options.plans, options.kv_ratios, task->lengths(), engine));
  // In front: every plan is compared with the first.
  for (PlanInfo& reference : task->References()) {
    subjects.insert(subjects.begin(), {.info = std::move(reference), .plans = {}});
  }

  HW_RETURN_IF_ERROR(CheckNamesDiffer(subjects));

  EvaluationOutcome outcome;
  RunInfo& info = outcome.run.info;
  info.task = options.task->name;
  info.study = options.study;
  info.title = options.task->title;
  info.metrics = options.task->metrics;
  info.model = options.engine.model;
  info.source_hash = engine.source_hash();
  for (const Subject& subject : subjects) info.plans.push_back(subject.info);
  info.lengths = task->lengths();
  info.options = DecidingOptions(engine, options, *task, subjects);
  info.environment = Environment(engine, options.engine);

  std::optional<RunFolder> folder;
  if (!options.out.empty()) {
    const auto mode = resumes ? RunFolder::Mode::kResume : RunFolder::Mode::kNew;
    HW_ASSIGN_OR_RETURN(folder, RunFolder::Open(options.out, info, task->Cases(), mode));
    if (!folder->warning().empty()) engine.Warn(folder->warning());
    for (const Subject& subject : subjects) {
      for (const auto& [length, file] : subject.info.files) {
        HW_RETURN_IF_ERROR(folder->WritePlan(file, *subject.plans.at(length)));
      }
    }
  }
  {
    TaskRun run({.engine = &engine,
                 .subjects = subjects,
                 .folder = folder ? &*folder : nullptr,
                 .num_results = task->NumResults() * static_cast<int64_t>(subjects.size()),
                 .label = std::string(options.task->name),
                 .should_stop = options.should_stop,
                 .progress = options.progress});
    HW_RETURN_IF_ERROR(task->Run(run));
    outcome.run.results = run.TakeResults();
  }
  outcome.run.folder = options.out;
  outcome.summary = Summarise(outcome.run);
  if (folder) HW_RETURN_IF_ERROR(folder->WriteSummary(ToJson(outcome.summary)));
  return outcome;
}

}  // namespace headwise
