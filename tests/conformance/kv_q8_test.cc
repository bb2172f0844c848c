// q8 pages. What they hold is the same bits on every backend; attention over them is that of the reference, up to the
// rounding of queries and probabilities in decode. Pages start out as 0xFF bytes, whose scales are NaN: nothing of a
// slot that was never written may show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kv/cache_step.h"
#include "support/backends.h"
#include "support/head_pages.h"
#include "support/read_token.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

struct Texts {
  std::vector<float> k, v;            // [n, D]
  std::vector<float> q, q_sink;       // [n, G*D]
  std::vector<float> slopes, logits;  // [G]
};

Texts RandomTexts(int64_t num_tokens, int64_t head_dim, int64_t group, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = normal(rng);
    return values;
  };
  Texts texts{.k = draw(num_tokens * head_dim),
              .v = draw(num_tokens * head_dim),
              .q = draw(num_tokens * group * head_dim),
              .q_sink = draw(num_tokens * group * head_dim),
              .slopes = {},
              .logits = draw(group)};
  for (int64_t g = 0; g < group; ++g) texts.slopes.push_back(0.1f / static_cast<float>(g + 1));
  return texts;
}

// Every token gets a size of its own, so that a scale taken for another's shows.
void VarySizes(Texts& texts, int64_t head_dim, std::mt19937_64& rng) {
  std::uniform_real_distribution<float> size(0.1f, 1.0f);
  for (std::vector<float>* rows : {&texts.k, &texts.v}) {
    for (size_t i = 0; i < rows->size(); i += static_cast<size_t>(head_dim)) {
      const float factor = size(rng);
      for (size_t d = 0; d < static_cast<size_t>(head_dim); ++d) (*rows)[i + d] *= factor;
    }
  }
}

// One KV head of one sequence.
class Head {
 public:
  Head(Backend& backend, const KvLayout& layout, int64_t num_tokens) : backend_(backend), layout_(layout) {
    const size_t page_bytes = backend.PageBytes(layout);
    EXPECT_EQ(page_bytes % 64, 0U);
    const std::vector<std::byte> garbage(page_bytes, std::byte{0xFF});
    for (int64_t i = 0; i * layout.page_tokens < num_tokens; ++i) {
      buffers_.push_back(DeviceBuffer::Make(backend.device(), page_bytes).value());
      backend.device().CopyFromHost(buffers_.back().data(), garbage.data(), page_bytes);
      pages_.push_back(buffers_.back().data());
    }
  }

  // Sinks, and pages from that of token `recent_begin` on.
  PageTable Table(int64_t sink, int64_t recent_begin) const {
    return TableOf(pages_, layout_.page_tokens, sink, recent_begin);
  }

  // Tokens [first, first + num) of the text.
  void Append(Texts& texts, int64_t first, int64_t num) {
    const int64_t dim = layout_.head_dim;
    std::vector<float> k(texts.k.begin() + first * dim, texts.k.begin() + (first + num) * dim);
    std::vector<float> v(texts.v.begin() + first * dim, texts.v.begin() + (first + num) * dim);
    const TestHead head{.num_rows = num, .first_pos = first, .layout = layout_, .pages = Table(0, 0)};
    const HeadsStep step({&head, 1});
    backend_.AppendKv({.step = &step.step(), .k = ViewOf(k, num), .v = ViewOf(v, num)});
  }

  // Key, then value of a token, as they are read.
  std::vector<float> Read(int64_t pos) const {
    return ReadToken(backend_, {.layout = layout_, .pages = Table(0, 0)}, pos);
  }

 private:
  Backend& backend_;
  KvLayout layout_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::byte*> pages_;
};

struct Query {
  int64_t first_pos = 0;
  int64_t num_rows = 1;
  int64_t sink = 0;
  int64_t recent = kNoLimit;
  int64_t sink_reach = kNoLimit;
  bool uses_sink_query = false;
  bool alibi = false;
  bool sink_logits = false;
};

