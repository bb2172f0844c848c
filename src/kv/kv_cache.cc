#include "kv/kv_cache.h"

#include <algorithm>

namespace headwise {
namespace {

// Places that a head's region begins with; doubled as its pages become more.
constexpr int64_t kFirstPlaces = 16;

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

int64_t RingPagesAt(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens) {
  return RingPages(num_tokens < rule.holds_from ? rule.recent_before : rule.recent, rule.compensate, page_tokens);
}

}  // namespace

KvCache::KvCache(const KvPools& pools, int64_t num_kv_heads, std::vector<ResolvedRule> rules)
    : pools_(pools),
      num_kv_heads_(num_kv_heads),
      page_tokens_(pools.full.newest->layout().page_tokens),
      heads_(rules.size()),
      compensates_(rules.size() / static_cast<size_t>(num_kv_heads)),
      counts_positions_(compensates_.size()),
      spare_(static_cast<size_t>(pools.states->space() + 1) * kNumPageUses) {
  CheckPools(pools.full, pools.full.newest->layout());
  CheckPools(pools.bounded, pools.full.newest->layout());
  for (size_t i = 0; i < rules.size(); ++i) {
    Head& head = heads_[i];
    head.rule = rules[i];
    head.pools = PoolsOf(rules[i]);
    head.sink_pages = PagesOf(head.rule.sink);
    head.begin = head.sink_pages;
    head.ring_pages = RingPagesAt(head.rule, 0, page_tokens_);
    if (head.pools.aged != nullptr) head.aged = AgedPages(head.rule, 0, page_tokens_);
    const size_t layer_idx = i / static_cast<size_t>(num_kv_heads);
    if (head.Compensates()) compensates_[layer_idx] = 1;
    const bool counts_positions = head.rule.positions == Positions::kCache && head.rule.Bounded() && head.rule.sink > 0;
    if (counts_positions) counts_positions_[layer_idx] = 1;
    const bool has_window = head.rule.sink_reach < kNoLimit || head.rule.recent_before < kNoLimit;
    if (has_window && head.sink_pages > 0) watched_.push_back(i);
  }
  described_ = pools_.tables->heads.Take(heads_.size(), StepHead());
  for (size_t i = 0; i < heads_.size(); ++i) {
    pools_.tables->heads.Put(described_.begin + i, Described(heads_[i], 0));
  }
}

KvCache::~KvCache() {
  const auto release = [](PagePool& pool, uint32_t page) {
    if (page != kNoPage) pool.Release(page);
  };
  const int64_t num_pages = PagesOf(num_tokens_);
  for (Head& head : heads_) {
    for (int64_t p = 0; p < std::min(head.sink_pages, num_pages); ++p) release(*head.pools.newest, PageOf(head, p));
    for (int64_t p = head.begin; p < num_pages; ++p) release(head.PoolOf(p), PageOf(head, p));
    release(*pools_.states, head.state);
    Entries().Return(head.region);
  }
  pools_.tables->heads.Return(described_);
}

// Of a head that drops nothing all pages stay but those that age.
PageUse KvCache::Head::UseOf(int64_t page_idx) const {
  if (pools.aged != nullptr && page_idx >= aged.begin) return PageUse::kSliding;
  return rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing;
}

size_t KvCache::Head::PlaceOf(int64_t page_idx) const {
  const int64_t behind = page_idx - sink_pages;
  const int64_t place = behind < ring_pages ? page_idx : sink_pages + behind % ring_pages;
  return region.begin + static_cast<size_t>(place);
}

bool KvCache::IsSinkNeeded(const Head& head, int64_t page_idx, int64_t num_tokens) const {
  return HasTokenOf(KeptRanges(head.rule, num_tokens), page_idx, page_tokens_);
}

// ---- what a step needs ----------------------------------------------------------------------------------------------

int64_t KvCache::MaxStepTokens() const {
  int64_t limit = kNoLimit;
  for (const Head& head : heads_) {
    if (num_tokens_ < head.rule.holds_from) limit = std::min(limit, head.rule.holds_from - num_tokens_);
  }
  return limit;
}

// Several tokens may need more pages than a ring has; the first step gives heads their compensation state; at a cut a
// head reads by one rule and keeps by another.
bool KvCache::IsWide(int64_t num_new) const {
  return num_new > 1 || num_tokens_ == 0 || MaxStepTokens() == 1;
}

bool KvCache::SinksLeave(int64_t num_tokens) const {
  return std::any_of(watched_.begin(), watched_.end(), [&](size_t idx) {
    const Head& head = heads_[idx];
    for (int64_t p = 0; p < std::min(head.sink_pages, PagesOf(num_tokens_)); ++p) {
      if (PageOf(head, p) != kNoPage && !IsSinkNeeded(head, p, num_tokens)) return true;
    }
    return false;
  });
}

// Of a step of one token.
bool KvCache::NothingChanges() const {
  const bool begins_page = num_tokens_ % page_tokens_ == 0;
  const bool completes_page = (num_tokens_ + 1) % page_tokens_ == 0;
  const bool may_age = pools_.full.aged != nullptr || pools_.bounded.aged != nullptr;
  return !begins_page && !(completes_page && may_age) && !may_share_ && !SinksLeave(num_tokens_ + 1);
}

KvCache::Change KvCache::ChangeOf(const Head& head, int64_t num_new) const {
  const int64_t end_tokens = num_tokens_ + num_new;
  Change change;
  change.joins = {PagesOf(num_tokens_), PagesOf(end_tokens)};
  if (may_share_ && num_tokens_ % page_tokens_ != 0) {
    const int64_t growing = change.joins.begin - 1;
    if (head.pools.newest->IsShared(PageOf(head, growing))) change.written_page = growing;
  }
  if (head.Compensates()) {
    change.new_state = head.state == kNoPage;
    change.copies_state = may_share_ && !change.new_state && pools_.states->IsShared(head.state);
  }
  change.ring_pages = RingPagesAt(head.rule, end_tokens, page_tokens_);
  change.keep_begin = std::max(head.begin, change.joins.end - change.ring_pages);
  change.aged = head.aged;
  if (head.pools.aged != nullptr) {
    change.aged = AgedPages(head.rule, end_tokens, page_tokens_);
    change.ages = {std::max(head.aged.end, change.keep_begin), change.aged.end};
  }
  const int64_t replaced = change.joins.begin - head.ring_pages;
  if (!aside_ && !change.joins.empty() && replaced >= head.begin) {
    PagePool& pool = head.PoolOf(replaced);
    change.reuses_page = &pool == head.pools.newest && !pool.IsShared(PageOf(head, replaced));
  }
  return change;
}

// Pages that a step takes from the pools at once, at worst: what it drops in one layer serves the next.
struct KvCache::Demand {
  std::vector<int64_t> spare, fresh;
  int64_t bytes = 0;
  int64_t peak_bytes = 0;

