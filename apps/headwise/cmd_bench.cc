// headwise bench: prefill and decode speed of plans at given lengths, each figure also as a share of what this machine
// can do at most, measured in the same run on the same number of threads.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "backend/kv_format.h"
#include "base/cpu_info.h"
#include "base/progress.h"
#include "bench/bench.h"
#include "bench/op_work.h"
#include "bench/random_model.h"
#include "bench/work_counts.h"
#include "bench_common.h"
#include "commands.h"
#include "common_options.h"
#include "engine/engine_impl.h"
#include "model/model_config.h"
#include "preset_options.h"
#include "terminal_line.h"

namespace headwise {
namespace {

struct BenchCommandOptions {
  EngineOptions engine;
  PresetFlags preset;
  std::string shape;
  std::string weights = "bf16";  // of a shape
  std::optional<int64_t> num_layers;
  std::vector<std::string> plans;
  std::vector<int64_t> depths = {0, 4096};
  std::vector<int64_t> prefills = {512};
  int64_t prefill_depth = 0;
  std::string fill = "prefill";
  int64_t num_steps = 20;
  int64_t batch = 1;
  int64_t mixed = 0;
  uint64_t seed = 0;
  bool json = false;
};

// The engine, and what the bounds need to know about it.
struct Subject {
  std::string name;
  std::shared_ptr<KvMemory> memory;  // the engine's, with its backend
  std::unique_ptr<Engine> engine;
  WeightCounts weights;
  std::vector<DType> weight_types;  // of its matrices
  Compute compute = Compute::kF32;
  KvFormats kv_formats;
};

Result<Subject> MakeSubject(const BenchCommandOptions& options) {
  EngineImpl::Parts parts;
  parts.options = options.engine;
  parts.memory = std::make_shared<KvMemory>();
  HW_ASSIGN_OR_RETURN(parts.memory->backend, MakeBackend(BackendOptionsOf(options.engine)));
  Backend& backend = *parts.memory->backend;
  HW_ASSIGN_OR_RETURN(const DType weights, RandomWeightsByName(options.weights));
  if (options.shape.empty()) {
    HW_ASSIGN_OR_RETURN(
        parts.model, LoadModel(options.engine.model, backend,
                               options.engine.use_mmap ? FileAccess::kMap : FileAccess::kRead, options.engine.on_load));
  } else {
    HW_ASSIGN_OR_RETURN(parts.model, MakeRandomModel({.shape = options.shape,
                                                      .weights = weights,
                                                      .num_layers = options.num_layers,
                                                      .seed = options.seed,
                                                      .num_threads = NumUsableCores()},
                                                     backend));
  }
  Subject subject;
  subject.name = options.shape.empty() ? options.engine.model : options.shape + " (random weights)";
  subject.weights = CountWeights(parts.model->weights, parts.model->config.experts.num_chosen);
  subject.weight_types = parts.model->MatrixTypes();
  HW_ASSIGN_OR_RETURN(subject.compute, ResolveCompute(parts.options.compute, *parts.model, backend));
  HW_ASSIGN_OR_RETURN(subject.kv_formats, KvFormatsByName(parts.options.kv_dtype));
  subject.memory = parts.memory;
  HW_ASSIGN_OR_RETURN(subject.engine, MakeEngine(std::move(parts)));
  return subject;
}

struct PlanResult {
  std::string name;
  std::shared_ptr<const HeadPlan> plan;
  BenchResult bench;
};

// Turns measured seconds into figures and rows, plan by plan; ratios are against the first plan.
class Report {
 public:
  Report(const BenchCommandOptions& options, const Subject& subject, const Ceilings& ceilings)
      : options_(options), subject_(subject), ceilings_(ceilings) {}

