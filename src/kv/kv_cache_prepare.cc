// All of a step's plan that may fail: what it changes, and the memory that this takes.
#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "kv/kv_cache.h"

namespace headwise {
namespace {

// Places that a head's region begins with; doubled as its pages become more.
constexpr int64_t kFirstPlaces = 16;

bool HasTokenOf(const std::vector<TokenRange>& ranges, int64_t page_idx, int64_t page_tokens) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TokenRange& range) {
    return range.begin < (page_idx + 1) * page_tokens && range.end > page_idx * page_tokens;
  });
}

}  // namespace

int64_t KvCache::RingPagesAt(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens) {
  if (rule.SelectsByScore()) return kNoLimit;
  return RingPages(num_tokens < rule.holds_from ? rule.recent_before : rule.recent, rule.compensate, page_tokens);
}

std::vector<int64_t> KvCache::LostSinks(const Head& head, int64_t num_tokens) const {
  std::vector<int64_t> lost;
  if (head.rule.sink_reach == kNoLimit && head.rule.recent_before == kNoLimit) return lost;
  const std::vector<TokenRange> kept = KeptRanges(head.rule, num_tokens);
  for (int64_t p = 0; p < std::min(head.sink_pages, PagesOf(num_tokens)); ++p) {
    const bool is_there = p >= PagesOf(num_tokens_) || PageOf(head, p) != kNoPage;
    if (is_there && !HasTokenOf(kept, p, page_tokens_)) lost.push_back(p);
  }
  return lost;
}

KvCache::Change KvCache::ChangeOf(const Head& head, int64_t num_new) const {
  const int64_t end_tokens = num_tokens_ + num_new;
  Change change;
  change.joins.begin = EndPage(head, num_tokens_);
  change.joins.end = std::max(change.joins.begin, PagesOf(head.SlotsAt(num_tokens_) + num_new));
  if (may_share_) change.written = WrittenPages(head, num_new);
  if (head.Compensates()) {
    change.new_state = head.state == kNoPage;
    change.copies_state = may_share_ && !change.new_state && pools_.states->IsShared(head.state);
  }
  change.ring_pages = RingPagesAt(head.rule, end_tokens, page_tokens_);
  change.keep_begin = std::max(head.begin, change.joins.end - change.ring_pages);
  change.keep_end = EndPage(head, end_tokens);
  // No head can come to have more than its layer's others give up, nor than it has tokens for.
  if (headwise::SharesInStep(head.rule, num_tokens_, num_new)) {
    change.may_gain = std::min(change.joins.end - change.keep_end, (num_kv_heads_ - 1) * change.keep_end);
  }
  change.aged = head.aged;
  if (head.pools.aged != nullptr) {
    change.aged = AgedPages(head.rule, end_tokens, page_tokens_);
    change.ages = {std::max(head.aged.end, change.keep_begin), change.aged.end};
  }
  change.lost_sinks = LostSinks(head, end_tokens);
  const int64_t replaced = change.joins.begin - head.ring_pages;
  if (!aside_ && !change.joins.empty() && replaced >= head.begin) {
    PagePool& pool = head.PoolOf(replaced);
    change.reuses_page = &pool == head.pools.newest && !pool.IsShared(PageOf(head, replaced));
  }
  return change;
}

// Notes of scores are written wherever there are tokens, and so are the places of those that go, which nobody knows
// here.
PageRange KvCache::WrittenPages(const Head& head, int64_t num_new) const {
  const int64_t num_slots = head.SlotsAt(num_tokens_);
  if (head.Selects()) {
    const KvSelection selection = SelectionOf(head.rule, num_tokens_, num_new);
    const bool drops = num_slots + num_new > selection.most;
    const bool adds_up =
        selection.scores == KvSelection::Scores::kSum || selection.scores == KvSelection::Scores::kExpected;
    const bool adds_scores =
        adds_up && num_tokens_ < selection.observe_end && num_tokens_ + num_new > selection.observe_begin;
    if (drops || adds_scores) return {0, EndPage(head, num_tokens_)};
  }
  // Of all others the page that grows, if it has tokens.
  const int64_t growing = num_slots / page_tokens_;
  return {growing, num_slots % page_tokens_ == 0 ? growing : growing + 1};
}

