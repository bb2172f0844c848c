// Pools of KV pages, one for every format that a page may have. A page belongs to one KV head of one sequence, or is
// shared by forks of it until one of them writes. A page that nobody holds is free at once, and an extent whose pages
// are all free goes back to the system: the memory of dropped tokens really returns.
//
// Pages are numbers: page i is number i % 2^shift of extent i / 2^shift (PageSpace in backend/kv_step.h).
#ifndef HEADWISE_KV_PAGE_POOL_H_
#define HEADWISE_KV_PAGE_POOL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_tables.h"

namespace headwise {

// Pages that live as long as their sequence and pages that come and go lie in different extents, so that one long-lived
// page does not keep an extent of short-lived ones.
enum class PageUse { kGrowing, kSliding };
inline constexpr int kNumPageUses = 2;

// What a page was taken for: a head that keeps every token, or one that drops some. It counts as that as long as
// anybody holds it, whatever the head's rule in a fork that shares it.
enum class HeadClass : uint8_t { kFull, kBounded };

// What the pages of several pools take together.
struct PoolUsage {
  int64_t bytes = 0;
  int64_t bounded_bytes = 0;  // of these, of HeadClass::kBounded
  int64_t peak_bytes = 0;
  int64_t limit_bytes = 0;  // hard: no page is handed out beyond it; 0: none

  // kOutOfMemory where `more_bytes` would exceed the limit.
  Status CheckRoom(int64_t more_bytes) const;
};

// Thread-safety: none; the engine's thread owns it.
class PagePool {
 public:
  // `layout` says what is in its pages of `page_bytes`. `space` is its place among the spaces of a step. `usage`, where
  // given, counts this pool's pages too and must outlive it.
  struct Options {
    KvLayout layout;
    int64_t page_bytes = 0;
    int32_t space = 0;
    PoolUsage* usage = nullptr;
  };
  PagePool(Device& device, const Options& options);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  // Requires: every page was released.
  ~PagePool();

  const KvLayout& layout() const { return options_.layout; }
  int64_t page_bytes() const { return options_.page_bytes; }
  int32_t space() const { return options_.space; }
  PageSpace View() const;
  Device& device() const { return *device_; }
  // In the device's memory. Requires: the page is held.
  std::byte* AddressOf(uint32_t page) const { return View().Page(page); }

  // Room for `num_pages` more: Allocate does not fail as often. Takes memory from the device where it must, and gives
  // it back where that is not enough. Does not look at the limit: several pools share it.
  Status MakeRoom(PageUse use, int64_t num_pages);
  // Gives back to the system what no page in use lies in.
  void FreeEmptyExtents();
  // A page with unspecified content, held once. Requires: MakeRoom.
  uint32_t Allocate(PageUse use, HeadClass head_class);
  void Retain(uint32_t page) { ++HoldersOf(page); }
  void Release(uint32_t page);
  // True if someone else holds it too: copy before writing.
  bool IsShared(uint32_t page) const { return HoldersOf(page) > 1; }
  PageUse UseOf(uint32_t page) const { return extents_[page >> shift_].use; }

  // The same in two parts, for pages that work under way still reads: what Retire gives up counts no longer, but comes
  // into other hands only by Reclaim (by whoever knows that this is in order) or after Forget.
  bool Retire(uint32_t page);                         // whether nobody holds it now
  void Reclaim(uint32_t page, HeadClass head_class);  // held once again
  void Forget(uint32_t page);                         // free

  int64_t pages_in_use() const { return pages_in_use_; }
  // What the pool holds from the system: at least its pages in use.
  int64_t extent_bytes() const;

 private:
  struct Extent {
    PageUse use = PageUse::kGrowing;
    size_t bytes = 0;
    std::vector<uint32_t> holders;     // per page
    std::vector<HeadClass> classes;    // per page; of those that nobody holds it means nothing
    std::vector<uint32_t> free_pages;  // in the extent; at first in order, so that runs are contiguous
    // The extent's place in with_free_pages_ while it has none: giving a page back must not take memory.
    std::set<uint32_t>::node_type unlisted;
  };

  uint32_t& HoldersOf(uint32_t page) { return extents_[page >> shift_].holders[page & mask_]; }
  uint32_t HoldersOf(uint32_t page) const { return extents_[page >> shift_].holders[page & mask_]; }
  size_t ExtentBytes(PageUse use) const;
  Status NewExtent(PageUse use);
  void FreeExtent(uint32_t extent_idx);
  int64_t HeldBytes() const;  // by all pools that share a limit
  // A page that is held from here on, or no longer.
  void CountHeld(uint32_t page, HeadClass head_class);
  void CountFree(uint32_t page);

  Device* device_;
  Options options_;
  int shift_ = 0;
  uint32_t mask_ = 0;
  std::vector<Extent> extents_;                       // at least as many as bases_
  std::vector<std::byte*> bases_;                     // of extents_; null: number not in use
  std::set<uint32_t> with_free_pages_[kNumPageUses];  // extents with a free page; the lowest is used first
  int64_t num_free_[kNumPageUses] = {};               // pages in these
  int64_t pages_in_use_ = 0;
};

// Where heads of one kind have their pages.
struct HeadPools {
  PagePool* newest = nullptr;  // those that tokens are written into
  PagePool* aged = nullptr;    // those made smaller; null where the kind's format does not age

  friend bool operator==(const HeadPools&, const HeadPools&) = default;
};

class KvPoolSet;

// Of heads that keep every token, of heads that drop some, and of those among these that choose by score which: their
// pages are in the format that bounded heads are written in, never age, and end in notes (KvNotesBytes in
// backend/kv_step.h). Of heads that keep every token and read blocks: theirs are in the format that full heads are
// written in, never age, and end in bounds (KeyBoundsBytes there). All have the same tokens per page.
struct KvPools {
  HeadPools full;
  HeadPools bounded;
  HeadPools selecting;
  HeadPools reading;
  PagePool* states = nullptr;      // of compensation tokens: pages of [2, D] f32
  KvTables* tables = nullptr;      // of every cache over these pools
  PoolUsage* usage = nullptr;      // of all of them
  const KvPoolSet* set = nullptr;  // that owns them
};

// The pools that the formats of a cache need, one per page format: kinds of heads whose pages have a format in common
// share its pool, unless they are to be told apart.
class KvPoolSet {
 public:
  enum class Sharing { kByFormat, kNone };
  struct Options {
    int64_t head_dim = 0;
    int64_t page_tokens = 0;
    KvFormats formats;
    int64_t limit_bytes = 0;  // hard limit on the bytes of all pages; 0: none
    Sharing sharing = Sharing::kByFormat;
  };
  // `backend` must outlive it.
  KvPoolSet(Backend& backend, const Options& options);

  const KvPools& pools() const { return pools_; }
  // Of every pool, by number. Valid until a page is allocated or freed.
  void GetSpaces(std::vector<PageSpace>& spaces) const;
  PoolUsage& usage() { return usage_; }
  const PoolUsage& usage() const { return usage_; }

 private:
  PoolUsage usage_;
  KvTables tables_;
  std::vector<std::unique_ptr<PagePool>> all_;  // by space
  KvPools pools_;
};

}  // namespace headwise

#endif  // HEADWISE_KV_PAGE_POOL_H_
