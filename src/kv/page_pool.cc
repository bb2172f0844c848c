#include "kv/page_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/format_bytes.h"
#include "base/no_memory.h"
#include "kv/kv_bytes.h"

namespace headwise {
namespace {

// Growing heads fill extents the size of a huge page. Sliding pages get smaller ones: fewer bytes idle per extent.
constexpr size_t kGrowingExtentBytes = size_t{2} << 20;
constexpr size_t kSlidingExtentBytes = size_t{256} << 10;

size_t IndexOf(PageUse use) {
  return static_cast<size_t>(use);
}

}  // namespace

Status PoolUsage::CheckRoom(int64_t more_bytes) const {
  if (limit_bytes == 0 || more_bytes <= limit_bytes - bytes) return Status::Ok();
  return Status::OutOfMemory(
      fmt::format("the KV cache holds {} bytes and needs {} more; its limit is {}", bytes, more_bytes, limit_bytes));
}

PagePool::PagePool(Device& device, const Options& options) : device_(&device), options_(options) {
  HW_CHECK(options.page_bytes > 0, "pages of {} bytes", options.page_bytes);
  const size_t most_pages = std::max<size_t>(1, kGrowingExtentBytes / static_cast<size_t>(options.page_bytes));
  shift_ = std::bit_width(most_pages - 1);
  mask_ = (uint32_t{1} << shift_) - 1;
}

PagePool::~PagePool() {
  HW_CHECK(pages_in_use_ == 0, "{} pages still held", pages_in_use_);
  for (uint32_t i = 0; i < bases_.size(); ++i) {
    if (bases_[i] != nullptr) FreeExtent(i);
  }
}

PageSpace PagePool::View() const {
  return {.layout = options_.layout, .page_bytes = options_.page_bytes, .extent_shift = shift_, .extents = bases_};
}

size_t PagePool::ExtentBytes(PageUse use) const {
  const size_t target = use == PageUse::kGrowing ? kGrowingExtentBytes : kSlidingExtentBytes;
  // The tail that holds no whole page is kept: a whole huge page is worth more than its few kilobytes.
  return std::max(target, static_cast<size_t>(options_.page_bytes));
}

// What may fail comes first, the device's memory last.
Status PagePool::NewExtent(PageUse use) {
  const size_t bytes = ExtentBytes(use);
  const size_t num_pages = bytes / static_cast<size_t>(options_.page_bytes);
  const auto unused = std::find(bases_.begin(), bases_.end(), nullptr);
  const auto idx = static_cast<uint32_t>(unused - bases_.begin());
  if (unused == bases_.end()) {
    ReserveMore(bases_, 1);
    extents_.resize(bases_.size() + 1);
  }
  Extent extent;
  extent.use = use;
  extent.bytes = bytes;
  extent.holders.resize(num_pages);
  extent.classes.resize(num_pages);
  extent.free_pages.reserve(num_pages);
  for (size_t i = 0; i < num_pages; ++i) extent.free_pages.push_back(static_cast<uint32_t>(num_pages - 1 - i));
  std::set<uint32_t> place{idx};
  HW_ASSIGN_OR_RETURN(std::byte * base, device_->Allocate(bytes));
  if (idx == bases_.size()) bases_.push_back(nullptr);
  bases_[idx] = base;
  extents_[idx] = std::move(extent);
  with_free_pages_[IndexOf(use)].merge(place);
  num_free_[IndexOf(use)] += static_cast<int64_t>(num_pages);
  return Status::Ok();
}

// Requires: its pages are free.
void PagePool::FreeExtent(uint32_t extent_idx) {
  Extent& extent = extents_[extent_idx];
  device_->Free(bases_[extent_idx], extent.bytes);
  bases_[extent_idx] = nullptr;
  with_free_pages_[IndexOf(extent.use)].erase(extent_idx);
  num_free_[IndexOf(extent.use)] -= static_cast<int64_t>(extent.free_pages.size());
  extent = Extent();
}

Status PagePool::MakeRoom(PageUse use, int64_t num_pages) {
  const int64_t missing_bytes = (num_pages - num_free_[IndexOf(use)]) * options_.page_bytes;
  while (num_free_[IndexOf(use)] < num_pages) {
    const Status status = CatchNoMemory("a table of KV pages", [&] { return NewExtent(use); });
    if (status.ok()) continue;
    FreeEmptyExtents();
    return Status::OutOfMemory(
        fmt::format("could not allocate {} for KV pages: {}; the cache holds {}: allow fewer tokens, use a plan that "
                    "keeps less, or end other requests",
                    FormatBytes(missing_bytes), status.message(), FormatBytes(HeldBytes())));
  }
  return Status::Ok();
}

int64_t PagePool::HeldBytes() const {
  return options_.usage != nullptr ? options_.usage->bytes : pages_in_use_ * options_.page_bytes;
}

void PagePool::FreeEmptyExtents() {
  for (std::set<uint32_t>& candidates : with_free_pages_) {
    for (auto it = candidates.begin(); it != candidates.end();) {
      const uint32_t idx = *it++;
      if (extents_[idx].free_pages.size() == extents_[idx].holders.size()) FreeExtent(idx);
    }
  }
}

void PagePool::CountHeld(uint32_t page, HeadClass head_class) {
  HoldersOf(page) = 1;
  extents_[page >> shift_].classes[page & mask_] = head_class;
  ++pages_in_use_;
  if (options_.usage == nullptr) return;
  PoolUsage& usage = *options_.usage;
  usage.bytes += options_.page_bytes;
  if (head_class == HeadClass::kBounded) usage.bounded_bytes += options_.page_bytes;
  usage.peak_bytes = std::max(usage.peak_bytes, usage.bytes);
}

void PagePool::CountFree(uint32_t page) {
  --pages_in_use_;
  if (options_.usage == nullptr) return;
  options_.usage->bytes -= options_.page_bytes;
  const bool is_bounded = extents_[page >> shift_].classes[page & mask_] == HeadClass::kBounded;
  if (is_bounded) options_.usage->bounded_bytes -= options_.page_bytes;
}

uint32_t PagePool::Allocate(PageUse use, HeadClass head_class) {
  std::set<uint32_t>& candidates = with_free_pages_[IndexOf(use)];
  HW_CHECK(!candidates.empty(), "no room was made for a page");
  const uint32_t extent_idx = *candidates.begin();
  Extent& extent = extents_[extent_idx];
  const uint32_t page = (extent_idx << shift_) + extent.free_pages.back();
  extent.free_pages.pop_back();
  if (extent.free_pages.empty()) extent.unlisted = candidates.extract(candidates.begin());
  --num_free_[IndexOf(use)];
  CountHeld(page, head_class);
  return page;
}

bool PagePool::Retire(uint32_t page) {
  HW_CHECK(HoldersOf(page) > 0, "page {} released twice", page);
  if (--HoldersOf(page) > 0) return false;
  CountFree(page);
  return true;
}

void PagePool::Reclaim(uint32_t page, HeadClass head_class) {
  HW_CHECK(HoldersOf(page) == 0, "page {} is held", page);
  CountHeld(page, head_class);
}

void PagePool::Forget(uint32_t page) {
  HW_CHECK(HoldersOf(page) == 0, "page {} is held", page);
  const uint32_t extent_idx = page >> shift_;
  Extent& extent = extents_[extent_idx];
  extent.free_pages.push_back(page & mask_);
  ++num_free_[IndexOf(extent.use)];
  std::set<uint32_t>& candidates = with_free_pages_[IndexOf(extent.use)];
  if (extent.unlisted) candidates.insert(std::move(extent.unlisted));
  // An empty extent goes back, but for the last of its kind with room: what comes and goes at its border would
  // otherwise ask the system for memory again and again.
  if (extent.free_pages.size() == extent.holders.size() && candidates.size() > 1) FreeExtent(extent_idx);
}

void PagePool::Release(uint32_t page) {
  if (Retire(page)) Forget(page);
}

int64_t PagePool::extent_bytes() const {
  int64_t bytes = 0;
  for (const Extent& extent : extents_) bytes += static_cast<int64_t>(extent.bytes);
  return bytes;
}

KvPoolSet::KvPoolSet(Backend& backend, const Options& options) {
  usage_.limit_bytes = options.limit_bytes;
  const auto new_pool = [&](const KvLayout& layout, size_t page_bytes) {
    all_.push_back(
        std::make_unique<PagePool>(backend.device(), PagePool::Options{.layout = layout,
                                                                       .page_bytes = static_cast<int64_t>(page_bytes),
                                                                       .space = static_cast<int32_t>(all_.size()),
                                                                       .usage = &usage_}));
    return all_.back().get();
  };
  KvLayout layout{.head_dim = options.head_dim, .page_tokens = options.page_tokens};
  const auto pool = [&](KvFormat format) {
    for (const auto& known : all_) {
      if (options.sharing == Sharing::kByFormat && known->layout().format == format) return known.get();
    }
    layout.format = format;
    return new_pool(layout, backend.PageBytes(layout));
  };
  const auto pools_for = [&](KvFormat format) {
    const KvFormat newest = NewestFormat(format);
    HeadPools pools{.newest = pool(newest), .aged = nullptr};
    if (newest != format) pools.aged = pool(format);
    return pools;
  };
  pools_.full = pools_for(options.formats.full);
  pools_.bounded = pools_for(options.formats.bounded);
  layout.format = NewestFormat(options.formats.bounded);
  pools_.selecting.newest =
      new_pool(layout, backend.PageBytes(layout) + static_cast<size_t>(KvNotesBytes(layout.page_tokens)));
  layout.format = NewestFormat(options.formats.full);
  pools_.reading.newest = new_pool(
      layout, backend.PageBytes(layout) + static_cast<size_t>(KeyBoundsBytes(layout.head_dim, layout.page_tokens)));
  layout.format = KvFormat::kF32;
  pools_.states = new_pool(layout, static_cast<size_t>(StatePageBytes(options.head_dim)));
  pools_.tables = &tables_;
  pools_.usage = &usage_;
  pools_.set = this;
}

void KvPoolSet::GetSpaces(std::vector<PageSpace>& spaces) const {
  spaces.clear();
  for (const auto& pool : all_) spaces.push_back(pool->View());
}

}  // namespace headwise
