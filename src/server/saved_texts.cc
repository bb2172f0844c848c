#include "server/saved_texts.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/no_memory.h"

namespace headwise {
namespace {

// Of pages in host memory that wait for their request to be admitted; one text may be more.
constexpr int64_t kMostFetchedBytes = int64_t{256} << 20;

bool BeginsWith(std::span<const int32_t> ids, const std::vector<int32_t>& text) {
  return text.size() < ids.size() && std::ranges::equal(text, ids.first(text.size()));
}

std::vector<ResolvedRule> RulesOf(const KvCache& cache) {
  std::vector<ResolvedRule> rules;
  for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < cache.num_kv_heads(); ++kv_head) {
      rules.push_back(cache.rule(layer_idx, kv_head));
    }
  }
  return rules;
}

}  // namespace

void SavedTexts::Fetch(const HeadPlan& plan, std::span<const int32_t> ids, int64_t least_tokens) {
  const std::string plan_hash = HashOfPlan(plan);
  const std::optional<PrefixDir::Found> found = dir_->Longest(identity_, plan_hash, ids);
  if (!found || found->num_tokens <= least_tokens) return;
  const std::lock_guard one_at_a_time(reading_);
  {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(fetched_, found->name, &Fetched::name) != fetched_.end()) return;
  }
  std::shared_ptr<const SavedText> text = dir_->Load(found->name);
  if (text == nullptr) return;
  const std::lock_guard lock(mutex_);
  fetched_bytes_ += text->snapshot.bytes;
  fetched_.push_back({.name = found->name, .plan = plan_hash, .text = std::move(text)});
  while (fetched_.size() > 1 && fetched_bytes_ > kMostFetchedBytes) {
    fetched_bytes_ -= fetched_.front().text->snapshot.bytes;
    fetched_.pop_front();
  }
}

std::optional<PrefixCache::Kept> SavedTexts::Find(const HeadPlan& plan, std::span<const int32_t> ids,
                                                  int64_t least_tokens, Look look) {
  std::list<Fetched> dropped;
  const std::lock_guard lock(mutex_);
  if (fetched_.empty()) return std::nullopt;
  const std::string plan_hash = HashOfPlan(plan);
  std::shared_ptr<const SavedText> longest;
  for (auto it = fetched_.begin(); it != fetched_.end();) {
    const auto next = std::next(it);
    if (it->plan == plan_hash && BeginsWith(ids, it->text->ids)) {
      const int64_t num_tokens = it->text->snapshot.num_tokens;
      if (num_tokens > least_tokens && (longest == nullptr || num_tokens > longest->snapshot.num_tokens)) {
        longest = it->text;
      }
      // Who goes on from it keeps it in memory; what is shorter than what memory has was fetched in vain.
      if (look == Look::kTake) {
        fetched_bytes_ -= it->text->snapshot.bytes;
        dropped.splice(dropped.end(), fetched_, it);
      }
    }
    it = next;
  }
  if (longest == nullptr) return std::nullopt;
  const int64_t num_tokens = longest->snapshot.num_tokens;
  return PrefixCache::Kept{.id = 0, .sequence = nullptr, .num_tokens = num_tokens, .saved = std::move(longest)};
}

void SavedTexts::Save(const HeadPlan& plan, std::span<const int32_t> ids, const Sequence& sequence,
                      PrefixDir::Room room) {
  static_cast<void>(CatchNoMemory("a text that is to be written", [&]() -> Status {
    PrefixFileHead head{.identity = identity_,
                        .plan = HashOfPlan(plan),
                        .reading = HashOfReading(sequence.rope_frequencies, RulesOf(*sequence.cache)),
                        .ids = {ids.begin(), ids.end()}};
    const int64_t bytes = sequence.cache->Bytes().total();
    if (!dir_->Wants(PrefixFileName(head.identity, head.plan, ids), head.reading, bytes, room)) return Status::Ok();
    auto text = std::make_shared<SavedText>();
    text->ids = head.ids;
    text->limits = sequence.limits;
    text->rope_frequencies = sequence.rope_frequencies;
    {
      const KvMemory::Hold hold(*sequence.memory());
      HW_ASSIGN_OR_RETURN(const std::unique_ptr<KvSnapshot> snapshot, sequence.cache->Save());
      text->snapshot = std::move(*snapshot);
    }
    dir_->Write(std::move(head), std::move(text));
    return Status::Ok();
  }));
}

}  // namespace headwise
