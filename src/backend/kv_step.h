// A step's view of the KV cache as data: which rows belong to which sequence, what each head of it reads, and where its
// pages are, all by number. Made by the cache once per step (kv/cache_step.h); operations only index it. Letters as in
// backend/ops.h.
//
// What a step needs beyond its tokens follows from the tables and from positions: how far pages have aged, what is
// folded, which keys are read. So where tables stay as they are, a step hands a device nothing but its tokens.
#ifndef HEADWISE_BACKEND_KV_STEP_H_
#define HEADWISE_BACKEND_KV_STEP_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/key_mask.h"
#include "backend/kv_format.h"

namespace headwise {

// How a head's pages store tokens. A page holds keys and values of P consecutive tokens of ONE KV head; the order of
// bytes inside is the backend's own business.
struct KvLayout {
  int64_t head_dim = 0;      // D
  int64_t page_tokens = 32;  // P, a multiple of 16
  KvFormat format = KvFormat::kF16;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;
};

// Of keys and values, scales included, padding left out, where whole pages are full.
inline double BytesPerToken(const KvLayout& layout) {
  return static_cast<double>(TokensBytes(layout.format, layout.head_dim, layout.page_tokens)) /
         static_cast<double>(layout.page_tokens);
}

inline constexpr uint32_t kNoPage = UINT32_MAX;

// Behind keys and values a page of a head that selects by score says of each of its P tokens where in the text it is
// and how it has scored: positions [P] i32, then scores [P] f32. They are part of the page, so that they are shared,
// copied, saved and counted with the tokens that they are about.
constexpr int64_t KvNotesBytes(int64_t page_tokens) {
  return 8 * page_tokens;  // of 16 tokens and more: a multiple of 64
}
struct KvNotes {
  int32_t* positions = nullptr;  // [P]
  float* scores = nullptr;       // [P]
};

// Behind keys and values a page of a head that keeps every token and reads some says of each of its blocks of tokens
// what its keys lie between: for every block low [Dp] f16, then high [Dp] f16, Dp being D rounded up to 16; there is
// room for blocks of 16. As with notes, they are part of the page. Where blocks have representatives there are none of
// these: in the first half the mean of the representatives of the block that leaves the newest when the block at hand
// is complete, twice in place of low and high; in the second half sums of queries, [Dp] f32 for every block.
constexpr int64_t KeyBoundsBytes(int64_t head_dim, int64_t page_tokens) {
  return page_tokens / 16 * 4 * ((head_dim + 15) / 16 * 16);  // a multiple of 64
}

// Which blocks of B tokens the queries of such a head read; AttentionArgs in backend/ops.h.
struct KvBlockReads {
  int64_t block_tokens = 0;  // B, a multiple of 16 that divides P; 0: the head reads whatever its mask says
  int64_t from = kNoLimit;   // queries at positions before this one read all blocks
  int64_t first = 0;         // of the others: the text's first blocks, which are always read,
  int64_t most = 0;          // and how many behind these, the newest among them,
  int64_t newest = 1;        // of which so many are always read, at most `most`
  // Tokens of a block that stand for it, 1 to B; 0: bounds of its keys do. Where there are some, B is at least 32, and
  // at least 2 blocks are newest.
  int64_t representatives = 0;

  constexpr int64_t NumBlocks(int64_t pos) const { return pos / block_tokens + 1; }
  // A block's bounds are its own; its representatives are found, and noted, with a later one.
  constexpr int64_t NotedWith(int64_t block) const { return representatives > 0 ? block + newest - 1 : block; }
  constexpr bool ReadsAll(int64_t pos) const { return pos < from || NumBlocks(pos) <= first + most; }
  // Blocks that the query at `pos` reads, and tokens in them: the newest block ends with its own.
  constexpr int64_t NumRead(int64_t pos) const { return ReadsAll(pos) ? NumBlocks(pos) : first + most; }
  constexpr int64_t NumTokensRead(int64_t pos) const {
    return (NumRead(pos) - 1) * block_tokens + pos % block_tokens + 1;
  }

