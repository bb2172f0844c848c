#include "engine/forced_reading.h"

#include <algorithm>
#include <utility>

namespace headwise {
namespace {

// A row of logits is host memory; runs that want many rows take smaller steps once the vocabulary is large.
constexpr int64_t kMaxLogitFloatsPerStep = int64_t{16} << 20;

}  // namespace

ForcedReading::ForcedReading(RequestId id, SequenceNeed need, const ForcedRun& run, int64_t vocab_size,
                             std::shared_ptr<RequestObserver> observer)
    : RunningRequest(id, std::move(need), {run.ids.begin(), run.ids.end()}, std::move(observer)),
      num_ids_(static_cast<int64_t>(run.ids.size())),
      prompt_tokens_(run.prompt_tokens < 0 ? num_ids_ : run.prompt_tokens),
      decode_tokens_(run.decode_tokens),
      step_tokens_(this->need().step_tokens),
      max_rows_(std::max<int64_t>(1, kMaxLogitFloatsPerStep / vocab_size)),
      rows_(run.rows),
      positions_(run.positions.begin(), run.positions.end()),
      on_row_(run.on_row),
      on_progress_(run.on_progress) {
  SetTurn(run.priority, run.client);
}

StepWish ForcedReading::Wish() const {
  const int64_t begin = NumIdsRead();  // -1 before the pending token
  const bool in_prompt = begin < prompt_tokens_ || begin < 0;
  int64_t num_new = (in_prompt ? prompt_tokens_ : num_ids_) - begin;
  const int64_t max_step = in_prompt || decode_tokens_ <= 0 ? step_tokens_ : std::min(decode_tokens_, step_tokens_);
  num_new = std::min({num_new, max_step, text().cache->MaxStepTokens()});
  if (rows_ == ForcedRun::Rows::kEvery) {
    num_new = std::min(num_new, max_rows_);
  } else if (positions_.size() - num_given_ > static_cast<size_t>(max_rows_)) {
    num_new = std::min(num_new, positions_[num_given_ + static_cast<size_t>(max_rows_)] - begin);
  }
  return {.num_tokens = num_new, .cut = StepWish::Cut::kRefused};
}

void ForcedReading::AddWanted(int64_t num_new, std::vector<int32_t>& wanted) const {
  const int64_t begin = NumIdsRead();
  if (rows_ == ForcedRun::Rows::kEvery) {
    for (int64_t i = std::max<int64_t>(0, -begin); i < num_new; ++i) wanted.push_back(static_cast<int32_t>(i));
    return;
  }
  for (size_t i = num_given_; i < positions_.size() && positions_[i] < begin + num_new; ++i) {
    wanted.push_back(static_cast<int32_t>(positions_[i] - begin));
  }
}

Verdict ForcedReading::TakeRows(int64_t num_new, const RequestRows& rows) {
  const int64_t num_read = NumIdsRead();
  for (int64_t row = 0; row < rows.num_rows && running(); ++row) {
    const int64_t position =
        rows_ == ForcedRun::Rows::kEvery ? std::max<int64_t>(0, num_read - num_new) + row : positions_[num_given_++];
    const size_t vocab_size = rows.logits.size() / static_cast<size_t>(rows.num_rows);
    const size_t model_dim = rows.hidden.size() / static_cast<size_t>(rows.num_rows);
    if (!on_row_(position, rows.logits.subspan(static_cast<size_t>(row) * vocab_size, vocab_size),
                 rows.hidden.subspan(static_cast<size_t>(row) * model_dim, model_dim))) {
      return {.finish = FinishReason::kCancelled, .status = {}};
    }
  }
  UpdateMetrics();
  result.metrics.prefill_seconds = SecondsSinceAdmission();
  if (on_progress_ && num_read > 0 && running()) on_progress_(num_read);
  return {.finish = num_unread() > 0 ? FinishReason::kRunning : FinishReason::kLength, .status = {}};
}

}  // namespace headwise