// Of a head that selects: whether a later step may come to write to what this one leaves shared.
bool KvCache::MayStayShared(const Head& head, int64_t num_new) const {
  const PageRange written = WrittenPages(head, num_new);
  const bool all = written.begin == 0 && written.end == EndPage(head, num_tokens_);
  const bool drops_no_more = head.rule.select.CutsOnce() && num_tokens_ >= head.rule.holds_from;
  return !all && !drops_no_more;
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

Status KvCache::MakeRoom(const std::vector<Change>& changes) {
  Demand demand{.spare = std::vector<int64_t>(spare_.size()), .fresh = std::vector<int64_t>(spare_.size())};
  const auto need = [&](const PagePool& pool, PageUse use, From from = From::kStep) {
    demand.Need(SpareOf(pool, use), pool, from);
  };
  const auto give = [&](const PagePool& pool, PageUse use) { demand.Give(SpareOf(pool, use), pool); };
  for (int64_t layer_idx = 0; layer_idx < num_layers(); ++layer_idx) {
    const std::span<const Change> of_layer = ChangesOf(changes, layer_idx);
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const Head& head = At(layer_idx, kv_head);
      const Change& change = of_layer[static_cast<size_t>(kv_head)];
      for (int64_t p = change.joins.begin; p < change.joins.end && !change.reuses_page; ++p) {
        need(*head.pools.newest, head.UseOf(p));
      }
      for (int64_t p = change.written.begin; p < change.written.end; ++p) {
        if (IsSharedPage(head, p)) need(*head.pools.newest, head.UseOf(p), From::kPool);
      }
      if (change.new_state || change.copies_state) need(*pools_.states, PageUse::kSliding, From::kPool);
      for (int64_t p = change.ages.begin; p < change.ages.end; ++p) {
        need(*head.pools.aged, head.rule.Bounded() ? PageUse::kSliding : PageUse::kGrowing);
      }
    }
    for (int64_t kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      const Head& head = At(layer_idx, kv_head);
      const Change& change = of_layer[static_cast<size_t>(kv_head)];
      const auto give_page = [&](int64_t p) {
        const PagePool& pool = head.PoolOf(p);
        if (p >= change.joins.begin) return give(pool, head.UseOf(p));
        if (!pool.IsShared(PageOf(head, p))) give(pool, pool.UseOf(PageOf(head, p)));
      };
      for (int64_t p = head.begin; p < change.keep_begin && !change.reuses_page; ++p) give_page(p);
      for (int64_t p = change.keep_end; p < change.joins.end; ++p) give_page(p);
      for (int64_t p = change.ages.begin; p < change.ages.end; ++p) give_page(p);
    }
  }
  HW_RETURN_IF_ERROR(pools_.usage->CheckRoom(demand.peak_bytes));
  for (PagePool* pool : AllPools()) {
    if (pool == nullptr) continue;
    for (const PageUse use : {PageUse::kGrowing, PageUse::kSliding}) {
      HW_RETURN_IF_ERROR(pool->MakeRoom(use, demand.fresh[SpareOf(*pool, use)]));
    }
  }
  return Status::Ok();
}

