// headwise eval: measures what plans cost a model. Each plan is evaluated on the same cases.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/sha256.h"
#include "commands.h"
#include "common_options.h"
#include "data/lines.h"
#include "engine/prompt.h"
#include "eval/perplexity.h"
#include "eval/retrieval.h"
#include "eval/run_folder.h"

namespace headwise {
namespace {

// What all tasks share.
struct EvalOptions {
  EngineOptions engine;
  std::vector<std::string> plans;
  std::string out;
  bool no_bos = false;
  bool resume = false;

  Bos bos() const { return no_bos ? Bos::kNever : Bos::kAuto; }
  bool json = false;
};

struct LinesOptions : EvalOptions {
  std::optional<std::string> cases;
  LineGeneratorOptions generator;
  std::optional<int64_t> num_cases;
  int64_t batch = 1;
  int64_t max_new_tokens = 48;
};

struct PplOptions : EvalOptions {
  std::string text;
  int64_t num_tokens = 4096;
  int64_t prompt_tokens = -1;
};

struct NamedPlan {
  std::string name;  // as given on the command line
  std::shared_ptr<const HeadPlan> plan;
};

// An evaluation under way: the engine, the plans and, with --out, the folder.
struct Evaluation {
  std::unique_ptr<Engine> engine;
  std::vector<NamedPlan> plans;
  std::optional<RunFolder> folder;

