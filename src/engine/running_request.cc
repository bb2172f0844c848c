#include "engine/running_request.h"

#include <utility>

#include "base/check.h"

namespace headwise {

void RunningRequest::Begin(std::shared_ptr<Sequence> sequence, int64_t num_reused) {
  // It stays on the sequence until a step has read it: a fork or a cancellation before that must not lose it.
  has_pending_first_ = sequence->pending.has_value();
  if (has_pending_first_) unread_.insert(unread_.begin(), *sequence->pending);
  HW_CHECK(num_reused == 0 || !has_pending_first_);
  num_read_ = static_cast<size_t>(num_reused);
  result.metrics.reused_tokens = num_reused;
  sequence_ = std::move(sequence);
  admitted_ = Clock::now();
}

void RunningRequest::KeepWholeText() {
  whole_text_ = unread_;
  has_whole_text_ = true;
}

void RunningRequest::ReadAgain(std::vector<int32_t> ids) noexcept {
  unread_ = std::move(ids);
  num_read_ = 0;
}

void RunningRequest::NoteRead(int64_t num_new) {
  HW_CHECK(num_new >= 1 && num_new <= num_unread());
  sequence_->seen.Add(Unread().first(static_cast<size_t>(num_new)));
  sequence_->pending.reset();
  num_read_ += static_cast<size_t>(num_new);
  share.Serve(num_new);
}

void RunningRequest::ReadNext(int32_t id) {
  HW_CHECK(num_unread() == 0);
  sequence_->seen.Add(id);  // first: it may fail
  if (has_whole_text_) whole_text_.push_back(id);
  if (prefix != nullptr) prefix->Add(id);
  unread_.assign(1, id);
  num_read_ = reads_ahead_ ? 1 : 0;
  if (!reads_ahead_) sequence_->pending = id;
  reads_ahead_ = false;
}

double RunningRequest::SecondsSinceAdmission() const {
  return std::chrono::duration<double>(Clock::now() - admitted_).count();
}

void RunningRequest::UpdateMetrics() {
  if (sequence_ == nullptr) return;
  if (sequence_->cache == nullptr) {  // it has given way
    result.metrics.kv_bytes = result.metrics.kv_bytes_full = result.metrics.kv_bytes_bounded = 0;
    return;
  }
  const KvCacheBytes bytes = sequence_->cache->Bytes();
  result.metrics.kv_bytes = bytes.total();
  result.metrics.kv_bytes_full = bytes.full;
  result.metrics.kv_bytes_bounded = bytes.bounded;
  result.metrics.kv_peak_bytes = sequence_->cache->PeakBytes();
}

void RunningRequest::ReleaseSequence() {
  sequence_.reset();
  need_.claim.Release();
}

}  // namespace headwise
