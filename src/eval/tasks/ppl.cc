// headwise eval ppl: perplexity of a text under a plan, over one long stream or over windows, with its curve over the
// position [streaming-llm §4.1]; and, as the oracle of streaming, the re-computation of every window.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "eval/perplexity.h"
#include "eval/task_run.h"
#include "eval/tasks/haystack.h"
#include "eval/tasks/tasks.h"
#include "eval/tasks/text_windows.h"

namespace headwise {
namespace {

constexpr std::string_view kRecompute = "recompute";

class PplTask : public Task {
 public:
  struct Options {
    int64_t prompt_tokens = -1;
    int64_t score_from = 1;
    int64_t recompute_window = 0;  // 0: not wanted
  };
  PplTask(TextWindows text, const Options& options) : text_(std::move(text)), options_(options) {}

  const std::vector<int64_t>& lengths() const override { return text_.lengths; }
  Json Identity() const override { return {{"text", text_.hash}}; }
  int64_t NumResults() const override { return static_cast<int64_t>(text_.windows.size()); }
  std::vector<PlanInfo> References() const override;
  std::vector<CaseText> Cases() const override { return CasesOf(text_); }
  Status Run(TaskRun& run) override;

 private:
  Result<CaseResult> Measure(Engine& engine, const TextWindow& window, const std::shared_ptr<const HeadPlan>& plan,
                             ProgressBar& progress) const;
  Result<CaseResult> Recompute(Engine& engine, const TextWindow& window, ProgressBar& progress) const;

