// A ForcedRun: reads the ids it was given, in the steps it was told, and hands out the rows that are wanted.
#ifndef HEADWISE_ENGINE_FORCED_READING_H_
#define HEADWISE_ENGINE_FORCED_READING_H_

#include <memory>
#include <vector>

#include "engine/running_request.h"

namespace headwise {

class ForcedReading : public RunningRequest {
 public:
  // Copies ids and positions. `need.step_tokens` is the longest step.
  ForcedReading(RequestId id, SequenceNeed need, const ForcedRun& run, int64_t vocab_size,
                std::shared_ptr<RequestObserver> observer);

  StepWish Wish() const override;
  void AddWanted(int64_t num_new, std::vector<int32_t>& wanted) const override;
  Verdict TakeRows(int64_t num_new, const RequestRows& rows) override;

 private:
  // Of the ids, without the token that was pending on the sequence: it is read first, and nobody asks for its row.
  int64_t NumIdsRead() const { return num_read() - (has_pending_first() ? 1 : 0); }

  int64_t num_ids_;
  int64_t prompt_tokens_;
  int64_t decode_tokens_;
  int64_t step_tokens_;
  int64_t max_rows_;  // per step
  ForcedRun::Rows rows_;
  std::vector<int64_t> positions_;  // ascending
  size_t num_given_ = 0;            // of positions_
  std::function<bool(int64_t, std::span<const float>, std::span<const float>)> on_row_;
  std::function<void(int64_t)> on_progress_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_FORCED_READING_H_
