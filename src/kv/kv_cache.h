// The KV cache of one sequence: for every layer and KV head the pages its rule keeps, and the mean of what it dropped.
//
// A step goes: for each layer Extend (room for the new tokens), AppendKv and Attention over Work(), Compensate over
// Folds(), AgeKv over Ages(), Commit (pages go back); then FinishStep once. So a head that drops tokens holds more than
// it keeps only while its own layer is computed.
#ifndef HEADWISE_KV_KV_CACHE_H_
#define HEADWISE_KV_KV_CACHE_H_

#include <cstdint>
#include <memory>
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

// What AgeKv is to do for one layer, of one sequence or of several.
struct PagesToAge {
  KvLayout layout;  // of `from`
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;

  AgeKvArgs Args() const { return {.layout = layout, .from = from, .to = to}; }
};

// Thread-safety: none. The pools must outlive it.
class KvCache {
 public:
  // rules [L * Hkv], layer-major.
  KvCache(KvPools pools, int64_t num_kv_heads, std::vector<ResolvedRule> rules);
  KvCache(KvCache&&) = delete;
  ~KvCache();

  // A copy that shares every page; either side copies a page when it first writes to it. Not inside a step.
  std::unique_ptr<KvCache> Fork() const;
  // The same under other rules, [L * Hkv]; null where one of them would have kept or read other tokens so far than its
  // head did (SamePast in kv/rule.h), puts its head into other pools, or has a page that aged as one that does not.
  std::unique_ptr<KvCache> ForkAs(std::vector<ResolvedRule> rules) const;

  int64_t head_dim() const { return pools_.full.newest->layout().head_dim; }
  int64_t page_tokens() const { return pools_.full.newest->layout().page_tokens; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_kv_heads() const { return num_kv_heads_; }
  int64_t num_layers() const { return static_cast<int64_t>(heads_.size()) / num_kv_heads_; }
  const ResolvedRule& rule(int64_t layer_idx, int64_t kv_head) const { return At(layer_idx, kv_head).rule; }

  // Tokens that may still join in one step: a step must not cross the end of a prompt after which rules hold.
  int64_t MaxStepTokens() const;

  // Settles the step that reads `num_new` tokens for all layers and heads, before any of it runs: kOutOfMemory, and
  // nothing changed, where pages for it cannot be had. Requires: 1 <= num_new <= MaxStepTokens().
  Status PlanStep(int64_t num_new);

  // Room for `num_new` tokens in every head of the layer. Requires: num_new <= MaxStepTokens().
  void Extend(int64_t layer_idx, int64_t num_new);
  // Appends one HeadWork per KV head of the layer; valid until Commit.
  void Work(int64_t layer_idx, int64_t first_row, int64_t num_new, std::vector<HeadWork>& work) const;
  // Appends the compensating heads that fold or read a mean in this step, and says whether any does.
  void Folds(int64_t layer_idx, int64_t first_row, int64_t num_new, std::vector<HeadFold>& folds);
  bool HasFolds(int64_t layer_idx) const;
  // Makes room for the pages of the layer that are kept and age now that the new tokens are in, and appends them. Until
  // Commit they are still read where they were. Once a step, after Extend.
  void Ages(int64_t layer_idx, int64_t num_new, PagesToAge& pages);
  // Drops the pages that the rules no longer need once the new tokens are in, and those that aged, for which AgeKv has
  // run.
  void Commit(int64_t layer_idx, int64_t num_new);
  void FinishStep(int64_t num_new) { num_tokens_ += num_new; }

  // Pages held now, shared ones included, and compensation state.
  KvCacheBytes Bytes() const;
  PageCounts NumPages(int64_t layer_idx, int64_t kv_head) const;
  // The most that Bytes().total() has been, inside steps too, since the cache was made or forked.
  int64_t PeakBytes() const;
  // For tests: [2, D] f32 in the backend's memory, null without compensation.
  const float* CompensationState(int64_t layer_idx, int64_t kv_head) const;

 private:
  struct Head {
    PagePool& PoolOf(int64_t page_idx) const { return aged.Contains(page_idx) ? *pools.aged : *pools.newest; }
    PageUse UseOf(int64_t page_idx) const;
    void TakePages(const Head& from);

    ResolvedRule rule;
    HeadPools pools;
    // Pages 0 .. ceil(sink / P) - 1, and from there on those of the recent window. A dropped sink page (a model's own
    // window can hide sinks) is null.
    std::vector<std::byte*> sink_pages;
    std::vector<std::byte*> recent_pages;
    int64_t recent_first = 0;  // page index of recent_pages[0]
    PageRange aged;            // of the pages held, these are in pools.aged
    int64_t state_idx = -1;    // place in compensation_, -1 without compensation
  };
  // A page between Ages and Commit.
  struct AgingPage {
    int64_t kv_head;
    int64_t page_idx;
    std::byte* aged;
  };

  Head& At(int64_t layer_idx, int64_t kv_head) {
    return heads_[static_cast<size_t>(layer_idx * num_kv_heads_ + kv_head)];
  }
  const Head& At(int64_t layer_idx, int64_t kv_head) const {
    return heads_[static_cast<size_t>(layer_idx * num_kv_heads_ + kv_head)];
  }
  HeadWork WorkOf(const Head& head, int64_t kv_head, int64_t first_row, int64_t num_new) const;
  const HeadPools& PoolsOf(const ResolvedRule& rule) const { return rule.Bounded() ? pools_.bounded : pools_.full; }
  std::byte* NewPage(PagePool& pool, PageUse use);
  void MakeWritable(const Head& head, int64_t page_idx, std::byte*& page);
  void Drop(PagePool& pool, std::byte*& page);
  void DropUnneeded(Head& head, int64_t num_tokens);
  float* State(const Head& head) const;

  KvPools pools_;
  int64_t num_kv_heads_;
  int64_t num_tokens_ = 0;
  int64_t num_states_ = 0;
  int64_t page_bytes_ = 0;       // of all pages held
  int64_t peak_page_bytes_ = 0;  // the most that has been
  std::vector<Head> heads_;      // [L * Hkv]
  int64_t aging_layer_ = -1;     // between Ages and Commit
  std::vector<AgingPage> aging_;
  DeviceBuffer compensation_;  // [num_states, 2, D] f32
};

}  // namespace headwise

#endif  // HEADWISE_KV_KV_CACHE_H_
