// The KV cache of one sequence: for every layer and KV head the pages its rule keeps, and the mean of what it dropped.
//
// A step is planned, then run. PlanStep settles for all layers and heads at once which pages join, are copied, age and
// go back, and fails with nothing changed where memory does not suffice: everything that it will note down has its room
// before the first note. kv/cache_step.h runs it, and FinishStep ends it. Behind the pages of its sinks a bounded head
// uses a ring of fixed size, so that a decoding step finds its tables as they are unless a head that still grows begins
// a page, a page that is shared is first written to, or a page ages. (Of rings whose pages age also where one begins,
// because formats take turns; and once where a model's own window leaves a page of sinks behind.)
//
// In a step of several tokens a head holds all of these only while its own layer is computed: what it drops is where
// later layers put their new tokens, because operations run in the order of layers.
#ifndef HEADWISE_KV_KV_CACHE_H_
#define HEADWISE_KV_KV_CACHE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kv/kv_bytes.h"
#include "kv/page_pool.h"
#include "kv/rule.h"

namespace headwise {

struct KvCacheBytes {
  int64_t full = 0;     // heads without a bound
  int64_t bounded = 0;  // heads that drop tokens, and their compensation state
  int64_t total() const { return full + bounded; }
};

struct KvSnapshot;  // kv/kv_snapshot.h

// A page of some layer that changes places.
struct LayerMove {
  int64_t layer_idx = 0;
  PageMove move;
};

// Thread-safety: none. The pools must outlive it.
class KvCache {
 public:
  // rules [L * Hkv], layer-major.
  KvCache(const KvPools& pools, int64_t num_kv_heads, std::vector<ResolvedRule> rules);
  KvCache(KvCache&&) = delete;
  ~KvCache();

  // A copy that shares every page; either side copies a page when it first writes to it. Not inside a step.
  std::unique_ptr<KvCache> Fork() const;
  // As all that is made here they fail as memory does: bad_alloc, with nothing changed.
  // The same under other rules, [L * Hkv]; null where one of them would have kept or read other tokens so far than its
  // head did (SamePast in kv/rule.h), puts its head into other pools, or has a page that aged as one that does not.
  std::unique_ptr<KvCache> ForkAs(std::vector<ResolvedRule> rules) const;

  // A copy in host memory, pages that forks share among it. Not inside a step, nor of a cache that lost one.
  Result<std::unique_ptr<KvSnapshot>> Save() const;
  // One that goes on from there as the saved one would have, bit for bit, with pages of its own. kOutOfMemory, and
  // nothing is held, where they cannot be had.
  static Result<std::unique_ptr<KvCache>> Restore(const KvPools& pools, const KvSnapshot& from);

