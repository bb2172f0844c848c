// How requests use a prefix cache: where one begins that finds its beginning there, and what each leaves behind.
#ifndef HEADWISE_ENGINE_PREFIX_REUSE_H_
#define HEADWISE_ENGINE_PREFIX_REUSE_H_

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "engine/prefix_cache.h"
#include "engine/running_request.h"
#include "engine/sequence_maker.h"

namespace headwise {

// What a mark has to save: each ends a step early, which takes about as long as one more token of the answer, and less
// is read again in a step of its own.
inline constexpr int64_t kLeastKept = 64;

// Where texts with so much in common are taken to part: texts that share a document also share the first words of what
// follows, but not all of them the same number. Whole pages, besides, are never copied.
inline int64_t BranchPoint(int64_t common_tokens) {
  constexpr int64_t kBranchTokens = 32;
  return common_tokens / kBranchTokens * kBranchTokens;
}

// Thread-safety: the engine's thread. The memory must not be held.
class PrefixReuse {
 public:
  using Requests = std::span<const std::shared_ptr<RunningRequest>>;

  // Borrows it.
  explicit PrefixReuse(SequenceMaker& sequences) : sequences_(&sequences) {}

  // Null: none. Sequences that find no memory ask the cache for some from here on.
  void SetCache(std::shared_ptr<PrefixCache> cache);

  // Whether a request that could be let in had better wait: one of `active`, which are in steps, is about to have read
  // much of what it begins with, and leaves a fork there, as it is told to here. It is bounded: who does not get on, is
  // over or has given way is waited for no longer, and those in steps wait for nobody.
  bool ShouldWait(RunningRequest& request, Requests active);
  // For a request that is being admitted on `sequence`: the number of its tokens that are in the cache now. Its marks
  // are settled here: they depend on what others have left behind by now.
  int64_t Begin(RunningRequest& request, Sequence& sequence);
  // Keeps a fork where the request has come to a mark. What cannot be kept is left.
  void KeepAtMark(RunningRequest& request);
  // Keeps the whole text of a request that is over, with the sequence it ran on: nobody else has that.
  void KeepText(RunningRequest& request);

 private:
  // Of what a request waits for, whether it is still to come.
  static bool IsGettingOn(PrefixWait& wait, Requests active);
  // The best that there is to wait for, with the mark set; empty where it is not worth it.
  std::optional<PrefixWait> FindWait(RunningRequest& request, Requests active);
  // Of the request's text, how much it could go on from now.
  int64_t TokensKept(const SequenceOptions& options, const PrefixTrack& track);

  // Why it cannot, if so.
  std::optional<PrefixMiss> GoOnFrom(const PrefixCache::Kept& kept, const PrefixTrack& track, Sequence& sequence);

  SequenceMaker* sequences_;
  std::shared_ptr<PrefixCache> cache_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PREFIX_REUSE_H_
