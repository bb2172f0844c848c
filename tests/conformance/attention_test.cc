// Every backend and instruction set against the definition: dense attention under the mask that the rule gives, in
// double, from keys rotated as the rule says. Random rules, lengths and chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "support/backends.h"
#include "support/random_attention.h"
#include "support/random_rows.h"
#include "support/tolerance.h"

namespace headwise {
namespace {

// x rotated by `pos`, in double. [D]
std::vector<double> Rotated(const AttentionCase& test_case, const AttentionData& data, const float* x, int64_t pos) {
  const int64_t half = test_case.head_dim / 2;
  std::vector<double> out(static_cast<size_t>(test_case.head_dim));
  for (int64_t i = 0; i < half; ++i) {
    const double angle = test_case.alibi ? 0.0 : static_cast<double>(pos) * data.frequencies[static_cast<size_t>(i)];
    out[static_cast<size_t>(i)] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    out[static_cast<size_t>(i + half)] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return out;
}

using Row = std::vector<double>;

double RoundToF16(double x) {
  return F16ToF32(F32ToF16(static_cast<float>(x)));
}

// A row as the cache gives it back.
void Store(KvFormat format, Row& row) {
  double largest = 0;
  for (const double x : row) largest = std::max(largest, std::abs(x));
  const double q8_scale = RoundToF16(largest / 127);
  for (double& x : row) {
    switch (format) {
      case KvFormat::kF32:
        break;
      case KvFormat::kF16:
        x = RoundToF16(x);
        break;
      case KvFormat::kBF16:
        x = BF16ToF32(F32ToBF16(static_cast<float>(x)));
        break;
      case KvFormat::kQ8:
      case KvFormat::kQ4:
        if (q8_scale > 0) x = q8_scale * std::nearbyint(x / q8_scale);
        break;
    }
  }
}

// Numbers of q8 that share a scale and a low, as q4 gives them back.
void StoreQ4(const std::vector<double*>& group) {
  double low = *group[0], high = *group[0];
  for (const double* x : group) {
    low = std::min(low, *x);
    high = std::max(high, *x);
  }
  const double scale = RoundToF16((high - low) / 15);
  low = RoundToF16(low);
  for (double* x : group) {
    *x = low + (scale > 0 ? scale * std::clamp(std::nearbyint((*x - low) / scale), 0.0, 15.0) : 0.0);
  }
}

// What a head's tokens are worth: as they are written, and in pages that have aged.
struct StoredHead {
  std::vector<Row> keys, values;            // [n][D]
  std::vector<Row> aged_keys, aged_values;  // [n][D], of complete pages in q4
};

void Age(StoredHead& head, int64_t page_tokens) {
  head.aged_keys = head.keys;
  head.aged_values = head.values;
  const auto num_tokens = static_cast<int64_t>(head.keys.size());
  const size_t dim = head.keys.front().size();
  for (int64_t begin = 0; begin + page_tokens <= num_tokens; begin += page_tokens) {
    for (size_t d = 0; d < dim; ++d) {
      std::vector<double*> group;
      for (int64_t j = begin; j < begin + page_tokens; ++j) {
        group.push_back(&head.aged_keys[static_cast<size_t>(j)][d]);
      }
      StoreQ4(group);
    }
  }
  for (Row& value : head.aged_values) {
    for (size_t first = 0; first < dim; first += 32) {
      std::vector<double*> group;
      for (size_t d = first; d < std::min(dim, first + 32); ++d) group.push_back(&value[d]);
      StoreQ4(group);
    }
  }
}

StoredHead Stored(const AttentionCase& test_case, const AttentionData& data, int64_t kv_head, KvFormat format) {
  StoredHead head;
  for (int64_t j = 0; j < test_case.num_tokens; ++j) {
    const int64_t offset = (j * test_case.num_kv_heads + kv_head) * test_case.head_dim;
    head.keys.push_back(Rotated(test_case, data, data.k.data() + offset, j));
    Store(format, head.keys.back());
    head.values.emplace_back(data.v.begin() + offset, data.v.begin() + offset + test_case.head_dim);
    Store(format, head.values.back());
  }
  if (format == KvFormat::kQ4) Age(head, test_case.page_tokens);
  return head;
}

// Whether token j has aged once `num_tokens` are in: its page is complete, not the newest such, not the first, and
// without a sink.
bool HasAged(const AttentionCase& test_case, const ResolvedRule& rule, int64_t num_tokens, int64_t j) {
  const int64_t page_begin = j / test_case.page_tokens * test_case.page_tokens;
  return page_begin > 0 && page_begin >= rule.sink && page_begin + 2 * test_case.page_tokens <= num_tokens;
}

// Steps of a text: where the one of a token begins.
std::vector<int64_t> StepBegins(const std::vector<int64_t>& chunks) {
  std::vector<int64_t> begins;
  for (const int64_t chunk : chunks) begins.resize(begins.size() + static_cast<size_t>(chunk), std::ssize(begins));
  return begins;
}

// One query head at one token: keys join, then the softmax is taken.
class OracleQuery {
 public:
  OracleQuery(const AttentionCase& test_case, const AttentionData& data, int64_t t, int64_t q_head)
      : case_(test_case), data_(data), t_(t), q_head_(q_head) {}

  void Add(const Row& key, const Row& value, int64_t query_pos, double key_pos, double log_weight) {
    const Row& q = At(query_pos);
    double score = 0;
    for (size_t d = 0; d < q.size(); ++d) score += q[d] * key[d] / std::sqrt(static_cast<double>(case_.head_dim));
    if (case_.score_cap != 0) score = case_.score_cap * std::tanh(score / case_.score_cap);
    score += log_weight;
    if (case_.alibi) score += data_.slopes[static_cast<size_t>(q_head_)] * (key_pos - static_cast<double>(query_pos));
    terms_.emplace_back(std::exp(score), &value);
  }

  void Write(std::vector<double>& out) const {
    double denominator = case_.sink_logits ? std::exp(data_.sink_logits[static_cast<size_t>(q_head_)]) : 0.0;
    for (const auto& [weight, value] : terms_) denominator += weight;
    for (const auto& [weight, value] : terms_) {
      for (size_t d = 0; d < value->size(); ++d) out[Offset() + d] += weight * (*value)[d] / denominator;
    }
  }

 private:
  size_t Offset() const { return static_cast<size_t>((t_ * case_.num_q_heads + q_head_) * case_.head_dim); }
  // The query rotated by `pos`; few positions occur.
  const Row& At(int64_t pos) {
    Row& q = rotated_[pos];
    if (q.empty()) q = Rotated(case_, data_, data_.q.data() + Offset(), pos);
    return q;
  }

  const AttentionCase& case_;
  const AttentionData& data_;
  int64_t t_;
  int64_t q_head_;
  std::map<int64_t, Row> rotated_;
  std::vector<std::pair<double, const Row*>> terms_;  // weight in the sum, value
};

void AttendHead(const AttentionCase& test_case, const AttentionData& data, const std::vector<int64_t>& step_begins,
                int64_t kv_head, std::vector<double>& out) {
  const ResolvedRule& rule = test_case.rules[static_cast<size_t>(kv_head)];
  const KvFormat format = rule.Bounded() ? test_case.kv_formats.bounded : test_case.kv_formats.full;
  const StoredHead stored = Stored(test_case, data, kv_head, format);
  // A step reads pages as they are when it begins.
  const auto is_aged = [&](int64_t t, int64_t j) {
    return format == KvFormat::kQ4 && HasAged(test_case, rule, step_begins[static_cast<size_t>(t)], j);
  };
  const auto key_of = [&](int64_t t, int64_t j) -> const Row& {
    return (is_aged(t, j) ? stored.aged_keys : stored.keys)[static_cast<size_t>(j)];
  };
  const auto value_of = [&](int64_t t, int64_t j) -> const Row& {
    return (is_aged(t, j) ? stored.aged_values : stored.values)[static_cast<size_t>(j)];
  };
  const int64_t group = test_case.num_q_heads / test_case.num_kv_heads;
  // Sums over the folded tokens, each as it was in the step that folded it.
  Row key_sum(static_cast<size_t>(test_case.head_dim)), value_sum = key_sum;
  int64_t folded_end = rule.sink;
  for (int64_t t = 0; t < test_case.num_tokens; ++t) {
    const TokenRange folded = t >= rule.holds_from ? FoldedRange(rule, t + 1) : TokenRange{};
    const auto num_folded = static_cast<double>(folded.end - folded.begin);
    // What the cut at the end of the prompt folds, it folds in the prompt's last step, but for what the model's window
    // had hidden before.
    const int64_t cut_end = rule.holds_from > 0 ? FoldedRange(rule, rule.holds_from).end : 0;
    for (; folded_end < folded.end; ++folded_end) {
      const int64_t left_at = rule.recent_before == kNoLimit ? kNoLimit : folded_end + rule.recent_before;
      const int64_t folded_at = folded_end < cut_end ? std::min(left_at, rule.holds_from - 1) : t;
      for (size_t d = 0; d < key_sum.size(); ++d) {
        key_sum[d] += key_of(folded_at, folded_end)[d];
        value_sum[d] += value_of(folded_at, folded_end)[d];
      }
    }
    Row mean_key = key_sum, mean_value = value_sum;
    for (double& x : mean_key) x /= num_folded;
    for (double& x : mean_value) x /= num_folded;
    for (int64_t g = 0; g < group; ++g) {
      OracleQuery query(test_case, data, t, kv_head * group + g);
      for (int64_t j = 0; j <= t; ++j) {
        if (!Readable(rule, t, j)) continue;
        const bool moved = t >= rule.holds_from && j < rule.sink;
        query.Add(key_of(t, j), value_of(t, j), moved ? rule.SinkPosition(t) : t, static_cast<double>(j), 0.0);
      }
      if (num_folded > 0) {
        const double mean_pos = static_cast<double>(folded.begin + folded.end - 1) / 2;
        query.Add(mean_key, mean_value, t, mean_pos, std::log(num_folded));
      }
      query.Write(out);
    }
  }
}

// Straight from the definitions in docs/head-plan.md, backend/kv_format.h and the papers: no pages, no spans, no online
// sums. Only q4 depends on how the text was cut into steps.
std::vector<double> Oracle(const AttentionCase& test_case, const AttentionData& data,
                           const std::vector<int64_t>& chunks) {
  std::vector<double> out(data.q.size());
  const std::vector<int64_t> step_begins = StepBegins(chunks);
  for (int64_t kv_head = 0; kv_head < test_case.num_kv_heads; ++kv_head) {
    AttendHead(test_case, data, step_begins, kv_head, out);
  }
  return out;
}

// Pages held are those of sinks with a kept token and the ring's, each in the pool of its format: among them all with a
// kept token, and at most two a head without one. With one layer nothing else is in the pools.
void ExpectKeptPages(const AttentionCase& test_case, const KvCache& cache, const KvPools& pools) {
  std::map<const PagePool*, int64_t> expected;
  for (const ResolvedRule& rule : test_case.rules) {
    const HeadPools& own = rule.Bounded() ? pools.bounded : pools.full;
    std::map<int64_t, const PagePool*> pages;
    for (const TokenRange& range : KeptRanges(rule, cache.num_tokens())) {
      for (int64_t j = range.begin; j < range.end; ++j) {
        const bool is_aged = own.aged != nullptr && HasAged(test_case, rule, cache.num_tokens(), j);
        pages[j / test_case.page_tokens] = is_aged ? own.aged : own.newest;
      }
    }
    const int64_t num_pages = (cache.num_tokens() + test_case.page_tokens - 1) / test_case.page_tokens;
    const int64_t recent = cache.num_tokens() < rule.holds_from ? rule.recent_before : rule.recent;
    const int64_t ring = recent == kNoLimit ? num_pages : RingPages(recent, rule.compensate, test_case.page_tokens);
    const size_t num_kept = pages.size();
    const int64_t sink_end = (rule.sink + test_case.page_tokens - 1) / test_case.page_tokens;
    for (int64_t p = std::max(sink_end, num_pages - ring); p < num_pages; ++p) {
      const bool is_aged =
          own.aged != nullptr && HasAged(test_case, rule, cache.num_tokens(), p * test_case.page_tokens);
      pages[p] = is_aged ? own.aged : own.newest;
    }
    ASSERT_LE(pages.size(), num_kept + 2);
    for (const auto& [page_idx, pool] : pages) ++expected[pool];
  }
  for (const HeadPools& kind : {pools.full, pools.bounded}) {
    for (const PagePool* pool : {kind.newest, kind.aged}) {
      if (pool == nullptr) continue;
      ASSERT_EQ(pool->pages_in_use(), expected[pool])
          << NameOf(pool->layout().format) << " after " << cache.num_tokens() << " tokens";
    }
  }
}

// Read in chunks of up to each of `max_chunks`.
void CheckCase(const AttentionCase& test_case, std::mt19937_64& rng, const std::vector<int64_t>& max_chunks) {
  const AttentionData data(test_case);
  const std::vector<NamedBackend> backends = AllBackends();
  for (const int64_t max_chunk : max_chunks) {
    const std::vector<int64_t> chunks = RandomChunks(rng, test_case, max_chunk);
    const std::vector<double> expected = Oracle(test_case, data, chunks);
    for (const NamedBackend& named : backends) {
      if (test_case.score_cap != 0 && !named.backend->Has(Feature::kSoftCaps)) continue;
      const std::vector<float> out =
          RunAttention(*named.backend, test_case, data, chunks, [&](const KvCache& cache, const KvPools& pools) {
            if (!test_case.poisons_pages) ExpectKeptPages(test_case, cache, pools);
          });
      ASSERT_LE(MaxDifference(out, expected), AttentionTolerance(test_case.kv_formats, test_case.compute))
          << named.name << " seed " << test_case.seed << " chunks up to " << max_chunk << " D " << test_case.head_dim
          << " format " << NameOf(test_case.kv_formats);
    }
  }
}

void CheckCase(const AttentionCase& test_case, std::mt19937_64& rng) {
  CheckCase(test_case, rng, {1, 50, test_case.num_tokens});
}

TEST(Attention, EqualsDenseAttentionUnderTheRulesMask) {
  std::mt19937_64 rng(7);
  constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4};
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    AttentionCase test_case{.num_tokens = 1 + static_cast<int64_t>(rng() % 200)};
    const int64_t dims[] = {16, 20, 32, 64, 80, 128};
    test_case.head_dim = dims[rng() % 6];
    test_case.num_kv_heads = 1 + static_cast<int64_t>(rng() % 3);
    test_case.num_q_heads = test_case.num_kv_heads * (1 + static_cast<int64_t>(rng() % 7));
    test_case.page_tokens = rng() % 2 == 0 ? 16 : 32;
    test_case.kv_formats.full = kFormats[seed % 5];
    // A third of the cases mix two formats.
    test_case.kv_formats.bounded = kFormats[(seed % 3 == 0 ? seed + seed / 15 : seed) % 5];
    test_case.compute = seed % 4 == 3 ? Compute::kBF16 : Compute::kF32;
    test_case.alibi = rng() % 4 == 0;
    test_case.sink_logits = rng() % 4 == 0;
    // Around the size of scores, so that it bends many of them.
    if (!test_case.alibi && seed % 3 == 1) test_case.score_cap = seed % 2 == 0 ? 0.7f : 3.0f;
    test_case.seed = seed;
    for (int64_t i = 0; i < test_case.num_kv_heads; ++i) {
      test_case.rules.push_back(RandomRule(rng, test_case.num_tokens));
    }
    ASSERT_NO_FATAL_FAILURE(CheckCase(test_case, rng));
  }
}

// Kernels for the shapes of models alone (head dims 64, 128 and 256) have ways of their own; on a device
// whose kernels are those, many cases.
TEST(Attention, EqualsDenseAttentionInTheShapesOfModels) {
  if (!IsTestDevice("cuda")) GTEST_SKIP() << "for HEADWISE_TEST_DEVICE=cuda";
  std::mt19937_64 rng(23);
  constexpr KvFormat kFormats[] = {KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4};
  for (uint64_t seed = 1; seed <= 90; ++seed) {
    AttentionCase test_case{.num_tokens = 1 + static_cast<int64_t>(rng() % 900)};
    test_case.head_dim = int64_t{64} << rng() % 3;
    test_case.num_kv_heads = 1 + static_cast<int64_t>(rng() % 3);
    test_case.num_q_heads = test_case.num_kv_heads * (1 + static_cast<int64_t>(rng() % 8));
    test_case.page_tokens = rng() % 2 == 0 ? 32 : 64;
    const KvFormat format = kFormats[rng() % 4];
    // A third of the cases mix two formats.
    test_case.kv_formats = {format, rng() % 3 == 0 ? kFormats[rng() % 4] : format};
    test_case.compute = rng() % 2 == 0 ? Compute::kBF16 : Compute::kF32;
    test_case.alibi = rng() % 4 == 0;
    test_case.sink_logits = rng() % 4 == 0;
    if (!test_case.alibi && seed % 3 == 1) test_case.score_cap = 3.0f;
    test_case.seed = seed;
    for (int64_t i = 0; i < test_case.num_kv_heads; ++i) {
      test_case.rules.push_back(RandomRule(rng, test_case.num_tokens));
    }
    ASSERT_NO_FATAL_FAILURE(CheckCase(test_case, rng));
  }
}

// Chunks of many tiles, on pages of all lengths, behind texts that end anywhere.
TEST(Attention, EqualsTheOracleOverManyTiles) {
  const bool on_gpu = IsTestDevice("cuda");
  std::mt19937_64 rng(29);
  constexpr int64_t kPageTokens[] = {16, 32, 64, 128, 256, 48};
  for (uint64_t seed = 0; seed < (on_gpu ? 12 : 2); ++seed) {
    AttentionCase test_case{.num_tokens = 500 + static_cast<int64_t>(rng() % 300), .num_kv_heads = 3};
    test_case.head_dim = seed % 2 == 0 ? 128 : 64;
    test_case.num_q_heads = test_case.num_kv_heads * (seed % 3 == 0 ? 4 : seed % 3 == 1 ? 1 : 3);
    test_case.page_tokens = kPageTokens[seed % 6];
    const KvFormat format = seed / 2 % 2 == 0 ? KvFormat::kBF16 : KvFormat::kF16;
    test_case.kv_formats = {format, format};
    test_case.compute = Compute::kBF16;
    test_case.sink_logits = seed % 4 == 3;
    // Scores that rise towards the query, block by block.
    test_case.alibi = !on_gpu && seed % 2 == 1;
    test_case.seed = seed;
    test_case.poisons_pages = true;
    HeadRule counted = HeadRule::Stream(70, 333);
    counted.positions = Positions::kCache;
    test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(37, 150), {}),
                       ResolveRule(counted, {})};
    ASSERT_NO_FATAL_FAILURE(CheckCase(test_case, rng, {300, test_case.num_tokens}));
  }
}

