// How requests use a prefix cache: where one begins that finds its beginning there, and what each leaves behind.
#ifndef HEADWISE_ENGINE_PREFIX_REUSE_H_
#define HEADWISE_ENGINE_PREFIX_REUSE_H_

#include <memory>
#include <optional>
#include <utility>

#include "engine/prefix_cache.h"
#include "engine/running_request.h"
#include "engine/sequence_maker.h"

namespace headwise {

// Thread-safety: the engine's thread. The memory must not be held.
class PrefixReuse {
 public:
  // Borrows it.
  explicit PrefixReuse(SequenceMaker& sequences) : sequences_(&sequences) {}

  // Null: none. Sequences that find no memory ask the cache for some from here on.
  void SetCache(std::shared_ptr<PrefixCache> cache);

  // For a request that is being admitted on `sequence`: the number of its tokens that are in the cache now. Its marks
  // are settled here: they depend on what others have left behind by now.
  int64_t Begin(RunningRequest& request, Sequence& sequence);
  // Keeps a fork where the request has come to a mark. What cannot be kept is left.
  void KeepAtMark(RunningRequest& request);
  // Keeps the whole text of a request that is over, with the sequence it ran on: nobody else has that.
  void KeepText(RunningRequest& request);

 private:
  // Why it cannot, if so.
  std::optional<PrefixMiss> GoOnFrom(const PrefixCache::Kept& kept, const PrefixTrack& track, Sequence& sequence);

  SequenceMaker* sequences_;
  std::shared_ptr<PrefixCache> cache_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_PREFIX_REUSE_H_
