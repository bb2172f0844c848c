#include "bench/op_bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "bench/op_method.h"
#include "bench/work_counts.h"
#include "engine/engine_impl.h"

namespace headwise {
namespace {

constexpr OpMethod kMethods[] = {
    {.name = "matmul", .run = TimeMatMul},
    {.name = "attention-decode", .run = TimeAttentionDecode},
    {.name = "attention-prefill", .run = TimeAttentionPrefill, .check = CheckAttentionPrefill},
    {.name = "append", .run = TimeAppend},
    {.name = "age", .run = TimeAge, .check = CheckAge},
    {.name = "compensate", .run = TimeCompensate, .check = CheckCompensate},
    {.name = "norm", .run = TimeNorm},
    {.name = "rope", .run = TimeRope, .check = CheckRope},
    {.name = "activate", .run = TimeActivate},
    {.name = "embed", .run = TimeEmbed},
    {.name = "draw", .run = TimeDraw},
};

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxRows = 65536;  // as the engine's chunks
constexpr int64_t kMaxReps = 1000000;

// Reading the clock takes 30 ns: a thousandth of this.
constexpr double kMinSampleSeconds = 50e-6;
// Of a device that replays: beginning a graph takes it some microseconds.
constexpr double kMinReplaySeconds = 1e-3;
constexpr int64_t kMaxCallsPerSample = 1000;
// Waking threads and mapping scratch memory is nothing to a first call that takes this long: it is not repeated.
constexpr double kLongCallSeconds = 0.05;
// A line of long calls ends after this much time, but not before it has a spread.
constexpr double kMaxLineSeconds = 3.0;
constexpr int64_t kMinSamples = 3;

// Four times the cache leave nothing of a cycle in it; 1 GiB is enough for any cache whose size is told truly.
constexpr int64_t kMinCycleBytes = int64_t{256} << 20;
constexpr int64_t kMaxCycleBytes = int64_t{1} << 30;

// Seconds per call of `num_calls` calls, from `first_idx` on.
Result<double> TimeCalls(const OpCase& op_case, int64_t first_idx, int64_t num_calls) {
  if (op_case.before) op_case.before();
  HW_ASSIGN_OR_RETURN(const double seconds, op_case.device->TimeOf([&] {
    if (op_case.begin_step && op_case.device->Replays()) op_case.begin_step();
    for (int64_t i = 0; i < num_calls; ++i) op_case.call(first_idx + i);
  }));
  return seconds / static_cast<double>(num_calls);
}

int64_t CallsPerSample(const OpCase& op_case, double seconds_of_call) {
  if (op_case.before) return 1;
  const bool replays = op_case.device->Replays();
  const double wanted = std::ceil((replays ? kMinReplaySeconds : kMinSampleSeconds) / std::max(seconds_of_call, 1e-9));
  const int64_t num_calls = std::clamp<int64_t>(static_cast<int64_t>(wanted), 1, kMaxCallsPerSample);
  // Whole periods: all samples are alike, and each goes through all that is cycled.
  return replays ? (num_calls + op_case.period - 1) / op_case.period * op_case.period : num_calls;
}

Result<OpLine> TimeCase(const OpCase& op_case, int64_t reps) {
  // The first call maps memory and wakes threads, the second says how long one is.
  int64_t next_idx = 0;
  HW_ASSIGN_OR_RETURN(double once, TimeCalls(op_case, next_idx, 1));
  if (once < kLongCallSeconds) {
    HW_ASSIGN_OR_RETURN(once, TimeCalls(op_case, ++next_idx, 1));
  }
  OpLine line{.point = op_case.point, .timing = {}, .calls_per_sample = CallsPerSample(op_case, once)};
  next_idx = op_case.device->Replays() ? 0 : next_idx + 1;
  std::vector<double> seconds;
  double spent = 0;
  while (static_cast<int64_t>(seconds.size()) < reps &&
         (static_cast<int64_t>(seconds.size()) < kMinSamples || spent < kMaxLineSeconds)) {
    HW_ASSIGN_OR_RETURN(const double per_call, TimeCalls(op_case, next_idx, line.calls_per_sample));
    seconds.push_back(per_call);
    next_idx += line.calls_per_sample;
    spent += per_call * static_cast<double>(line.calls_per_sample);
  }
  line.timing = TimingOf(std::move(seconds));
  return line;
}

Status CheckRange(const char* what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return Status::Ok();
  return Status::InvalidInput(fmt::format("{} is {}, expected {} to {}", what, value, least, most));
}

Status CheckRanges(const char* what, const std::vector<int64_t>& values, int64_t most) {
  if (values.empty()) return Status::InvalidInput(fmt::format("{}: expected at least one number", what));
  for (const int64_t value : values) HW_RETURN_IF_ERROR(CheckRange(what, value, 1, most));
  return Status::Ok();
}

// Rows of every matrix that `config` has are whole blocks of the format.
Status CheckWeights(const ModelConfig& config, DType dtype) {
  const int64_t block = BlockElements(dtype);
  for (const int64_t row : {config.model_dim, config.num_q_heads * config.head_dim, config.ffn_dim}) {
    if (row % block == 0) continue;
    return Status::InvalidInput(
        fmt::format("weights of {}: rows of {} are not whole blocks of {}", NameOf(dtype), row, block));
  }
  return Status::Ok();
}

int64_t WeightBytes(const ModelConfig& config, DType dtype) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  const int64_t num_wide = IsGated(config.mlp) ? 3 : 2;
  const int64_t layer = config.model_dim * (2 * q_dim + 2 * kv_dim + num_wide * config.ffn_dim);
  return BytesOf(dtype, config.num_layers * layer + config.vocab_size * config.model_dim);
}

}  // namespace

