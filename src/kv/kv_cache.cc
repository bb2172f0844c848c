#include "kv/kv_cache.h"

#include <algorithm>

namespace headwise {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

PageUse UseOf(const ResolvedRule& rule) {
  return rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing;
}

bool HasTokenOf(const std::vector<TokenRange>& ranges, int64_t page_idx, int64_t page_tokens) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TokenRange& range) {
    return range.begin < (page_idx + 1) * page_tokens && range.end > page_idx * page_tokens;
  });
}

void CheckPools(const HeadPools& pools, const KvLayout& like) {
  HW_CHECK(pools.newest != nullptr);
  KvLayout layout = pools.newest->layout();
  HW_CHECK(layout.page_tokens == like.page_tokens && layout.head_dim == like.head_dim);
  if (pools.aged == nullptr) return;
  HW_CHECK(layout.format == NewestFormat(KvFormat::kQ4), "{} does not age", NameOf(layout.format));
  layout.format = KvFormat::kQ4;
  HW_CHECK(pools.aged->layout() == layout);
}

}  // namespace

KvCache::KvCache(KvPools pools, int64_t num_kv_heads, std::vector<ResolvedRule> rules)
    : pools_(pools), num_kv_heads_(num_kv_heads), heads_(rules.size()) {
  CheckPools(pools.full, pools.full.newest->layout());
  CheckPools(pools.bounded, pools.full.newest->layout());
  for (size_t i = 0; i < rules.size(); ++i) {
    Head& head = heads_[i];
    head.rule = rules[i];
    head.pools = PoolsOf(rules[i]);
    head.sink_pages.assign(static_cast<size_t>(CeilDiv(head.rule.sink, page_tokens())), nullptr);
    head.recent_first = static_cast<int64_t>(head.sink_pages.size());
    if (head.pools.aged != nullptr) head.aged = AgedPages(head.rule, 0, page_tokens());
    if (head.rule.compensate && head.rule.Bounded()) head.state_idx = num_states_++;
  }
  if (num_states_ > 0) {
    compensation_ = DeviceBuffer(pools.full.newest->backend(), static_cast<size_t>(num_states_ * 2 * head_dim()) * 4);
  }
}

KvCache::~KvCache() {
  for (Head& head : heads_) {
    for (std::byte*& page : head.sink_pages) Drop(*head.pools.newest, page);
    for (size_t i = 0; i < head.recent_pages.size(); ++i) {
      Drop(head.PoolOf(head.recent_first + static_cast<int64_t>(i)), head.recent_pages[i]);
    }
  }
}

// Of a head that drops nothing all pages stay but those that age.
PageUse KvCache::Head::UseOf(int64_t page_idx) const {
  return pools.aged != nullptr && page_idx >= aged.begin ? PageUse::kSliding : headwise::UseOf(rule);
}

std::byte* KvCache::NewPage(PagePool& pool, PageUse use) {
  page_bytes_ += static_cast<int64_t>(pool.page_bytes());
  peak_page_bytes_ = std::max(peak_page_bytes_, page_bytes_);
  return pool.Allocate(use);
}

void KvCache::Drop(PagePool& pool, std::byte*& page) {
  if (page == nullptr) return;
  pool.Release(page);
  page = nullptr;
  page_bytes_ -= static_cast<int64_t>(pool.page_bytes());
}

std::unique_ptr<KvCache> KvCache::Fork() const {
  std::vector<ResolvedRule> rules;
  for (const Head& head : heads_) rules.push_back(head.rule);
  return ForkAs(std::move(rules));
}

std::unique_ptr<KvCache> KvCache::ForkAs(std::vector<ResolvedRule> rules) const {
  HW_CHECK(rules.size() == heads_.size(), "{} rules for {} heads", rules.size(), heads_.size());
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Head& head = heads_[i];
    if (!SamePast(head.rule, rules[i], num_tokens_) || head.pools != PoolsOf(rules[i])) return nullptr;
    if (head.pools.aged == nullptr) continue;
    const PageRange aged = AgedPages(rules[i], num_tokens_, page_tokens());
    if (aged != head.aged && !(aged.empty() && head.aged.empty())) return nullptr;
  }
  auto fork = std::make_unique<KvCache>(pools_, num_kv_heads_, std::move(rules));
  fork->num_tokens_ = num_tokens_;
  fork->page_bytes_ = fork->peak_page_bytes_ = page_bytes_;
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& head = fork->heads_[i];
    if (head.pools.aged != nullptr) head.aged = AgedPages(head.rule, num_tokens_, page_tokens());
    head.TakePages(heads_[i]);
    // Of a head whose rule changes nothing is folded yet.
    if (head.state_idx < 0 || heads_[i].state_idx < 0) continue;
    const auto state_bytes = static_cast<size_t>(2 * head_dim()) * sizeof(float);
    pools_.full.newest->backend().Copy(fork->State(head), State(heads_[i]), state_bytes);
  }
  return fork;
}