// Pages and a backend's own memory held a text of NaN before: what pads rows, keys and dimensions to whole tiles is
// multiplied with what stands there.
TEST(Attention, WhatMemoryHeldBeforeDoesNotShow) {
  std::mt19937_64 rng(31);
  constexpr int64_t kDims[] = {16, 20, 64, 80, 128};
  constexpr KvFormat kFormats[] = {KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4, KvFormat::kF32};
  for (uint64_t seed = 0; seed < 25; ++seed) {
    AttentionCase test_case{.num_tokens = 40 + static_cast<int64_t>(rng() % 150), .num_q_heads = 6};
    test_case.head_dim = kDims[seed % 5];
    test_case.kv_formats = {kFormats[seed / 5], kFormats[seed / 5]};
    test_case.compute = seed % 8 == 7 ? Compute::kF32 : Compute::kBF16;
    test_case.seed = seed;
    test_case.poisons_pages = true;
    test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(9, 30), {})};
    ASSERT_NO_FATAL_FAILURE(CheckCase(test_case, rng, {1, 20, test_case.num_tokens}));
  }
}

// Texts that decode, one that reads a chunk and one that reads a few tokens: each reads what it reads alone, and on a
// GPU, where decoding has kernels of its own, the former bit for bit.
TEST(Attention, DecodingBesideAChunkChangesNothing) {
  for (const int64_t head_dim : {64, 128, 32}) {
    AttentionCase test_case{.num_tokens = 900, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = head_dim};
    test_case.kv_formats = {KvFormat::kBF16, KvFormat::kBF16};
    test_case.compute = Compute::kBF16;
    test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(20, 100), {})};
    std::vector<AttentionData> texts;
    for (test_case.seed = 1; test_case.seed <= 4; ++test_case.seed) texts.emplace_back(test_case);
    constexpr int64_t kBefore[] = {800, 300, 70, 0};
    constexpr int64_t kRows[] = {1, 200, 1, 9};
    for (const NamedBackend& named : AllBackends()) {
      Backend& backend = *named.backend;
      const KvPoolSet pools(
          backend, {.head_dim = head_dim, .page_tokens = test_case.page_tokens, .formats = test_case.kv_formats});
      const auto run = [&](bool together) {
        std::deque<KvCache> caches;
        std::vector<ChunkOfText> chunks;
        std::vector<float> outputs;
        for (size_t i = 0; i < texts.size(); ++i) {
          KvCache& cache = caches.emplace_back(pools.pools(), test_case.num_kv_heads, test_case.rules);
          if (kBefore[i] > 0) OutputsOf(backend, pools.pools(), test_case, {{&cache, &texts[i], 0, kBefore[i]}});
          chunks.push_back({&cache, &texts[i], kBefore[i], kRows[i]});
          if (together) continue;
          const std::vector<float> alone = OutputsOf(backend, pools.pools(), test_case, {chunks.back()});
          outputs.insert(outputs.end(), alone.begin(), alone.end());
        }
        return together ? OutputsOf(backend, pools.pools(), test_case, chunks) : outputs;
      };
      const std::vector<float> alone = run(false);
      const std::vector<float> together = run(true);
      ASSERT_EQ(alone.size(), together.size());
      const double tolerance = AttentionTolerance(test_case.kv_formats, test_case.compute);
      EXPECT_LE(MaxDifference(alone, together), tolerance) << named.name;
      if (named.name != "cuda") continue;
      const auto row = static_cast<std::ptrdiff_t>(test_case.num_q_heads * head_dim);
      for (const std::ptrdiff_t first : {std::ptrdiff_t{0}, 201 * row}) {
        EXPECT_TRUE(std::equal(alone.begin() + first, alone.begin() + first + row, together.begin() + first))
            << "D " << head_dim << ", row " << first / row;
      }
    }
  }
}

