#include "kv/kv_cache.h"

#include <algorithm>
#include <utility>

#include "backend/page_shares.h"
#include "base/no_memory.h"

namespace headwise {
namespace {

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

KvCache::KvCache(const KvPools& pools, int64_t num_kv_heads, std::vector<ResolvedRule> rules)
    : pools_(pools),
      num_kv_heads_(num_kv_heads),
      page_tokens_(pools.full.newest->layout().page_tokens),
      heads_(rules.size()),
      compensates_(rules.size() / static_cast<size_t>(num_kv_heads)),
      selects_(compensates_.size()),
      counts_positions_(compensates_.size()),
      spare_(static_cast<size_t>(pools.states->space() + 1) * kNumPageUses) {
  CheckPools(pools.full, pools.full.newest->layout());
  CheckPools(pools.bounded, pools.full.newest->layout());
  CheckPools(pools.selecting, pools.full.newest->layout());
  CheckPools(pools.reading, pools.full.newest->layout());
  bool has_selections = false;
  for (size_t i = 0; i < rules.size(); ++i) {
    Head& head = heads_[i];
    head.rule = rules[i];
    head.pools = PoolsOf(rules[i]);
    // Tokens in slots lie in no order: the first of a text, which stay, among the others.
    head.sink_pages = head.Selects() ? 0 : PagesOf(head.rule.sink);
    head.begin = head.sink_pages;
    head.ring_pages = RingPagesAt(head.rule, 0, page_tokens_);
    if (head.pools.aged != nullptr) head.aged = AgedPages(head.rule, 0, page_tokens_);
    const size_t layer_idx = i / static_cast<size_t>(num_kv_heads);
    if (head.Compensates()) compensates_[layer_idx] = 1;
    if (head.Selects()) {
      HW_CHECK(head.rule.recent_before == kNoLimit && head.rule.sink_reach == kNoLimit &&
               head.rule.positions == Positions::kText);
      selects_[layer_idx] = 1;
      selecting_.push_back(i);
    }
    has_selections |= head.Selects() || head.rule.ReadsBlocks();
    if (head.rule.ReadsBlocks()) {
      HW_CHECK(!head.rule.Bounded() && page_tokens_ % head.rule.blocks.block_tokens == 0, "blocks of {}",
               head.rule.blocks.block_tokens);
    }
    const bool counts_positions = head.rule.positions == Positions::kCache && head.rule.Bounded() && head.rule.sink > 0;
    if (counts_positions) counts_positions_[layer_idx] = 1;
    if (!std::ranges::count(begins_, head.rule.holds_from)) begins_.push_back(head.rule.holds_from);
    const bool has_window = head.rule.sink_reach < kNoLimit || head.rule.recent_before < kNoLimit;
    if (has_window && head.sink_pages > 0) watched_.push_back(i);
  }
  // Behind this nothing fails, so that the region is given back by whoever has the cache.
  const size_t num_selections = has_selections ? heads_.size() : 0;
  pools_.tables->heads.Reserve(heads_.size());
  pools_.tables->selections.Reserve(num_selections);
  described_ = pools_.tables->heads.Take(heads_.size(), StepHead());
  try {
    selections_ = pools_.tables->selections.Take(num_selections, KvSelection());
  } catch (...) {
    pools_.tables->heads.Return(described_);
    throw;
  }
  for (size_t i = 0; i < heads_.size(); ++i) {
    pools_.tables->heads.Put(described_.begin + i, Described(heads_[i], 0));
  }
  for (size_t i = 0; i < num_selections; ++i) {
    pools_.tables->selections.Put(selections_.begin + i, SelectionOf(heads_[i].rule, 0, 0));
  }
}

KvCache::~KvCache() {
  const auto release = [](PagePool& pool, uint32_t page) {
    if (page != kNoPage) pool.Release(page);
  };
  for (Head& head : heads_) {
    const int64_t num_pages = EndPage(head, num_tokens_);
    for (int64_t p = 0; p < std::min(head.sink_pages, num_pages); ++p) release(*head.pools.newest, PageOf(head, p));
    for (int64_t p = head.begin; p < num_pages; ++p) release(head.PoolOf(p), PageOf(head, p));
    release(*pools_.states, head.state);
    Entries().Return(head.region);
  }
  pools_.tables->heads.Return(described_);
  pools_.tables->selections.Return(selections_);
}

// Of a head that drops nothing all pages stay but those that age.
PageUse KvCache::Head::UseOf(int64_t page_idx) const {
  if (pools.aged != nullptr && page_idx >= aged.begin) return PageUse::kSliding;
  return rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing;
}

PageUse KvCache::Head::SavedUseOf(int64_t page_idx) const {
  if (!aged.Contains(page_idx)) return UseOf(page_idx);
  return rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing;
}

size_t KvCache::Head::PlaceOf(int64_t page_idx) const {
  const int64_t behind = page_idx - sink_pages;
  const int64_t place = behind < ring_pages ? page_idx : sink_pages + behind % ring_pages;
  return region.begin + static_cast<size_t>(place);
}

// ---- what a step needs ----------------------------------------------------------------------------------------------

int64_t KvCache::MaxStepTokens() const {
  int64_t limit = kNoLimit;
  for (const int64_t begin : begins_) {
    if (num_tokens_ < begin) limit = std::min(limit, begin - num_tokens_);
  }
  return limit;
}

// Several tokens may need more pages than a ring has; the first step gives heads their compensation state; at a cut a
// head reads by one rule and keeps by another.
bool KvCache::IsWide(int64_t num_new) const {
  return num_new > 1 || num_tokens_ == 0 || MaxStepTokens() == 1;
}

bool KvCache::SharesInStep() const {
  return std::any_of(selecting_.begin(), selecting_.end(),
                     [&](size_t idx) { return headwise::SharesInStep(heads_[idx].rule, num_tokens_, planned_); });
}

int64_t KvCache::ExpectsFrom() const {
  for (const size_t idx : selecting_) {
    const ResolvedRule& rule = heads_[idx].rule;
    if (rule.select.kind != TokenSelector::Kind::kExpected) continue;
    const KvSelection selection = SelectionOf(rule, num_tokens_, /*num_new=*/1);
    const bool observes = selection.observe_begin < selection.observe_end;
    if (observes && num_tokens_ < selection.observe_end) return selection.observe_end;
  }
  return 0;
}

bool KvCache::SinksLeave(int64_t num_tokens) const {
  return std::any_of(watched_.begin(), watched_.end(),
                     [&](size_t idx) { return !LostSinks(heads_[idx], num_tokens).empty(); });
}

// Of a step of one token.
bool KvCache::NothingChanges() const {
  const bool begins_page = num_tokens_ % page_tokens_ == 0;
  const bool completes_page = (num_tokens_ + 1) % page_tokens_ == 0;
  const bool may_age = pools_.full.aged != nullptr || pools_.bounded.aged != nullptr;
  const auto slots_begin_page = [&](size_t idx) {
    return PagesOf(heads_[idx].SlotsAt(num_tokens_) + 1) > EndPage(heads_[idx], num_tokens_);
  };
  if (std::any_of(selecting_.begin(), selecting_.end(), slots_begin_page)) return false;
  return !begins_page && !(completes_page && may_age) && !may_share_ && !SinksLeave(num_tokens_ + 1);
}

uint32_t KvCache::Take(const Head& head, PagePool& pool, PageUse use, From from) {
  BytesOf(head) += pool.page_bytes();
  peak_bytes_ = std::max(peak_bytes_, bytes_.total());
  std::vector<uint32_t>& spare = spare_[SpareOf(pool, use)];
  if (from == From::kPool || spare.empty()) return pool.Allocate(use, ClassOf(head));
  const uint32_t page = spare.back();
  spare.pop_back();
  pool.Reclaim(page, ClassOf(head));
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
  Status status = CatchNoMemory("the page tables of a step", [&] {
    if (is_lost_) return Status::OutOfMemory("an earlier step of this text failed for want of memory: it cannot go on");
    aside_ = IsWide(num_new);
    if (!aside_ && NothingChanges()) {
      planned_ = 1;
      return Status::Ok();
    }
    std::vector<Change> changes;
    NewRegions regions(*pools_.tables);
    HW_RETURN_IF_ERROR(Prepare(num_new, changes, regions));
    aside_pages_ = regions.pages;
    aside_heads_ = regions.heads;
    aside_selections_ = regions.selections;
    regions.Give();
    planned_ = num_new;
    Commit(changes);
    return Status::Ok();
  });
  if (status.ok()) return status;
  aside_ = false;
  SettleLater();
  for (PagePool* pool : AllPools()) {
    if (pool != nullptr) pool->FreeEmptyExtents();
  }
  return status;
}

std::span<const KvCache::Change> KvCache::ChangesOf(const std::vector<Change>& changes, int64_t layer_idx) const {
  return std::span(changes).subspan(static_cast<size_t>(layer_idx * num_kv_heads_), static_cast<size_t>(num_kv_heads_));
}

void KvCache::Commit(const std::vector<Change>& changes) noexcept {
  const bool some_stay_shared = may_share_ && std::any_of(selecting_.begin(), selecting_.end(), [&](size_t idx) {
                                  return MayStayShared(heads_[idx], planned_);
                                });
  uint32_t next_place = aside_pages_.begin;
  for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) {
    if (aside_) {
      PlanLayerAside(layer_idx, ChangesOf(changes, layer_idx), next_place);
    } else {
      PlanLayerInPlace(layer_idx, ChangesOf(changes, layer_idx));
    }
  }
  DescribeHeads();
  may_share_ = some_stay_shared;
}

void KvCache::MoveEntries(Head& head, const Change& change) {
  if (change.region.size == 0) return;
  for (uint32_t i = 0; i < head.region.size; ++i) {
    const uint32_t page = Entries()[head.region.begin + i];
    Entries().Set(change.region.begin + i, page);
  }
  Entries().Return(head.region);
  head.region = change.region;
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
  for (int64_t p = change.written.begin; p < change.written.end; ++p) {
    const uint32_t shared = PageOf(head, p);
    if (!newest.IsShared(shared)) continue;
    const uint32_t copy = Take(head, newest, head.UseOf(p), From::kPool);
    copies_.push_back({.from_space = newest.space(), .to_space = newest.space(), .from = shared, .to = copy});
    Drop(head, newest, shared);
    Entries().Set(head.PlaceOf(p), copy);
  }
  if (change.joins.empty() || change.reuses_page) return;
  const int64_t page_idx = change.joins.begin;
  MoveEntries(head, change);
  // What comes round is read no more: its page goes before its place is taken.
  for (int64_t p = head.begin; p < change.keep_begin; ++p) Drop(head, head.PoolOf(p), PageOf(head, p));
  Entries().Set(head.PlaceOf(page_idx), Take(head, newest, head.UseOf(page_idx)));
}

void KvCache::PlanLayerInPlace(int64_t layer_idx, std::span<const Change> changes) {
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
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
    DropSinks(head, change);
  }
}

