// The tables of all caches over the same pools: page numbers and heads, each one flat array of which every cache has
// regions. A backend that keeps a copy is told which places changed since the step before.
#ifndef HEADWISE_KV_KV_TABLES_H_
#define HEADWISE_KV_KV_TABLES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/kv_step.h"
#include "base/check.h"
#include "base/no_memory.h"

namespace headwise {

// An array handed out in regions, whose places stay; writing a place notes that it changed. Regions are rounded up to
// powers of two and reused by size: there are few sizes, those of sequences.
template <typename Entry>
class FlatTable {
 public:
  struct Region {
    uint32_t begin = 0;
    uint32_t size = 0;  // as asked for
  };

  // `value` in every place; not noted as a change: nobody reads a place before it is written. Fails as memory does,
  // with nothing changed.
  Region Take(size_t size, const Entry& value) {
    HW_CHECK(size <= size_t{1} << 31, "a region of {}", size);
    Region region{.begin = 0, .size = static_cast<uint32_t>(size)};
    if (size == 0) return region;
    std::vector<uint32_t>& free = free_[ClassOf(size)];
    if (free.empty()) {
      // Room for all of this size, so that giving one back takes no memory.
      const size_t num_regions = num_regions_[ClassOf(size)] + 1;
      ReserveMore(free, num_regions);
      region.begin = static_cast<uint32_t>(entries_.size());
      entries_.resize(entries_.size() + std::bit_ceil(size), value);
      num_regions_[ClassOf(size)] = num_regions;
    } else {
      region.begin = free.back();
      free.pop_back();
      for (size_t i = 0; i < size; ++i) entries_[region.begin + i] = value;
    }
    return region;
  }
  void Return(const Region& region) noexcept {
    if (region.size > 0) free_[ClassOf(region.size)].push_back(region.begin);
  }

  const Entry& operator[](size_t place) const { return entries_[place]; }
  void Set(size_t place, const Entry& value) {
    if (!(entries_[place] == value)) Put(place, value);
  }
  // The same where what copies hold is not known: a place of a new region.
  void Put(size_t place, const Entry& value) {
    changed_.push_back(static_cast<uint32_t>(place));
    entries_[place] = value;
  }
  // From here on Set and Put do not fail as often; `num_later` times of these behind a ForgetChanges too, until they
  // are settled.
  void Reserve(size_t num_changes, size_t num_later = 0) {
    ReserveMore(changed_, num_changes + num_later_ + num_later);
    num_later_ += num_later;
  }
  // Of what was reserved for later, so many were done or will not be.
  void SettleLater(size_t num_later) { num_later_ -= num_later; }

  std::span<const Entry> entries() const { return entries_; }
  // Places that were written since the last ForgetChanges, for who brings a copy up to date, and forgets them then.
  const std::vector<uint32_t>& changes() const { return changed_; }
  void ForgetChanges() { changed_.clear(); }

 private:
  static size_t ClassOf(size_t size) { return static_cast<size_t>(std::bit_width(std::bit_ceil(size)) - 1); }

  std::vector<Entry> entries_;
  std::vector<uint32_t> free_[32];
  size_t num_regions_[32] = {};  // of each size, free or not
  std::vector<uint32_t> changed_;
  size_t num_later_ = 0;
};

// Thread-safety: none; the engine's thread owns it.
struct KvTables {
  FlatTable<uint32_t> pages;
  FlatTable<StepHead> heads;
  FlatTable<KvSelection> selections;  // of sequences with a head that selects by score
};

}  // namespace headwise

#endif  // HEADWISE_KV_KV_TABLES_H_