// Room in every list that Commit and FinishStep write to; counted from above.
void KvCache::ReserveNotes(const std::vector<Change>& changes, size_t num_places) {
  size_t num_copies = 0, num_ages = 0, num_lost = 0, num_entries = 2 * num_places, num_given = 0;
  std::vector<size_t> num_spare(spare_.size());
  const auto add_spare = [&](const PagePool* pool, size_t num) {
    // Of which use a page is does not matter here.
    for (const PageUse use : {PageUse::kGrowing, PageUse::kSliding}) {
      if (pool != nullptr) num_spare[SpareOf(*pool, use)] += num;
    }
  };
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Head& head = heads_[i];
    const Change& change = changes[i];
    const auto ages = static_cast<size_t>(std::max<int64_t>(0, change.ages.end - change.ages.begin));
    const auto leave =
        static_cast<size_t>(std::max<int64_t>(0, change.keep_begin - head.begin) + change.joins.end - change.keep_end);
    const auto written = static_cast<size_t>(std::max<int64_t>(0, change.written.end - change.written.begin));
    num_copies += 1 + written;
    num_ages += ages;
    num_lost += change.lost_sinks.size();
    if (change.may_gain > 0) num_given += static_cast<size_t>(change.keep_end);
    // The page that joins and those that are copied, and the head's entries where they move.
    num_entries += 1 + written + (NewPlaces(head, change) > 0 ? head.region.size : 0);
    add_spare(head.pools.newest, leave + ages + change.lost_sinks.size() + written);
    add_spare(head.pools.aged, leave);
    add_spare(pools_.states, 1);
  }
  places_.clear();
  aged_pages_.clear();
  ReserveMore(copies_, num_copies);
  ReserveMore(ages_, num_ages);
  ReserveMore(aged_pages_, num_ages);
  ReserveMore(places_, static_cast<size_t>(num_kv_heads_));
  ReserveMore(later_, num_ages + num_lost);
  for (size_t i = 0; i < spare_.size(); ++i) ReserveMore(spare_[i], num_spare[i]);
  const Later later{.entries = num_ages + num_lost + num_given,
                    .heads = num_given > 0 ? heads_.size() : 0,
                    .selections = num_given > 0 ? selections_.size : size_t{0}};
  pools_.tables->heads.Reserve(2 * heads_.size(), later.heads);
  reserved_later_.heads = later.heads;
  pools_.tables->selections.Reserve(2 * selections_.size, later.selections);
  reserved_later_.selections = later.selections;
  Entries().Reserve(num_entries + num_ages, later.entries);
  reserved_later_.entries = later.entries;
}

void KvCache::SettleLater() {
  const Later later = std::exchange(reserved_later_, {});
  pools_.tables->heads.SettleLater(later.heads);
  pools_.tables->selections.SettleLater(later.selections);
  Entries().SettleLater(later.entries);
}

int64_t KvCache::PlacesFor(const Head& head, int64_t ring_pages, int64_t num_pages) {
  const int64_t old_places = head.ring_pages == ring_pages ? static_cast<int64_t>(head.region.size) : 0;
  const int64_t behind = std::max<int64_t>(0, num_pages - head.sink_pages);
  const int64_t needed = behind == 0 ? num_pages : head.sink_pages + std::min(behind, ring_pages);
  if (needed <= old_places) return 0;
  const int64_t places = std::max({needed, 2 * old_places, kFirstPlaces});
  return ring_pages < kNoLimit ? std::min(places, head.sink_pages + ring_pages) : places;
}

int64_t KvCache::NewPlaces(const Head& head, const Change& change) {
  return PlacesFor(head, change.ring_pages, change.keep_end + change.may_gain);
}

void KvCache::TakeRegions(std::vector<Change>& changes, size_t num_places, NewRegions& regions) {
  regions.of_heads.reserve(heads_.size());
  for (size_t i = 0; i < heads_.size(); ++i) {
    const int64_t places = NewPlaces(heads_[i], changes[i]);
    if (places == 0) continue;
    changes[i].region = Entries().Take(static_cast<size_t>(places), kNoPage);
    regions.of_heads.push_back(changes[i].region);
  }
  if (!aside_) return;
  regions.pages = Entries().Take(num_places, kNoPage);
  regions.heads = pools_.tables->heads.Take(heads_.size(), StepHead());
  regions.selections = pools_.tables->selections.Take(selections_.size, KvSelection());
}

Status KvCache::Prepare(int64_t num_new, std::vector<Change>& changes, NewRegions& regions) {
  int64_t num_places = 0;
  changes.reserve(heads_.size());
  for (const Head& head : heads_) {
    changes.push_back(ChangeOf(head, num_new));
    const int64_t end_page = changes.back().joins.end;
    if (aside_) num_places += std::min(head.sink_pages, end_page) + std::max<int64_t>(0, end_page - head.begin);
  }
  TakeRegions(changes, static_cast<size_t>(num_places), regions);
  ReserveNotes(changes, static_cast<size_t>(num_places));
  return MakeRoom(changes);
}

}  // namespace headwise