void KvCache::DropSinks(Head& head, const Change& change) {
  for (const int64_t p : change.lost_sinks) {
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
      if (change.written.Contains(p) && newest.IsShared(page)) {
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
  const auto of_sequence = static_cast<size_t>(layer_idx * num_kv_heads_ + kv_head);
  pools_.tables->heads.Put(aside_heads_.begin + of_sequence, described);
  if (selections_.size == 0) return;
  pools_.tables->selections.Put(aside_selections_.begin + of_sequence, SelectionOf(head.rule, num_tokens_, planned_));
}

// What stays of the pages at `place`, where JoinAside put them, into the head's own table.
void KvCache::SettleAside(Head& head, const Change& change, uint32_t place) {
  const int64_t num_sinks = std::min(head.sink_pages, change.joins.end);
  const auto page_at = [&](int64_t p) {
    return Entries()[place + static_cast<size_t>(p < num_sinks ? p : num_sinks + p - head.begin)];
  };
  const int64_t old_begin = head.begin;
  for (int64_t p = old_begin; p < change.keep_begin; ++p) Drop(head, head.PoolOf(p), page_at(p));
  for (int64_t p = change.keep_end; p < change.joins.end; ++p) Drop(head, *head.pools.newest, page_at(p));
  for (int64_t p = change.ages.begin; p < change.ages.end; ++p) Drop(head, *head.pools.newest, page_at(p));
  if (head.ring_pages != change.ring_pages) {
    Entries().Return(head.region);
    head.region = {};
    head.ring_pages = change.ring_pages;
  }
  head.aged = change.aged;
  MoveEntries(head, change);
  for (int64_t p = 0; p < num_sinks; ++p) Entries().Set(head.PlaceOf(p), page_at(p));
  for (int64_t p = change.keep_begin; p < change.keep_end; ++p) {
    if (!change.ages.Contains(p)) Entries().Set(head.PlaceOf(p), page_at(p));
  }
  head.begin = change.keep_begin;
}

void KvCache::PlanLayerAside(int64_t layer_idx, std::span<const Change> changes, uint32_t& next_place) {
  places_.clear();
  aged_pages_.clear();
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    places_.push_back(next_place);
    JoinAside(layer_idx, kv_head, changes[static_cast<size_t>(kv_head)], next_place);
  }
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
    const int64_t num_sinks = std::min(head.sink_pages, change.joins.end);
    for (int64_t p = change.ages.begin; p < change.ages.end; ++p) {
      const size_t place = places_[static_cast<size_t>(kv_head)] + static_cast<size_t>(num_sinks + p - head.begin);
      const uint32_t aged = Take(head, *head.pools.aged, head.rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing);
      ages_.push_back({layer_idx,
                       {.from_space = head.pools.newest->space(),
                        .to_space = head.pools.aged->space(),
                        .from = Entries()[place],
                        .to = aged}});
      aged_pages_.push_back({static_cast<size_t>(p), aged});
    }
  }
  auto aged = aged_pages_.begin();
  for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
    Head& head = At(layer_idx, kv_head);
    const Change& change = changes[static_cast<size_t>(kv_head)];
    SettleAside(head, change, places_[static_cast<size_t>(kv_head)]);
    // The step itself reads its own table: here pages may be what they will be.
    for (int64_t p = change.ages.begin; p < change.ages.end; ++p, ++aged) {
      Entries().Set(head.PlaceOf(p), aged->page);
    }
    DropSinks(head, change);
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
  // What a head that selects drops joins its mean as it goes: its slots say how many these are.
  if (!head.Compensates() || head.Selects()) return described;
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
  for (size_t i = 0; i < selections_.size; ++i) {
    pools_.tables->selections.Set(selections_.begin + i, SelectionOf(heads_[i].rule, num_tokens_, 0));
  }
  num_tokens_ = before;
}

