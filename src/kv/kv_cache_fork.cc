#include <algorithm>
#include <utility>

#include "kv/kv_cache.h"

namespace headwise {

std::unique_ptr<KvCache> KvCache::Fork() const {
  std::vector<ResolvedRule> rules;
  for (const Head& head : heads_) rules.push_back(head.rule);
  return ForkAs(std::move(rules));
}

std::unique_ptr<KvCache> KvCache::ForkAs(std::vector<ResolvedRule> rules) const {
  HW_CHECK(planned_ == 0, "a step of {} tokens is planned", planned_);
  HW_CHECK(rules.size() == heads_.size(), "{} rules for {} heads", rules.size(), heads_.size());
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Head& head = heads_[i];
    // A plan does not say what heads came to share.
    if (rules[i].select == head.rule.select && rules[i].holds_from == head.rule.holds_from) {
      rules[i].shared = head.rule.shared;
    }
    if (!SamePast(head.rule, rules[i], num_tokens_) || head.pools != PoolsOf(rules[i])) return nullptr;
    if (head.pools.aged == nullptr) continue;
    const PageRange aged = AgedPages(rules[i], num_tokens_, page_tokens_);
    if (aged != head.aged && !(aged.empty() && head.aged.empty())) return nullptr;
  }
  auto fork = std::make_unique<KvCache>(pools_, num_kv_heads_, std::move(rules));
  // As long as it has no tokens it holds no pages: what may fail comes first.
  size_t num_places = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    fork->PlaceFork(fork->heads_[i], *this, heads_[i]);
    num_places += fork->heads_[i].region.size;
  }
  Entries().Reserve(num_places);
  pools_.tables->heads.Reserve(heads_.size());
  pools_.tables->selections.Reserve(fork->selections_.size);
  fork->num_tokens_ = num_tokens_;
  fork->is_lost_ = is_lost_;
  for (size_t i = 0; i < heads_.size(); ++i) fork->TakePages(fork->heads_[i], *this, heads_[i]);
  fork->peak_bytes_ = fork->bytes_.total();
  fork->DescribeHeads();
  fork->may_share_ = may_share_ = true;
  return fork;
}

uint32_t KvCache::PageOrNone(const Head& head, int64_t page_idx) const {
  return page_idx < head.sink_pages || page_idx >= head.begin ? PageOf(head, page_idx) : kNoPage;
}

// Which pages are sink pages, and how many a ring has, is the rule's business.
void KvCache::PlaceFork(Head& head, const KvCache& other, const Head& from) {
  const int64_t num_pages = EndPage(head, other.num_tokens_);
  if (head.pools.aged != nullptr) head.aged = AgedPages(head.rule, other.num_tokens_, page_tokens_);
  head.ring_pages = RingPagesAt(head.rule, other.num_tokens_, page_tokens_);
  head.begin = std::max(head.sink_pages, num_pages - head.ring_pages);
  while (head.begin < num_pages && other.PageOrNone(from, head.begin) == kNoPage) ++head.begin;
  if (num_pages == 0) return;
  head.region = Entries().Take(static_cast<size_t>(PlacesFor(head, head.ring_pages, num_pages)), kNoPage);
}

void KvCache::TakePages(Head& head, const KvCache& other, const Head& from) {
  const int64_t num_pages = EndPage(head, num_tokens_);
  for (int64_t p = 0; p < num_pages; ++p) {
    const uint32_t page = p < head.sink_pages || p >= head.begin ? other.PageOrNone(from, p) : kNoPage;
    if (page == kNoPage) continue;
    PagePool& pool = head.PoolOf(p);
    pool.Retain(page);
    BytesOf(head) += pool.page_bytes();
    Entries().Set(head.PlaceOf(p), page);
  }
  // Of a head whose rule changes nothing is folded yet.
  if (!head.Compensates() || from.state == kNoPage) return;
  head.state = from.state;
  pools_.states->Retain(head.state);
  BytesOf(head) += pools_.states->page_bytes();
}

PageCounts KvCache::NumPages(int64_t layer_idx, int64_t kv_head) const {
  const Head& head = At(layer_idx, kv_head);
  const int64_t num_pages = EndPage(head, num_tokens_);
  PageCounts counts;
  for (int64_t p = 0; p < std::min(head.sink_pages, num_pages); ++p) counts.newest += PageOf(head, p) != kNoPage;
  for (int64_t p = head.begin; p < num_pages; ++p) ++(head.aged.Contains(p) ? counts.aged : counts.newest);
  return counts;
}

Result<std::vector<int32_t>> KvCache::KeptPositions(int64_t layer_idx, int64_t kv_head) const {
  HW_CHECK(planned_ == 0, "a step of {} tokens is planned", planned_);
  const Head& head = At(layer_idx, kv_head);
  HW_CHECK(head.Selects(), "layer {}, KV head {} keeps tokens by position", layer_idx, kv_head);
  PagePool& pool = *head.pools.newest;
  const int64_t num_slots = head.SlotsAt(num_tokens_);
  std::vector<int32_t> positions(static_cast<size_t>(num_slots));
  for (int64_t slot = 0; slot < num_slots; slot += page_tokens_) {
    const std::byte* notes =
        pool.AddressOf(PageOf(head, slot / page_tokens_)) + pool.page_bytes() - KvNotesBytes(page_tokens_);
    const int64_t num_in_page = std::min(page_tokens_, num_slots - slot);
    pool.device().CopyToHost(positions.data() + slot, notes, static_cast<size_t>(num_in_page) * sizeof(int32_t));
  }
  HW_RETURN_IF_ERROR(pool.device().Wait());
  return positions;
}

}  // namespace headwise
