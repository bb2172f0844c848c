// How many bytes of KV cache a plan takes, worked out without running it: for admission, budgets and `inspect`.
#ifndef HEADWISE_KV_KV_BYTES_H_
#define HEADWISE_KV_KV_BYTES_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <limits>

#include "backend/backend.h"
#include "kv/rule.h"

namespace headwise {

// What a head owns.
struct PageCounts {
  int64_t newest = 0;  // in the format that tokens are written in
  int64_t aged = 0;
  int64_t total() const { return newest + aged; }
};

// What a head owns once `num_tokens` are in, if its format ages, which that of heads that select by score does not:
// pages of their NumOwnedSlots (kv/rule.h). Of others pages of sinks with a kept token, and behind them all
// pages, or the newest RingPages (kv/rule.h) of a bounded head: those with a kept token and at most two more.
PageCounts KvPages(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens);

// Of a compensation token.
int64_t StatePageBytes(int64_t head_dim);

// Sums and products of sizes that are not negative, which stop at the largest number: all heads of a large model over
// 2^40 tokens, or of a plan that a stranger wrote, are more bytes than 64 bits can count.
inline int64_t AddSizes(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}
inline int64_t MultiplySizes(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// Bytes of a head's pages.
struct PageSizes {
  int64_t newest = 0;
  int64_t aged = 0;  // 0: its format does not age

  bool ages() const { return aged > 0; }
  int64_t BytesOf(const PageCounts& pages) const {
    return ages() ? AddSizes(MultiplySizes(pages.newest, newest), MultiplySizes(pages.aged, aged))
                  : MultiplySizes(pages.total(), newest);
  }
};

// As the backend has them. `layout` names the head's format.
PageSizes PageSizesOf(const Backend& backend, const KvLayout& layout);

struct KvBytesArgs {
  const HeadPlan* plan = nullptr;
  SequenceLimits limits;       // that the rules know
  int64_t most_tokens = 0;     // of PeakKvBytes, how far the text grows; 0: to limits.max_tokens
  LayerWindows windows = {};   // of the model
  int64_t chunk_tokens = 512;  // prompt tokens per step
  int64_t page_tokens = 32;    // P
  PageSizes full_pages;        // of a head that keeps everything
  PageSizes bounded_pages;     // of one that drops tokens

  // Those of heads that select by score do not age and have notes, those of heads that read blocks have bounds.
  PageSizes PagesOf(const ResolvedRule& rule) const {
    if (rule.ReadsBlocks()) return {.newest = full_pages.newest + KeyBoundsBytes(plan->shape.head_dim, page_tokens)};
    if (rule.SelectsByScore()) return {.newest = bounded_pages.newest + KvNotesBytes(page_tokens)};
    return rule.Bounded() ? bounded_pages : full_pages;
  }
};

struct KvBytes {
  int64_t full = 0;         // pages of heads that keep everything
  int64_t bounded = 0;      // pages of heads that drop tokens, and compensation state
  int64_t kept_tokens = 0;  // summed over all heads, not rounded to pages
  // Of these what the query of the next token reads: of a head that reads blocks some, with the bounds of all; of every
  // other head all.
  int64_t read = 0;
  int64_t total() const { return AddSizes(full, bounded); }
};

// After a step at `num_tokens`. The largest int64_t where one is more than that.
KvBytes PlanKvBytes(const KvBytesArgs& args, int64_t num_tokens);

// An upper bound of what a sequence ever holds: prompt read in chunks, then token by token up to the end.
// While a layer is computed its heads hold the step's tokens too, and pages that age beside what they age into. Exact
// but for the alignment of windows to pages: at most two pages a bounded head too much; and, in the layer with the
// largest step, for the pages that age in it. The largest int64_t where it is more than that.
int64_t PeakKvBytes(const KvBytesArgs& args);

// The most tokens N, up to `most_tokens`, such that a prompt of N tokens takes no more than `bytes` at its peak; 0
// where not even one fits. Of args.limits and args.most_tokens nothing is read: a longer text is taken never to need
// less, which holds but for elastic windows that shrink with the text, where a longer one may fit too.
int64_t TokensThatFit(KvBytesArgs args, int64_t bytes, int64_t most_tokens);

}  // namespace headwise

#endif  // HEADWISE_KV_KV_BYTES_H_
