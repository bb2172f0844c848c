// Texts that a server keeps in the KV cache of a model once they have been read, so that requests which begin alike go
// on from there: a tree of token ids for each plan, or for all that read a prompt alike, within a budget of bytes.
#ifndef HEADWISE_SERVER_PREFIX_STORE_H_
#define HEADWISE_SERVER_PREFIX_STORE_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/prefix_cache.h"
#include "server/saved_texts.h"

namespace headwise {

struct PrefixStats {
  int64_t query_tokens = 0;  // of all prompts that were looked for
  int64_t hit_tokens = 0;    // of these, found
  int64_t num_hits = 0;
  std::array<int64_t, kNumPrefixMisses> num_misses{};  // by PrefixMiss
  int64_t num_waits = 0;                               // requests that waited for what another was reading
  int64_t num_wait_hits = 0;                           // those of them that went on from there
  int64_t num_entries = 0;
  int64_t bytes = 0;
  int64_t budget_bytes = 0;
  int64_t num_evicted = 0;
  // Of num_hits and hit_tokens, those of texts that came from disk.
  int64_t num_disk_hits = 0;
  int64_t disk_hit_tokens = 0;
  // Texts on disk, and their files' bytes; those that came to be there, and those that could not, while this one runs.
  int64_t num_disk_entries = 0;
  int64_t disk_bytes = 0;
  int64_t num_disk_saved = 0;
  int64_t num_disk_failed = 0;
};

// In the words of a metric's label.
const char* NameOf(PrefixMiss miss);

// What an entry holds is counted as if it shared no page with others, which it does with every text that begins alike:
// so the budget is an upper bound of what is held.
//
// Whoever has to go is found as GreedyDual-Size has it [cao-irani 1997]: an entry is worth the tokens that it saves for
// each byte, counted from what the last one was worth that had to go. Of equal ones it is the least recently used.
//
// Thread-safe. Sequences are let go outside the lock.
class PrefixStore : public PrefixCache {
 public:
  // Whose texts a request finds.
  enum class Sharing {
    kSamePlan,   // those that were read under its own plan
    kReadAlike,  // and under plans that read a prompt as its own does: rules from the end of a prompt are full until
                 // then
  };
  // What is kept is written to `saved` too, where there is one, and what is not kept any more may come back from there:
  // under its own plan alone.
  explicit PrefixStore(int64_t budget_bytes, std::unique_ptr<SavedTexts> saved = nullptr,
                       Sharing sharing = Sharing::kSamePlan);
  PrefixStore(const PrefixStore&) = delete;
  ~PrefixStore() override;

  Lookup Find(const HeadPlan& plan, std::span<const int32_t> ids) override;
  Lookup Peek(const HeadPlan& plan, std::span<const int32_t> ids) override;
  void NoteHit(const Kept& used, int64_t num_ids) override;
  void NoteMiss(PrefixMiss why, int64_t num_ids) override;
  void NoteWait() override;
  void NoteWaitHit() override;
  bool AreAlike(const HeadPlan& a, const HeadPlan& b) const override;
  bool Wants(const HeadPlan& plan, std::span<const int32_t> ids, int64_t bytes) override;
  void Keep(std::shared_ptr<const HeadPlan> plan, std::span<const int32_t> ids,
            std::shared_ptr<const Sequence> sequence, int64_t bytes) override;
  bool Reclaim(int64_t bytes) override;

  // Before a request with these ids is submitted: brings what it may go on from within reach. May take long; not on the
  // engine's thread.
  void Fetch(const HeadPlan& plan, std::span<const int32_t> ids);
  // Writes what is not on disk yet, and returns once it is. For the end: no step may run any more.
  void SaveAll();

  void Clear();
  // What was read under a plan that nobody can ask for any more.
  void Forget(const HeadPlan& plan);
  PrefixStats stats() const;

 private:
  struct Node;
  // Worth, time of the last use, id: the first has to go first.
  using Rank = std::tuple<double, int64_t, int64_t>;
  struct Entry {
    Node* node = nullptr;
    std::shared_ptr<const HeadPlan> plan;
    std::shared_ptr<const Sequence> sequence;
    int64_t num_tokens = 0;
    int64_t bytes = 0;
    Rank rank;
  };
  // What leaves the store, to be let go where the lock is no longer held.
  using Dropped = std::vector<Entry>;
  // Of plans that are alike.
  struct Tree {
    std::shared_ptr<const HeadPlan> plan;  // one of them
    std::unique_ptr<Node> root;
  };
  // How far down a tree some ids lead.
  struct Walk {
    Node* node = nullptr;       // the last whose edge was begun; the root where there is none
    size_t num_common = 0;      // ids
    size_t num_in_edge = 0;     // of the node's edge
    std::vector<int64_t> seen;  // entries on the way, from the shortest to the longest
  };

  Lookup FindEverywhere(const HeadPlan& plan, std::span<const int32_t> ids, SavedTexts::Look look);
  Lookup FindInMemory(const HeadPlan& plan, std::span<const int32_t> ids);
  // All of these require: mutex_.
  // Null where nothing is kept.
  Node* RootOf(const HeadPlan& plan) const;
  static Walk WalkDown(Node& root, std::span<const int32_t> ids);
  static Node& NodeAt(Node& root, std::span<const int32_t> ids);
  static Node& Split(Node& node, size_t num_ids);
  void Touch(int64_t id, Entry& entry);
  void Remove(int64_t id, Dropped& dropped);
  void RemoveNode(Node& node);
  // Until at most so many bytes are held.
  void Shrink(int64_t most_bytes, Dropped& dropped);

  static std::vector<int32_t> IdsOf(const Node& node);

  const int64_t budget_bytes_;
  const std::unique_ptr<SavedTexts> saved_;  // may be null
  const Sharing sharing_;
  mutable std::mutex mutex_;
  std::vector<Tree> trees_;  // none of them is empty
  std::unordered_map<int64_t, Entry> entries_;
  std::set<Rank> ranks_;
  PrefixStats stats_;
  double worth_gone_ = 0;
  int64_t last_id_ = 0;
  int64_t num_uses_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_PREFIX_STORE_H_