// Outputs [num_rows, G*D], then log-sum-exps [num_rows, G].
std::vector<float> Attend(Backend& backend, const KvLayout& layout, const Head& head, Texts& texts,
                          const Query& query) {
  const auto group = static_cast<int64_t>(texts.logits.size());
  const int64_t q_dim = group * layout.head_dim;
  const auto rows = [&](const std::vector<float>& values) {
    const auto begin = values.begin() + query.first_pos * q_dim;
    return std::vector<float>(begin, begin + query.num_rows * q_dim);
  };
  std::vector<float> q = rows(texts.q), q_sink = rows(texts.q_sink);
  std::vector<float> out(q.size()), lse(static_cast<size_t>(query.num_rows * group));
  const TensorView slopes{.data = texts.slopes.data(), .dtype = DType::kF32, .shape = {group}};
  const TensorView logits{.data = texts.logits.data(), .dtype = DType::kF32, .shape = {group}};
  const TestHead work{.num_rows = query.num_rows,
                      .first_pos = query.first_pos,
                      .layout = layout,
                      .pages = head.Table(query.sink, std::max<int64_t>(0, query.first_pos - query.recent + 1)),
                      .sink = query.sink,
                      .recent = query.recent,
                      .sink_reach = query.sink_reach};
  const HeadsStep step({&work, 1});
  backend.Attention({.step = &step.step(),
                     .q = ViewOf(q, query.num_rows),
                     .q_sink = query.uses_sink_query ? ViewOf(q_sink, query.num_rows) : TensorView{},
                     .out = ViewOf(out, query.num_rows),
                     .lse = ViewOf(lse, query.num_rows),
                     .alibi_slopes = query.alibi ? slopes : TensorView{},
                     .sink_logits = query.sink_logits ? logits : TensorView{},
                     .num_q_heads = group,
                     .scale = 1.0f / std::sqrt(static_cast<float>(layout.head_dim))});
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}

constexpr double kPrefillTolerance = 2e-5;  // the same numbers enter the same sums

TEST(KvQ8, EveryBackendStoresTheSameNumbers) {
  constexpr int64_t kTokens = 37;
  for (const int64_t head_dim : {16, 20, 64, 80, 128}) {
    const KvLayout layout{.head_dim = head_dim, .page_tokens = head_dim % 3 == 0 ? 16 : 32, .format = KvFormat::kQ8};
    Texts texts = RandomTexts(kTokens, head_dim, 1, static_cast<uint64_t>(head_dim));
    const auto scale_token = [&](int64_t pos, float factor) {
      for (int64_t d = 0; d < head_dim; ++d) {
        texts.k[static_cast<size_t>(pos * head_dim + d)] *= factor;
        texts.v[static_cast<size_t>(pos * head_dim + d)] *= factor;
      }
    };
    scale_token(3, 0.0f);
    scale_token(4, 1e-5f);  // scales below f16's smallest normal number
    scale_token(5, 1e-9f);  // and below its smallest number
    scale_token(6, 1e4f);
    texts.k[static_cast<size_t>(7 * head_dim + 2)] = 5000.0f;
    const auto ref = MakeRefBackend();
    Head expected(*ref, layout, kTokens);
    expected.Append(texts, 0, kTokens);
    for (int64_t pos = 0; pos < kTokens; ++pos) {
      const std::vector<float> stored = expected.Read(pos);
      for (const bool is_key : {true, false}) {
        const float* x = (is_key ? texts.k : texts.v).data() + pos * head_dim;
        float largest = 0;
        for (int64_t d = 0; d < head_dim; ++d) largest = std::max(largest, std::abs(x[d]));
        // Half a step of the codes; f16 holds the step to 2^-11, but no finer than 2^-25, of which the 127th code makes
        // 127.
        const double bound = largest / 254 * 1.001 + 127 * 0x1p-25;
        for (int64_t d = 0; d < head_dim; ++d) {
          ASSERT_NEAR(stored[static_cast<size_t>(is_key ? d : head_dim + d)], x[d], bound) << pos << " " << d;
        }
      }
    }
    for (const NamedBackend& named : CpuBackends()) {
      Head head(*named.backend, layout, kTokens);
      // In pieces that end inside groups.
      head.Append(texts, 0, 5);
      head.Append(texts, 5, 1);
      head.Append(texts, 6, kTokens - 6);
      for (int64_t pos = 0; pos < kTokens; ++pos) {
        ASSERT_EQ(head.Read(pos), expected.Read(pos)) << named.name << " D " << head_dim << " token " << pos;
      }
    }
  }
}

TEST(KvQ8, WhatIsNoNumberSpreadsOverItsRow) {
  constexpr int64_t kTokens = 20;
  const KvLayout layout{.head_dim = 40, .format = KvFormat::kQ8};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Texts texts = RandomTexts(kTokens, layout.head_dim, 1, 1);
    texts.k[static_cast<size_t>(5 * layout.head_dim + 8)] = bad;
    texts.v[static_cast<size_t>(7 * layout.head_dim + 39)] = bad;
    for (const NamedBackend& named : CpuBackends()) {
      Head head(*named.backend, layout, kTokens);
      head.Append(texts, 0, kTokens);
      for (int64_t pos = 0; pos < kTokens; ++pos) {
        const std::vector<float> read = head.Read(pos);
        for (int64_t i = 0; i < 2 * layout.head_dim; ++i) {
          const bool is_bad = i < layout.head_dim ? pos == 5 : pos == 7;
          ASSERT_EQ(std::isnan(read[static_cast<size_t>(i)]), is_bad) << named.name << " token " << pos << " " << i;
        }
      }
    }
  }
}