  // Lines of an earlier run about this plan.
  std::vector<Json> Finished(const NamedPlan& plan) const {
    std::vector<Json> lines;
    if (!folder) return lines;
    for (const Json& line : folder->finished()) {
      if (line.value("plan", "") == plan.name) lines.push_back(line);
    }
    return lines;
  }
  Status Append(const Json& line) { return folder ? folder->Append(line) : Status::Ok(); }
};

// `manifest` holds what the task itself decides; model, plans and numerics are added here.
Result<Evaluation> StartEvaluation(const EvalOptions& options, Json manifest) {
  if (options.resume && options.out.empty()) {
    return Status::InvalidInput("--resume: needs the folder of the earlier run, --out");
  }
  Evaluation evaluation;
  HW_ASSIGN_OR_RETURN(evaluation.engine, Engine::Create(options.engine));
  manifest["model"] = evaluation.engine->source_hash();
  manifest["no_bos"] = options.no_bos;
  manifest["backend"] = options.engine.backend;
  manifest["compute"] = options.engine.compute;
  manifest["kv_dtype"] = options.engine.kv_dtype;
  const std::vector<std::string> names = options.plans.empty() ? std::vector<std::string>{kFullPlan} : options.plans;
  for (const std::string& name : names) {
    HW_ASSIGN_OR_RETURN(std::shared_ptr<const HeadPlan> plan, LoadPlan(name, *evaluation.engine));
    manifest["plans"][name] = plan == nullptr ? "" : Sha256Hex(SerializeHeadPlan(*plan));
    evaluation.plans.push_back({.name = name, .plan = std::move(plan)});
  }
  if (manifest["plans"].size() != names.size()) return Status::InvalidInput("--plan: one plan is given twice");
  if (!options.out.empty()) {
    const auto mode = options.resume ? RunFolder::Mode::kResume : RunFolder::Mode::kNew;
    HW_ASSIGN_OR_RETURN(evaluation.folder, RunFolder::Open(options.out, manifest, mode));
  }
  return evaluation;
}

Status FinishEvaluation(const EvalOptions& options, Evaluation& evaluation, const char* task, Json plan_results) {
  const Json summary = {{"task", task}, {"model", options.engine.model}, {"plans", std::move(plan_results)}};
  if (evaluation.folder) HW_RETURN_IF_ERROR(evaluation.folder->WriteSummary(summary));
  return options.json ? PrintJson(summary) : Status::Ok();
}

// ---- lines ----

Result<std::vector<LineCase>> LineCases(const LinesOptions& options) {
  LineGeneratorOptions generator = options.generator;
  if (!options.cases) {
    generator.num_cases = options.num_cases.value_or(generator.num_cases);
    return MakeLineCases(generator);
  }
  HW_ASSIGN_OR_RETURN(std::vector<LineCase> cases, ReadLineCases(*options.cases));
  if (options.num_cases && *options.num_cases < 1) {
    return Status::InvalidInput(fmt::format("number of cases is {}, expected at least 1", *options.num_cases));
  }
  if (options.num_cases) cases.resize(std::min(cases.size(), static_cast<size_t>(*options.num_cases)));
  return cases;
}

std::string HashOf(const std::vector<LineCase>& cases) {
  Json json = Json::array();
  for (const LineCase& line_case : cases) json.push_back({line_case.prompt, line_case.expected_number});
  return Sha256Hex(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Result<Json> EvaluateLinesUnder(const NamedPlan& plan, const LinesOptions& options, const std::vector<LineCase>& cases,
                                Evaluation& evaluation) {
  int64_t num_correct = 0;
  int64_t num_done = 0;
  int64_t kv_bytes = 0;
  int64_t kv_peak_bytes = 0;
  double seconds = 0;
  const auto count = [&](const Json& line) {
    ++num_done;
    num_correct += line.value("correct", false) ? 1 : 0;
    kv_bytes = std::max(kv_bytes, line.value("kv_bytes", int64_t{0}));
    kv_peak_bytes = std::max(kv_peak_bytes, line.value("kv_peak_bytes", int64_t{0}));
    seconds += line.value("seconds", 0.0);
  };
  RetrievalOptions retrieval;
  retrieval.plan = plan.plan;
  retrieval.cases = cases;
  retrieval.bos = options.bos();
  retrieval.batch = options.batch;
  retrieval.max_new_tokens = options.max_new_tokens;
  for (const Json& line : evaluation.Finished(plan)) {
    if (retrieval.skip.insert(line.value("case", int64_t{-1})).second) count(line);
  }
  ProgressBar progress("lines, " + plan.name, static_cast<int64_t>(cases.size()));
  progress.Update(num_done);
  retrieval.on_outcome = [&](const RetrievalOutcome& outcome) -> Status {
    const Json line = {{"plan", plan.name},
                       {"case", outcome.case_idx},
                       {"expected", cases[static_cast<size_t>(outcome.case_idx)].expected_number},
                       {"answer", outcome.answer},
                       {"correct", outcome.correct},
                       {"question", QuestionOf(cases[static_cast<size_t>(outcome.case_idx)])},
                       {"prompt_tokens", outcome.metrics.prompt_tokens},
                       {"new_tokens", outcome.metrics.new_tokens},
                       {"prefill_seconds", outcome.metrics.prefill_seconds},
                       {"decode_seconds", outcome.metrics.decode_seconds},
                       {"kv_bytes", outcome.metrics.kv_bytes},
                       {"kv_peak_bytes", outcome.metrics.kv_peak_bytes},
                       {"seconds", outcome.metrics.prefill_seconds + outcome.metrics.decode_seconds}};
    count(line);
    progress.Update(num_done);
    return evaluation.Append(line);
  };
  HW_RETURN_IF_ERROR(RunRetrieval(*evaluation.engine, retrieval));
  return Json{{"plan", plan.name},    {"correct", num_correct},         {"total", num_done},
              {"kv_bytes", kv_bytes}, {"kv_peak_bytes", kv_peak_bytes}, {"seconds", seconds}};
}

Status RunLines(const LinesOptions& options) {
  HW_ASSIGN_OR_RETURN(const std::vector<LineCase> cases, LineCases(options));
  HW_ASSIGN_OR_RETURN(Evaluation evaluation, StartEvaluation(options, {{"task", "lines"},
                                                                       {"cases", HashOf(cases)},
                                                                       {"max_new_tokens", options.max_new_tokens}}));
  Json results = Json::array();
  for (const NamedPlan& plan : evaluation.plans) {
    HW_ASSIGN_OR_RETURN(Json result, EvaluateLinesUnder(plan, options, cases, evaluation));
    if (!options.json) {
      fmt::print("{}: {} of {} right, KV {} at the end, {} at peak\n", plan.name, result["correct"].get<int64_t>(),
                 result["total"].get<int64_t>(), FormatBytes(result["kv_bytes"]), FormatBytes(result["kv_peak_bytes"]));
    }
    results.push_back(std::move(result));
  }
  return FinishEvaluation(options, evaluation, "lines", std::move(results));
}

// ---- ppl ----

// Decides what is measured, so it stands in the manifest; the text itself by its hash.
Result<std::vector<int32_t>> FirstTokens(const Engine& engine, const std::string& text, const PplOptions& options) {
  HW_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodePrompt(engine, text, {.bos = options.bos()}));
  if (options.num_tokens < 2 || static_cast<int64_t>(ids.size()) < options.num_tokens) {
    return Status::InvalidInput(fmt::format("{}: --tokens is {}, expected 2 to {}, which is what the text has",
                                            options.text, options.num_tokens, ids.size()));
  }
  ids.resize(static_cast<size_t>(options.num_tokens));
  return ids;
}

Result<Json> EvaluatePplUnder(const NamedPlan& plan, const PplOptions& options, const std::vector<int32_t>& ids,
                              Evaluation& evaluation) {
  const std::vector<Json> finished = evaluation.Finished(plan);
  if (!finished.empty()) return finished.front();
  ProgressBar progress("ppl, " + plan.name, static_cast<int64_t>(ids.size()));
  HW_ASSIGN_OR_RETURN(
      const PerplexityResult result,
      MeasurePerplexity(*evaluation.engine, {.plan = plan.plan,
                                             .ids = ids,
                                             .prompt_tokens = options.prompt_tokens,
                                             .on_progress = [&](int64_t num_read) { progress.Update(num_read); }}));
  Json line = {{"plan", plan.name}, {"total", result.num_predicted}, {"nll", result.nll},
               {"ppl", result.ppl}, {"kv_bytes", result.kv_bytes},   {"kv_peak_bytes", result.kv_peak_bytes}};
  HW_RETURN_IF_ERROR(evaluation.Append(line));
  return line;
}

Status RunPpl(const PplOptions& options) {
  HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.text));
  HW_ASSIGN_OR_RETURN(Evaluation evaluation, StartEvaluation(options, {{"task", "ppl"},
                                                                       {"text", Sha256Hex(text)},
                                                                       {"tokens", options.num_tokens},
                                                                       {"prompt_tokens", options.prompt_tokens}}));
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, FirstTokens(*evaluation.engine, text, options));
  WarnBeyondTrainedLength(*evaluation.engine, options.num_tokens);
  Json results = Json::array();
  for (const NamedPlan& plan : evaluation.plans) {
    HW_ASSIGN_OR_RETURN(Json result, EvaluatePplUnder(plan, options, ids, evaluation));
    if (!options.json) {
      fmt::print("{}: perplexity {:.4f}, mean NLL {:.6f} over {} tokens, KV {} at the end, {} at peak\n", plan.name,
                 result["ppl"].get<double>(), result["nll"].get<double>(), result["total"].get<int64_t>(),
                 FormatBytes(result["kv_bytes"]), FormatBytes(result["kv_peak_bytes"]));
    }
    results.push_back(std::move(result));
  }
  return FinishEvaluation(options, evaluation, "ppl", std::move(results));
}

