// q4 pages of the cpu backend, driven directly: what aging stores, and what is then read. Attention over them is in
// kv_q4_attention_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "support/aged_head.h"

namespace headwise::aged {
namespace {

// Scale and low of every group, and every code.
TEST(KvQ4Kernels, AgedPagesHoldTheDefinedNumbers) {
  const std::vector<NamedBackend> backends = CpuBackends();
  for (const int64_t head_dim : {16, 20, 40, 64, 80, 128, 256}) {
    for (const int64_t page_tokens : kPageTokens) {
      const int64_t num_tokens = 5 * page_tokens + 7;
      Text text = RandomText(num_tokens, head_dim, 1, static_cast<uint64_t>(head_dim + page_tokens));
      const auto scale_tokens = [&](int64_t begin, int64_t end, float factor) {
        for (int64_t i = begin * head_dim; i < end * head_dim; ++i) {
          text.k[static_cast<size_t>(i)] *= factor;
          text.v[static_cast<size_t>(i)] *= factor;
        }
      };
      scale_tokens(3, 4, 0.0f);
      scale_tokens(page_tokens, 2 * page_tokens, 1e-5f);      // scales below f16's smallest normal number
      scale_tokens(page_tokens + 1, page_tokens + 2, 1e-4f);  // and below its smallest number
      scale_tokens(2 * page_tokens, 3 * page_tokens, 0.0f);
      scale_tokens(3 * page_tokens + 5, 3 * page_tokens + 6, 1e3f);
      const Aged aged{.begin = head_dim == 64 ? 2 : 0, .end = head_dim == 40 ? 4 : 5};
      const Text stored = Stored(text, page_tokens, aged);
      std::vector<float> expected = stored.k;
      expected.insert(expected.end(), stored.v.begin(), stored.v.end());
      for (const NamedBackend& named : backends) {
        const Head head(*named.backend, text, page_tokens, aged);
        ASSERT_EQ(head.Read(), expected) << named.name << " D " << head_dim << " P " << page_tokens;
      }
    }
  }
}

TEST(KvQ4Kernels, PagesTakeTheirBytesAndNoMore) {
  const std::vector<NamedBackend> backends = CpuBackends();
  for (const int64_t head_dim : kHeadDims) {
    for (const int64_t page_tokens : kPageTokens) {
      const KvLayout layout{.head_dim = head_dim, .page_tokens = page_tokens, .format = KvFormat::kQ4};
      const auto bytes = static_cast<size_t>(TokensBytes(KvFormat::kQ4, (head_dim + 15) / 16 * 16, page_tokens));
      EXPECT_EQ(backends[0].backend->PageBytes(layout), (bytes + 63) / 64 * 64);
    }
  }
}

// What is no number spreads over what shares its scale, and no further: over the keys of its page, over its own value.
TEST(KvQ4Kernels, NotANumberSpreadsOverItsScaleOnly) {
  constexpr int64_t kTokens = 200;
  constexpr int64_t kPage = 32;
  constexpr int64_t kDim = 40;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Text text = RandomText(kTokens, kDim, 1, 1);
    text.k[static_cast<size_t>(70 * kDim + 3)] = bad;   // page 2
    text.v[static_cast<size_t>(100 * kDim + 3)] = bad;  // page 3
    text.k[static_cast<size_t>(5 * kDim + 8)] = bad;    // page 0, which is not aged
    text.v[static_cast<size_t>(6 * kDim + 8)] = bad;
    for (const NamedBackend& named : CpuBackends()) {
      const Head head(*named.backend, text, kPage, {1, 5});
      const std::vector<float> read = head.Read();
      for (int64_t i = 0; i < 2 * kTokens * kDim; ++i) {
        const int64_t token = i / kDim % kTokens;
        const bool is_bad = i < kTokens * kDim ? token / kPage == 2 || token == 5 : token == 100 || token == 6;
        ASSERT_EQ(std::isnan(read[static_cast<size_t>(i)]), is_bad) << named.name << " token " << token << " " << i;
      }
      // A token of page 3 that the window hides does not show; one that it does not, does.
      for (const int64_t num_rows : {1, 2}) {
        const auto is_nan = [](float x) { return std::isnan(x); };
        const Query hides{.first_pos = kTokens - num_rows, .num_rows = num_rows, .recent = 98};
        const Outputs without = Attend(head, hides);
        EXPECT_TRUE(std::none_of(without.out.begin(), without.out.end(), is_nan)) << named.name;
        const Query reads{.first_pos = kTokens - num_rows, .num_rows = num_rows, .recent = 103};
        const Outputs with = Attend(head, reads);
        EXPECT_TRUE(std::all_of(with.out.begin(), with.out.end(), is_nan)) << named.name;
      }
    }
  }
}

// The mean of dropped tokens, some of aged pages and some not.
TEST(KvQ4Kernels, DroppedTokensAreFoldedFromAgedPages) {
  constexpr int64_t kTokens = 150;
  constexpr int64_t kDim = 40;
  constexpr int64_t kSink = 5;
  Text text = RandomText(kTokens, kDim, 1, 9);
  const Aged aged{.begin = 1, .end = 6};
  const Text stored = Stored(text, 16, aged);
  for (const NamedBackend& named : CpuBackends()) {
    const Head head(*named.backend, text, 16, aged);
    TestHead work = head.Work();
    work.first_pos = kTokens;
    HeadsStep heads({&work, 1});
    std::vector<float> state(static_cast<size_t>(2 * kDim), NAN);
    heads.Fold(kSink, kTokens - 20, state.data());
    CompensateArgs args;
    args.step = &heads.step();
    named.backend->Compensate(args);
    for (int64_t d = 0; d < 2 * kDim; ++d) {
      const std::vector<float>& rows = d < kDim ? stored.k : stored.v;
      double sum = 0;
      for (int64_t i = kSink; i < kTokens - 20; ++i) sum += rows[static_cast<size_t>(i * kDim + d % kDim)];
      EXPECT_NEAR(state[static_cast<size_t>(d)], sum / (kTokens - 20 - kSink), 1e-5) << named.name << " " << d;
    }
  }
}

}  // namespace
}  // namespace headwise::aged
