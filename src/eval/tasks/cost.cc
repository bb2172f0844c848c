// headwise eval cost: what a plan gives in time and memory, every plan in the same run: seconds of prefill,
// milliseconds per decoded token, KV bytes and resident memory over the length of the text.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/process_memory.h"
#include "bench/bench.h"
#include "eval/task_run.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"
#include "model/model_config.h"

namespace headwise {
namespace {

class CostTask : public Task {
 public:
  struct Options {
    std::vector<int64_t> lengths;
    int64_t num_rounds = 3;
    int64_t num_steps = 20;
    uint64_t seed = 0;
  };
  explicit CostTask(Options options) : options_(std::move(options)) {}

  const std::vector<int64_t>& lengths() const override { return options_.lengths; }
  int64_t NumResults() const override { return static_cast<int64_t>(options_.lengths.size()) * options_.num_rounds; }
  Status Run(TaskRun& run) override;

 private:
  Options options_;
};

// Plans take turns, so that a machine that slows down slows them all.
Status CostTask::Run(TaskRun& run) {
  for (const int64_t length : options_.lengths) {
    for (int64_t round = 0; round < options_.num_rounds; ++round) {
      for (const Subject& subject : run.subjects()) {
        if (run.Has(subject, length, round, 0)) continue;
        ResetPeakResident();
        BenchOptions options;
        options.plan = subject.At(length);
        options.prefills = {length};
        options.depths = {length};
        options.num_steps = options_.num_steps;
        options.seed = options_.seed + static_cast<uint64_t>(round);
        auto measured = RunBench(run.engine(), options);
        if (!measured.ok()) return std::move(measured).status().Annotate(subject.info.name);
        const PrefillTiming& prefill = measured->prefill.front();
        const DecodeTiming& decode = measured->decode.front();
        CaseResult result;
        result.length = length;
        result.case_idx = round;
        result.prompt_tokens = length;
        result.new_tokens = options_.num_steps;
        result.seconds = prefill.timing.median + decode.timing.median * static_cast<double>(options_.num_steps);
        result.kv_bytes = decode.kv_bytes_full + decode.kv_bytes_bounded;
        result.kv_peak_bytes = std::max(prefill.kv_peak_bytes, decode.kv_peak_bytes);
        result.scores = {{"decode_ms", decode.timing.median * 1e3},
                         {"prefill_seconds", prefill.timing.median},
                         {"kv_bytes", static_cast<double>(result.kv_bytes)},
                         {"kv_peak_bytes", static_cast<double>(result.kv_peak_bytes)},
                         {"resident_bytes", static_cast<double>(ReadProcessMemory().peak_resident_bytes)}};
        HW_RETURN_IF_ERROR(run.Add(subject, std::move(result)));
      }
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Task>> MakeCost(const TaskInput& input) {
  CostTask::Options options;
  std::vector<int64_t> lengths;
  const int64_t trained = input.engine.config().trained_length;
  for (int64_t length = 1024; length <= 32768; length *= 2) {
    if (trained <= 0 || length <= trained) lengths.push_back(length);
  }
  HW_ASSIGN_OR_RETURN(options.lengths, ReadLengths(input.options, std::move(lengths), /*least=*/1));
  HW_ASSIGN_OR_RETURN(options.num_rounds, input.options.IntOr("num-cases", options.num_rounds, 1, 1000));
  HW_ASSIGN_OR_RETURN(options.num_steps, input.options.IntOr("steps", options.num_steps, 5, 1'000'000));
  HW_ASSIGN_OR_RETURN(const int64_t seed, input.options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  options.seed = static_cast<uint64_t>(seed);
  return std::unique_ptr<Task>(std::make_unique<CostTask>(std::move(options)));
}

MetricInfo LowerIsBetter(std::string name, std::string label, std::string unit) {
  return {.name = std::move(name),
          .label = std::move(label),
          .unit = std::move(unit),
          .better = MetricInfo::Better::kLower,
          .kind = MetricInfo::Kind::kMean};
}

}  // namespace

const TaskMethod kCostTask = {
    .name = "cost",
    .title = "Time and memory",
    .description = "seconds of prefill, time per decoded token and memory over the length of the text",
    .options = {kLengthsOption,
                {"num-cases", "Rounds: in each, every plan is measured once at every length"},
                {"steps", "Decoded tokens that are timed"},
                kSeedOption},
    .metrics = {LowerIsBetter("decode_ms", "decode, per token", "ms"), LowerIsBetter("prefill_seconds", "prefill", "s"),
                LowerIsBetter("kv_bytes", "KV cache", "bytes"),
                LowerIsBetter("kv_peak_bytes", "KV cache at peak", "bytes"),
                LowerIsBetter("resident_bytes", "resident memory at peak", "bytes")},
    .make = MakeCost,
};

}  // namespace headwise
