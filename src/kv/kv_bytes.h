// How many bytes of KV cache a plan takes, worked out without running it: for admission, budgets and `inspect`.
#ifndef HEADWISE_KV_KV_BYTES_H_
#define HEADWISE_KV_KV_BYTES_H_

#include <headwise/head_plan.h>

#include <cstdint>

#include "kv/rule.h"

namespace headwise {

// Pages with a kept token once `num_tokens` are in: what a head owns after a step.
int64_t KvPages(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens);

struct KvBytesArgs {
  const HeadPlan* plan = nullptr;
  SequenceLimits limits;
  int64_t chunk_tokens = 512;  // prompt tokens per step
  int64_t page_tokens = 32;    // P
  // Of one page, as the backend says: of a head that keeps everything, of one that drops tokens.
  int64_t page_bytes_full = 0;
  int64_t page_bytes_bounded = 0;

  int64_t PageBytesOf(const ResolvedRule& rule) const { return rule.Bounded() ? page_bytes_bounded : page_bytes_full; }
};

struct KvBytes {
  int64_t full = 0;         // pages of heads that keep everything
  int64_t bounded = 0;      // pages of heads that drop tokens, and compensation state
  int64_t kept_tokens = 0;  // summed over all heads, not rounded to pages
  int64_t total() const { return full + bounded; }
};

// After a step at `num_tokens`.
KvBytes PlanKvBytes(const KvBytesArgs& args, int64_t num_tokens);

// An upper bound of what a sequence ever holds: prompt read in chunks, then token by token up to limits.max_tokens.
// While a layer is computed its heads hold the step's tokens too. Exact but for the alignment of windows to pages: at
// most two pages a bounded head too much.
int64_t PeakKvBytes(const KvBytesArgs& args);

}  // namespace headwise

#endif  // HEADWISE_KV_KV_BYTES_H_