  void Need(size_t kind, const PagePool& pool, From from = From::kStep) {
    if (from == From::kStep && spare[kind] > 0) {
      --spare[kind];
    } else {
      ++fresh[kind];
    }
    bytes += pool.page_bytes();
    peak_bytes = std::max(peak_bytes, bytes);
  }
  void Give(size_t kind, const PagePool& pool) {
    ++spare[kind];
    bytes -= pool.page_bytes();
  }
};

size_t KvCache::SpareOf(const PagePool& pool, PageUse use) const {
  return static_cast<size_t>(pool.space()) * kNumPageUses + static_cast<size_t>(use);
}

Status KvCache::MakeRoom(int64_t num_new) {
  Demand demand{.spare = std::vector<int64_t>(spare_.size()), .fresh = std::vector<int64_t>(spare_.size())};
  const auto need = [&](const PagePool& pool, PageUse use, From from = From::kStep) {
    demand.Need(SpareOf(pool, use), pool, from);
  };
  const auto give = [&](const PagePool& pool, PageUse use) { demand.Give(SpareOf(pool, use), pool); };
  const int64_t num_pages = PagesOf(num_tokens_);
  for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) {
    std::vector<Change> changes;
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const Head& head = At(layer_idx, kv_head);
      const Change& change = changes.emplace_back(ChangeOf(head, num_new));
      for (int64_t p = change.joins.begin; p < change.joins.end && !change.reuses_page; ++p) {
        need(*head.pools.newest, head.UseOf(p));
      }
      if (change.written_page >= 0) need(*head.pools.newest, head.UseOf(change.written_page), From::kPool);
      if (change.new_state || change.copies_state) need(*pools_.states, PageUse::kSliding, From::kPool);
      for (int64_t p = change.ages.begin; p < change.ages.end; ++p) {
        need(*head.pools.aged, head.rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing);
      }
    }
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const Head& head = At(layer_idx, kv_head);
      const Change& change = changes[static_cast<size_t>(kv_head)];
      const auto give_page = [&](int64_t p) {
        const PagePool& pool = head.PoolOf(p);
        if (p >= num_pages) return give(pool, head.UseOf(p));
        if (!pool.IsShared(PageOf(head, p))) give(pool, pool.UseOf(PageOf(head, p)));
      };
      for (int64_t p = head.begin; p < change.keep_begin && !change.reuses_page; ++p) give_page(p);
      for (int64_t p = change.ages.begin; p < change.ages.end; ++p) give_page(p);
    }
  }
  HW_RETURN_IF_ERROR(pools_.usage->CheckRoom(demand.peak_bytes));
  for (PagePool* pool :
       {pools_.full.newest, pools_.full.aged, pools_.bounded.newest, pools_.bounded.aged, pools_.states}) {
    if (pool == nullptr) continue;
    for (const PageUse use : {PageUse::kGrowing, PageUse::kSliding}) {
      HW_RETURN_IF_ERROR(pool->MakeRoom(use, demand.fresh[SpareOf(*pool, use)]));
    }
  }
  return Status::Ok();
}