// On a GPU heads of several pieces are merged one way where they are few and another where they are many.
TEST(Attention, ManyLongTextsThatDecodeAreEachAsAlone) {
  if (!IsTestDevice("cuda")) GTEST_SKIP() << "for HEADWISE_TEST_DEVICE=cuda";
  const std::vector<NamedBackend> backends = AllBackends();
  Backend& backend = *backends.front().backend;
  using enum KvFormat;
  for (const auto& [head_dim, format] : std::initializer_list<std::pair<int64_t, KvFormat>>{
           {64, kBF16}, {128, kBF16}, {256, kBF16}, {128, kQ8}, {128, kQ4}}) {
    AttentionCase test_case{.num_tokens = 20001, .num_q_heads = 8, .num_kv_heads = 2, .head_dim = head_dim};
    test_case.kv_formats = {format, format}, test_case.compute = Compute::kBF16;
    test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(20, 3000), {})};
    const AttentionData data(test_case);  // of which the others are beginnings
    const KvPoolSet pools(
        backend, {.head_dim = head_dim, .page_tokens = test_case.page_tokens, .formats = test_case.kv_formats});
    constexpr int64_t kNumTexts = 40;
    const auto run = [&](bool together) {
      std::deque<KvCache> caches;
      std::vector<ChunkOfText> chunks;
      std::vector<float> outputs;
      for (int64_t i = 0; i < kNumTexts; ++i) {
        KvCache& cache = caches.emplace_back(pools.pools(), test_case.num_kv_heads, test_case.rules);
        const int64_t length = i == kNumTexts / 2 ? test_case.num_tokens - 1 : 700 + 60 * i;
        OutputsOf(backend, pools.pools(), test_case, {{&cache, &data, 0, length}});
        chunks.push_back({&cache, &data, length, 1});
        if (together) continue;
        const std::vector<float> alone = OutputsOf(backend, pools.pools(), test_case, {chunks.back()});
        outputs.insert(outputs.end(), alone.begin(), alone.end());
      }
      return together ? OutputsOf(backend, pools.pools(), test_case, chunks) : outputs;
    };
    const std::vector<float> alone = run(false);
    const std::vector<float> together = run(true);
    ASSERT_EQ(alone.size(), together.size());
    const auto differs = std::ranges::mismatch(alone, together);
    EXPECT_EQ(differs.in1, alone.end()) << "D " << head_dim << " " << NameOf(format) << ", text "
                                        << (differs.in1 - alone.begin()) / (test_case.num_q_heads * head_dim);
  }
}