  const KvPools& pools() const { return pools_; }
  int64_t head_dim() const { return pools_.full.newest->layout().head_dim; }
  int64_t page_tokens() const { return page_tokens_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t num_layers() const { return static_cast<int64_t>(heads_.size()) / num_kv_heads_; }
  const ResolvedRule& rule(int64_t layer_idx, int64_t kv_head) const { return At(layer_idx, kv_head).rule; }

  // Tokens that may still join in one step: a step must not cross the end of a prompt after which rules hold.
  int64_t MaxStepTokens() const;

  // Settles the step that reads `num_new` tokens for all layers and heads, before any of it runs: kOutOfMemory, and
  // nothing changed, where pages for it cannot be had. Requires: 1 <= num_new <= MaxStepTokens(), none is planned.
  Status PlanStep(int64_t num_new);
  int64_t planned_tokens() const { return planned_; }  // 0: none
  // The sequence in the planned step, or with num_rows 0 as it stands between steps.
  StepRows Rows(int64_t first_row) const;
  // Of the planned step: pages that a fork shares and that are written to; pages that age, ascending by layer.
  const std::vector<PageMove>& copies() const { return copies_; }
  const std::vector<LayerMove>& ages() const { return ages_; }
  // [L] whether a head of the layer has a compensation token, and whether one selects by score.
  const std::vector<char>& compensates() const { return compensates_; }
  const std::vector<char>& selects() const { return selects_; }
  // Where in the text the tokens are that a head which selects by score has kept, by slot. Not inside a step.
  Result<std::vector<int32_t>> KeptPositions(int64_t layer_idx, int64_t kv_head) const;
  // Whether a head of the layer counts positions in its cache, and has sinks that it reads so.
  bool CountsPositions(int64_t layer_idx) const { return counts_positions_[static_cast<size_t>(layer_idx)] != 0; }
  // Whether heads of a layer come to share their budgets in the planned step.
  bool SharesInStep() const;
  // The end of the prompt, where heads expect what comes of it and it is not read yet; 0 elsewhere.
  int64_t ExpectsFrom() const;
  // Once the planned step is on its way to the device: what it dropped may be used by steps behind it. Where heads
  // share in it, once it is over, with its own of KvStep::gained, [L * Hkv].
  void FinishStep(std::span<const int32_t> gained = {}) noexcept;
  // In place of FinishStep where the planned step does not run: its pages hold no tokens, and the cache can only be
  // given up. PlanStep says so from then on.
  void AbandonStep() noexcept;

  // Pages held now, shared ones included, and compensation state.
  KvCacheBytes Bytes() const { return bytes_; }
  PageCounts NumPages(int64_t layer_idx, int64_t kv_head) const;
  // The most that Bytes().total() has been, inside steps too, since the cache was made or forked.
  int64_t PeakBytes() const { return peak_bytes_; }

 private:
  using PageRegion = FlatTable<uint32_t>::Region;
  using HeadRegion = FlatTable<StepHead>::Region;
  using SelectionRegion = FlatTable<KvSelection>::Region;

  struct Head {
    ResolvedRule rule;
    HeadPools pools;
    int64_t sink_pages = 0;         // pages [0, sink_pages) have places of their own; dropped ones are kNoPage
    int64_t ring_pages = kNoLimit;  // as in StepHead
    PageRegion region;              // of sink_pages, then of the ring or of as many as have been needed
    int64_t begin = 0;              // the first page held behind those of sinks
    PageRange aged;                 // of the pages held, these are in pools.aged
    uint32_t state = kNoPage;

    bool Compensates() const { return rule.compensate && rule.Bounded(); }
    bool Selects() const { return rule.SelectsByScore(); }
    // Tokens that are in its pages, and those that it has pages for, once `num_tokens` are in.
    int64_t SlotsAt(int64_t num_tokens) const { return Selects() ? NumKeptTokens(rule, num_tokens) : num_tokens; }
    int64_t OwnedSlotsAt(int64_t num_tokens) const { return Selects() ? NumOwnedSlots(rule, num_tokens) : num_tokens; }
    PagePool& PoolOf(int64_t page_idx) const { return aged.Contains(page_idx) ? *pools.aged : *pools.newest; }
    PageUse UseOf(int64_t page_idx) const;
    // The same of a page that may have aged.
    PageUse SavedUseOf(int64_t page_idx) const;
    size_t PlaceOf(int64_t page_idx) const;
  };
  // What a step does to one head.
  struct Change {
    PageRange joins;    // new pages
    PageRange written;  // pages from before that are written to: copied where they are shared
    bool copies_state = false;
    bool new_state = false;
    bool reuses_page = false;       // the page that joins takes over the one whose place in the ring it has
    int64_t ring_pages = kNoLimit;  // afterwards
    int64_t keep_begin = 0;         // Head::begin afterwards
    int64_t keep_end = 0;           // one past the last page afterwards
    int64_t may_gain = 0;           // pages on top of that which other heads may come to give this one
    PageRange ages;
    PageRange aged;                   // Head::aged afterwards
    std::vector<int64_t> lost_sinks;  // pages of sinks that nobody reads afterwards
    PageRegion region;                // where the head's entries move; of size 0: they stay
  };
  struct Demand;
  // Regions that a step takes; they go back unless it comes to be.
  struct NewRegions {
    explicit NewRegions(KvTables& all) : tables(all) {}
    NewRegions(const NewRegions&) = delete;
    ~NewRegions() {
      for (const PageRegion& region : of_heads) tables.pages.Return(region);
      tables.pages.Return(pages);
      tables.heads.Return(heads);
      tables.selections.Return(selections);
    }
    // They are the cache's from here on.
    void Give() {
      of_heads.clear();
      pages = {};
      heads = {};
      selections = {};
    }

    KvTables& tables;
    std::vector<PageRegion> of_heads;
    PageRegion pages;  // of a step aside
    HeadRegion heads;
    SelectionRegion selections;
  };
  // A place that gets another page, or none, once the step has run: until then the page that ages or goes is read
  // there.
  struct LaterEntry {
    size_t place;
    uint32_t page;
  };

  Head& At(int64_t layer_idx, int64_t kv_head) {
    return heads_[static_cast<size_t>(layer_idx * num_kv_heads_ + kv_head)];
  }
  const Head& At(int64_t layer_idx, int64_t kv_head) const {
    return heads_[static_cast<size_t>(layer_idx * num_kv_heads_ + kv_head)];
  }
  // Some of them null, or one twice.
  std::array<PagePool*, 7> AllPools() const {
    return {pools_.full.newest,      pools_.full.aged,      pools_.bounded.newest, pools_.bounded.aged,
            pools_.selecting.newest, pools_.reading.newest, pools_.states};
  }
  const HeadPools& PoolsOf(const ResolvedRule& rule) const {
    if (rule.SelectsByScore()) return pools_.selecting;
    if (rule.ReadsBlocks()) return pools_.reading;
    return rule.Bounded() ? pools_.bounded : pools_.full;
  }
  FlatTable<uint32_t>& Entries() const { return pools_.tables->pages; }
  int64_t PagesOf(int64_t num_tokens) const { return (num_tokens + page_tokens_ - 1) / page_tokens_; }
  // One past the last page of a head once `num_tokens` are in.
  int64_t EndPage(const Head& head, int64_t num_tokens) const { return PagesOf(head.OwnedSlotsAt(num_tokens)); }
  uint32_t PageOf(const Head& head, int64_t page_idx) const { return Entries()[head.PlaceOf(page_idx)]; }
  static HeadClass ClassOf(const Head& head) { return head.rule.Bounded() ? HeadClass::kBounded : HeadClass::kFull; }
  int64_t& BytesOf(const Head& head) { return head.rule.Bounded() ? bytes_.bounded : bytes_.full; }
  bool IsSharedPage(const Head& head, int64_t page_idx) const {
    return head.PoolOf(page_idx).IsShared(PageOf(head, page_idx));
  }
  // Pages from before the step that it may write to.
  PageRange WrittenPages(const Head& head, int64_t num_new) const;
  bool MayStayShared(const Head& head, int64_t num_new) const;
  // Pages of sinks that are there, or come with the step, and are not read once `num_tokens` are in.
  std::vector<int64_t> LostSinks(const Head& head, int64_t num_tokens) const;

  bool IsWide(int64_t num_new) const;
  bool NothingChanges() const;
  bool SinksLeave(int64_t num_tokens) const;
  Change ChangeOf(const Head& head, int64_t num_new) const;
  // All that may fail of a step.
  Status Prepare(int64_t num_new, std::vector<Change>& changes, NewRegions& regions);
  Status MakeRoom(const std::vector<Change>& changes);
  void ReserveNotes(const std::vector<Change>& changes, size_t num_places);
  void TakeRegions(std::vector<Change>& changes, size_t num_places, NewRegions& regions);
  // Entries that a head needs for its first `num_pages` pages, but in a ring of `ring_pages`; 0 where it has as many.
  static int64_t PlacesFor(const Head& head, int64_t ring_pages, int64_t num_pages);
  // The same of a head that changes so.
  static int64_t NewPlaces(const Head& head, const Change& change);
  static int64_t RingPagesAt(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens);
  // What follows fails no more.
  void Commit(const std::vector<Change>& changes) noexcept;
  std::span<const Change> ChangesOf(const std::vector<Change>& changes, int64_t layer_idx) const;
  void PlanLayerInPlace(int64_t layer_idx, std::span<const Change> changes);
  void JoinInPlace(Head& head, const Change& change);
  void PlanLayerAside(int64_t layer_idx, std::span<const Change> changes, uint32_t& next_place);
  void JoinAside(int64_t layer_idx, int64_t kv_head, const Change& change, uint32_t& next_place);
  void SettleAside(Head& head, const Change& change, uint32_t place);
  void UpdateState(Head& head, const Change& change);
  void DropSinks(Head& head, const Change& change);
  void TakeShares(std::span<const int32_t> gained);
  // To a region with more places, where the change has one.
  void MoveEntries(Head& head, const Change& change);
  uint32_t PageOrNone(const Head& head, int64_t page_idx) const;
  // Of a fork: the head's numbers and region, then its pages.
  void PlaceFork(Head& head, const KvCache& other, const Head& from);
  void TakePages(Head& head, const KvCache& other, const Head& from);
  // Of a restored cache: what its heads are, and room for their pages; then these.
  Status PlaceSaved(const KvSnapshot& from);
  void TakeSaved(const KvSnapshot& from);
  // Nothing more comes of what was reserved.
  void SettleLater();
  StepHead Described(const Head& head, int64_t num_new) const;
  void DescribeHeads();

  // kStep: what earlier layers of the step gave up will do. Copies are made before the first layer, which still reads
  // that: they go into pages of the pool.
  enum class From { kStep, kPool };
  uint32_t Take(const Head& head, PagePool& pool, PageUse use, From from = From::kStep);
  void Drop(const Head& head, PagePool& pool, uint32_t page);
  size_t SpareOf(const PagePool& pool, PageUse use) const;

  KvPools pools_;
  int64_t num_kv_heads_;
  int64_t page_tokens_;
  int64_t num_tokens_ = 0;
  KvCacheBytes bytes_;
  int64_t peak_bytes_ = 0;
  std::vector<Head> heads_;             // [L * Hkv]
  std::vector<char> compensates_;       // [L]
  std::vector<char> selects_;           // [L]
  std::vector<char> counts_positions_;  // [L]
  HeadRegion described_;                // of heads_ between steps, and in steps that change nothing in their reading
  SelectionRegion selections_;          // the same of how they select or read blocks; empty where none does
  // A page that a step comes to write to may be shared: since a fork was made, up to the step that copies those.
  mutable bool may_share_ = false;
  std::vector<int64_t> begins_;    // positions from which on heads' rules hold
  std::vector<size_t> watched_;    // of heads_: those that a model's window makes drop pages of sinks
  std::vector<size_t> selecting_;  // of heads_: those that select by score

  // The planned step.
  int64_t planned_ = 0;
  bool is_lost_ = false;  // a step was planned and did not run
  bool aside_ = false;    // heads are read through tables of this step alone: those that follow
  HeadRegion aside_heads_;
  SelectionRegion aside_selections_;
  PageRegion aside_pages_;
  std::vector<PageMove> copies_;
  std::vector<LayerMove> ages_;
  std::vector<LaterEntry> later_;
  // Changes of tables that are made once the step has run.
  struct Later {
    size_t entries = 0, heads = 0, selections = 0;
  };
  Later reserved_later_;
  // Scratch of the plan, of one layer.
  std::vector<LaterEntry> aged_pages_;        // by page index, of one head after the other
  std::vector<uint32_t> places_;              // of each head, in the step's own table
  std::vector<std::vector<uint32_t>> spare_;  // by pool and use: given up in this step
};

}  // namespace headwise

#endif  // HEADWISE_KV_KV_CACHE_H_