uint32_t KvCache::Take(const Head& head, PagePool& pool, PageUse use, From from) {
  BytesOf(head) += pool.page_bytes();
  peak_bytes_ = std::max(peak_bytes_, bytes_.total());
  std::vector<uint32_t>& spare = spare_[SpareOf(pool, use)];
  if (from == From::kPool || spare.empty()) return pool.Allocate(use);
  const uint32_t page = spare.back();
  spare.pop_back();
  pool.Reclaim(page);
  return page;
}

void KvCache::Drop(const Head& head, PagePool& pool, uint32_t page) {
  BytesOf(head) -= pool.page_bytes();
  if (pool.Retire(page)) spare_[SpareOf(pool, pool.UseOf(page))].push_back(page);
}

// ---- the plan -------------------------------------------------------------------------------------------------------

Status KvCache::PlanStep(int64_t num_new) {
  HW_CHECK(planned_ == 0, "a step of {} tokens is planned", planned_);
  HW_CHECK(num_new >= 1 && num_new <= MaxStepTokens(), "{} new tokens, {} fit", num_new, MaxStepTokens());
  if (is_lost_) return Status::OutOfMemory("an earlier step of this text failed for want of memory: it cannot go on");
  aside_ = IsWide(num_new);
  if (!aside_ && NothingChanges()) {
    planned_ = 1;
    return Status::Ok();
  }
  Status room = MakeRoom(num_new);
  if (!room.ok()) {
    aside_ = false;
    return room;
  }
  planned_ = num_new;
  if (!aside_) {
    for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) PlanLayerInPlace(layer_idx);
  } else {
    const int64_t end_page = PagesOf(num_tokens_ + num_new);
    int64_t num_places = 0;
    for (const Head& head : heads_) {
      num_places += std::min(head.sink_pages, end_page) + std::max<int64_t>(0, end_page - head.begin);
    }
    aside_pages_ = Entries().Take(static_cast<size_t>(num_places), kNoPage);
    aside_heads_ = pools_.tables->heads.Take(heads_.size(), StepHead());
    uint32_t next_place = aside_pages_.begin;
    for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) PlanLayerAside(layer_idx, num_new, next_place);
  }
  DescribeHeads();
  may_share_ = false;
  return Status::Ok();
}