  friend bool operator==(const KvBlockReads&, const KvBlockReads&) = default;
};

// What a token is, whatever is asked: some heads keep some for that.
enum class TokenMark : uint8_t { kOther, kSpecial, kPunctuation };

// How a head chooses by score which tokens it keeps; SelectKvArgs in backend/ops.h. Its tokens are in slots 0, 1, 2,
// ... of its pages, in no order: whatever reads or writes them takes slots for positions (the mask reads all).
struct KvSelection {
  enum class Scores : uint8_t {
    kNone,      // it does not: its mask says what it keeps
    kSum,       // a token's is the sum over all queries that were observed, in this step and before
    kLast,      // a token's is what the step's last query gives it
    kKeyNorm,   // a token's is minus the length of its key, whatever is asked
    kKeyDiff,   // a token's is minus the cosine of its key with the mean direction of all keys, whatever is asked
    kExpected,  // a token's is what the observed queries lead one to expect of those to come, summed over steps; where
                // tokens go, times the length of its value
  };
  enum class Pooling : uint8_t { kMax, kMean };

  Scores scores = Scores::kNone;
  Pooling pooling = Pooling::kMax;
  int32_t kernel = 1;         // neighbours in the text that scores are pooled over, an odd number; 1: not pooled
  int64_t keep_first = 0;     // the text's first tokens, which always stay,
  int64_t keep_newest = 0;    // and its newest
  int64_t observe_begin = 0;  // kSum, kExpected: queries at text positions [observe_begin, observe_end) are observed
  int64_t observe_end = kNoLimit;
  double epsilon = 0;       // kExpected: added to every share of the attention
  int64_t most = kNoLimit;  // tokens that are kept when the step is over,
  // by a head that shares of the mean of the layer's heads that do, which have the same selection; `floor` of a head's
  // places do not depend on the others. It matters where tokens go.
  bool shares = false;
  double floor = 0;
  // The last of the marks for which tokens go behind all others: kOther, none; kSpecial; kPunctuation, these and that.
  TokenMark keeps_marked = TokenMark::kOther;
  // The first token of a step that begins at position t has slot FirstSlot(t): `dropped` tokens are gone for good, or
  // as many as leave `slot_limit`.
  int64_t dropped = 0;
  int64_t slot_limit = kNoLimit;
  KvBlockReads blocks = {};  // of a head with kNone

  constexpr int64_t FirstSlot(int64_t first_pos) const {
    const int64_t slot = first_pos - dropped;
    return slot < slot_limit ? slot : slot_limit;
  }

  friend bool operator==(const KvSelection&, const KvSelection&) = default;
};

// The pages of one pool: page i is number i % 2^shift of extent i / 2^shift.
struct PageSpace {
  KvLayout layout;
  int64_t page_bytes = 0;
  int extent_shift = 0;
  std::span<std::byte* const> extents = {};  // their first bytes, in the device's memory

