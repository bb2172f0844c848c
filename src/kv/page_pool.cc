#include "kv/page_pool.h"

#include <algorithm>

namespace headwise {
namespace {

// Growing heads fill extents the size of a huge page. Sliding pages get smaller ones: fewer bytes idle per extent.
constexpr size_t kGrowingExtentBytes = size_t{2} << 20;
constexpr size_t kSlidingExtentBytes = size_t{256} << 10;

int IndexOf(PageUse use) {
  return static_cast<int>(use);
}

}  // namespace

PagePool::PagePool(Backend& backend, const KvLayout& layout, PoolUsage* usage)
    : backend_(&backend), layout_(layout), page_bytes_(backend.PageBytes(layout)), usage_(usage) {}

PagePool::~PagePool() {
  HW_CHECK(pages_in_use_ == 0, "{} pages still held", pages_in_use_);
  for (const auto& [base, extent] : extents_) backend_->Free(const_cast<std::byte*>(base), extent.bytes);
}

PagePool::ExtentMap::iterator PagePool::NewExtent(PageUse use) {
  const size_t target = use == PageUse::kGrowing ? kGrowingExtentBytes : kSlidingExtentBytes;
  const size_t num_pages = std::max<size_t>(1, target / page_bytes_);
  // The tail that holds no whole page is kept: a whole huge page is worth more than its few kilobytes.
  Extent extent{.use = use, .bytes = std::max(target, page_bytes_), .holders = {}, .free_pages = {}};
  extent.holders.resize(num_pages, 0);
  for (size_t i = 0; i < num_pages; ++i) extent.free_pages.push_back(static_cast<uint32_t>(num_pages - 1 - i));
  std::byte* base = backend_->Allocate(extent.bytes);
  HW_CHECK(base != nullptr, "the system has no {} bytes for KV pages", extent.bytes);
  with_free_pages_[IndexOf(use)].insert(base);
  return extents_.emplace(base, std::move(extent)).first;
}

std::byte* PagePool::Allocate(PageUse use) {
  auto& candidates = with_free_pages_[IndexOf(use)];
  const auto it = candidates.empty() ? NewExtent(use) : extents_.find(*candidates.begin());
  auto& [base, extent] = *it;
  const uint32_t idx = extent.free_pages.back();
  extent.free_pages.pop_back();
  if (extent.free_pages.empty()) candidates.erase(base);
  extent.holders[idx] = 1;
  ++pages_in_use_;
  if (usage_ != nullptr) {
    usage_->bytes += static_cast<int64_t>(page_bytes_);
    usage_->peak_bytes = std::max(usage_->peak_bytes, usage_->bytes);
  }
  return const_cast<std::byte*>(base) + idx * page_bytes_;
}

PagePool::ExtentMap::iterator PagePool::Find(const std::byte* page) {
  return std::prev(extents_.upper_bound(page));
}
PagePool::ExtentMap::const_iterator PagePool::Find(const std::byte* page) const {
  return std::prev(extents_.upper_bound(page));
}

void PagePool::Retain(std::byte* page) {
  auto& [base, extent] = *Find(page);
  ++extent.holders[static_cast<size_t>(page - base) / page_bytes_];
}

bool PagePool::IsShared(const std::byte* page) const {
  const auto& [base, extent] = *Find(page);
  return extent.holders[static_cast<size_t>(page - base) / page_bytes_] > 1;
}

void PagePool::Release(std::byte* page) {
  const auto it = Find(page);
  auto& [base, extent] = *it;
  const auto idx = static_cast<uint32_t>(static_cast<size_t>(page - base) / page_bytes_);
  HW_CHECK(extent.holders[idx] > 0, "page released twice");
  if (--extent.holders[idx] > 0) return;
  --pages_in_use_;
  if (usage_ != nullptr) usage_->bytes -= static_cast<int64_t>(page_bytes_);
  extent.free_pages.push_back(idx);
  auto& candidates = with_free_pages_[IndexOf(extent.use)];
  candidates.insert(base);
  // An empty extent goes back, but for the last of its kind with room: a window that slides over a page border would
  // otherwise ask the system for memory again and again.
  if (extent.free_pages.size() == extent.holders.size() && candidates.size() > 1) {
    candidates.erase(base);
    backend_->Free(const_cast<std::byte*>(base), extent.bytes);
    extents_.erase(it);
  }
}

int64_t PagePool::extent_bytes() const {
  int64_t bytes = 0;
  for (const auto& [base, extent] : extents_) bytes += static_cast<int64_t>(extent.bytes);
  return bytes;
}

KvPoolSet::KvPoolSet(Backend& backend, int64_t head_dim, int64_t page_tokens, const KvFormats& formats,
                     PoolUsage* usage) {
  const auto pool = [&](KvFormat format) {
    std::unique_ptr<PagePool>& known = pool_of_[format];
    if (known == nullptr) {
      const KvLayout layout{.head_dim = head_dim, .page_tokens = page_tokens, .format = format};
      known = std::make_unique<PagePool>(backend, layout, usage);
    }
    return known.get();
  };
  const auto pools_for = [&](KvFormat format) {
    const KvFormat newest = NewestFormat(format);
    return HeadPools{.newest = pool(newest), .aged = newest == format ? nullptr : pool(format)};
  };
  pools_ = {.full = pools_for(formats.full), .bounded = pools_for(formats.bounded)};
}

}  // namespace headwise