// Entries for pages up to this one.
void KvCache::ReachPage(Head& head, int64_t page_idx) {
  const int64_t behind = std::max<int64_t>(0, page_idx + 1 - head.sink_pages);
  const int64_t needed = behind == 0 ? page_idx + 1 : head.sink_pages + std::min(behind, head.ring_pages);
  if (needed <= static_cast<int64_t>(head.region.size)) return;
  int64_t places = std::max({needed, 2 * static_cast<int64_t>(head.region.size), kFirstPlaces});
  if (head.ring_pages < kNoLimit) places = std::min(places, head.sink_pages + head.ring_pages);
  const PageRegion region = Entries().Take(static_cast<size_t>(places), kNoPage);
  for (uint32_t i = 0; i < head.region.size; ++i) {
    const uint32_t page = Entries()[head.region.begin + i];
    Entries().Set(region.begin + i, page);
  }
  Entries().Return(head.region);
  head.region = region;
}

void KvCache::UpdateState(Head& head, const Change& change) {
  if (!change.new_state && !change.copies_state) return;
  PagePool& states = *pools_.states;
  const uint32_t state = Take(head, states, PageUse::kSliding, From::kPool);
  if (change.copies_state) {
    copies_.push_back({.from_space = states.space(), .to_space = states.space(), .from = head.state, .to = state});
    Drop(head, states, head.state);
  }
  head.state = state;
}

// One more token of a head whose table stays where it is.
void KvCache::JoinInPlace(Head& head, const Change& change) {
  PagePool& newest = *head.pools.newest;
  if (change.written_page >= 0) {
    const uint32_t shared = PageOf(head, change.written_page);
    const uint32_t copy = Take(head, newest, head.UseOf(change.written_page), From::kPool);
    copies_.push_back({.from_space = newest.space(), .to_space = newest.space(), .from = shared, .to = copy});
    Drop(head, newest, shared);
    Entries().Set(head.PlaceOf(change.written_page), copy);
  }
  if (change.joins.empty() || change.reuses_page) return;
  const int64_t page_idx = change.joins.begin;
  ReachPage(head, page_idx);
  // What comes round is read no more: its page goes before its place is taken.
  for (int64_t p = head.begin; p < change.keep_begin; ++p) Drop(head, head.PoolOf(p), PageOf(head, p));
  Entries().Set(head.PlaceOf(page_idx), Take(head, newest, head.UseOf(page_idx)));
}

void KvCache::PlanLayerInPlace(int64_t layer_idx) {
  std::vector<Change> changes;
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes.emplace_back(ChangeOf(head, 1));
    UpdateState(head, change);
    JoinInPlace(head, change);
    head.begin = change.keep_begin;
  }
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
    for (int64_t p = change.ages.begin; p < change.ages.end; ++p) {
      const uint32_t aged = Take(head, *head.pools.aged, head.rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing);
      ages_.push_back({layer_idx,
                       {.from_space = head.pools.newest->space(),
                        .to_space = head.pools.aged->space(),
                        .from = PageOf(head, p),
                        .to = aged}});
      later_.push_back({head.PlaceOf(p), aged});
    }
  }
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
    for (int64_t p = change.ages.begin; p < change.ages.end; ++p) Drop(head, *head.pools.newest, PageOf(head, p));
    head.aged = change.aged;
    DropSinks(head, num_tokens_ + 1);
  }
}

void KvCache::DropSinks(Head& head, int64_t num_tokens) {
  if (head.rule.sink_reach == kNoLimit && head.rule.recent_before == kNoLimit) return;
  for (int64_t p = 0; p < std::min(head.sink_pages, PagesOf(num_tokens)); ++p) {
    if (PageOf(head, p) == kNoPage || IsSinkNeeded(head, p, num_tokens)) continue;
    Drop(head, *head.pools.newest, PageOf(head, p));
    later_.push_back({head.PlaceOf(p), kNoPage});
  }
}

// All pages that the step reads or writes, one behind the other, in a table of this step: sinks, then the others.
void KvCache::JoinAside(int64_t layer_idx, int64_t kv_head, const Change& change, uint32_t& next_place) {
  Head& head = At(layer_idx, kv_head);
  PagePool& newest = *head.pools.newest;
  StepHead described = Described(head, planned_);
  described.table = next_place;
  described.sink_pages = std::min(head.sink_pages, change.joins.end);
  described.ring_first = head.begin;
  described.ring_pages = kNoLimit;
  const auto list = [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p, ++next_place) {
      uint32_t page = p < change.joins.begin ? PageOf(head, p) : Take(head, newest, head.UseOf(p));
      if (p == change.written_page) {
        const uint32_t shared = page;
        page = Take(head, newest, head.UseOf(p), From::kPool);
        copies_.push_back({.from_space = newest.space(), .to_space = newest.space(), .from = shared, .to = page});
        Drop(head, newest, shared);
      }
      Entries().Set(next_place, page);
    }
  };
  list(0, described.sink_pages);
  list(head.begin, change.joins.end);
  UpdateState(head, change);
  described.state = head.state;
  pools_.tables->heads.Put(aside_heads_.begin + static_cast<size_t>(layer_idx * num_kv_heads_ + kv_head), described);
}