  TextWindows text_;
  Options options_;
};

std::vector<PlanInfo> PplTask::References() const {
  if (options_.recompute_window == 0) return {};
  return {{.name = fmt::format("{}@{}", kRecompute, options_.recompute_window),
           .method = std::string(kRecompute),
           .kv_ratio = {},
           .files = {}}};
}

// A perplexity beyond all numbers is left out: JSON has none for it.
std::map<std::string, double> ScoresOf(double nll) {
  std::map<std::string, double> scores = {{"nll", nll}};
  const double ppl = std::exp(nll);
  if (std::isfinite(ppl)) scores["ppl"] = ppl;
  return scores;
}

Result<CaseResult> PplTask::Measure(Engine& engine, const TextWindow& window,
                                    const std::shared_ptr<const HeadPlan>& plan, ProgressBar& progress) const {
  NllCurve curve(window.length);
  HW_ASSIGN_OR_RETURN(
      const PerplexityResult measured,
      MeasurePerplexity(engine, {.plan = plan,
                                 .ids = window.ids,
                                 .prompt_tokens = options_.prompt_tokens,
                                 .score_from = options_.score_from,
                                 .on_progress = [&](int64_t num_read) { progress.Update(num_read); },
                                 .on_token = [&](int64_t position, double nll) { curve.Add(position, nll); }}));
  CaseResult result;
  result.scores = ScoresOf(measured.nll);
  result.curves["nll"] = curve.Points();
  result.new_tokens = measured.num_predicted;
  result.kv_bytes = measured.kv_bytes;
  result.kv_peak_bytes = measured.kv_peak_bytes;
  return result;
}

// Every token is predicted from the first token and the recompute_window tokens before it, read anew as a text of their
// own: dense attention with nothing stale in the cache, at a whole window's cost per token [streaming-llm §3.1,
// "sliding window with re-computation"].
Result<CaseResult> PplTask::Recompute(Engine& engine, const TextWindow& window, ProgressBar& progress) const {
  NllCurve curve(window.length);
  double sum = 0;
  int64_t num_scored = 0;
  CaseResult result;
  const auto score = [&](int64_t position, std::span<const float> logits) {
    const double nll = NegativeLogLikelihood(logits, window.ids[static_cast<size_t>(position)]);
    if (position < options_.score_from) return true;
    sum += nll;
    ++num_scored;
    curve.Add(position, nll);
    return true;
  };
  const int64_t num_kept = options_.recompute_window + 1;  // and the first token
  // As long as nothing has left the window, one pass gives them all.
  const int64_t num_whole = std::min(num_kept, window.length - 1);
  ForcedRun whole;
  whole.ids = std::span(window.ids).first(static_cast<size_t>(num_whole));
  whole.rows = ForcedRun::Rows::kEvery;
  whole.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
    return score(position + 1, logits);
  };
  HW_RETURN_IF_ERROR(engine.RunForced(whole));
  std::vector<int32_t> ids(static_cast<size_t>(num_kept));
  ids.front() = window.ids.front();
  const int64_t last = num_kept - 1;
  engine.ResetKvPeak();
  for (int64_t position = num_whole + 1; position < window.length; ++position) {
    std::copy_n(window.ids.begin() + position - last, last, ids.begin() + 1);
    ForcedRun run;
    run.ids = ids;
    run.positions = {&last, 1};
    run.on_row = [&](int64_t, std::span<const float> logits, std::span<const float>) {
      return score(position, logits);
    };
    HW_RETURN_IF_ERROR(engine.RunForced(run));
    progress.Update(position);
  }
  if (num_scored == 0 || !std::isfinite(sum)) {
    return Status::InvalidInput(fmt::format("perplexity: {} tokens with a mean NLL of {}, expected numbers", num_scored,
                                            sum / static_cast<double>(num_scored)));
  }
  const double nll = sum / static_cast<double>(num_scored);
  result.scores = ScoresOf(nll);
  result.curves["nll"] = curve.Points();
  result.new_tokens = num_scored;
  result.kv_bytes = result.kv_peak_bytes = engine.kv_peak_bytes();
  return result;
}

Status PplTask::Run(TaskRun& run) {
  for (const TextWindow& window : text_.windows) {
    for (const Subject& subject : run.subjects()) {
      if (run.Has(subject, window.length, window.case_idx, 0)) continue;
      ProgressBar progress(run.progress_line(), fmt::format("ppl, {}", subject.info.name), window.length);
      const auto start = std::chrono::steady_clock::now();
      auto measured = subject.plans.empty()  // a reference; a plan may call its method anything
                          ? Recompute(run.engine(), window, progress)
                          : Measure(run.engine(), window, subject.At(window.length), progress);
      if (!measured.ok()) return std::move(measured).status().Annotate(WhereOf(text_, window, subject.info.name));
      CaseResult result = *std::move(measured);
      result.length = window.length;
      result.case_idx = window.case_idx;
      result.prompt_tokens = window.length - result.new_tokens;
      result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      result.scores["ms_per_token"] = result.seconds * 1e3 / static_cast<double>(window.length - 1);
      HW_RETURN_IF_ERROR(run.Add(subject, std::move(result)));
    }
  }
  return Status::Ok();
}

Result<std::unique_ptr<Task>> MakePpl(const TaskInput& input) {
  HW_ASSIGN_OR_RETURN(TextWindows text, ReadTextWindows(input, /*default_tokens=*/4096));
  const int64_t shortest = text.lengths.front();
  PplTask::Options options;
  HW_ASSIGN_OR_RETURN(options.prompt_tokens, input.options.IntOr("prompt-tokens", -1, -1, shortest));
  HW_ASSIGN_OR_RETURN(options.score_from, input.options.IntOr("score-from", 1, 1, shortest - 1));
  HW_ASSIGN_OR_RETURN(options.recompute_window, input.options.IntOr("recompute-window", 0, 1, shortest));
  return std::unique_ptr<Task>(std::make_unique<PplTask>(std::move(text), options));
}

}  // namespace

const TaskMethod kPplTask = {
    .name = "ppl",
    .title = "Perplexity",
    .description = "perplexity of a text, over one stream or over windows",
    .options = JoinLists<TaskOption>(
        kWindowOptions, std::to_array<TaskOption>(
                            {{"prompt-tokens", "Where the prompt ends, for rules that begin there; -1: with the text"},
                             {"score-from", "The first token that counts; those before it are only read"},
                             {"recompute-window",
                              "Also read the first token and so many others anew for every token: the oracle of "
                              "streaming"}})),
    .metrics = {{.name = "ppl",
                 .label = "perplexity",
                 .unit = "",
                 .better = MetricInfo::Better::kLower,
                 .kind = MetricInfo::Kind::kGeometricMean},
                {.name = "nll",
                 .label = "negative log-likelihood per token",
                 .unit = "nats",
                 .better = MetricInfo::Better::kLower,
                 .kind = MetricInfo::Kind::kMean},
                {.name = "ms_per_token",
                 .label = "time per token",
                 .unit = "ms",
                 .better = MetricInfo::Better::kLower,
                 .kind = MetricInfo::Kind::kMean}},
    .make = MakePpl,
};

}  // namespace headwise
