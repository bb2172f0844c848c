// Experts of which only some are in memory in the kernels' order, for mixtures larger than memory: one that is not
// there is packed of its rows, which lie in a mapped file, when a token chooses it.
#ifndef HEADWISE_BACKEND_CPU_EXPERT_STORE_H_
#define HEADWISE_BACKEND_CPU_EXPERT_STORE_H_

#include <headwise/model_info.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/ops.h"
#include "base/thread_pool.h"
#include "device/device.h"

namespace headwise::cpu {

// Memory is cut into places for one expert each, of the size of the largest. Thread-safety: one thread at a time.
class ExpertStore {
 public:
  // 0: it takes no expert.
  explicit ExpertStore(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Backend::DeferExpert and ReserveExperts. The device must outlive the store.
  bool Add(ExpertWeights& expert, std::function<void()> release);
  Status Reserve(Device& device);

  // So many can be fetched at once. Requires: Reserve, where any were added.
  size_t most_at_once() const { return expert_in_.size(); }
  // Appends to `out` the experts `wanted` of `layer` as kernels read them, those that were not added as they are. What
  // is given stays until the next call. Requires: at most most_at_once().
  void Fetch(std::span<const ExpertWeights> layer, std::span<const int32_t> wanted, ThreadPool& pool,
             std::vector<ExpertWeights>& out);
  bool empty() const { return added_.empty(); }

  ExpertMemory memory() const;

 private:
  static constexpr int64_t kNowhere = -1;

  struct Added {
    ExpertWeights rows;  // in the file
    std::function<void()> release;
    int64_t place = kNowhere;
  };

  ExpertWeights PackedIn(int64_t place, const Added& added) const;
  // That of no expert, or else of the one that was not asked for for longest, which leaves it.
  int64_t TakePlace();
  void Pack(const Added& added, ThreadPool& pool) const;

  int64_t limit_bytes_;
  std::vector<Added> added_;
  std::unordered_map<const void*, size_t> idx_of_;  // in `added_`, by the rows of the gate
  DeviceBuffer places_;
  size_t place_bytes_ = 0;
  std::vector<int64_t> expert_in_;    // in `added_`, of each place
  std::vector<uint64_t> last_fetch_;  // of each place
  uint64_t num_fetches_ = 0;
  int64_t num_chosen_ = 0;
  int64_t num_read_ = 0;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_EXPERT_STORE_H_