// Which pages are sink pages is the rule's business.
void KvCache::Head::TakePages(const Head& from) {
  const auto num_sink_pages = static_cast<int64_t>(sink_pages.size());
  const auto take = [&](int64_t page_idx, std::byte* page) {
    if (page == nullptr) return;
    PoolOf(page_idx).Retain(page);
    if (page_idx < num_sink_pages) {
      sink_pages[static_cast<size_t>(page_idx)] = page;
      return;
    }
    if (recent_pages.empty()) recent_first = page_idx;
    recent_pages.push_back(page);
  };
  for (size_t i = 0; i < from.sink_pages.size(); ++i) take(static_cast<int64_t>(i), from.sink_pages[i]);
  for (size_t i = 0; i < from.recent_pages.size(); ++i) {
    take(from.recent_first + static_cast<int64_t>(i), from.recent_pages[i]);
  }
}

int64_t KvCache::MaxStepTokens() const {
  int64_t limit = kNoLimit;
  for (const Head& head : heads_) {
    if (num_tokens_ < head.rule.holds_from) limit = std::min(limit, head.rule.holds_from - num_tokens_);
  }
  return limit;
}

Status KvCache::PlanStep(int64_t num_new) {
  HW_CHECK(num_new >= 1 && num_new <= MaxStepTokens(), "{} new tokens, {} fit", num_new, MaxStepTokens());
  return Status::Ok();
}

void KvCache::MakeWritable(const Head& head, int64_t page_idx, std::byte*& page) {
  PagePool& pool = *head.pools.newest;
  if (page == nullptr) {
    page = NewPage(pool, head.UseOf(page_idx));
  } else if (pool.IsShared(page)) {
    std::byte* copy = pool.Allocate(head.UseOf(page_idx));
    pool.backend().Copy(copy, page, pool.page_bytes());
    pool.Release(page);
    page = copy;
  }
}

void KvCache::Extend(int64_t layer_idx, int64_t num_new) {
  HW_CHECK(num_new >= 1 && num_new <= MaxStepTokens(), "{} new tokens, {} fit", num_new, MaxStepTokens());
  const int64_t first_page = num_tokens_ / page_tokens();
  const int64_t last_page = (num_tokens_ + num_new - 1) / page_tokens();
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const auto num_sink_pages = static_cast<int64_t>(head.sink_pages.size());
    for (int64_t page_idx = first_page; page_idx <= last_page; ++page_idx) {
      if (page_idx < num_sink_pages) {
        MakeWritable(head, page_idx, head.sink_pages[static_cast<size_t>(page_idx)]);
        continue;
      }
      if (head.recent_pages.empty()) head.recent_first = page_idx;
      const auto slot = static_cast<size_t>(page_idx - head.recent_first);
      HW_CHECK(slot <= head.recent_pages.size(), "page {} after {}+{}", page_idx, head.recent_first,
               head.recent_pages.size());
      if (slot == head.recent_pages.size()) head.recent_pages.push_back(nullptr);
      MakeWritable(head, page_idx, head.recent_pages[slot]);
    }
  }
}

HeadWork KvCache::WorkOf(const Head& head, int64_t kv_head, int64_t first_row, int64_t num_new) const {
  HeadWork work{.first_row = first_row, .num_rows = num_new, .first_pos = num_tokens_, .kv_head = kv_head};
  work.layout = head.pools.newest->layout();
  work.pages = {.sink = head.sink_pages, .recent = head.recent_pages, .recent_first = head.recent_first};
  work.aged_begin = head.aged.begin;
  work.aged_end = head.aged.end;
  if (num_tokens_ < head.rule.holds_from) {
    work.recent = head.rule.recent_before;
    return work;
  }
  work.sink = head.rule.sink;
  work.recent = head.rule.recent;
  work.sink_reach = head.rule.sink_reach;
  if (head.rule.positions == Positions::kCache && head.rule.Bounded()) {
    work.sink_pos_limit = head.rule.sink + head.rule.recent - 1;
    work.uses_sink_query = head.rule.sink > 0 && num_tokens_ + num_new - 1 > work.sink_pos_limit;
  }
  return work;
}

void KvCache::Work(int64_t layer_idx, int64_t first_row, int64_t num_new, std::vector<HeadWork>& work) const {
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    work.push_back(WorkOf(At(layer_idx, kv_head), kv_head, first_row, num_new));
  }
}

bool KvCache::HasFolds(int64_t layer_idx) const {
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    if (At(layer_idx, kv_head).state_idx >= 0) return true;
  }
  return false;
}

void KvCache::Folds(int64_t layer_idx, int64_t first_row, int64_t num_new, std::vector<HeadFold>& folds) {
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    const Head& head = At(layer_idx, kv_head);
    if (head.state_idx < 0) continue;
    const TokenRange before = FoldedRange(head.rule, num_tokens_);
    const TokenRange after = FoldedRange(head.rule, num_tokens_ + num_new);
    if (after.end == after.begin) continue;
    HeadFold fold{.work = WorkOf(head, kv_head, first_row, num_new), .state = State(head)};
    fold.num_folded = before.end - before.begin;
    fold.fold_end = after.end;
    if (num_tokens_ < head.rule.holds_from) {
      // The cut at the end of the prompt: its queries were dense, only the folding is due. [razor Algorithm 1]
      fold.work.num_rows = 0;
      fold.work.sink = head.rule.sink;
      fold.work.recent = head.rule.recent;
    }
    folds.push_back(fold);
  }
}