// What stays of the pages at `place`, where JoinAside put them, into the head's own table.
void KvCache::SettleAside(Head& head, const Change& change, uint32_t place) {
  const int64_t num_sinks = std::min(head.sink_pages, change.joins.end);
  const auto page_at = [&](int64_t p) {
    return Entries()[place + static_cast<size_t>(p < num_sinks ? p : num_sinks + p - head.begin)];
  };
  const int64_t old_begin = head.begin;
  for (int64_t p = old_begin; p < change.keep_begin; ++p) Drop(head, head.PoolOf(p), page_at(p));
  for (int64_t p = change.ages.begin; p < change.ages.end; ++p) Drop(head, *head.pools.newest, page_at(p));
  if (head.ring_pages != change.ring_pages) {
    Entries().Return(head.region);
    head.region = {};
    head.ring_pages = change.ring_pages;
  }
  head.aged = change.aged;
  ReachPage(head, change.joins.end - 1);
  for (int64_t p = 0; p < num_sinks; ++p) Entries().Set(head.PlaceOf(p), page_at(p));
  for (int64_t p = change.keep_begin; p < change.joins.end; ++p) {
    if (!change.ages.Contains(p)) Entries().Set(head.PlaceOf(p), page_at(p));
  }
  head.begin = change.keep_begin;
}

void KvCache::PlanLayerAside(int64_t layer_idx, int64_t num_new, uint32_t& next_place) {
  std::vector<Change> changes;
  std::vector<uint32_t> places;
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    places.push_back(next_place);
    changes.push_back(ChangeOf(At(layer_idx, kv_head), num_new));
    JoinAside(layer_idx, kv_head, changes.back(), next_place);
  }
  std::vector<LaterEntry> aged_pages;  // by page index, of one head after the other
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
    const int64_t num_sinks = std::min(head.sink_pages, change.joins.end);
    for (int64_t p = change.ages.begin; p < change.ages.end; ++p) {
      const size_t place = places[static_cast<size_t>(kv_head)] + static_cast<size_t>(num_sinks + p - head.begin);
      const uint32_t aged = Take(head, *head.pools.aged, head.rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing);
      ages_.push_back({layer_idx,
                       {.from_space = head.pools.newest->space(),
                        .to_space = head.pools.aged->space(),
                        .from = Entries()[place],
                        .to = aged}});
      aged_pages.push_back({static_cast<size_t>(p), aged});
    }
  }
  auto aged = aged_pages.begin();
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
    SettleAside(head, change, places[static_cast<size_t>(kv_head)]);
    // The step itself reads its own table: here pages may be what they will be.
    for (int64_t p = change.ages.begin; p < change.ages.end; ++p, ++aged) {
      Entries().Set(head.PlaceOf(p), aged->page);
    }
    DropSinks(head, num_tokens_ + num_new);
  }
}

// As the tables have it, `num_new` tokens on their way.
StepHead KvCache::Described(const Head& head, int64_t num_new) const {
  StepHead described;
  described.mask = head.rule.MaskAt(num_tokens_ < head.rule.holds_from ? 0 : head.rule.holds_from);
  described.table = head.region.begin;
  described.sink_pages = described.ring_first = head.sink_pages;
  described.ring_pages = head.ring_pages;
  described.newest = head.pools.newest->space();
  described.aged = head.pools.aged == nullptr ? -1 : head.pools.aged->space();
  described.aged_begin = head.aged.begin;
  described.state = head.state;
  if (!head.Compensates()) return described;
  const auto lag = [&](int64_t num_tokens) {
    return num_tokens < head.rule.holds_from ? head.rule.recent_before : head.rule.recent;
  };
  described.reads_mean = num_tokens_ >= head.rule.holds_from;
  described.fold_from = head.rule.sink;
  described.fold_before = lag(num_tokens_);
  described.fold_after = lag(num_tokens_ + num_new);
  return described;
}

