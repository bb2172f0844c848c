// The texts of one model that a folder keeps: which of them a request may go on from, and what is to be written.
#ifndef HEADWISE_SERVER_SAVED_TEXTS_H_
#define HEADWISE_SERVER_SAVED_TEXTS_H_

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/prefix_cache.h"
#include "server/prefix_dir.h"

namespace headwise {

// A file is read and its hash is checked where a request comes in (Fetch), not on the engine's thread, which only
// copies pages: into host memory where a text is to be written, out of it where a request goes on from one.
//
// Thread-safe.
class SavedTexts {
 public:
  // `identity` is of the model's weights and arithmetic.
  SavedTexts(std::shared_ptr<PrefixDir> dir, std::string identity)
      : dir_(std::move(dir)), identity_(std::move(identity)) {}

  // Reads the longest text that `ids` begin with, if it has more than `least_tokens` tokens, so that Find has it. May
  // take long.
  void Fetch(const HeadPlan& plan, std::span<const int32_t> ids, int64_t least_tokens);
  // The longest that was fetched of those, if it has more than `least_tokens` tokens. kTake: then all of them are let
  // go.
  enum class Look { kTake, kLeave };
  std::optional<PrefixCache::Kept> Find(const HeadPlan& plan, std::span<const int32_t> ids, int64_t least_tokens,
                                        Look look);

  // Has a text written that is kept in memory now, unless it is on disk already or there is no room now. Requires: no
  // step runs on the sequence, and its memory is not held.
  void Save(const HeadPlan& plan, std::span<const int32_t> ids, const Sequence& sequence, PrefixDir::Room room);
  // Until all of it is on disk.
  void Flush() { dir_->Flush(); }

  PrefixDirStats stats() const { return dir_->StatsOf(identity_); }

 private:
  struct Fetched {
    std::string name;
    std::string plan;
    std::shared_ptr<const SavedText> text;
  };

  const std::shared_ptr<PrefixDir> dir_;
  const std::string identity_;
  std::mutex reading_;  // one file at a time: who comes next may find what the first has read
  std::mutex mutex_;
  std::list<Fetched> fetched_;  // guarded by mutex_, as is the next; the oldest first
  int64_t fetched_bytes_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SAVED_TEXTS_H_