void AddEvalOptions(CLI::App& command, EvalOptions& options) {
  AddEngineOptions(command, options.engine);
  command.add_option("--plan", options.plans, "Head plan, or \"full\"; may be repeated. Default: full")
      ->allow_extra_args(false);
  command.add_flag("--no-bos", options.no_bos, "No beginning-of-text token in front");
  command.add_option("--out", options.out, "Folder for results.jsonl and summary.json");
  command.add_flag("--resume", options.resume, "Go on with the run in --out");
  command.add_flag("--json", options.json, "One JSON object on standard output");
}

void AddLinesTask(CommandLine& line, CLI::App& eval) {
  auto options = std::make_shared<LinesOptions>();
  CLI::App& command = *eval.add_subcommand("lines", "Line retrieval (LongEval): the number of one of many lines");
  AddEvalOptions(command, *options);
  CLI::Option* cases = command.add_option("--cases", options->cases, "LongEval JSONL; without it, generated cases");
  command.add_option("--num-lines", options->generator.num_lines, "Lines in a generated case")
      ->capture_default_str()
      ->excludes(cases);
  command.add_option("--seed", options->generator.seed, "Seed of the generated cases")
      ->capture_default_str()
      ->excludes(cases);
  command.add_option("--num-cases", options->num_cases, "Cases to generate (10), or the first N of --cases (all)");
  command.add_option("--batch", options->batch, "Cases at a time")->capture_default_str();
  command.add_option("--max-new-tokens", options->max_new_tokens, "Longest answer")->capture_default_str();
  OnChosen(line, command, std::move(options), RunLines);
}

void AddPplTask(CommandLine& line, CLI::App& eval) {
  auto options = std::make_shared<PplOptions>();
  CLI::App& command = *eval.add_subcommand("ppl", "Perplexity of the first tokens of a text");
  AddEvalOptions(command, *options);
  command.add_option("--text", options->text, "Text file")->required();
  command.add_option("--tokens", options->num_tokens, "Tokens used, the beginning-of-text token counted in")
      ->capture_default_str();
  command
      .add_option("--prompt-tokens", options->prompt_tokens, "Tokens read as the prompt, the rest one by one; -1: all")
      ->capture_default_str();
  OnChosen(line, command, std::move(options), RunPpl);
}

}  // namespace

void AddEvalCommand(CommandLine& line) {
  CLI::App& eval = *line.app.add_subcommand("eval", "Measure what plans cost a model");
  eval.require_subcommand(1);
  AddLinesTask(line, eval);
  AddPplTask(line, eval);
  AddReportTask(line, eval);
}

}  // namespace headwise