// For steps to come, in which nothing but tokens is new.
void KvCache::DescribeHeads() {
  const int64_t before = num_tokens_;
  num_tokens_ += planned_;
  for (size_t i = 0; i < heads_.size(); ++i) {
    pools_.tables->heads.Set(described_.begin + i, Described(heads_[i], 0));
  }
  num_tokens_ = before;
}

StepRows KvCache::Rows(int64_t first_row) const {
  return {.first_row = first_row,
          .num_rows = planned_,
          .first_pos = num_tokens_,
          .first_head = aside_ ? aside_heads_.begin : described_.begin};
}

void KvCache::FinishStep() {
  HW_CHECK(planned_ > 0, "no step is planned");
  for (const LaterEntry& entry : later_) Entries().Set(entry.place, entry.page);
  for (PagePool* pool :
       {pools_.full.newest, pools_.full.aged, pools_.bounded.newest, pools_.bounded.aged, pools_.states}) {
    if (pool == nullptr) continue;
    for (const PageUse use : {PageUse::kGrowing, PageUse::kSliding}) {
      std::vector<uint32_t>& spare = spare_[SpareOf(*pool, use)];
      for (const uint32_t page : spare) pool->Forget(page);
      spare.clear();
    }
  }
  if (aside_) {
    Entries().Return(aside_pages_);
    pools_.tables->heads.Return(aside_heads_);
  }
  later_.clear();
  copies_.clear();
  ages_.clear();
  num_tokens_ += planned_;
  planned_ = 0;
  aside_ = false;
}

void KvCache::AbandonStep() {
  FinishStep();
  is_lost_ = true;
}

// ---- forks ----------------------------------------------------------------------------------------------------------

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
    if (!SamePast(head.rule, rules[i], num_tokens_) || head.pools != PoolsOf(rules[i])) return nullptr;
    if (head.pools.aged == nullptr) continue;
    const PageRange aged = AgedPages(rules[i], num_tokens_, page_tokens_);
    if (aged != head.aged && !(aged.empty() && head.aged.empty())) return nullptr;
  }
  auto fork = std::make_unique<KvCache>(pools_, num_kv_heads_, std::move(rules));
  fork->num_tokens_ = num_tokens_;
  fork->is_lost_ = is_lost_;
  for (size_t i = 0; i < heads_.size(); ++i) fork->TakePages(fork->heads_[i], *this, heads_[i]);
  fork->peak_bytes_ = fork->bytes_.total();
  fork->DescribeHeads();
  fork->may_share_ = may_share_ = true;
  return fork;
}

// Which pages are sink pages, and how many a ring has, is the rule's business.
void KvCache::TakePages(Head& head, const KvCache& other, const Head& from) {
  const int64_t num_pages = PagesOf(num_tokens_);
  if (head.pools.aged != nullptr) head.aged = AgedPages(head.rule, num_tokens_, page_tokens_);
  head.ring_pages = RingPagesAt(head.rule, num_tokens_, page_tokens_);
  const auto page_at = [&](int64_t p) {
    return p < from.sink_pages || p >= from.begin ? other.PageOf(from, p) : kNoPage;
  };
  head.begin = std::max(head.sink_pages, num_pages - head.ring_pages);
  while (head.begin < num_pages && page_at(head.begin) == kNoPage) ++head.begin;
  if (num_pages > 0) ReachPage(head, num_pages - 1);
  for (int64_t p = 0; p < num_pages; ++p) {
    const uint32_t page = p < head.sink_pages || p >= head.begin ? page_at(p) : kNoPage;
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
  const int64_t num_pages = PagesOf(num_tokens_);
  PageCounts counts;
  for (int64_t p = 0; p < std::min(head.sink_pages, num_pages); ++p) counts.newest += PageOf(head, p) != kNoPage;
  for (int64_t p = head.begin; p < num_pages; ++p) ++(head.aged.Contains(p) ? counts.aged : counts.newest);
  return counts;
}

}  // namespace headwise