std::vector<DType> OpRun::WeightFormats() const {
  return subject_.model == nullptr ? subject_.weights : std::vector<DType>{DType::kF32};
}

Result<Compute> OpRun::ComputeFor(DType weights) const {
  // Of weights that an engine has prepared; matrices here are anybody's.
  if (options_.compute == NameOf(Compute::kFp8)) {
    return Status::Unsupported(
        "products in fp8 are timed by `bench` as a whole, expected auto, f32, bf16, int8 or w8a8");
  }
  if (options_.compute == NameOf(Compute::kW8A8)) {
    HW_RETURN_IF_ERROR(backend().PrepareProducts(WeightMatrix(), Compute::kW8A8));
  }
  if (subject_.model != nullptr) return ResolveCompute(options_.compute, *subject_.model, backend());
  // The rule asks a model for the formats of its matrices: one without any but this.
  const std::byte storage{};
  Model model;
  model.weights.output.weight = ConstTensorView(&storage, weights, Shape{1, BlockElements(weights)});
  return ResolveCompute(options_.compute, model, backend());
}

int64_t OpRun::CycleBytes(DType weights, int64_t kv_bytes) const {
  const int64_t past_caches = options_.cycle_bytes > 0
                                  ? options_.cycle_bytes
                                  : std::clamp(4 * backend().device().CacheBytes(), kMinCycleBytes, kMaxCycleBytes);
  const int64_t weight_bytes = subject_.model == nullptr
                                   ? WeightBytes(config(), weights)
                                   : CountWeights(subject_.model->weights, config().experts.num_chosen).read_bytes;
  return std::min(past_caches, weight_bytes + kv_bytes);
}

ResolvedRule OpRun::Rule(const HeadRule& rule, int64_t num_tokens) const {
  // Of layers that differ the one that reads furthest, as it takes longest.
  int64_t widest = kNoLimit;
  const LayerWindows windows = LayerWindowsOf(config());
  if (!windows.tokens.empty()) widest = *std::ranges::max_element(windows.tokens);
  return ResolveRule(rule, {.prompt_tokens = num_tokens, .max_tokens = num_tokens}, widest);
}

