// A text in the KV cache: what a request runs on, what a conversation keeps, what a fork copies.
#ifndef HEADWISE_ENGINE_SEQUENCE_H_
#define HEADWISE_ENGINE_SEQUENCE_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/token_set.h"
#include "kv/kv_cache.h"
#include "kv/kv_snapshot.h"
#include "kv/page_pool.h"
#include "kv/rule.h"
#include "model/rope.h"

namespace headwise {

// The backend and its KV pages, kept alive by every sequence, so that one may outlive its engine.
//
// Thread-safety: pages are taken and given back by whoever holds the memory (Hold): the engine's thread while it steps,
// makes or forks a sequence. A sequence may be let go on any thread, inside a step too: Free leaves it to the holder,
// who frees it when he is done, or holds the memory itself where nobody does. So nobody waits for a step to give pages
// back, and a step pays for one lock that nobody else wants.
class KvMemory {
 public:
  // One thread at a time, not twice by one thread.
  class Hold {
   public:
    explicit Hold(KvMemory& memory) : memory_(memory) { memory_.Acquire(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { memory_.FreeAndRelease(); }

   private:
    KvMemory& memory_;
  };

  const KvPools& pools() const { return page_pools->pools(); }
  // Of all pools. Requires: held.
  PoolUsage& usage() { return page_pools->usage(); }
  // Requires: held.
  int64_t available_bytes() const { return limit_bytes == 0 ? kNoLimit : limit_bytes - reserved_bytes; }
  // Without a limit nothing is reserved: sums of worst cases that nobody checks could overflow. Requires: held.
  void Reserve(int64_t bytes) { reserved_bytes += limit_bytes == 0 ? 0 : bytes; }
  // A cache that nobody needs any more, and what was reserved for it. As a list of one, so that giving it back takes no
  // memory.
  struct Freed {
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<KvSnapshot> saved;
    int64_t reserved_bytes = 0;
    int64_t host_bytes = 0;
  };
  // From any thread, held or not.
  void Free(std::list<Freed> freed) noexcept;
  // Told, on whatever thread it happens, that memory came back: for who waits for it and would not look otherwise.
  void OnFreed(std::function<void()> on_freed);

  std::unique_ptr<Backend> backend;
  KvFormats formats;
  std::optional<KvPoolSet> page_pools;
  int64_t limit_bytes = 0;     // 0: none
  int64_t reserved_bytes = 0;  // what the admitted sequences may hold at worst; only while held
  // Host memory for what sequences held that gave way.
  int64_t host_limit_bytes = 0;
  int64_t host_bytes = 0;  // taken, or promised; only while held

 private:
  void Acquire();
  // Frees what was left to the holder until nothing is.
  void FreeAndRelease() noexcept;

  std::mutex mutex_;
  std::condition_variable released_;
  bool is_held_ = false;                                   // guarded by mutex_
  std::list<Freed> freed_;                                 // guarded by mutex_
  std::shared_ptr<const std::function<void()>> on_freed_;  // guarded by mutex_
};

// Thread-safety: members belong to the engine's thread, or to whoever has a claim while no request runs on it; it may
// be destroyed on any thread.
class Sequence {
 public:
  // Requires: the memory is held.
  Sequence(std::shared_ptr<KvMemory> memory, int64_t worst_case_bytes)
      : memory_(std::move(memory)), reserved_bytes_(worst_case_bytes) {
    memory_->Reserve(reserved_bytes_);
  }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  ~Sequence() {
    freed_.front() = {std::move(cache), std::move(saved), reserved_bytes_, host_bytes_};
    memory_->Free(std::move(freed_));
  }

  const std::shared_ptr<KvMemory>& memory() const { return memory_; }
  int64_t reserved_bytes() const { return reserved_bytes_; }
  // Requires: the memory is held.
  void ReserveMore(int64_t bytes) {
    memory_->Reserve(bytes);
    reserved_bytes_ += bytes;
  }
  // Requires: the memory is held, and as much is reserved.
  void ReserveLess(int64_t bytes) {
    memory_->Reserve(-bytes);
    reserved_bytes_ -= bytes;
  }
  // Host memory that is taken by it or promised to it; negative: given back. Requires: the memory is held.
  void ReserveHost(int64_t bytes) {
    memory_->host_bytes += bytes;
    host_bytes_ += bytes;
  }
  int64_t host_bytes() const { return host_bytes_; }
  // As StepSequence::marked.
  const TokenLists* marked() const { return plan->tokens == TokenLists{} ? nullptr : &plan->tokens; }
  // In the cache, and the one sampled last.
  int64_t NumTextTokens() const { return cache->num_tokens() + (pending ? 1 : 0); }

  std::shared_ptr<const HeadPlan> plan;
  SequenceLimits limits;
  int64_t step_tokens = 0;  // the longest step that was reserved for
  // So long may its text become with what is reserved.
  int64_t reserved_tokens = kNoLimit;
  SequenceFrequencies rope_frequencies;
  std::unique_ptr<KvCache> cache;     // null while the request that it was made for has given way
  std::unique_ptr<KvSnapshot> saved;  // then, where it is in host memory
  // Its host_bytes() are promised until its end, whether it has given way or not.
  bool has_host_promise = false;
  TokenSet seen;  // ids of the text, `pending` among them
  // The last sampled token: part of the text, but not in the cache until a step has read it.
  std::optional<int32_t> pending;
  // Why nothing can go on from here: a step on it failed half-way.
  Status failure;

 private:
  friend class SequenceClaim;

  std::shared_ptr<KvMemory> memory_;
  int64_t reserved_bytes_;
  int64_t host_bytes_ = 0;
  std::list<KvMemory::Freed> freed_ = std::list<KvMemory::Freed>(1);  // what its end needs
  std::atomic<bool> is_claimed_ = false;
};

// The right to run a request on a sequence: one at a time, from submission to end.
class SequenceClaim {
 public:
  SequenceClaim() = default;
  SequenceClaim(SequenceClaim&& other) noexcept : sequence_(std::exchange(other.sequence_, nullptr)) {}
  SequenceClaim& operator=(SequenceClaim&& other) noexcept {
    std::swap(sequence_, other.sequence_);
    return *this;
  }
  ~SequenceClaim() { Release(); }

  // From any thread. Empty where another has it.
  static std::optional<SequenceClaim> Take(std::shared_ptr<Sequence> sequence) {
    // Acquire and release hand over what the request before wrote on the engine's thread.
    if (sequence->is_claimed_.exchange(true, std::memory_order_acquire)) return std::nullopt;
    SequenceClaim claim;
    claim.sequence_ = std::move(sequence);
    return claim;
  }
  void Release() {
    if (sequence_ != nullptr) sequence_->is_claimed_.store(false, std::memory_order_release);
    sequence_.reset();
  }
  const std::shared_ptr<Sequence>& sequence() const { return sequence_; }

 private:
  std::shared_ptr<Sequence> sequence_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_SEQUENCE_H_