StepRows KvCache::Rows(int64_t first_row) const {
  StepRows rows{.first_row = first_row,
                .num_rows = planned_,
                .first_pos = num_tokens_,
                .first_head = aside_ ? aside_heads_.begin : described_.begin};
  if (selections_.size > 0) rows.first_selection = aside_ ? aside_selections_.begin : selections_.begin;
  return rows;
}

// Pages change their heads, and from here on these have so many more tokens, or fewer.
void KvCache::TakeShares(std::span<const int32_t> gained) {
  for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) {
    const std::span<const int32_t> of_layer =
        gained.subspan(static_cast<size_t>(layer_idx * num_kv_heads_), static_cast<size_t>(num_kv_heads_));
    int64_t num_pages = 0;
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const Head& head = At(layer_idx, kv_head);
      if (headwise::SharesInStep(head.rule, num_tokens_, planned_)) num_pages = EndPage(head, num_tokens_ + planned_);
    }
    ForGivenPages(of_layer, num_pages, [&](int64_t from_head, int64_t from_page, int64_t to_head, int64_t to_page) {
      const size_t place = At(layer_idx, to_head).PlaceOf(to_page);
      Entries().Set(place, PageOf(At(layer_idx, from_head), from_page));
    });
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      At(layer_idx, kv_head).rule.shared = of_layer[static_cast<size_t>(kv_head)] * page_tokens_;
    }
  }
  DescribeHeads();
}

void KvCache::FinishStep(std::span<const int32_t> gained) noexcept {
  HW_CHECK(planned_ > 0, "no step is planned");
  for (const LaterEntry& entry : later_) Entries().Set(entry.place, entry.page);
  if (SharesInStep() && !gained.empty()) TakeShares(gained);
  SettleLater();
  for (PagePool* pool : AllPools()) {
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
    pools_.tables->selections.Return(aside_selections_);
  }
  later_.clear();
  copies_.clear();
  ages_.clear();
  num_tokens_ += planned_;
  planned_ = 0;
  aside_ = false;
}

void KvCache::AbandonStep() noexcept {
  FinishStep();
  is_lost_ = true;
}

}  // namespace headwise