  Json Prefill(const PlanResult& result, const PrefillTiming& timing, const PlanResult& first) const {
    const Work work = PrefillWork(ArgsFor(result, timing.depth + timing.num_tokens), timing.num_tokens, timing.depth);
    const double seconds = timing.timing.median;
    const int64_t num_rows = std::min(timing.num_tokens, options_.engine.chunk_tokens);  // of a step
    const auto& firsts = first.bench.prefill;
    const auto same = std::find_if(firsts.begin(), firsts.end(),
                                   [&](const PrefillTiming& other) { return other.num_tokens == timing.num_tokens; });
    return {{"tokens", timing.num_tokens},
            {"depth", timing.depth},
            {"seconds", TimingJson(timing.timing)},
            {"tokens_per_second", static_cast<double>(timing.num_tokens) / seconds},
            {"linear_flops", work.linear_flops},
            {"attention_flops", work.attention_flops},
            {"flops_per_second", work.flops() / seconds},
            {"peak", NameOf(NumbersOfRows(num_rows))},
            {"share_of_peak", work.flops() / seconds / LinearPeak(num_rows)},
            {"kv_bytes", timing.kv_bytes},
            {"kv_peak_bytes", timing.kv_peak_bytes},
            {"speedup", same == firsts.end() ? 0.0 : same->timing.median / seconds}};
  }

  Json Decode(const PlanResult& result, const DecodeTiming& timing, const PlanResult& first) const {
    // The median step is one in the middle.
    Work work = DecodeWork(ArgsFor(result, timing.depth), timing.depth + timing.timing.count / 2);
    const auto batch = static_cast<double>(timing.batch);
    work.kv_bytes *= batch;
    work.linear_flops *= batch;
    work.attention_flops *= batch;
    const Bound bound = BoundOf(work, {.bytes_per_second = timing.read_bytes_per_second,
                                       .linear_flops = LinearPeak(timing.batch),
                                       .attention_flops = AttentionPeak()});
    const double seconds = timing.timing.median;
    const auto& firsts = first.bench.decode;
    const auto same = std::find_if(firsts.begin(), firsts.end(),
                                   [&](const DecodeTiming& other) { return other.depth == timing.depth; });
    return {{"depth", timing.depth},
            {"batch", timing.batch},
            {"seconds", TimingJson(timing.timing)},
            {"host_seconds", timing.host_seconds},
            {"tokens_per_second", batch / seconds},
            {"weight_bytes", work.weight_bytes},
            {"kv_bytes_read", work.kv_bytes},
            {"bytes_per_second", work.bytes() / seconds},
            {"share_of_read", work.bytes() / seconds / timing.read_bytes_per_second},
            {"read_bytes_per_second", timing.read_bytes_per_second},
            {"flops", work.flops()},
            {"bound_seconds", bound.seconds()},
            {"bound_by", bound.memory_seconds >= bound.compute_seconds ? "memory" : "compute"},
            {"share_of_bound", bound.seconds() / seconds},
            {"kv_bytes_full", timing.kv_bytes_full},
            {"kv_bytes_bounded", timing.kv_bytes_bounded},
            {"kv_peak_bytes", timing.kv_peak_bytes},
            {"speedup", same == firsts.end() ? 0.0 : same->timing.median / seconds}};
  }

 private:
  WorkArgs ArgsFor(const PlanResult& result, int64_t prompt_tokens) const {
    const ModelConfig& config = subject_.engine->config();
    return {.plan = result.plan.get(),
            .config = &config,
            .weights = subject_.weights,
            .limits = {.prompt_tokens = prompt_tokens, .max_tokens = prompt_tokens + options_.num_steps},
            .windows = LayerWindowsOf(config),
            .kv_formats = subject_.kv_formats,
            .page_tokens = subject_.engine->page_tokens()};
  }
  Compute NumbersOfRows(int64_t num_rows) const { return NumbersOf(subject_.compute, subject_.weight_types, num_rows); }
  double LinearPeak(int64_t num_rows) const { return ceilings_.flops(NumbersOfRows(num_rows)); }
  // Of two formats the faster one's, so that the bound stays one.
  double AttentionPeak() const {
    return std::max(PeakOver(subject_.kv_formats.full), PeakOver(subject_.kv_formats.bounded));
  }
  double PeakOver(KvFormat format) const {
    return ceilings_.flops(format == KvFormat::kBF16               ? Compute::kBF16
                           : NewestFormat(format) == KvFormat::kQ8 ? Compute::kInt8
                                                                   : Compute::kF32);
  }