  std::byte* Page(uint32_t page) const {
    const uint32_t in_extent = page & ((uint32_t{1} << extent_shift) - 1);
    return extents[page >> extent_shift] + static_cast<int64_t>(in_extent) * page_bytes;
  }
};

// One KV head of one sequence, as it stands in the tables between steps. No std:: code: a device may use it.
struct StepHead {
  KeyMask mask;
  // Token j is in slot j % P of page p = j / P. That of page p is the entry of KvStep::pages at
  //     table + p                                                       for the pages of sinks, p < sink_pages,
  //     table + sink_pages + (p - ring_first) % ring_pages              for all others.
  uint32_t table = 0;
  int64_t sink_pages = 0;
  int64_t ring_first = 0;         // at least sink_pages
  int64_t ring_pages = kNoLimit;  // bounded heads use theirs in a ring; of others nothing comes round
  int32_t newest = 0;             // space of the pages that tokens are written into
  int32_t aged = -1;              // space of those that were made smaller; -1: the format does not age
  int64_t aged_begin = 0;         // the first page that ages; AgedPages in kv/rule.h
  int64_t aged_end = -1;          // the first behind it that has not; -1: as the length says
  // The compensation token [razor §3.3]: page of `states`, or kNoPage. Before this step the mean holds the tokens from
  // fold_from on that are fold_before or further back, after it those that are fold_after or further back; kNoLimit:
  // none, or of heads that select (backend/dropped_mean.h). They are the mask's but at the end of a prompt.
  uint32_t state = kNoPage;
  bool reads_mean = false;  // whether queries read the mean, or it is only brought up to date
  int64_t fold_from = 0;
  int64_t fold_before = kNoLimit;
  int64_t fold_after = kNoLimit;

  constexpr uint32_t EntryOf(int64_t page_idx) const {
    if (page_idx < sink_pages) return table + static_cast<uint32_t>(page_idx);
    const int64_t behind = page_idx - ring_first;
    return table + static_cast<uint32_t>(sink_pages + (behind < ring_pages ? behind : behind % ring_pages));
  }
  // In a step that begins at position `first_pos`: pages [aged_begin, AgedEnd) are kQ4, those complete when the step
  // began, but for the newest of them.
  constexpr int64_t AgedEnd(int64_t first_pos, int64_t page_tokens) const {
    if (aged < 0) return aged_begin;
    const int64_t end = aged_end >= 0 ? aged_end : first_pos / page_tokens - 1;
    return end > aged_begin ? end : aged_begin;
  }
  // Tokens that the mean holds before a step of `num_rows` tokens, and those that join: [FoldBegin, FoldEnd).
  constexpr int64_t FoldBegin(int64_t first_pos) const { return FoldedUpTo(first_pos, fold_before); }
  constexpr int64_t FoldEnd(int64_t first_pos, int64_t num_rows) const {
    const int64_t end = FoldedUpTo(first_pos + num_rows, fold_after);
    return end > FoldBegin(first_pos) ? end : FoldBegin(first_pos);
  }
  // Something to fold, or a mean to read.
  constexpr bool Folds(int64_t first_pos, int64_t num_rows) const {
    return state != kNoPage && FoldEnd(first_pos, num_rows) > fold_from;
  }

  friend bool operator==(const StepHead&, const StepHead&) = default;

 private:
  constexpr int64_t FoldedUpTo(int64_t num_tokens, int64_t lag) const {
    return num_tokens - lag > fold_from ? num_tokens - lag : fold_from;
  }
};

inline constexpr uint32_t kNoSelections = UINT32_MAX;

// One sequence's share of a step.
struct StepRows {
  int64_t first_row = 0;  // row of its first token of this step in [T, ...] tensors
  int64_t num_rows = 0;   // its tokens in this step
  int64_t first_pos = 0;  // their first position in the text: the tokens in the cache before
  // Its heads in KvStep::heads, [L * Hkv], layer-major.
  uint32_t first_head = 0;
  // Where a head of it chooses by score what it keeps or reads: its heads in KvStep::selections, in the same order.
  uint32_t first_selection = kNoSelections;
};

// A page whose content goes into another: as it is, or made smaller.
struct PageMove {
  int32_t from_space = 0;
  int32_t to_space = 0;
  uint32_t from = 0;
  uint32_t to = 0;

