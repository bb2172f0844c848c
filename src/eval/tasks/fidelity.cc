// headwise eval fidelity: how far a plan's next-token distribution is from the dense model's on any text: Kullback-
// Leibler divergence and agreement of the most likely token. Needs no task, so it works for every model.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/sequence.h"
#include "eval/divergence.h"
#include "eval/perplexity.h"
#include "eval/task_run.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"
#include "eval/tasks/text_windows.h"
#include "model/model_config.h"

namespace headwise {
namespace {

// Logits of a chunk that are kept for comparison.
constexpr int64_t kMaxLogitFloats = int64_t{4} << 20;

class FidelityTask : public Task {
 public:
  FidelityTask(TextWindows text, int64_t prompt_tokens) : text_(std::move(text)), prompt_tokens_(prompt_tokens) {}

  const std::vector<int64_t>& lengths() const override { return text_.lengths; }
  Json Identity() const override { return {{"text", text_.hash}}; }
  int64_t NumResults() const override { return static_cast<int64_t>(text_.windows.size()); }
  std::vector<CaseText> Cases() const override { return CasesOf(text_); }
  Status Run(TaskRun& run) override;

 private:
  Result<CaseResult> Compare(Engine& engine, const TextWindow& window, const std::shared_ptr<const HeadPlan>& plan,
                             ProgressBar& progress) const;

  TextWindows text_;
  int64_t prompt_tokens_;  // 0: half of the window
};

// Both read the text side by side, chunk by chunk, so that no more than a chunk's logits are kept.
Result<CaseResult> FidelityTask::Compare(Engine& engine, const TextWindow& window,
                                         const std::shared_ptr<const HeadPlan>& plan, ProgressBar& progress) const {
  const auto start = std::chrono::steady_clock::now();
  const int64_t prompt_tokens = prompt_tokens_ == 0 ? window.length / 2 : prompt_tokens_;
  const SequenceOptions limits{.plan = nullptr, .prompt_tokens = prompt_tokens, .max_tokens = window.length};
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> dense, engine.NewSequence(limits));
  SequenceOptions plan_limits = limits;
  plan_limits.plan = plan;
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> planned, engine.NewSequence(plan_limits));

  const auto vocab_size = static_cast<size_t>(engine.config().vocab_size);
  const int64_t chunk = std::max<int64_t>(1, kMaxLogitFloats / engine.config().vocab_size);
  std::vector<float> expected;
  NllCurve curve(window.length);
  double kl = 0;
  int64_t num_compared = 0;
  int64_t num_agreed = 0;
  int64_t peak_bytes = 0;
  for (int64_t begin = 0; begin < window.length;) {
    // A chunk ends with the prompt, so that every row of it counts or none does.
    const int64_t end =
        std::min(begin < prompt_tokens ? std::min(begin + chunk, prompt_tokens) : begin + chunk, window.length);
    // The prompt's last row is the first that the cut does not touch: it predicts from the dense prompt.
    const bool counts = begin >= prompt_tokens;
    ForcedRun run;
    run.ids = std::span(window.ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    if (counts) run.rows = ForcedRun::Rows::kEvery;
    expected.clear();
    run.sequence = dense;
    run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
      expected.insert(expected.end(), logits.begin(), logits.end());
      return true;
    };
    HW_RETURN_IF_ERROR(engine.RunForced(run));
    run.sequence = planned;
    run.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
      const auto other =
          std::span<const float>(expected).subspan(static_cast<size_t>(position) * vocab_size, vocab_size);
      const double divergence = KlDivergence(other, logits);
      kl += divergence;
      curve.Add(begin + position, divergence);
      num_agreed += ArgMax(other) == ArgMax(logits) ? 1 : 0;
      ++num_compared;
      return true;
    };
    HW_RETURN_IF_ERROR(engine.RunForced(run));
    peak_bytes = std::max(peak_bytes, Engine::KvBytes(*planned));
    begin = end;
    progress.Update(begin);
  }
  if (!std::isfinite(kl)) return Status::InvalidInput("fidelity: a logit is not a finite number");
  CaseResult result;
  result.length = window.length;
  result.case_idx = window.case_idx;
  result.scores = {{"kl", kl / static_cast<double>(num_compared)},
                   {"top1", static_cast<double>(num_agreed) / static_cast<double>(num_compared)}};
  result.curves["kl"] = curve.Points();
  result.prompt_tokens = prompt_tokens;
  result.new_tokens = window.length - prompt_tokens;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.kv_bytes = Engine::KvBytes(*planned);
  result.kv_peak_bytes = std::max(planned->cache->PeakBytes(), peak_bytes);
  return result;
}

Status FidelityTask::Run(TaskRun& run) {
  for (const TextWindow& window : text_.windows) {
    for (const Subject& subject : run.subjects()) {
      if (run.Has(subject, window.length, window.case_idx, 0)) continue;
      ProgressBar progress(run.progress_line(), fmt::format("fidelity, {}", subject.info.name), window.length);
      auto result = Compare(run.engine(), window, subject.At(window.length), progress);
      if (!result.ok()) return std::move(result).status().Annotate(WhereOf(text_, window, subject.info.name));
      HW_RETURN_IF_ERROR(run.Add(subject, *std::move(result)));
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Task>> MakeFidelity(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(TextWindows text, ReadTextWindows(input, /*default_tokens=*/4096));
  HW_ASSIGN_OR_RETURN(const int64_t prompt_tokens,
                      input.options.IntOr("prompt-tokens", 0, 1, text.lengths.front() - 1));
  return std::unique_ptr<Task>(std::make_unique<FidelityTask>(std::move(text), prompt_tokens));
}

}  // namespace

const TaskMethod kFidelityTask = {
    .name = "fidelity",
    .title = "Fidelity to the dense model",
    .description = "divergence of the next token's distribution from the dense model's, on any text",
    .options = JoinLists<TaskOption>(
        kWindowOptions,
        std::to_array<TaskOption>({{"prompt-tokens", "Tokens that are only read; by default the first half"}})),
    .metrics = {{.name = "kl",
                 .label = "KL divergence from the dense model",
                 .unit = "nats",
                 .better = MetricInfo::Better::kLower,
                 .kind = MetricInfo::Kind::kMean},
                {.name = "top1", .label = "same most likely token", .unit = "", .kind = MetricInfo::Kind::kMean}},
    .make = MakeFidelity,
};

}  // namespace headwise
