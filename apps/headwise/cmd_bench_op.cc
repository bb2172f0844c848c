// headwise bench op: every operation of a model alone, as a share of what this machine can do at most for the bytes and
// products that the operation cannot do without.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "backend/kv_format.h"
#include "base/cpu_info.h"
#include "base/progress.h"
#include "bench/op_bench.h"
#include "bench/random_model.h"
#include "bench_common.h"
#include "commands.h"
#include "common_options.h"
#include "terminal_line.h"

namespace headwise {
namespace {

struct BenchOpOptions {
  EngineOptions engine;
  std::string shape;
  OpBenchOptions bench;
  std::vector<std::string> weights = {"bf16"};
  std::vector<std::string> kv_formats = {"f16"};
  int64_t sink = 0;
  std::vector<int64_t> recents;
  int64_t full_heads = 0;
  bool json = false;
};

Result<OpSubject> MakeSubject(const BenchOpOptions& options) {
  OpSubject subject;
  subject.new_backend = [engine = options.engine] { return MakeBackend(BackendOptionsOf(engine)); };
  HW_ASSIGN_OR_RETURN(subject.backend, subject.new_backend());
  if (options.shape.empty()) {
    HW_ASSIGN_OR_RETURN(subject.model, LoadModel(options.engine.model, *subject.backend));
    subject.config = subject.model->config;
    return subject;
  }
  HW_ASSIGN_OR_RETURN(subject.config, ConfigOfShape(options.shape));
  if (subject.config.AnyExperts()) {
    return Status::Unsupported(fmt::format(
        "shape \"{}\" has experts, which no operation here is of; bench without op times its steps", options.shape));
  }
  for (const std::string& name : options.weights) {
    HW_ASSIGN_OR_RETURN(const DType dtype, RandomWeightsByName(name));
    subject.weights.push_back(dtype);
  }
  return subject;
}

Result<OpBenchOptions> MakeBenchOptions(const BenchOpOptions& options) {
  HW_RETURN_IF_ERROR(CheckNumThreads(options.engine.num_threads));
  OpBenchOptions bench = options.bench;
  bench.compute = options.engine.compute;
  bench.page_tokens = options.engine.page_tokens;
  bench.num_fill_threads = NumUsableCores();
  bench.kv_formats.clear();
  for (const std::string& name : options.kv_formats) {
    HW_ASSIGN_OR_RETURN(const KvFormat format, KvFormatByName(name));
    bench.kv_formats.push_back(format);
  }
  return bench;
}

// The rules that KV heads take in turn.
Result<std::vector<HeadRule>> RulesOf(const BenchOpOptions& options, int64_t num_kv_heads) {
  if (options.recents.empty()) return std::vector{HeadRule::Full()};
  if (options.full_heads < 0 || options.full_heads >= num_kv_heads) {
    return Status::InvalidInput(fmt::format("--full-heads is {}, expected 0 to {}, as a layer has {} KV heads",
                                            options.full_heads, num_kv_heads - 1, num_kv_heads));
  }
  std::vector<HeadRule> rules(static_cast<size_t>(options.full_heads), HeadRule::Full());
  for (size_t i = 0; rules.size() < static_cast<size_t>(num_kv_heads); ++i) {
    rules.push_back(HeadRule::Stream(options.sink, options.recents[i % options.recents.size()]));
  }
  return rules;
}

// ---- figures ----

Json LineJson(const OpLine& line, const OpPeaks& peaks) {
  const OpPoint& point = line.point;
  const OpBound bound = BoundOf(point.work, point.numbers, line.is_cached, peaks);
  const double seconds = line.timing.median;
  return {{"op", point.op},
          {"part", point.part},
          {"shape", point.shape},
          {"format", point.format},
          {"heads", point.heads},
          {"rows", point.rows},
          {"depth", point.depth ? Json(*point.depth) : Json()},
          {"seconds", TimingJson(line.timing)},
          {"calls_per_sample", line.calls_per_sample},
          {"bytes_read", point.work.bytes_read},
          {"bytes_written", point.work.bytes_written},
          {"multiply_adds", point.work.multiply_adds},
          {"bytes_per_second", point.work.bytes() / seconds},
          {"flops_per_second", point.work.flops() / seconds},
          {"peak", NameOf(point.numbers)},
          {"cycled_bytes", point.cycled_bytes},
          {"cached", line.is_cached},
          {"bound_seconds", bound.seconds},
          {"bound_by", bound.by == OpBound::By::kMemory ? "memory" : "compute"},
          {"share_of_bound", bound.seconds / seconds}};
}

// A ceiling is the best that was seen: something else on the machine can only lower it.
Ceilings BestOf(const Ceilings& a, const Ceilings& b) {
  Ceilings best = a;
  best.read_bytes_per_second = std::max(a.read_bytes_per_second, b.read_bytes_per_second);
  best.f32_flops = std::max(a.f32_flops, b.f32_flops);
  best.bf16_dot_flops = std::max(a.bf16_dot_flops, b.bf16_dot_flops);
  best.int8_dot_flops = std::max(a.int8_dot_flops, b.int8_dot_flops);
  best.int8_tile_flops = std::max(a.int8_tile_flops, b.int8_tile_flops);
  return best;
}

void WarnIfDisturbed(const Ceilings& before, const Ceilings& after) {
  const auto differ = [](double a, double b) { return std::abs(a - b) > 0.1 * std::max(a, b); };
  if (!differ(before.read_bytes_per_second, after.read_bytes_per_second) &&
      !differ(before.f32_flops, after.f32_flops) && !differ(before.bf16_dot_flops, after.bf16_dot_flops) &&
      !differ(before.int8_dot_flops, after.int8_dot_flops)) {
    return;
  }
  spdlog::warn("the ceilings before and after differ by more than a tenth: something else ran, and shares mean little");
}

Json LinesJson(const std::vector<OpLine>& lines, const Ceilings& ceilings) {
  const OpPeaks peaks = {.bytes = ceilings.read_bytes_per_second,
                         .f32_flops = ceilings.f32_flops,
                         .bf16_flops = ceilings.bf16_dot_flops,
                         .int8_flops = ceilings.flops(Compute::kInt8),
                         .w8a8_flops = ceilings.flops(Compute::kW8A8)};
  Json ops = Json::array();
  for (const OpLine& line : lines) ops.push_back(LineJson(line, peaks));
  return ops;
}

// ---- text ----

std::string Microseconds(const Json& seconds) {
  return fmt::format("{:.2f}", 1e6 * seconds.get<double>());
}
std::string Millions(const Json& count) {
  return fmt::format("{:.3f}", count.get<double>() / 1e6);
}

void PrintText(const Json& root) {
  PrintMachine(root["machine"]);
  Print("  before  {}\n", CeilingsText(root["machine_before"]));
  Print("  after   {}\n", CeilingsText(root["machine_after"]));
  Print("model     {}; {}\n\n", root["model"]["name"].get<std::string>(), root["model"]["backend"].get<std::string>());
  std::vector<TextRow> rows{{"operation", "shape", "format", "heads", "rows", "depth", "us", "min", "max", "MB read",
                             "MB written", "M mul-add", "GB/s", "GFLOP/s", "cycled", "bound", "of bound"}};
  for (const Json& line : root["ops"]) {
    const auto text = [&](const char* key) { return line[key].get<std::string>(); };
    const std::string part = text("part");
    const Json& seconds = line["seconds"];
    const bool is_memory = line["bound_by"] == "memory";
    rows.push_back({part.empty() ? text("op") : text("op") + " " + part, text("shape"), text("format"), text("heads"),
                    line["rows"].dump(), line["depth"].is_null() ? "" : line["depth"].dump(),
                    Microseconds(seconds["median"]), Microseconds(seconds["min"]), Microseconds(seconds["max"]),
                    Millions(line["bytes_read"]), Millions(line["bytes_written"]), Millions(line["multiply_adds"]),
                    Giga(line["bytes_per_second"]), Giga(line["flops_per_second"]),
                    FormatBytes(line["cycled_bytes"]) + (line["cached"].get<bool>() ? "*" : " "),
                    is_memory ? "memory" : text("peak"), Percent(line["share_of_bound"])});
  }
  PrintTable(rows);
  Print("* fits in the last-level cache: only products bind\n");
}

Status RunBenchOp(const BenchOpOptions& options) {
  HW_ASSIGN_OR_RETURN(OpBenchOptions bench, MakeBenchOptions(options));
  HW_ASSIGN_OR_RETURN(const OpSubject subject, MakeSubject(options));
  HW_ASSIGN_OR_RETURN(bench.rules, RulesOf(options, subject.config.num_kv_heads));
  HW_RETURN_IF_ERROR(CheckOpBench(subject, bench));  // a wrong name should not cost a second of ceilings
  const auto measure = [&] { return MeasureCeilings(BackendOptionsOf(options.engine), *subject.backend); };
  HW_ASSIGN_OR_RETURN(const Ceilings before, measure());
  std::vector<OpLine> lines;
  {
    TerminalLine line;
    ProgressBar progress(&line, "bench op", 1000);
    bench.on_progress = [&](int64_t num_done, int64_t total) { progress.Update(num_done * 1000 / total); };
    HW_ASSIGN_OR_RETURN(lines, RunOpBench(subject, bench));
  }
  HW_ASSIGN_OR_RETURN(const Ceilings after, measure());
  WarnIfDisturbed(before, after);
  const Ceilings ceilings = BestOf(before, after);
  const Json root = {{"machine", MachineJson(ceilings)},
                     {"machine_before", MachineJson(before)},
                     {"machine_after", MachineJson(after)},
                     {"model",
                      {{"name", options.shape.empty() ? options.engine.model : options.shape + " (random weights)"},
                       {"backend", subject.backend->Description()}}},
                     {"ops", LinesJson(lines, ceilings)}};
  if (options.json) return PrintJson(root);
  PrintText(root);
  return CheckOutput();
}

}  // namespace

CLI::App& AddBenchOpCommand(CommandLine& line, CLI::App& bench) {
  auto options = std::make_shared<BenchOpOptions>();
  OpBenchOptions& op_bench = options->bench;
  CLI::App& command = *bench.add_subcommand("op", "Each operation alone as a share of the machine's ceilings");
  command.add_option("operations", op_bench.ops, fmt::format("Some of: {}. Default: all", fmt::join(OpNames(), ", ")));
  AddEngineOptions(command, options->engine);
  for (const char* unused : {"--kv-dtype", "--kv-limit-bytes", "--chunk-tokens"}) {
    command.remove_option(command.get_option(unused));
  }
  CLI::App& measured_on = AddMeasuredOn(command, options->shape);
  const auto add_list = [&](const char* name, auto& values, const char* help) {
    return command.add_option(name, values, help)->delimiter(',')->allow_extra_args(false)->capture_default_str();
  };
  add_list("--weights", options->weights,
           "With --shape, one after the other: f32, f16, bf16, q8_0, q4_0, q4_k, q6_k or mxfp4")
      ->needs(measured_on.get_option("--shape"));
  add_list("--kv-dtype", options->kv_formats,
           "Caches, one after the other, each of all heads: f32, f16, bf16, q8 or q4");
  add_list("--rows", op_bench.rows, "Tokens of a step; attention of one is attention-decode");
  add_list("--depth", op_bench.depths, "Tokens in the cache before the step");
  CLI::Option* const recent =
      add_list("--recent", options->recents,
               "Heads keep sinks and so many recent tokens, not all; several numbers: each head in turn the next");
  command.add_option("--sink", options->sink, "Sink tokens of such heads")->needs(recent)->capture_default_str();
  command.add_option("--full-heads", options->full_heads, "KV heads of the layer that keep all")
      ->needs(recent)
      ->capture_default_str();
  command.add_option("--reps", op_bench.reps, "Samples of each line")->capture_default_str();
  command.add_option("--seed", op_bench.seed, "Seed of the random numbers")->capture_default_str();
  command.add_flag("--json", options->json, "One JSON object on standard output");
  OnChosen(line, command, std::move(options), RunBenchOp);
  return command;
}

}  // namespace headwise