void KvCache::Ages(int64_t layer_idx, int64_t num_new, PagesToAge& pages) {
  HW_CHECK(aging_layer_ < 0, "layer {} is not committed", aging_layer_);
  aging_layer_ = layer_idx;
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    if (head.pools.aged == nullptr) continue;
    const PageRange after = AgedPages(head.rule, num_tokens_ + num_new, page_tokens());
    if (after == head.aged) continue;
    const std::vector<TokenRange> kept = KeptRanges(head.rule, num_tokens_ + num_new);
    pages.layout = head.pools.newest->layout();
    // None of them is a sink's.
    for (int64_t page_idx = std::max(head.aged.end, head.recent_first); page_idx < after.end; ++page_idx) {
      if (!HasTokenOf(kept, page_idx, page_tokens())) continue;
      std::byte* aged = NewPage(*head.pools.aged, UseOf(head.rule));
      pages.from.push_back(head.recent_pages[static_cast<size_t>(page_idx - head.recent_first)]);
      pages.to.push_back(aged);
      aging_.push_back({.kv_head = kv_head, .page_idx = page_idx, .aged = aged});
    }
  }
}

void KvCache::Commit(int64_t layer_idx, int64_t num_new) {
  // Pages that nobody needs are still where they were: none of them has aged in this step.
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    DropUnneeded(At(layer_idx, kv_head), num_tokens_ + num_new);
  }
  for (const AgingPage& aging : aging_) {
    Head& head = At(layer_idx, aging.kv_head);
    std::byte*& page = head.recent_pages[static_cast<size_t>(aging.page_idx - head.recent_first)];
    Drop(*head.pools.newest, page);
    page = aging.aged;
  }
  aging_.clear();
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    if (head.pools.aged == nullptr) continue;
    HW_CHECK(aging_layer_ == layer_idx, "layer {}: Ages comes before Commit", layer_idx);
    head.aged = AgedPages(head.rule, num_tokens_ + num_new, page_tokens());
  }
  aging_layer_ = -1;
}

void KvCache::DropUnneeded(Head& head, int64_t num_tokens) {
  const std::vector<TokenRange> kept = KeptRanges(head.rule, num_tokens);
  const auto needed = [&](int64_t page_idx) { return HasTokenOf(kept, page_idx, page_tokens()); };
  for (size_t i = 0; i < head.sink_pages.size(); ++i) {
    if (!needed(static_cast<int64_t>(i))) Drop(*head.pools.newest, head.sink_pages[i]);
  }
  size_t num_dropped = 0;
  while (num_dropped < head.recent_pages.size() && !needed(head.recent_first + static_cast<int64_t>(num_dropped))) {
    Drop(head.PoolOf(head.recent_first + static_cast<int64_t>(num_dropped)), head.recent_pages[num_dropped]);
    ++num_dropped;
  }
  head.recent_pages.erase(head.recent_pages.begin(), head.recent_pages.begin() + static_cast<int64_t>(num_dropped));
  head.recent_first += static_cast<int64_t>(num_dropped);
}

float* KvCache::State(const Head& head) const {
  return reinterpret_cast<float*>(compensation_.data()) + head.state_idx * 2 * head_dim();
}

const float* KvCache::CompensationState(int64_t layer_idx, int64_t kv_head) const {
  const Head& head = At(layer_idx, kv_head);
  return head.state_idx < 0 ? nullptr : State(head);
}

PageCounts KvCache::NumPages(int64_t layer_idx, int64_t kv_head) const {
  const Head& head = At(layer_idx, kv_head);
  const auto num_sink = std::count_if(head.sink_pages.begin(), head.sink_pages.end(),
                                      [](const std::byte* page) { return page != nullptr; });
  const auto num_recent = static_cast<int64_t>(head.recent_pages.size());
  const int64_t num_aged = std::max<int64_t>(
      0, std::min(head.aged.end, head.recent_first + num_recent) - std::max(head.aged.begin, head.recent_first));
  return {.newest = num_sink + num_recent - num_aged, .aged = num_aged};
}

int64_t KvCache::PeakBytes() const {
  return peak_page_bytes_ + static_cast<int64_t>(compensation_.size_bytes());
}

KvCacheBytes KvCache::Bytes() const {
  KvCacheBytes bytes;
  bytes.bounded = static_cast<int64_t>(compensation_.size_bytes());
  for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const Head& head = At(layer_idx, kv_head);
      int64_t& sum = head.rule.Bounded() ? bytes.bounded : bytes.full;
      const auto bytes_of = [](const PagePool* pool) {
        return pool == nullptr ? int64_t{0} : static_cast<int64_t>(pool->page_bytes());
      };
      const PageSizes sizes{.newest = bytes_of(head.pools.newest), .aged = bytes_of(head.pools.aged)};
      sum += sizes.BytesOf(NumPages(layer_idx, kv_head));
    }
  }
  return bytes;
}

}  // namespace headwise