// Every sixteenth token, one for each warp of a GPU, has nearly all the weight, and nothing as its value: what the
// others leave, 2^-26 of such a weight each, is the output, of which weights of 16 bits may not lose anything.
TEST(Attention, ManySmallWeightsCountBesideALargeOne) {
  for (const KvFormat format : {KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8, KvFormat::kQ4}) {
    AttentionCase test_case{.num_tokens = 601, .num_q_heads = 1, .num_kv_heads = 1, .head_dim = 128};
    test_case.kv_formats = {format, format}, test_case.compute = Compute::kBF16;
    test_case.rules = {ResolveRule(HeadRule::Full(), {})};
    AttentionData data(test_case);
    const int64_t last = test_case.num_tokens - 1, first = last * test_case.head_dim;
    const float* const query = data.q.data() + first;
    const double squares = std::inner_product(query, query + test_case.head_dim, query, 0.0);
    for (float& x : data.k) x *= 0.1f;
    for (float& x : data.v) x = 8 + 0.5f * x;
    for (int64_t j = 0; j < last; j += 16) {
      float* key = data.k.data() + j * test_case.head_dim;  // of a score of 18: 204 / sqrt(128)
      for (const double x : Rotated(test_case, data, query, last - j)) *key++ = static_cast<float>(204 / squares * x);
      std::fill_n(data.v.begin() + j * test_case.head_dim, test_case.head_dim, 0.0f);
    }
    const std::vector<double> expected = Oracle(test_case, data, {last, 1});
    const auto last_row = [&](const auto& rows) { return std::span(rows).subspan(static_cast<size_t>(first)); };
    const double largest = MaxDifference(std::vector<double>(last_row(expected).size()), last_row(expected));
    ASSERT_TRUE(std::isfinite(largest)) << NameOf(format);
    for (const NamedBackend& named : AllBackends()) {
      for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{last, 1}, {last + 1}}) {
        const std::vector<float> out = RunAttention(*named.backend, test_case, data, chunks, Nothing);
        ASSERT_EQ(out.size(), expected.size());
        EXPECT_LE(MaxDifference(last_row(out), last_row(expected)), 0.05 * largest)
            << named.name << " " << NameOf(format) << (chunks.size() == 1 ? ", of a prompt" : "");
      }
    }
  }
}