// A key or a value that is no number shows in whatever reads it, alone, in a short block or in a long one, and in
// nothing else. In other formats a value is its own element's only.
TEST(KvQ8, WhatIsNoNumberShowsInEveryOutputThatReadsIt) {
  constexpr int64_t kTokens = 200;
  constexpr int64_t kBad = 130;
  struct Bad {
    KvFormat format;
    bool is_key;
  };
  const auto is_nan = [](float x) { return std::isnan(x); };
  for (const Bad& bad : {Bad{KvFormat::kQ8, true}, Bad{KvFormat::kQ8, false}, Bad{KvFormat::kF16, true},
                         Bad{KvFormat::kBF16, true}, Bad{KvFormat::kF32, true}}) {
    const KvLayout layout{.head_dim = 40, .format = bad.format};
    Texts texts = RandomTexts(kTokens, layout.head_dim, 7, 1);
    (bad.is_key ? texts.k : texts.v)[static_cast<size_t>(kBad * layout.head_dim + 3)] = NAN;
    for (const NamedBackend& named : CpuBackends()) {
      Head head(*named.backend, layout, kTokens);
      head.Append(texts, 0, kTokens);
      for (const int64_t recent : {kTokens - kBad - 1, kTokens - kBad, kTokens - kBad + 40}) {
        const Query query{.first_pos = kTokens - 1, .num_rows = 1, .recent = recent};
        const std::vector<float> out = Attend(*named.backend, layout, head, texts, query);
        const bool reads = recent >= kTokens - kBad;
        EXPECT_EQ(std::ranges::count_if(out, is_nan), reads ? std::ssize(out) : 0)
            << named.name << " " << NameOf(bad.format) << " recent " << recent << (bad.is_key ? " key" : " value");
      }
    }
  }
}

// Scores that rise by hundreds from one block of tokens to the next, by little, or not at all: what was summed under a
// lower maximum shrinks or vanishes. In other formats, too.
TEST(KvQ8, ScoresMayRiseFarAboveTheFirst) {
  constexpr int64_t kTokens = 1300;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8}) {
    const KvLayout layout{.head_dim = 40, .format = format};
    Texts texts = RandomTexts(kTokens, layout.head_dim, 5, 1);
    texts.slopes = {3.0f, 0.5f, 0.1f, 0.02f, 0.0f};
    const Query query{.first_pos = kTokens - 1, .sink = 20, .recent = kTokens - 100, .alibi = true};
    const auto ref = MakeRefBackend();
    Head expected_head(*ref, layout, kTokens);
    expected_head.Append(texts, 0, kTokens);
    const std::vector<float> expected = Attend(*ref, layout, expected_head, texts, query);
    for (const NamedBackend& named : CpuBackends()) {
      Head head(*named.backend, layout, kTokens);
      head.Append(texts, 0, kTokens);
      const std::vector<float> out = Attend(*named.backend, layout, head, texts, query);
      // Heads that look at many keys have small outputs.
      for (size_t g = 0; g < texts.slopes.size(); ++g) {
        double errors = 0, squares = 0;
        const auto dim = static_cast<size_t>(layout.head_dim);
        for (size_t i = g * dim; i < (g + 1) * dim; ++i) {
          errors += (out[i] - expected[i]) * (out[i] - expected[i]);
          squares += expected[i] * expected[i];
        }
        EXPECT_LE(std::sqrt(errors / squares), AttentionTolerance(format, Compute::kF32) / 2)
            << named.name << " " << NameOf(format) << " slope " << texts.slopes[g];
      }
    }
  }
}