  friend bool operator==(const PageMove&, const PageMove&) = default;
};

struct HeadWork;

// Valid until the caches finish the step. A backend whose queue lags behind keeps what it needs in BeginStep, where it
// also brings copies of tables up to date.
struct KvStep {
  int64_t num_layers = 0;                    // L
  int64_t num_kv_heads = 0;                  // Hkv
  std::span<const StepRows> sequences = {};  // [B]
  std::span<const TokenMark> marks = {};     // [T] of the rows; empty: all kOther
  // Of all sequences that share the pools, not only of this step's.
  std::span<const StepHead> heads = {};
  // Beside the heads and not in them, as kernels bring whole heads to where they need them and nearly none has any.
  std::span<const KvSelection> selections = {};
  std::span<const uint32_t> pages = {};
  std::span<const PageSpace> spaces = {};
  int32_t states = -1;  // the space of compensation tokens: pages of [2, D] f32, mean key and mean value; -1: none
  // [B, L * Hkv], or empty where no head comes to share in this step: pages that SelectKv gives each head beyond those
  // that the plan left it, below 0 where it gives them up. Read on the host before the next step is planned.
  std::span<int32_t> gained = {};
  // Places in the tables that differ from the step before; what is new and what changed.
  std::span<const uint32_t> changed_heads = {};
  std::span<const uint32_t> changed_selections = {};
  std::span<const uint32_t> changed_pages = {};
  std::span<const PageMove> copies = {};   // before the first layer: pages that a fork shares and this step writes to
  std::span<const PageMove> ages = {};     // of all layers, one after the other
  std::span<const int64_t> age_ends = {};  // [L]: those of layer l end here; empty: no page ages

  int64_t num_rows() const { return sequences.empty() ? 0 : sequences.back().first_row + sequences.back().num_rows; }
  // (sequence, KV head) pairs of a layer: the units of work of all cache operations.
  int64_t num_heads() const { return static_cast<int64_t>(sequences.size()) * num_kv_heads; }
  inline HeadWork Head(int64_t layer_idx, int64_t idx) const;
  // Of the KV heads of a layer, [Hkv]; empty where nothing is shared.
  std::span<int32_t> GainedOf(int64_t layer_idx, int64_t sequence_idx) const {
    if (gained.empty()) return {};
    return gained.subspan(static_cast<size_t>((sequence_idx * num_layers + layer_idx) * num_kv_heads),
                          static_cast<size_t>(num_kv_heads));
  }
  std::span<const PageMove> AgesOf(int64_t layer_idx) const {
    if (age_ends.empty()) return {};
    const auto at = [&](int64_t layer) {
      return static_cast<size_t>(layer < 0 ? 0 : age_ends[static_cast<size_t>(layer)]);
    };
    return ages.subspan(at(layer_idx - 1), at(layer_idx) - at(layer_idx - 1));
  }
};

// One head in this step: a table entry with the positions that it is read at.
struct HeadWork {
  const KvStep* step = nullptr;
  const StepHead* head = nullptr;
  const KvSelection* selection = nullptr;  // of a head that selects by score
  const KvBlockReads* blocks = nullptr;    // of one that keeps every token and reads some
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t first_pos = 0;  // in the text, or the slot of a head that selects by score
  int64_t text_pos = 0;   // in the text, always
  int64_t kv_head = 0;

