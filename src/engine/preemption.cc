#include "engine/preemption.h"

#include <algorithm>
#include <utility>

#include "base/no_memory.h"

namespace headwise {
namespace {

// A text grows by so many pages of each head at a time, where they are there.
constexpr int64_t kPagesAtOnce = 4;

bool HasGivenWay(const RunningRequest& request) {
  return request.sequence() == nullptr || request.sequence()->cache == nullptr;
}

}  // namespace

Preemption::Preemption(SequenceMaker& sequences, Admission& admission, const EngineOptions& options)
    : sequences_(&sequences),
      admission_(&admission),
      is_likely_(options.kv_admission == EngineOptions::KvAdmission::kLikely && options.kv_limit_bytes > 0),
      quantum_tokens_(kPagesAtOnce * options.page_tokens) {}

bool Preemption::Covers(const RunningRequest& request) {
  const Sequence& sequence = *request.sequence();
  return sequence.cache->num_tokens() + static_cast<int64_t>(request.Unread().size()) <= sequence.reserved_tokens;
}

bool Preemption::Provide(Requests& active) noexcept {
  if (!is_likely_) return true;
  bool has_all = false;
  const Status status = CatchNoMemory("an order of requests", [&] {
    has_all = ProvideAll(active);
    return Status::Ok();
  });
  return status.ok() && has_all;
}

bool Preemption::ProvideAll(Requests& active) {
  if (std::ranges::all_of(active, [](const auto& request) { return Covers(*request); })) return true;
  Requests ranked = active;
  std::ranges::stable_sort(ranked, [](const auto& a, const auto& b) { return a->GoesBefore(*b); });
  bool has_all = true;
  for (size_t i = 0; i < ranked.size(); ++i) {
    RunningRequest& request = *ranked[i];
    if (HasGivenWay(request) || !request.failure.ok() || Covers(request)) continue;
    bool has_grown = Grow(request).ok();
    while (!has_grown && TakeFromYoungest(ranked, i + 1, active)) has_grown = Grow(request).ok();
    has_all = has_all && has_grown;
  }
  return has_all;
}

Status Preemption::Grow(RunningRequest& request) {
  Sequence& sequence = *request.sequence();
  const int64_t num_tokens = sequence.cache->num_tokens() + static_cast<int64_t>(request.Unread().size());
  const int64_t most = std::min(sequence.limits.max_tokens, num_tokens + quantum_tokens_);
  if (most > num_tokens && sequences_->Grow(sequence, most).ok()) return Status::Ok();
  return sequences_->Grow(sequence, num_tokens);
}

bool Preemption::TakeFromYoungest(const Requests& ranked, size_t first, Requests& active) {
  for (size_t i = ranked.size(); i > first; --i) {
    const std::shared_ptr<RunningRequest>& request = ranked[i - 1];
    if (HasGivenWay(*request) || !request->failure.ok() || !request->has_own_sequence()) continue;
    if (GiveWay(request, active).ok()) return true;
  }
  return false;
}

// What may fail comes first.
Status Preemption::GiveWay(const std::shared_ptr<RunningRequest>& request, Requests& active) {
  Sequence& sequence = *request->sequence();
  std::unique_ptr<KvSnapshot> saved;
  std::vector<int32_t> again;
  const Status status = CatchNoMemory("a text that gives way", [&] {
    if (sequence.cache->num_tokens() > 0) {
      Result<std::unique_ptr<KvSnapshot>> copy = sequences_->Save(sequence);
      if (!copy.ok() && !request->CanReadAgain()) return std::move(copy).status();
      if (copy.ok()) {
        saved = *std::move(copy);
      } else {
        again = request->whole_text();
      }
    }
    admission_->AddAgain(request);
    return Status::Ok();
  });
  if (!status.ok()) return status;
  if (!again.empty()) request->ReadAgain(std::move(again));
  request->UpdateMetrics();
  sequences_->PutAside(sequence, std::move(saved));
  request->UpdateMetrics();
  std::erase(active, request);
  ++request->result.metrics.num_preemptions;
  ++num_preemptions_;
  return Status::Ok();
}

void Preemption::EndHopeless(const Requests& active) noexcept {
  const auto can_go_on = [](const auto& request) { return !request->failure.ok() || Covers(*request); };
  if (!is_likely_ || active.empty() || std::ranges::any_of(active, can_go_on)) return;
  int64_t own_bytes = 0;
  for (const auto& request : active) own_bytes += request->sequence()->reserved_bytes();
  if (admission_->OthersMayGive(own_bytes)) return;
  const auto youngest =
      std::ranges::max_element(active, [](const auto& a, const auto& b) { return a->GoesBefore(*b); });
  Status status = CatchNoMemory("a longer text", [&] { return Grow(**youngest); });
  if (!status.ok()) (*youngest)->failure = std::move(status);
}

}  // namespace headwise
