// A snapshot of a KV cache as bytes of a file: all but its pages, which follow as they are.
#ifndef HEADWISE_KV_KV_SNAPSHOT_BYTES_H_
#define HEADWISE_KV_KV_SNAPSHOT_BYTES_H_

#include <vector>

#include "base/byte_stream.h"
#include "kv/kv_snapshot.h"
#include "kv/page_pool.h"

namespace headwise {

void PutSnapshot(ByteWriter& to, const KvSnapshot& snapshot);
// Without its pages, of which it knows how many bytes they are. Where the bytes are no snapshot, `from` is not ok.
KvSnapshot GetSnapshot(ByteReader& from);

// Whether a cache over these pools could have come to be like that under these rules, [L * Hkv]: KvCache::Restore asks
// for no less. kInvalidInput says what is otherwise. The pages themselves may hold anything.
Status CheckSnapshot(const KvPools& pools, int64_t num_kv_heads, const std::vector<ResolvedRule>& rules,
                     const KvSnapshot& snapshot);

}  // namespace headwise

#endif  // HEADWISE_KV_KV_SNAPSHOT_BYTES_H_
