// Pools of KV pages, one for every format that a page may have. A page belongs to one KV head of one sequence, or is
// shared by forks of it until one of them writes. A page that nobody holds is free at once, and an extent whose pages
// are all free goes back to the system: the memory of dropped tokens really returns.
#ifndef HEADWISE_KV_PAGE_POOL_H_
#define HEADWISE_KV_PAGE_POOL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "backend/backend.h"

namespace headwise {

// Pages that live as long as their sequence and pages that come and go lie in different extents, so that one long-lived
// page does not keep an extent of short-lived ones.
enum class PageUse { kGrowing, kSliding };

// What the pages of several pools take together.
struct PoolUsage {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};

// Thread-safety: none; the engine's thread owns it.
class PagePool {
 public:
  // `usage`, where given, counts this pool's pages too and must outlive it.
  PagePool(Backend& backend, const KvLayout& layout, PoolUsage* usage = nullptr);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  // Requires: every page was released.
  ~PagePool();

  Backend& backend() const { return *backend_; }
  const KvLayout& layout() const { return layout_; }
  size_t page_bytes() const { return page_bytes_; }

  // A page with unspecified content, held once.
  std::byte* Allocate(PageUse use);
  void Retain(std::byte* page);
  void Release(std::byte* page);
  // True if someone else holds it too: copy before writing.
  bool IsShared(const std::byte* page) const;

  int64_t pages_in_use() const { return pages_in_use_; }
  // What the pool holds from the system: at least its pages in use.
  int64_t extent_bytes() const;

 private:
  struct Extent {
    PageUse use;
    size_t bytes;
    std::vector<uint32_t> holders;     // per page
    std::vector<uint32_t> free_pages;  // indices; the lowest is handed out first, so that runs stay contiguous
  };
  using ExtentMap = std::map<const std::byte*, Extent>;

  ExtentMap::iterator Find(const std::byte* page);
  ExtentMap::const_iterator Find(const std::byte* page) const;
  ExtentMap::iterator NewExtent(PageUse use);

  Backend* backend_;
  KvLayout layout_;
  size_t page_bytes_;
  PoolUsage* usage_;
  ExtentMap extents_;                              // by first address
  std::set<const std::byte*> with_free_pages_[2];  // extents with a free page, by PageUse
  int64_t pages_in_use_ = 0;
};

// Where heads of one kind have their pages.
struct HeadPools {
  PagePool* newest = nullptr;  // those that tokens are written into
  PagePool* aged = nullptr;    // those made smaller; null where the kind's format does not age

  friend bool operator==(const HeadPools&, const HeadPools&) = default;
};

// Of heads that keep every token, and of heads that drop some. All have the same tokens per page.
struct KvPools {
  HeadPools full;
  HeadPools bounded;
};

// The pools that the formats of a cache need, one per page format: kinds of heads whose pages have a format in common
// share its pool.
class KvPoolSet {
 public:
  // `usage`, where given, counts the pages of all pools and must outlive it.
  KvPoolSet(Backend& backend, int64_t head_dim, int64_t page_tokens, const KvFormats& formats,
            PoolUsage* usage = nullptr);

  const KvPools& pools() const { return pools_; }

 private:
  std::map<KvFormat, std::unique_ptr<PagePool>> pool_of_;
  KvPools pools_;
};

}  // namespace headwise

#endif  // HEADWISE_KV_PAGE_POOL_H_
