// A text in the KV cache: what a request runs on, what a conversation keeps, what a fork copies.
#ifndef HEADWISE_ENGINE_SEQUENCE_H_
#define HEADWISE_ENGINE_SEQUENCE_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_cache.h"
#include "kv/page_pool.h"
#include "kv/rule.h"
#include "model/rope.h"

namespace headwise {

// The backend and its KV pages, kept alive by every sequence, so that one may outlive its engine.
struct KvMemory {
  std::unique_ptr<Backend> backend;
  KvFormats formats;
  std::optional<KvPoolSet> page_pools;
  int64_t limit_bytes = 0;     // 0: none
  int64_t reserved_bytes = 0;  // what the admitted sequences may hold at worst

  const KvPools& pools() const { return page_pools->pools(); }
  int64_t available_bytes() const { return limit_bytes == 0 ? kNoLimit : limit_bytes - reserved_bytes; }
};

class Sequence {
 public:
  Sequence(std::shared_ptr<KvMemory> memory, int64_t worst_case_bytes)
      : memory_(std::move(memory)), reserved_bytes_(worst_case_bytes) {
    memory_->reserved_bytes += reserved_bytes_;
  }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  ~Sequence() {
    cache.reset();
    memory_->reserved_bytes -= reserved_bytes_;
  }

  const std::shared_ptr<KvMemory>& memory() const { return memory_; }
  int64_t reserved_bytes() const { return reserved_bytes_; }

  std::shared_ptr<const HeadPlan> plan;
  SequenceLimits limits;
  SequenceFrequencies rope_frequencies;
  std::unique_ptr<KvCache> cache;
  // Every token so far, for the repetition penalty; only kept where a request asked for one. A stream of a million
  // tokens must not grow.
  std::vector<int32_t> history;
  bool keeps_history = false;
  // The last sampled token: part of the text, but not yet in the cache.
  std::optional<int32_t> pending;
  bool in_use = false;  // by a running request

 private:
  std::shared_ptr<KvMemory> memory_;
  int64_t reserved_bytes_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SEQUENCE_H_
