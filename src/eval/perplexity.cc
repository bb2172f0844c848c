#include "eval/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "eval/divergence.h"

namespace headwise {

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  HW_CHECK(target >= 0 && static_cast<size_t>(target) < logits.size(), "target {} of {}", target, logits.size());
  return LogSumExp(logits) - logits[static_cast<size_t>(target)];
}

void NllCurve::Add(int64_t position, double nll) {
  auto& [sum, count] = blocks_[position / block_tokens_];
  sum += nll;
  ++count;
}

std::vector<std::pair<double, double>> NllCurve::Points() const {
  std::vector<std::pair<double, double>> points;
  for (const auto& [block, sum_and_count] : blocks_) {
    points.emplace_back(static_cast<double>((block + 1) * block_tokens_ - 1),
                        sum_and_count.first / static_cast<double>(sum_and_count.second));
  }
  return points;
}

Result<PerplexityResult> MeasurePerplexity(Engine& engine, const PerplexityOptions& options) {
  const auto num_ids = static_cast<int64_t>(options.ids.size());
  if (num_ids < 2) {
    return Status::InvalidInput(fmt::format("perplexity: the text has {} tokens, expected at least 2", num_ids));
  }
  if (options.score_from < 1 || options.score_from >= num_ids) {
    return Status::InvalidInput(
        fmt::format("perplexity: scored from token {}, expected 1 to {}", options.score_from, num_ids - 1));
  }
  // The last token is only predicted, never read.
  const std::span<const int32_t> read_ids = options.ids.first(options.ids.size() - 1);
  const auto num_read = static_cast<int64_t>(read_ids.size());
  const int64_t prompt_tokens = options.prompt_tokens < 0 ? num_read : std::min(options.prompt_tokens, num_read);

  HW_ASSIGN_OR_RETURN(
      const std::shared_ptr<Sequence> sequence,
      engine.NewSequence({.plan = options.plan, .prompt_tokens = prompt_tokens, .max_tokens = num_ids}));
  engine.ResetKvPeak();

  PerplexityResult result;
  double sum = 0;
  int64_t first_bad_position = -1;
  ForcedRun run;
  run.sequence = sequence;
  run.ids = read_ids;
  run.prompt_tokens = prompt_tokens;
  run.decode_tokens = 0;  // every query reads what its rule lets it read, alone or in a chunk
  run.rows = ForcedRun::Rows::kEvery;
  run.on_progress = options.on_progress;
  run.on_row = [&](int64_t position, std::span<const float> logits, std::span<const float>) {
    const double nll = NegativeLogLikelihood(logits, options.ids[static_cast<size_t>(position + 1)]);
    if (!std::isfinite(nll)) {
      first_bad_position = position;
      return false;
    }
    if (position + 1 < options.score_from) return true;
    sum += nll;
    ++result.num_predicted;
    if (options.on_token) options.on_token(position + 1, nll);
    return true;
  };
  const Status status = engine.RunForced(run);
  if (first_bad_position >= 0) {
    return Status::InvalidInput(
        fmt::format("perplexity: the model's output at position {} is not finite", first_bad_position));
  }
  HW_RETURN_IF_ERROR(status);

  result.nll = sum / static_cast<double>(result.num_predicted);
  result.ppl = std::exp(result.nll);
  result.kv_bytes = Engine::KvBytes(*sequence);
  result.kv_peak_bytes = std::max(engine.kv_peak_bytes(), result.kv_bytes);
  return result;
}

}  // namespace headwise