TEST(KvQ8, AttentionEqualsTheReference) {
  std::mt19937_64 rng(3);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  const std::vector<NamedBackend> backends = CpuBackends();
  const auto ref = MakeRefBackend();
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const int64_t dims[] = {16, 20, 64, 80, 128, 256};
    const int64_t num_tokens = 1 + below(seed % 6 == 0 ? 2500 : 300);
    const int64_t group = 1 + below(8);
    const KvLayout layout{.head_dim = dims[below(6)], .page_tokens = below(2) == 0 ? 16 : 32, .format = KvFormat::kQ8};
    Texts texts = RandomTexts(num_tokens, layout.head_dim, group, seed);
    VarySizes(texts, layout.head_dim, rng);
    Query query{.sink = below(40), .recent = 1 + below(100)};
    if (below(3) == 0) query = {};
    if (below(4) == 0) query.sink_reach = 1 + below(num_tokens);
    query.uses_sink_query = below(3) == 0;
    query.alibi = below(3) == 0;
    query.sink_logits = below(3) == 0;
    // A decode step, and a prefill tile.
    for (const int64_t num_rows : {int64_t{1}, std::min<int64_t>(num_tokens, 1 + below(40))}) {
      query.first_pos = num_tokens - num_rows;
      query.num_rows = num_rows;
      Head expected_head(*ref, layout, num_tokens);
      expected_head.Append(texts, 0, num_tokens);
      const std::vector<float> expected = Attend(*ref, layout, expected_head, texts, query);
      for (const NamedBackend& named : backends) {
        Head head(*named.backend, layout, num_tokens);
        head.Append(texts, 0, num_tokens);
        const double tolerance = num_rows == 1 ? AttentionTolerance(KvFormat::kQ8, Compute::kF32) : kPrefillTolerance;
        ASSERT_LE(MaxDifference(Attend(*named.backend, layout, head, texts, query), expected), tolerance)
            << named.name << " seed " << seed << " rows " << num_rows << " of " << num_tokens << " D "
            << layout.head_dim << " G " << group << " sink " << query.sink << " recent " << query.recent;
      }
    }
  }
}

// A value a hundred times the others' raises the step of the probabilities of its 64 tokens, and no more; a token
// of zeros has scale 0.
TEST(KvQ8, OutliersAndZerosStayWhereTheyAre) {
  constexpr int64_t kTokens = 200;
  const KvLayout layout{.head_dim = 64, .format = KvFormat::kQ8};
  Texts texts = RandomTexts(kTokens, layout.head_dim, 4, 1);
  for (int64_t d = 0; d < layout.head_dim; ++d) {
    texts.v[static_cast<size_t>(150 * layout.head_dim + d)] *= 100.0f;
    texts.k[static_cast<size_t>(20 * layout.head_dim + d)] = 0.0f;
    texts.v[static_cast<size_t>(20 * layout.head_dim + d)] = 0.0f;
  }
  const auto ref = MakeRefBackend();
  Head expected_head(*ref, layout, kTokens);
  expected_head.Append(texts, 0, kTokens);
  for (const NamedBackend& named : CpuBackends()) {
    Head head(*named.backend, layout, kTokens);
    head.Append(texts, 0, kTokens);
    for (const int64_t pos : {int64_t{20}, int64_t{149}, kTokens - 1}) {
      const Query query{.first_pos = pos};
      const double tolerance = AttentionTolerance(KvFormat::kQ8, Compute::kF32) * (pos < 150 ? 1 : 3);
      EXPECT_LE(MaxDifference(Attend(*named.backend, layout, head, texts, query),
                              Attend(*ref, layout, expected_head, texts, query)),
                tolerance)
          << named.name << " at " << pos;
    }
    // All that the query reads are zeros.
    const std::vector<float> zeros = Attend(*named.backend, layout, head, texts, {.first_pos = 20, .recent = 1});
    EXPECT_EQ(std::count(zeros.begin(), zeros.end() - 4, 0.0f), 4 * layout.head_dim) << named.name;
  }
}

// All that q8 costs: rounding of keys and values to 8 bits, in decode of queries and probabilities too.
TEST(KvQ8, IsCloseToAttentionInFloat) {
  constexpr int64_t kTokens = 2000;
  const KvLayout exact{.head_dim = 128, .format = KvFormat::kF32};
  const KvLayout layout{.head_dim = 128, .format = KvFormat::kQ8};
  Texts texts = RandomTexts(kTokens, layout.head_dim, 4, 5);
  const auto ref = MakeRefBackend();
  Head exact_head(*ref, exact, kTokens);
  exact_head.Append(texts, 0, kTokens);
  for (const NamedBackend& named : CpuBackends()) {
    Head head(*named.backend, layout, kTokens);
    head.Append(texts, 0, kTokens);
    for (const int64_t num_rows : {1, 3}) {
      const Query query{.first_pos = kTokens - num_rows, .num_rows = num_rows};
      const std::vector<float> expected = Attend(*ref, exact, exact_head, texts, query);
      const std::vector<float> out = Attend(*named.backend, layout, head, texts, query);
      double squares = 0, errors = 0;
      for (int64_t i = 0; i < num_rows * 4 * layout.head_dim; ++i) {
        const double want = expected[static_cast<size_t>(i)];
        squares += want * want;
        errors += (out[static_cast<size_t>(i)] - want) * (out[static_cast<size_t>(i)] - want);
      }
      const double relative = std::sqrt(errors / squares);
      RecordProperty(named.name + (num_rows == 1 ? "_decode" : "_prefill"), std::to_string(relative));
      EXPECT_LE(relative, 0.02) << named.name << " rows " << num_rows;
    }
  }
}