  const BenchCommandOptions& options_;
  const Subject& subject_;
  const Ceilings& ceilings_;
};

// What is the same for every plan, but for the ceiling.
BenchOptions BenchOptionsOf(const BenchCommandOptions& options) {
  BenchOptions bench;
  bench.depths = options.depths;
  bench.prefills = options.prefills;
  bench.prefill_depth = options.prefill_depth;
  bench.fill = options.fill == "random" ? BenchOptions::Fill::kRandom : BenchOptions::Fill::kPrefill;
  bench.num_steps = options.num_steps;
  bench.batch = options.batch;
  bench.mixed = options.mixed;
  bench.seed = options.seed;
  return bench;
}

// Everything that can be wrong without a model: loading one, and the ceilings, take seconds.
Status CheckOptions(const BenchCommandOptions& options) {
  HW_RETURN_IF_ERROR(CheckBench(BenchOptionsOf(options)));
  HW_RETURN_IF_ERROR(CheckNumThreads(options.engine.num_threads));
  HW_ASSIGN_OR_RETURN(const KvFormats formats, KvFormatsByName(options.engine.kv_dtype));
  HW_RETURN_IF_ERROR(PageTokensFor(options.engine.page_tokens, formats.full).status());
  return RandomWeightsByName(options.weights).status();
}

struct NamedPlan {
  std::string name;
  std::shared_ptr<const HeadPlan> plan;
};

Result<std::vector<NamedPlan>> LoadPlans(const BenchCommandOptions& options, const Engine& engine) {
  std::vector<std::string> names = options.plans;
  if (names.empty()) names.emplace_back(kFullPlan);
  std::vector<NamedPlan> plans;
  for (const std::string& name : names) {
    HW_ASSIGN_OR_RETURN(std::shared_ptr<const HeadPlan> plan, LoadPlan(name, engine));
    plans.push_back({name, std::move(plan)});
  }
  return plans;
}

Result<std::vector<PlanResult>> RunPlans(const BenchCommandOptions& options, const Subject& subject,
                                         const std::vector<NamedPlan>& plans) {
  std::vector<PlanResult> results;
  TerminalLine line;
  for (const auto& [name, plan] : plans) {
    ProgressBar progress(&line, "bench, " + name, 1000);
    BenchOptions bench = BenchOptionsOf(options);
    bench.plan = plan;
    bench.measure_read = [&] {
      return MeasureReadBandwidth(BackendOptionsOf(options.engine), *subject.memory->backend);
    };
    bench.on_progress = [&](int64_t num_read, int64_t total) {
      progress.Update(num_read * 1000 / std::max<int64_t>(1, total));
    };
    HW_ASSIGN_OR_RETURN(BenchResult result, RunBench(*subject.engine, bench));
    results.push_back(
        {.name = name,
         .plan = plan != nullptr ? plan : std::make_shared<HeadPlan>(HeadPlan::Dense(subject.engine->shape())),
         .bench = std::move(result)});
  }
  return results;
}

Json MixedJson(const MixedTiming& timing) {
  return {{"depth", timing.depth},
          {"batch", timing.batch},
          {"chunk_tokens", timing.chunk_tokens},
          {"chunk_seconds", TimingJson(timing.chunk)},
          {"decode_seconds", TimingJson(timing.decode)},
          {"both_seconds", TimingJson(timing.both)},
          // Above 1 what decodes makes a chunk longer by more than its own step takes.
          {"extra_of_decode", (timing.both.median - timing.chunk.median) / timing.decode.median}};
}

Json ResultsJson(const Report& report, const std::vector<PlanResult>& results) {
  Json plans = Json::array();
  for (const PlanResult& result : results) {
    Json prefill = Json::array();
    for (const PrefillTiming& timing : result.bench.prefill) {
      prefill.push_back(report.Prefill(result, timing, results.front()));
    }
    Json decode = Json::array();
    for (const DecodeTiming& timing : result.bench.decode) {
      decode.push_back(report.Decode(result, timing, results.front()));
    }
    Json mixed = Json::array();
    for (const MixedTiming& timing : result.bench.mixed) mixed.push_back(MixedJson(timing));
    plans.push_back({{"plan", result.name},
                     {"verified",
                      {{"repeats", result.bench.verification.repeats},
                       {"prefill_difference", result.bench.verification.prefill_difference}}},
                     {"prefill", std::move(prefill)},
                     {"decode", std::move(decode)},
                     {"mixed", std::move(mixed)}});
  }
  return plans;
}

// ---- text ----

std::string Milliseconds(const Json& seconds) {
  return fmt::format("{:.3f}", 1e3 * seconds.get<double>());
}

void PrintText(const Json& root) {
  PrintMachine(root["machine"]);
  const Json& model = root["model"];
  const auto compute = model["compute"].get<std::string>();
  Print("model     {}: {} of weights read per token, KV {}; {}\n\n", model["name"].get<std::string>(),
        FormatBytes(model["weight_bytes"]), model["kv_dtype"].get<std::string>(), model["backend"].get<std::string>());

  std::vector<TextRow> prefill{{"prefill", "tokens", "tokens/s", "seconds", "min", "max", "GFLOP/s",
                                fmt::format("of {} peak", compute), "KV", "KV peak", "speed"}};
  std::vector<TextRow> decode{{"decode", "depth", "batch", "tokens/s", "ms", "min", "max", "host", "GB/s", "read",
                               "of read", "of bound", "bound", "KV full", "KV bounded", "KV peak", "speed"}};
  std::vector<TextRow> mixed{
      {"mixed", "depth", "batch", "chunk", "chunk ms", "decode ms", "both ms", "min", "max", "extra of decode"}};
  for (const Json& plan : root["plans"]) {
    const auto name = plan["plan"].get<std::string>();
    for (const Json& row : plan["prefill"]) {
      const Json& seconds = row["seconds"];
      prefill.push_back({name, row["tokens"].dump(), fmt::format("{:.1f}", row["tokens_per_second"].get<double>()),
                         fmt::format("{:.3f}", seconds["median"].get<double>()),
                         fmt::format("{:.3f}", seconds["min"].get<double>()),
                         fmt::format("{:.3f}", seconds["max"].get<double>()), Giga(row["flops_per_second"]),
                         Percent(row["share_of_peak"]), FormatBytes(row["kv_bytes"]), FormatBytes(row["kv_peak_bytes"]),
                         fmt::format("{:.2f}x", row["speedup"].get<double>())});
    }
    for (const Json& row : plan["decode"]) {
      const Json& seconds = row["seconds"];
      decode.push_back(
          {name, row["depth"].dump(), row["batch"].dump(),
           fmt::format("{:.1f}", row["tokens_per_second"].get<double>()), Milliseconds(seconds["median"]),
           Milliseconds(seconds["min"]), Milliseconds(seconds["max"]),
           row["host_seconds"] > 0 ? Milliseconds(row["host_seconds"]) : "-", Giga(row["bytes_per_second"]),
           Giga(row["read_bytes_per_second"]), Percent(row["share_of_read"]), Percent(row["share_of_bound"]),
           row["bound_by"].get<std::string>(), FormatBytes(row["kv_bytes_full"]), FormatBytes(row["kv_bytes_bounded"]),
           FormatBytes(row["kv_peak_bytes"]), fmt::format("{:.2f}x", row["speedup"].get<double>())});
    }
    for (const Json& row : plan["mixed"]) {
      const Json& both = row["both_seconds"];
      mixed.push_back({name, row["depth"].dump(), row["batch"].dump(), row["chunk_tokens"].dump(),
                       Milliseconds(row["chunk_seconds"]["median"]), Milliseconds(row["decode_seconds"]["median"]),
                       Milliseconds(both["median"]), Milliseconds(both["min"]), Milliseconds(both["max"]),
                       fmt::format("{:.2f}", row["extra_of_decode"].get<double>())});
    }
  }
  if (prefill.size() > 1) PrintTable(prefill);
  if (prefill.size() > 1 && decode.size() > 1) Print("\n");
  if (decode.size() > 1) PrintTable(decode);
  if (mixed.size() > 1) {
    Print("\n");
    PrintTable(mixed);
  }
}

// With --preset: cache formats, a KV limit, and the plan where none is given.
Result<BenchCommandOptions> WithPreset(const BenchCommandOptions& options) {
  BenchCommandOptions chosen = options;
  if (!options.preset) return chosen;
  if (!options.shape.empty() || options.plans.size() > 1) {
    return Status::InvalidInput(
        fmt::format("--preset: found {}, expected --model and at most one --plan",
                    options.shape.empty() ? fmt::format("{} plans", options.plans.size()) : "--shape"));
  }
  HW_ASSIGN_OR_RETURN(
      const AppliedPreset applied,
      ApplyPreset(options.preset,
                  {.plan = options.plans.empty() ? "" : options.plans.front(), .num_texts = options.batch},
                  chosen.engine));
  chosen.plans = {applied.plan};
  return chosen;
}

Status RunBenchCommand(const BenchCommandOptions& given) {
  HW_RETURN_IF_ERROR(CheckOptions(given));
  HW_ASSIGN_OR_RETURN(const BenchCommandOptions options, WithPreset(given));
  HW_ASSIGN_OR_RETURN(const Subject subject, MakeSubject(options));
  HW_ASSIGN_OR_RETURN(const std::vector<NamedPlan> plans, LoadPlans(options, *subject.engine));
  int64_t longest = 0;
  for (const int64_t length : options.depths) longest = std::max(longest, length);
  for (const int64_t length : options.prefills) longest = std::max(longest, options.prefill_depth + length);
  WarnBeyondTrainedLength(*subject.engine, longest);
  HW_ASSIGN_OR_RETURN(const Ceilings ceilings,
                      MeasureCeilings(BackendOptionsOf(options.engine), *subject.memory->backend));
  HW_ASSIGN_OR_RETURN(const std::vector<PlanResult> results, RunPlans(options, subject, plans));
  const Json root = {{"machine", MachineJson(ceilings)},
                     {"model",
                      {{"name", subject.name},
                       {"params", subject.weights.layer_params + subject.weights.output_params},
                       {"weight_bytes", subject.weights.read_bytes},
                       {"kv_dtype", NameOf(subject.kv_formats)},
                       {"compute", NameOf(subject.compute)},
                       {"backend", subject.engine->backend_description()}}},
                     {"plans", ResultsJson(Report(options, subject, ceilings), results)}};
  if (options.json) return PrintJson(root);
  PrintText(root);
  return CheckOutput();
}

}  // namespace

void AddBenchCommand(CommandLine& line) {
  auto options = std::make_shared<BenchCommandOptions>();
  CLI::App& command =
      *line.app.add_subcommand("bench", "Prefill and decode speed as a share of the machine's ceilings");
  AddEngineOptions(command, options->engine);
  CLI::App& measured_on = AddMeasuredOn(command, options->shape);
  command.add_option("--weights", options->weights, "With --shape: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k or mxfp4")
      ->needs(measured_on.get_option("--shape"))
      ->capture_default_str();
  command.add_option("--layers", options->num_layers, "With --shape: how many of its layers. Default: all")
      ->needs(measured_on.get_option("--shape"));
  command.add_option("--plan", options->plans, "Head plan, or \"full\"; may be repeated. Default: full")
      ->allow_extra_args(false);
  AddPresetOptions(command, options->preset);
  command.add_option("--depth", options->depths, "Tokens in the cache before decode is timed")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--prefill", options->prefills, "Prompt lengths to time; depths are timed as well")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--fill", options->fill, "What leads to a depth: prefill, which is timed too, or random values")
      ->check(CLI::IsMember({"prefill", "random"}))
      ->capture_default_str();
  command
      .add_option("--prefill-depth", options->prefill_depth, "With --fill random: tokens in the cache before --prefill")
      ->capture_default_str();
  command.add_option("--reps", options->num_steps, "Timed decode steps per depth")->capture_default_str();
  command.add_option("--batch", options->batch, "With --fill random: sequences that decode together")
      ->capture_default_str();
  command
      .add_option("--mixed", options->mixed,
                  "With --fill random: tokens of a prompt whose step is timed alone and beside the batch's; 0: none. "
                  "--chunk-tokens as large")
      ->capture_default_str();
  command.add_option("--seed", options->seed, "Seed of the random ids and weights")->capture_default_str();
  command.add_flag("--json", options->json, "One JSON object on standard output");
  CLI::App& op = AddBenchOpCommand(line, command);
  // Options before `op` would be left unread.
  op.excludes(&measured_on);
  for (CLI::Option* option : command.get_options()) {
    if (option != command.get_help_ptr()) op.excludes(option);
  }
  OnChosen(line, command, std::move(options), RunBenchCommand);
}

}  // namespace headwise