  const KeyMask& mask() const { return head->mask; }
  const KvLayout& layout() const { return newest().layout; }  // in which tokens are written
  const PageSpace& newest() const { return step->spaces[static_cast<size_t>(head->newest)]; }
  int64_t page_tokens() const { return layout().page_tokens; }
  int64_t aged_begin() const { return head->aged_begin; }
  int64_t aged_end() const { return head->AgedEnd(first_pos, page_tokens()); }
  bool IsAged(int64_t page_idx) const { return page_idx >= aged_begin() && page_idx < aged_end(); }
  size_t EntryOf(int64_t page_idx) const { return head->EntryOf(page_idx); }
  std::byte* Page(int64_t page_idx) const {
    const int32_t space = IsAged(page_idx) ? head->aged : head->newest;
    return step->spaces[static_cast<size_t>(space)].Page(step->pages[EntryOf(page_idx)]);
  }
  // Of a head that selects by score.
  bool Selects() const { return selection != nullptr; }
  int64_t num_slots() const { return first_pos + num_rows; }  // before the step has dropped any
  int64_t num_kept() const { return num_slots() < selection->most ? num_slots() : selection->most; }
  int64_t num_pages_kept() const { return (num_kept() + page_tokens() - 1) / page_tokens(); }
  TokenMark MarkOf(int64_t row_idx) const {
    return step->marks.empty() ? TokenMark::kOther : step->marks[static_cast<size_t>(first_row + row_idx)];
  }
  // Whether tokens go, and the layer's scores say of which of its heads.
  bool SharesNow() const { return Selects() && selection->shares && num_kept() < num_slots(); }
  KvNotes Notes(int64_t page_idx) const {
    std::byte* notes = Page(page_idx) + newest().page_bytes - KvNotesBytes(page_tokens());
    return {reinterpret_cast<int32_t*>(notes), reinterpret_cast<float*>(notes) + page_tokens()};
  }
  bool HasBounds() const { return blocks != nullptr && blocks->representatives == 0; }
  bool HasRepresentatives() const { return blocks != nullptr && blocks->representatives > 0; }
  // Whether the step's queries may choose: a step does not cross the position from which on they do.
  bool ChoosesBlocks() const { return blocks != nullptr && text_pos >= blocks->from; }
  // Of block number `block` of the text: low [Dp], then high [Dp].
  uint16_t* Bounds(int64_t block) const {
    const int64_t per_page = page_tokens() / blocks->block_tokens;
    const int64_t bytes = KeyBoundsBytes(layout().head_dim, page_tokens());
    std::byte* of_page = Page(block / per_page) + newest().page_bytes - bytes;
    return reinterpret_cast<uint16_t*>(of_page) + block % per_page * (bytes / 2 / (page_tokens() / 16));
  }
  // What the queries of the block's tokens add up to, over the group: [Dp] f32, of a head whose blocks have
  // representatives.
  float* QuerySums(int64_t block) const {
    const int64_t per_page = page_tokens() / blocks->block_tokens;
    const int64_t bytes = KeyBoundsBytes(layout().head_dim, page_tokens());
    std::byte* of_page = Page(block / per_page) + newest().page_bytes - bytes / 2;
    return reinterpret_cast<float*>(of_page) + block % per_page * (bytes / 4 / (page_tokens() / 16));
  }
  int64_t fold_begin() const { return head->FoldBegin(first_pos); }
  int64_t fold_end() const { return head->FoldEnd(first_pos, num_rows); }
  bool Folds() const { return head->Folds(first_pos, num_rows); }
  float* State() const {
    return reinterpret_cast<float*>(step->spaces[static_cast<size_t>(step->states)].Page(head->state));
  }
};

inline HeadWork KvStep::Head(int64_t layer_idx, int64_t idx) const {
  const StepRows& rows = sequences[static_cast<size_t>(idx / num_kv_heads)];
  const int64_t kv_head = idx % num_kv_heads;
  const int64_t of_sequence = layer_idx * num_kv_heads + kv_head;
  HeadWork work;
  work.step = this;
  work.head = &heads[static_cast<size_t>(rows.first_head + of_sequence)];
  if (rows.first_selection != kNoSelections) {
    const KvSelection& selection = selections[static_cast<size_t>(rows.first_selection + of_sequence)];
    if (selection.scores != KvSelection::Scores::kNone) work.selection = &selection;
    if (selection.blocks.block_tokens > 0) work.blocks = &selection.blocks;
  }
  work.first_row = rows.first_row;
  work.num_rows = rows.num_rows;
  work.first_pos = work.Selects() ? work.selection->FirstSlot(rows.first_pos) : rows.first_pos;
  work.text_pos = rows.first_pos;
  work.kv_head = kv_head;
  return work;
}

}  // namespace headwise

#endif  // HEADWISE_BACKEND_KV_STEP_H_