TEST(KvQ8, ForksCopyPagesWithTheirScales) {
  constexpr int64_t kShared = 20;
  constexpr int64_t kOwn = 7;
  const KvLayout layout{.head_dim = 20, .format = KvFormat::kQ8};
  Texts first = RandomTexts(kShared + kOwn, layout.head_dim, 1, 1);
  Texts second = RandomTexts(kShared + kOwn, layout.head_dim, 1, 2);
  for (const NamedBackend& named : CpuBackends()) {
    const KvPoolSet pools(
        *named.backend,
        {.head_dim = layout.head_dim, .page_tokens = layout.page_tokens, .formats = {KvFormat::kQ8, KvFormat::kQ8}});
    KvCache cache(pools.pools(), 1, {ResolveRule(HeadRule::Full(), {})});
    const auto append = [&](KvCache& to, const Texts& texts, int64_t num) {
      const int64_t begin = to.num_tokens() * layout.head_dim;
      std::vector<float> k(texts.k.begin() + begin, texts.k.begin() + begin + num * layout.head_dim);
      std::vector<float> v(texts.v.begin() + begin, texts.v.begin() + begin + num * layout.head_dim);
      CacheStep step(*named.backend, pools.pools());
      CacheLayerArgs args;
      args.k = ViewOf(k, num);
      args.v = ViewOf(v, num);
      ASSERT_TRUE(to.PlanStep(num).ok());
      step.Add(to);
      step.Begin();
      step.RunLayer(0, args);
      step.Finish();
    };
    append(cache, first, kShared);
    const auto fork = cache.Fork();
    append(*fork, second, kOwn);
    append(cache, first, kOwn);
    for (KvCache* which : {&cache, fork.get()}) {
      Texts& texts = which == &cache ? first : second;
      Head expected(*named.backend, layout, kShared + kOwn);
      expected.Append(first, 0, kShared);
      expected.Append(texts, kShared, kOwn);
      for (int64_t pos = 0; pos < kShared + kOwn; ++pos) {
        EXPECT_EQ(ReadToken(*named.backend, *which, 0, 0, pos), expected.Read(pos)) << named.name << " token " << pos;
      }
    }
  }
}

// A sequence reads the same bits alone and in a batch.
TEST(KvQ8, BatchesChangeNothing) {
  constexpr int64_t kTokens = 1500;
  const KvLayout layout{.head_dim = 64, .format = KvFormat::kQ8};
  for (const NamedBackend& named : CpuBackends()) {
    std::vector<Texts> texts;
    std::vector<std::unique_ptr<Head>> heads;
    std::vector<TestHead> work;
    std::vector<float> q, alone;
    for (uint64_t i = 0; i < 3; ++i) {
      texts.push_back(RandomTexts(kTokens, layout.head_dim, 3, i + 1));
      heads.push_back(std::make_unique<Head>(*named.backend, layout, kTokens));
      heads.back()->Append(texts.back(), 0, kTokens);
      const int64_t pos = kTokens - 1 - 400 * static_cast<int64_t>(i);
      const std::vector<float> out = Attend(*named.backend, layout, *heads.back(), texts.back(), {.first_pos = pos});
      alone.insert(alone.end(), out.begin(), out.end() - 3);
      const auto row = texts.back().q.begin() + pos * 3 * layout.head_dim;
      q.insert(q.end(), row, row + 3 * layout.head_dim);
      work.push_back({.first_row = static_cast<int64_t>(i),
                      .num_rows = 1,
                      .first_pos = pos,
                      .layout = layout,
                      .pages = heads.back()->Table(0, 0)});
    }
    std::vector<float> out(q.size());
    AttentionArgs args;
    args.q = ViewOf(q, 3);
    args.out = ViewOf(out, 3);
    const HeadsStep step(work);
    args.step = &step.step();
    args.num_q_heads = 3;
    args.scale = 1.0f / 8.0f;
    named.backend->Attention(args);
    EXPECT_EQ(out, alone) << named.name;
  }
}

}  // namespace
}  // namespace headwise
