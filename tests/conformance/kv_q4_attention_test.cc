// Attention over q4 pages of the cpu backend, driven directly, against an oracle in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/aged_head.h"

namespace headwise::aged {
namespace {

// The pages that may be aged when tokens from `first_pos` on are new: all, all but the last, some in the middle, one.
Aged SomePages(int64_t first_pos, int64_t page_tokens, uint64_t choice) {
  const int64_t complete = first_pos / page_tokens;
  switch (choice % 4) {
    case 0:
      return {.begin = 0, .end = complete};
    case 1:
      return {.begin = 0, .end = std::max<int64_t>(0, complete - 1)};
    case 2:
      return {.begin = complete / 3, .end = std::max(complete / 3, complete - 2)};
    default:
      return {.begin = complete / 2, .end = std::min(complete, complete / 2 + 1)};
  }
}

Query RandomQuery(int64_t num_tokens, std::mt19937_64& rng) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  Query query;
  if (below(2) == 0) {
    query.sink = below(80);
    query.recent = 1 + below(200);
    query.uses_sink_query = below(2) == 0;
    if (query.uses_sink_query) query.sink_pos_limit = query.sink + query.recent - 1;
  }
  if (below(4) == 0) query.sink_reach = 1 + below(num_tokens);
  query.alibi = below(3) == 0;
  query.sink_logits = below(3) == 0;
  return query;
}

// Decode rounds the query to 8 bits and probabilities to 7: a few thousandths of the largest element each, which is
// some times the usual one. Prefill computes with the very numbers of the pages, in f32 or in bf16's 8 bits.
Errors Tolerance(const Query& query) {
  if (query.num_rows == 1) return {.relative = 0.03, .lse = 0.1};
  if (query.compute == Compute::kBF16) return {.relative = 0.03, .lse = 0.1};
  return {.relative = 2e-5, .lse = 2e-5};
}

TEST(KvQ4Attention, AttentionEqualsTheOracle) {
  const std::vector<NamedBackend> backends = CpuBackends();
  std::mt19937_64 rng(5);
  double worst_decode = 0, sum_decode = 0;
  int64_t num_decodes = 0;
  for (uint64_t seed = 0; seed < 135; ++seed) {
    const int64_t head_dim = kHeadDims[seed % 5];
    const int64_t group = std::vector<int64_t>{1, 3, 4}[seed / 5 % 3];
    const int64_t page_tokens = kPageTokens[seed / 15 % 3];
    const int64_t num_tokens = std::vector<int64_t>{130, 400, 2300}[seed / 45] - static_cast<int64_t>(rng() % 100);
    Text text = RandomText(num_tokens, head_dim, group, seed);
    Query query = RandomQuery(num_tokens, rng);
    query.compute = seed % 4 == 0 ? Compute::kBF16 : Compute::kF32;
    for (const int64_t num_rows : {int64_t{1}, 2 + static_cast<int64_t>(rng() % 30)}) {
      query.num_rows = num_rows;
      query.first_pos = num_tokens - num_rows;
      const Aged aged = SomePages(query.first_pos, page_tokens, rng());
      const std::vector<std::vector<double>> expected = Exact(Stored(text, page_tokens, aged), query);
      const Errors tolerance = Tolerance(query);
      for (const NamedBackend& named : backends) {
        const Head head(*named.backend, text, page_tokens, aged);
        const Errors errors = ErrorsOf(Attend(head, query), expected);
        EXPECT_LE(errors.relative, tolerance.relative)
            << named.name << " seed " << seed << " rows " << num_rows << " of " << num_tokens << " D " << head_dim
            << " G " << group << " P " << page_tokens << " aged " << aged.begin << " to " << aged.end << " sink "
            << query.sink << " recent " << query.recent;
        EXPECT_LE(errors.lse, tolerance.lse) << named.name << " seed " << seed << " rows " << num_rows;
        if (num_rows > 1) continue;
        worst_decode = std::max(worst_decode, errors.relative);
        sum_decode += errors.relative;
        ++num_decodes;
      }
    }
  }
  RecordProperty("worst_decode", std::to_string(worst_decode));
  RecordProperty("mean_decode", std::to_string(sum_decode / static_cast<double>(num_decodes)));
}

// As for q8 (kv_q8_test.cc), here each head by itself: those that look at few keys have the largest outputs.
TEST(KvQ4Attention, ScoresMayRiseFarAboveTheFirst) {
  constexpr int64_t kTokens = 1300;
  Text text = RandomText(kTokens, 40, 5, 1);
  text.slopes = {3.0f, 0.5f, 0.1f, 0.02f, 0.0f};
  const Query query{.first_pos = kTokens - 1, .sink = 80, .recent = kTokens - 200, .alibi = true};
  for (const Aged& aged : {Aged{.begin = 0, .end = 19}, Aged{.begin = 2, .end = 19}}) {
    const std::vector<std::vector<double>> expected = Exact(Stored(text, 64, aged), query);
    for (const NamedBackend& named : CpuBackends()) {
      const Head head(*named.backend, text, 64, aged);
      const Outputs outputs = Attend(head, query);
      for (size_t g = 0; g < 5; ++g) {
        const Errors errors = ErrorsOf(outputs, expected, g, g + 1, 0, 40);
        EXPECT_LE(errors.relative, Tolerance(query).relative) << named.name << " slope " << text.slopes[g];
        EXPECT_LE(errors.lse, Tolerance(query).lse) << named.name << " slope " << text.slopes[g];
      }
    }
  }
}

// Values of which scale and codes are 0, so that all is in their lows: in every token, or in those of two pages.
TEST(KvQ4Attention, ValuesWithoutSpreadCount) {
  constexpr int64_t kTokens = 600;
  constexpr int64_t kDim = 64;
  constexpr Aged kAged{.begin = 0, .end = 9};
  const Query query{.first_pos = kTokens - 1};
  for (const int64_t flat_tokens : {kTokens, int64_t{128}}) {
    Text text = RandomText(kTokens, kDim, 4, 1);
    std::fill_n(text.v.begin() + 64 * (flat_tokens < kTokens ? kDim : 0), flat_tokens * kDim, 1.0f);
    const std::vector<std::vector<double>> expected = Exact(Stored(text, 64, kAged), query);
    for (const NamedBackend& named : CpuBackends()) {
      const Head head(*named.backend, text, 64, kAged);
      EXPECT_LE(ErrorsOf(Attend(head, query), expected).relative, Tolerance(query).relative)
          << named.name << " " << flat_tokens;
    }
  }
}

// Each 32 dimensions of values are as exact as their own size allows, whatever that of the others; and where those are
// too large for a scale, they alone are no numbers.
TEST(KvQ4Attention, RunsOfDimensionsOfDifferentSizesStayApart) {
  constexpr int64_t kTokens = 600;
  constexpr int64_t kDim = 96;
  constexpr Aged kAged{.begin = 0, .end = 9};
  const Query query{.first_pos = kTokens - 1};
  Text text = RandomText(kTokens, kDim, 4, 1);
  const auto grow = [&](int64_t first_dim, int64_t num_dims, float factor) {
    for (int64_t i = 0; i < kTokens * kDim; ++i) {
      if (i % kDim >= first_dim && i % kDim < first_dim + num_dims) text.v[static_cast<size_t>(i)] *= factor;
    }
  };
  grow(0, 32, 8.0f);
  const std::vector<std::vector<double>> expected = Exact(Stored(text, 64, kAged), query);
  for (const NamedBackend& named : CpuBackends()) {
    const Outputs outputs = Attend(Head(*named.backend, text, 64, kAged), query);
    for (size_t first = 0; first < kDim; first += 32) {
      EXPECT_LE(ErrorsOf(outputs, expected, 0, 4, first, first + 32).relative, Tolerance(query).relative)
          << named.name << " dimensions from " << first;
    }
  }
  grow(32, 32, 1e6f);
  for (const NamedBackend& named : CpuBackends()) {
    const Outputs outputs = Attend(Head(*named.backend, text, 64, kAged), query);
    for (size_t i = 0; i < outputs.out.size(); ++i) {
      EXPECT_EQ(std::isfinite(outputs.out[i]), i % kDim / 32 != 1) << named.name << " " << i;
    }
  }
}

// Memory is that of these steps alone: every backend is new. Pages of 128 tokens are two blocks each, and a window that
// begins in the middle of pages of 64 makes blocks of two pages each.
TEST(KvQ4Attention, LargeHeadsGroupsAndPages) {
  for (const int64_t head_dim : {256, 512}) {
    for (const int64_t group : {1, 8}) {
      for (const int64_t page_tokens : {64, 128}) {
        constexpr int64_t kTokens = 700;
        Text text = RandomText(kTokens, head_dim, group, 1);
        const Query query{.first_pos = kTokens - 1, .sink = 30, .recent = kTokens - 163, .uses_sink_query = true};
        const Aged aged{.begin = 0, .end = kTokens / page_tokens};
        const std::vector<std::vector<double>> expected = Exact(Stored(text, page_tokens, aged), query);
        for (const NamedBackend& named : CpuBackends()) {
          const Head head(*named.backend, text, page_tokens, aged);
          const Errors errors = ErrorsOf(Attend(head, query), expected);
          EXPECT_LE(errors.relative, Tolerance(query).relative)
              << named.name << " D " << head_dim << " G " << group << " P " << page_tokens;
        }
      }
    }
  }
}

// Several heads, mixed pages, cuts into pieces: the same bits whatever the number of threads, and alone or in a batch.
TEST(KvQ4Attention, ThreadsAndBatchesChangeNothing) {
  constexpr int64_t kDim = 80;
  constexpr int64_t kGroup = 3;
  std::vector<Text> texts;
  const int64_t lengths[] = {5000, 1300, 2048, 77};
  for (uint64_t i = 0; i < 4; ++i) texts.push_back(RandomText(lengths[i], kDim, kGroup, i + 1));
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    std::vector<float> alone;
    for (const int num_threads : {1, 2, 5}) {
      const auto backend = MakeCpuBackend({.isa = kernels->isa, .num_threads = num_threads}).value();
      std::vector<std::unique_ptr<Head>> heads;
      std::vector<TestHead> work;
      std::vector<float> q, out, each;
      for (Text& text : texts) {
        const Query query{.first_pos = text.num_tokens() - 1, .sink = 40, .recent = text.num_tokens() / 2};
        heads.push_back(std::make_unique<Head>(*backend, text, 32, SomePages(query.first_pos, 32, 1)));
        work.push_back(WorkOf(*heads.back(), query));
        work.back().first_row = static_cast<int64_t>(work.size()) - 1;
        q.insert(q.end(), text.q.end() - kGroup * kDim, text.q.end());
        const std::vector<float> row = Attend(*heads.back(), query).out;
        each.insert(each.end(), row.begin(), row.end());
      }
      out.resize(q.size());
      AttentionArgs args;
      args.q = ViewOf(q, 4);
      args.out = ViewOf(out, 4);
      const HeadsStep step(work);
      args.step = &step.step();
      args.num_q_heads = kGroup;
      args.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
      backend->Attention(args);
      if (alone.empty()) alone = each;
      EXPECT_EQ(each, alone) << kernels->isa << " " << num_threads << " threads";
      EXPECT_EQ(out, alone) << kernels->isa << " " << num_threads << " threads, one batch";
    }
  }
}

}  // namespace
}  // namespace headwise::aged
