// What an engine asks about texts that are kept in the KV cache so that requests which begin alike go on from there.
// Whoever serves requests keeps them: server/prefix_store.h.
#ifndef HEADWISE_ENGINE_PREFIX_CACHE_H_
#define HEADWISE_ENGINE_PREFIX_CACHE_H_

#include <headwise/head_plan.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace headwise {

// Why a request reads all of its prompt.
enum class PrefixMiss {
  kUnknown,    // nothing is kept that it begins with
  kRules,      // what is kept was read under rules that treat it otherwise
  kPositions,  // its positions are counted otherwise, as another length asks for
  kMemory,     // there is none for another table
  kSelection,  // heads of its plan keep tokens by attention score: which depends on the steps that its text is read in
};
inline constexpr size_t kNumPrefixMisses = 5;

// A kept text in host memory, as it came from a file: a sequence is made of it when a request is to go on from there.
struct SavedText {
  std::vector<int32_t> ids;  // [snapshot.num_tokens]
  SequenceLimits limits;
  SequenceFrequencies rope_frequencies;
  KvSnapshot snapshot;
};

// Thread-safety: called on the engine's thread, between steps or at their end, without the memory held; others may call
// what an implementation has besides at any time. Nothing here may take long.
class PrefixCache {
 public:
  struct Kept {
    int64_t id = 0;
    std::shared_ptr<const Sequence> sequence;  // no request ever runs on it
    int64_t num_tokens = 0;
    std::shared_ptr<const SavedText> saved = nullptr;  // in place of a sequence
  };
  struct Lookup {
    std::vector<Kept> kept;     // texts that the ids begin with and go beyond, the longest first; a few of them
    int64_t common_tokens = 0;  // that the ids begin with as some kept text does
  };

  virtual ~PrefixCache() = default;
  // For a request that goes on from one of them, or from none: what was fetched for it may be let go.
  virtual Lookup Find(const HeadPlan& plan, std::span<const int32_t> ids) = 0;
  // The same, of which nothing comes.
  virtual Lookup Peek(const HeadPlan& plan, std::span<const int32_t> ids) = 0;
  // What came of looking for `num_ids` tokens.
  virtual void NoteHit(const Kept& used, int64_t num_ids) = 0;
  virtual void NoteMiss(PrefixMiss why, int64_t num_ids) = 0;
  // A request waits for what another is reading; and one that did goes on from there now.
  virtual void NoteWait() = 0;
  virtual void NoteWaitHit() = 0;
  // Whether what is read under one plan is found under the other.
  virtual bool AreAlike(const HeadPlan& a, const HeadPlan& b) const = 0;

  // Whether there is anything to gain by keeping this text, which would hold so many bytes.
  virtual bool Wants(const HeadPlan& plan, std::span<const int32_t> ids, int64_t bytes) = 0;
  // In place of what was kept of the same text.
  virtual void Keep(std::shared_ptr<const HeadPlan> plan, std::span<const int32_t> ids,
                    std::shared_ptr<const Sequence> sequence, int64_t bytes) = 0;
  // Lets go of texts that hold at least so many bytes, for a request that needs them. False, and nothing is let go,
  // where all of them hold less.
  virtual bool Reclaim(int64_t bytes) = 0;
};

// What a request waits for that begins with what another is reading.
struct PrefixWait {
  int64_t owner = 0;       // the other's RequestId
  int64_t num_tokens = 0;  // so many tokens it is to have read
  int64_t num_read = 0;    // so many it had when somebody last looked
  int64_t idle_steps = 0;  // since it has had as many
};

// What a request that reuses prefixes knows of its text.
struct PrefixTrack {
  std::vector<int32_t> text;   // all ids so far; empty once they are too many to be kept
  int64_t last_mark = 0;       // the last place in its prompt where it is worth to keep the text
  std::vector<int64_t> marks;  // ascending: a step ends with so many tokens in the cache, and a fork of them is kept
  bool was_refused = false;    // what is kept of this text is of no use under these limits
  std::optional<PrefixWait> wait;  // while it lasts
  int64_t num_waits = 0;           // begun so far
  int64_t awaited_tokens = 0;      // of the last of them

  // Requires: place <= last_mark.
  void AddMark(int64_t place);
  // How much of a step of `num_tokens` there is before the next mark.
  int64_t CutAtMark(int64_t num_cached, int64_t num_tokens) const;
  void Add(int32_t id);
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PREFIX_CACHE_H_