std::vector<ResolvedRule> OpRun::Rules(int64_t num_tokens) const {
  std::vector<ResolvedRule> rules;
  for (int64_t head = 0; head < config().num_kv_heads; ++head) {
    rules.push_back(Rule(options_.rules[static_cast<size_t>(head) % options_.rules.size()], num_tokens));
  }
  return rules;
}

Status OpRun::Measure(OpCase& op_case) const {
  if (op_case.device == nullptr) op_case.device = &backend().device();
  op_case.point.op = op_;
  HW_ASSIGN_OR_RETURN(OpLine line, TimeCase(op_case, options_.reps));
  line.is_cached = line.point.cycled_bytes <= op_case.device->CacheBytes();
  lines_.push_back(std::move(line));
  return Status::Ok();
}

std::vector<std::string> OpNames() {
  std::vector<std::string> names;
  for (const OpMethod& method : kMethods) names.emplace_back(method.name);
  return names;
}

Status CheckOpBench(const OpSubject& subject, const OpBenchOptions& options) {
  const std::vector<std::string> names = OpNames();
  for (const std::string& op : options.ops) {
    if (std::ranges::find(names, op) != names.end()) continue;
    return Status::InvalidInput(
        fmt::format("operation \"{}\" is unknown, expected some of: {}", op, fmt::join(names, ", ")));
  }
  HW_RETURN_IF_ERROR(CheckRanges("rows", options.rows, kMaxRows));
  HW_RETURN_IF_ERROR(CheckRanges("depth", options.depths, kMaxTokens));
  HW_RETURN_IF_ERROR(CheckRange("number of samples", options.reps, 1, kMaxReps));
  if (options.rules.empty()) return Status::InvalidInput("rules: expected at least one");
  for (const HeadRule& rule : options.rules) {
    HW_RETURN_IF_ERROR(ValidateRule(rule));
    HW_RETURN_IF_ERROR(CheckRange("sink", rule.sink, 0, kMaxTokens));
    if (rule.kind != HeadRule::Kind::kStream) continue;
    HW_RETURN_IF_ERROR(CheckRange("recent", rule.recent, 1, kMaxTokens));
  }
  HW_RETURN_IF_ERROR(PageTokensFor(options.page_tokens, KvFormat::kF16).status());
  if (options.kv_formats.empty()) return Status::InvalidInput("kv_dtype: expected at least one format");
  if (subject.model == nullptr) {
    if (subject.weights.empty()) return Status::InvalidInput("weights: expected at least one format");
    for (const DType dtype : subject.weights) HW_RETURN_IF_ERROR(CheckWeights(subject.config, dtype));
  }
  std::vector<OpLine> none;
  const OpRun run(subject, options, "", none);
  HW_RETURN_IF_ERROR(CheckFeatures(run.config(), {}, run.backend()));
  HW_RETURN_IF_ERROR(run.AttentionCompute().status());
  for (const OpMethod& method : kMethods) {
    const bool is_asked = std::ranges::find(options.ops, method.name) != options.ops.end();
    if (is_asked && method.check != nullptr) HW_RETURN_IF_ERROR(method.check(run).Annotate(method.name));
  }
  return Status::Ok();
}

Result<std::vector<OpLine>> RunOpBench(const OpSubject& subject, const OpBenchOptions& options) {
  HW_RETURN_IF_ERROR(CheckOpBench(subject, options));
  std::vector<OpMethod> methods;
  std::ranges::copy_if(kMethods, std::back_inserter(methods), [&](const OpMethod& method) {
    return options.ops.empty() || std::ranges::find(options.ops, method.name) != options.ops.end();
  });
  std::vector<OpLine> lines;
  for (size_t i = 0; i < methods.size(); ++i) {
    if (options.on_progress) options.on_progress(static_cast<int64_t>(i), static_cast<int64_t>(methods.size()));
    HW_RETURN_IF_ERROR(methods[i].run(OpRun(subject, options, methods[i].name, lines)));
  }
  return lines;
}

}  // namespace headwise