// Long enough for several decode pieces of 1024 keys and many prefill tiles.
TEST(Attention, EqualsTheOracleOverManyPieces) {
  std::mt19937_64 rng(11);
  AttentionCase test_case{.num_tokens = 3300, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 16};
  test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(37, 1500), {}),
                     ResolveRule(HeadRule::Stream(1100, 1100), {})};
  const AttentionData data(test_case);
  std::vector<int64_t> chunks(1, 3000);
  chunks.resize(301, 1);
  const std::vector<double> expected = Oracle(test_case, data, chunks);
  for (const NamedBackend& named : AllBackends()) {
    if (named.name == "ref") continue;
    const std::vector<float> out = RunAttention(*named.backend, test_case, data, chunks, Nothing);
    EXPECT_LE(MaxDifference(out, expected), AttentionTolerance(KvFormat::kF32, Compute::kF32)) << named.name;
  }
}

TEST(Attention, IsTheSameOnAnyNumberOfThreads) {
  AttentionCase test_case{.num_tokens = 2600, .num_q_heads = 4, .num_kv_heads = 2};
  test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(16, 128), {})};
  const AttentionData data(test_case);
  std::vector<int64_t> chunks{700, 700, 1100};
  chunks.resize(103, 1);
  for (const auto& [format, compute] :
       {std::pair(KvFormat::kF16, Compute::kF32), std::pair(KvFormat::kF16, Compute::kBF16),
        std::pair(KvFormat::kQ8, Compute::kF32), std::pair(KvFormat::kQ8, Compute::kBF16),
        std::pair(KvFormat::kQ4, Compute::kF32), std::pair(KvFormat::kQ4, Compute::kBF16)}) {
    test_case.kv_formats = {format, format};
    test_case.compute = compute;
    std::vector<std::vector<float>> outs;
    for (const int num_threads : {1, 2, 5}) {
      const auto backend = MakeCpuBackend({.num_threads = num_threads}).value();
      outs.push_back(RunAttention(*backend, test_case, data, chunks, Nothing));
    }
    EXPECT_EQ(outs[0], outs[1]);
    EXPECT_EQ(outs[0], outs[2]);
  }
}

}  // namespace
}  // namespace headwise
