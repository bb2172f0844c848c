#include <new>
#include <utility>

#include "base/check.h"
#include "base/no_memory.h"
#include "kv/kv_cache.h"
#include "kv/kv_snapshot.h"

namespace headwise {

Result<std::unique_ptr<KvSnapshot>> KvCache::Save() const {
  HW_CHECK(planned_ == 0, "a step of {} tokens is planned", planned_);
  HW_CHECK(!is_lost_, "a step of this text was lost");
  return CatchNoMemory("a copy of a text's KV pages", [&]() -> Result<std::unique_ptr<KvSnapshot>> {
    auto snapshot = std::make_unique<KvSnapshot>();
    snapshot->num_kv_heads = num_kv_heads_;
    snapshot->num_tokens = num_tokens_;
    snapshot->peak_bytes = peak_bytes_;
    snapshot->bytes = bytes_.total();
    snapshot->pages.reset(new std::byte[static_cast<size_t>(snapshot->bytes)]);
    snapshot->rules.reserve(heads_.size());
    std::byte* to = snapshot->pages.get();
    const auto copy = [&](const PagePool& pool, uint32_t page) {
      const auto page_bytes = static_cast<size_t>(pool.page_bytes());
      pool.device().CopyToHost(to, pool.AddressOf(page), page_bytes);
      to += page_bytes;
    };
    for (const Head& head : heads_) {
      snapshot->rules.push_back(head.rule);
      KvSnapshot::Head saved{
          .pages = {}, .begin = head.begin, .ring_pages = head.ring_pages, .aged = head.aged, .has_state = false};
      for (int64_t p = 0; p < EndPage(head, num_tokens_); ++p) {
        const uint32_t page = PageOrNone(head, p);
        if (page == kNoPage) continue;
        saved.pages.push_back(p);
        copy(head.PoolOf(p), page);
      }
      saved.has_state = head.state != kNoPage;
      if (saved.has_state) copy(*pools_.states, head.state);
      snapshot->heads.push_back(std::move(saved));
    }
    HW_CHECK(to == snapshot->pages.get() + snapshot->bytes, "pages that are not counted");
    HW_RETURN_IF_ERROR(pools_.states->device().Wait());
    return snapshot;
  });
}

Result<std::unique_ptr<KvCache>> KvCache::Restore(const KvPools& pools, const KvSnapshot& from) {
  Result<std::unique_ptr<KvCache>> restored =
      CatchNoMemory("the tables of a text that comes back", [&]() -> Result<std::unique_ptr<KvCache>> {
        auto cache = std::make_unique<KvCache>(pools, from.num_kv_heads, from.rules);
        HW_RETURN_IF_ERROR(cache->PlaceSaved(from));
        cache->TakeSaved(from);
        return cache;
      });
  if (restored.ok()) return restored;
  for (PagePool* pool : {pools.full.newest, pools.full.aged, pools.bounded.newest, pools.bounded.aged,
                         pools.selecting.newest, pools.reading.newest, pools.states}) {
    if (pool != nullptr) pool->FreeEmptyExtents();
  }
  return restored;
}

// All that may fail: as long as the cache has no tokens it holds no pages.
Status KvCache::PlaceSaved(const KvSnapshot& from) {
  HW_RETURN_IF_ERROR(pools_.usage->CheckRoom(from.bytes));
  std::vector<int64_t> needed(spare_.size());
  size_t num_places = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& head = heads_[i];
    const KvSnapshot::Head& saved = from.heads[i];
    head.begin = saved.begin;
    head.ring_pages = saved.ring_pages;
    head.aged = saved.aged;
    const int64_t num_pages = EndPage(head, from.num_tokens);
    if (num_pages > 0) {
      head.region = Entries().Take(static_cast<size_t>(PlacesFor(head, head.ring_pages, num_pages)), kNoPage);
    }
    num_places += head.region.size;
    for (const int64_t p : saved.pages) ++needed[SpareOf(head.PoolOf(p), head.SavedUseOf(p))];
    if (saved.has_state) ++needed[SpareOf(*pools_.states, PageUse::kSliding)];
  }
  Entries().Reserve(num_places);
  pools_.tables->heads.Reserve(heads_.size());
  pools_.tables->selections.Reserve(selections_.size);
  for (PagePool* pool : AllPools()) {
    if (pool == nullptr) continue;
    for (const PageUse use : {PageUse::kGrowing, PageUse::kSliding}) {
      HW_RETURN_IF_ERROR(pool->MakeRoom(use, needed[SpareOf(*pool, use)]));
    }
  }
  return Status::Ok();
}

void KvCache::TakeSaved(const KvSnapshot& from) {
  num_tokens_ = from.num_tokens;
  const std::byte* bytes = from.pages.get();
  const auto copy = [&](const Head& head, PagePool& pool, uint32_t page) {
    const auto page_bytes = static_cast<size_t>(pool.page_bytes());
    BytesOf(head) += pool.page_bytes();
    pool.device().CopyFromHost(pool.AddressOf(page), bytes, page_bytes);
    bytes += page_bytes;
  };
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& head = heads_[i];
    for (const int64_t p : from.heads[i].pages) {
      PagePool& pool = head.PoolOf(p);
      const uint32_t page = pool.Allocate(head.SavedUseOf(p), ClassOf(head));
      Entries().Set(head.PlaceOf(p), page);
      copy(head, pool, page);
    }
    if (!from.heads[i].has_state) continue;
    head.state = pools_.states->Allocate(PageUse::kSliding, ClassOf(head));
    copy(head, *pools_.states, head.state);
  }
  peak_bytes_ = from.peak_bytes;
  DescribeHeads();
}

}  // namespace headwise
