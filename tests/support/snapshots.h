// Snapshots of texts that are being read: what is restored goes on as the original does.
#ifndef HEADWISE_TESTS_SUPPORT_SNAPSHOTS_H_
#define HEADWISE_TESTS_SUPPORT_SNAPSHOTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "kv/kv_snapshot.h"
#include "support/backends.h"
#include "support/random_attention.h"

namespace headwise {

// Of every backend: a text is saved once so many tokens are read, restored, and read on beside its original up to `end`
// tokens, bit for bit. Steps are of ten tokens. compare(restored, original) then.
template <typename Compare>
void ExpectSnapshotsGoOn(const AttentionCase& test_case, const AttentionData& data,
                         std::initializer_list<int64_t> saves, int64_t end, const Compare& compare) {
  constexpr int64_t kStep = 10;
  for (const NamedBackend& named : AllBackends()) {
    Backend& backend = *named.backend;
    const KvPoolSet pools(
        backend,
        {.head_dim = test_case.head_dim, .page_tokens = test_case.page_tokens, .formats = test_case.kv_formats});
    const auto read = [&](KvCache& cache, int64_t begin) {
      return OutputsOf(backend, pools.pools(), test_case, {{&cache, &data, begin, kStep}});
    };
    for (const int64_t save_at : saves) {
      KvCache original(pools.pools(), test_case.num_kv_heads, test_case.rules);
      for (int64_t n = 0; n < save_at; n += kStep) read(original, n);
      const std::unique_ptr<KvSnapshot> saved = original.Save().value();
      const std::unique_ptr<KvCache> restored = KvCache::Restore(pools.pools(), *saved).value();
      EXPECT_EQ(restored->Bytes().total(), original.Bytes().total());
      for (int64_t n = save_at; n < end; n += kStep) {
        ASSERT_EQ(read(*restored, n), read(original, n))
            << named.name << ", saved at " << save_at << ", tokens from " << n;
      }
      compare(*restored, original);
    }
    EXPECT_EQ(pools.usage().bytes, 0);
  }
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_SNAPSHOTS_H_
