// What a KV cache holds between two steps, in host memory: the pages as they are, byte by byte, and whose they were.
#ifndef HEADWISE_KV_KV_SNAPSHOT_H_
#define HEADWISE_KV_KV_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv/rule.h"

namespace headwise {

// Made by KvCache::Save, read by KvCache::Restore over pools of the same formats.
struct KvSnapshot {
  struct Head {
    std::vector<int64_t> pages;  // by index, ascending: those that it had
    int64_t begin = 0;           // as in KvCache::Head, like the next two
    int64_t ring_pages = 0;
    PageRange aged;
    bool has_state = false;
  };

  int64_t num_kv_heads = 0;
  int64_t num_tokens = 0;
  int64_t peak_bytes = 0;
  std::vector<ResolvedRule> rules;     // [L * Hkv]
  std::vector<Head> heads;             // [L * Hkv]
  int64_t bytes = 0;                   // of all pages
  std::unique_ptr<std::byte[]> pages;  // of one head after the other; behind a head's pages its compensation token
};

}  // namespace headwise

#endif  // HEADWISE_KV_KV_SNAPSHOT_H_
