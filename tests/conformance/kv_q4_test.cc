// A q4 cache as every backend keeps it: what its tokens are worth is the same bits as on the reference, in pages that
// have aged and in those that have not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/ref/ref_backend.h"
#include "kv/cache_step.h"
#include "support/backends.h"
#include "support/read_token.h"

namespace headwise {
namespace {

struct Text {
  std::vector<float> k, v;  // [n, D]
};

Text RandomText(int64_t num_tokens, int64_t head_dim, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  Text text;
  for (int64_t i = 0; i < num_tokens * head_dim; ++i) {
    text.k.push_back(normal(rng));
    text.v.push_back(normal(rng));
  }
  return text;
}

// A cache of one full head, read in steps.
class OneHead {
 public:
  OneHead(Backend& backend, int64_t head_dim, int64_t page_tokens)
      : backend_(backend),
        pools_(backend, {.head_dim = head_dim, .page_tokens = page_tokens, .formats = {KvFormat::kQ4, KvFormat::kQ4}}),
        cache_(pools_.pools(), 1, {ResolvedRule{}}) {}

  void Read(const Text& text, int64_t num_new) {
    const int64_t dim = cache_.head_dim();
    const auto rows = [&](const std::vector<float>& values) {
      const auto begin = values.begin() + cache_.num_tokens() * dim;
      return std::vector<float>(begin, begin + num_new * dim);
    };
    const auto upload = [&](const std::vector<float>& values) {
      DeviceBuffer buffer = DeviceBuffer::Make(backend_.device(), values.size() * sizeof(float)).value();
      backend_.device().CopyFromHost(buffer.data(), values.data(), buffer.size_bytes());
      return buffer;
    };
    const DeviceBuffer k = upload(rows(text.k)), v = upload(rows(text.v));
    const auto view = [&](const DeviceBuffer& buffer) {
      return TensorView{.data = buffer.data(), .dtype = DType::kF32, .shape = {num_new, dim}};
    };
    CacheStep step(backend_, pools_.pools());
    CacheLayerArgs args;
    args.k = view(k);
    args.v = view(v);
    ASSERT_TRUE(cache_.PlanStep(num_new).ok());
    step.Add(cache_);
    step.Begin();
    step.RunLayer(0, args);
    step.Finish();
  }

  // Key, then value.
  std::vector<float> TokenAt(int64_t pos) const { return ReadToken(backend_, cache_, 0, 0, pos); }

  bool IsAged(int64_t pos) const {
    return AgedPages({}, cache_.num_tokens(), cache_.page_tokens()).Contains(pos / cache_.page_tokens());
  }

 private:
  Backend& backend_;
  KvPoolSet pools_;
  KvCache cache_;
};

constexpr int64_t kTokens = 150;

TEST(KvQ4, EveryBackendKeepsTheSameNumbers) {
  const std::vector<NamedBackend> backends = CpuBackends();
  const auto ref = MakeRefBackend();
  for (const int64_t head_dim : {16, 20, 64, 80, 128}) {
    const int64_t page_tokens = head_dim % 3 == 0 ? 16 : 32;
    Text text = RandomText(kTokens, head_dim, static_cast<uint64_t>(head_dim));
    for (int64_t pos = 0; pos < kTokens; ++pos) {
      float* key = text.k.data() + pos * head_dim;
      key[3] += 20.0f;  // large in every token
      key[5] = -2.0f;   // and one that never changes, but for the scale of its row
      if (pos / 16 == 5) std::fill(key, key + head_dim, 0.0f);
      if (pos % 7 == 0) std::fill(text.v.data() + pos * head_dim, text.v.data() + (pos + 1) * head_dim, 1e-6f);
    }
    OneHead expected(*ref, head_dim, page_tokens);
    expected.Read(text, kTokens);
    for (const NamedBackend& named : backends) {
      OneHead head(*named.backend, head_dim, page_tokens);
      for (const int64_t num_new : {5, 60, 1, 40, 44}) head.Read(text, num_new);
      for (int64_t pos = 0; pos < kTokens; ++pos) {
        ASSERT_EQ(head.TokenAt(pos), expected.TokenAt(pos)) << named.name << " D " << head_dim << " token " << pos;
      }
    }
  }
}

// A dimension of keys that is large everywhere costs only itself: the others keep steps of their own.
TEST(KvQ4, ALargeDimensionOfKeysLeavesTheOthersAlone) {
  constexpr int64_t kDim = 64;
  const auto ref = MakeRefBackend();
  Text text = RandomText(kTokens, kDim, 1);
  for (int64_t pos = 0; pos < kTokens; ++pos) text.k[static_cast<size_t>(pos * kDim + 9)] += 30.0f;
  OneHead head(*ref, kDim, 32);
  head.Read(text, kTokens);
  for (int64_t pos = 0; pos < kTokens; ++pos) {
    const std::vector<float> token = head.TokenAt(pos);
    for (size_t d = 0; d < kDim; ++d) {
      // Half a step of q8, whose scale the large dimension sets, and of q4 over 32 gaussian numbers.
      EXPECT_NEAR(token[d], text.k[static_cast<size_t>(pos) * kDim + d], 36.0 / 254 + 7.0 / 30);
      EXPECT_NEAR(token[kDim + d], text.v[static_cast<size_t>(pos) * kDim + d], 7.0 / 30);
    }
  }
}

// A key that is no number makes its page's keys such, a value only itself; neither reaches other pages.
TEST(KvQ4, WhatIsNoNumberStaysWhereItIs) {
  constexpr int64_t kDim = 20;
  constexpr int64_t kBad = 70;
  Text text = RandomText(kTokens, kDim, 2);
  text.k[kBad * kDim + 4] = std::numeric_limits<float>::infinity();
  text.v[kBad * kDim + 4] = std::numeric_limits<float>::quiet_NaN();
  for (const NamedBackend& named : AllBackends()) {
    OneHead head(*named.backend, kDim, 32);
    head.Read(text, kTokens);
    ASSERT_TRUE(head.IsAged(kBad));
    for (int64_t pos = 0; pos < kTokens; ++pos) {
      const std::vector<float> token = head.TokenAt(pos);
      const std::vector<float> key(token.begin(), token.begin() + kDim), value(token.begin() + kDim, token.end());
      EXPECT_EQ(std::ranges::count_if(key, [](float x) { return std::isnan(x); }), pos / 32 == kBad / 32 ? kDim : 0);
      EXPECT_EQ(std::ranges::count_if(value, [](float x) { return std::isnan(x); }), pos == kBad ? kDim : 0);
    }
  }
}

}  // namespace
}  // namespace headwise
