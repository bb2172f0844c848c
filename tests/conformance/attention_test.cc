// Every backend and instruction set against the definition: dense attention under the mask that the rule gives, in
// double, from keys rotated as the rule says. Random rules, lengths and chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/ref/ref_backend.h"
#include "support/random_attention.h"
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

// A row as the cache gives it back.
void Store(KvFormat format, std::vector<double>& row) {
  double largest = 0;
  for (const double x : row) largest = std::max(largest, std::abs(x));
  const double q8_scale = F16ToF32(F32ToF16(static_cast<float>(largest / 127)));
  for (double& x : row) {
    switch (format) {
      case KvFormat::kF32:
        break;
      case KvFormat::kF16:
        x = F16ToF32(F32ToF16(static_cast<float>(x)));
        break;
      case KvFormat::kBF16:
        x = BF16ToF32(F32ToBF16(static_cast<float>(x)));
        break;
      case KvFormat::kQ8:
        x = q8_scale * std::nearbyint(x / q8_scale);
        break;
    }
  }
}

// Straight from the definitions in docs/head-plan.md and the papers: no pages, no spans, no online sums.
std::vector<double> Oracle(const AttentionCase& test_case, const AttentionData& data) {
  const int64_t dim = test_case.head_dim;
  const int64_t group = test_case.num_q_heads / test_case.num_kv_heads;
  std::vector<double> out(data.q.size());
  for (int64_t kv_head = 0; kv_head < test_case.num_kv_heads; ++kv_head) {
    const ResolvedRule& rule = test_case.rules[static_cast<size_t>(kv_head)];
    const KvFormat format = rule.Bounded() ? test_case.kv_formats.bounded : test_case.kv_formats.full;
    std::vector<std::vector<double>> keys, values;
    for (int64_t j = 0; j < test_case.num_tokens; ++j) {
      const int64_t offset = (j * test_case.num_kv_heads + kv_head) * dim;
      keys.push_back(Rotated(test_case, data, data.k.data() + offset, j));
      Store(format, keys.back());
      values.emplace_back(data.v.begin() + offset, data.v.begin() + offset + dim);
      Store(format, values.back());
    }
    for (int64_t t = 0; t < test_case.num_tokens; ++t) {
      for (int64_t g = 0; g < group; ++g) {
        const int64_t q_head = kv_head * group + g;
        const int64_t offset = (t * test_case.num_q_heads + q_head) * dim;
        std::vector<std::pair<double, const std::vector<double>*>> terms;  // weight in the sum, value
        const auto add = [&](const std::vector<double>& key, const std::vector<double>& value, int64_t query_pos,
                             double key_pos, double log_weight) {
          const std::vector<double> q = Rotated(test_case, data, data.q.data() + offset, query_pos);
          double score = log_weight;
          for (int64_t d = 0; d < dim; ++d)
            score += q[static_cast<size_t>(d)] * key[static_cast<size_t>(d)] / std::sqrt(static_cast<double>(dim));
          if (test_case.alibi)
            score += data.slopes[static_cast<size_t>(q_head)] * (key_pos - static_cast<double>(query_pos));
          terms.emplace_back(std::exp(score), &value);
        };
        for (int64_t j = 0; j <= t; ++j) {
          if (!Readable(rule, t, j)) continue;
          const bool moved = t >= rule.holds_from && j < rule.sink;
          add(keys[static_cast<size_t>(j)], values[static_cast<size_t>(j)], moved ? rule.SinkPosition(t) : t,
              static_cast<double>(j), 0.0);
        }
        std::vector<double> mean_key(static_cast<size_t>(dim)), mean_value(static_cast<size_t>(dim));
        const TokenRange folded = t >= rule.holds_from ? FoldedRange(rule, t + 1) : TokenRange{};
        const auto num_folded = static_cast<double>(folded.end - folded.begin);
        if (num_folded > 0) {
          for (int64_t j = folded.begin; j < folded.end; ++j) {
            for (size_t d = 0; d < mean_key.size(); ++d) {
              mean_key[d] += keys[static_cast<size_t>(j)][d] / num_folded;
              mean_value[d] += values[static_cast<size_t>(j)][d] / num_folded;
            }
          }
          add(mean_key, mean_value, t, static_cast<double>(folded.begin + folded.end - 1) / 2, std::log(num_folded));
        }
        double denominator = test_case.sink_logits ? std::exp(data.sink_logits[static_cast<size_t>(q_head)]) : 0.0;
        for (const auto& [weight, value] : terms) denominator += weight;
        for (const auto& [weight, value] : terms) {
          for (size_t d = 0; d < value->size(); ++d)
            out[static_cast<size_t>(offset) + d] += weight * (*value)[d] / denominator;
        }
      }
    }
  }
  return out;
}

ResolvedRule RandomRule(std::mt19937_64& rng, int64_t num_tokens) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  HeadRule rule = HeadRule::Stream(below(40), 1 + below(70));
  SequenceLimits limits{.prompt_tokens = 1 + below(num_tokens), .max_tokens = num_tokens};
  if (below(4) == 0) limits.model_window = 5 + below(60);
  switch (below(6)) {
    case 0:
      rule = HeadRule::Full();
      break;
    case 1:
      rule.positions = Positions::kCache;
      break;
    case 2:
      rule.compensate = true;
      limits.model_window = kNoLimit;
      break;
    case 3:
      rule.compensate = true;
      rule.start = RuleStart::kEndOfPrompt;
      limits.model_window = kNoLimit;
      break;
    case 4:
      rule.start = RuleStart::kEndOfPrompt;
      break;
    default:
      break;
  }
  return ResolveRule(rule, limits);
}

// Random chunks that respect the ends of prompts.
std::vector<int64_t> RandomChunks(std::mt19937_64& rng, const AttentionCase& test_case, int64_t max_chunk) {
  std::set<int64_t> ends{test_case.num_tokens};
  for (const ResolvedRule& rule : test_case.rules) {
    if (rule.holds_from > 0 && rule.holds_from < test_case.num_tokens) ends.insert(rule.holds_from);
  }
  std::vector<int64_t> chunks;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    while (begin < end) {
      const int64_t chunk =
          std::min<int64_t>(end - begin, 1 + static_cast<int64_t>(rng() % static_cast<uint64_t>(max_chunk)));
      chunks.push_back(chunk);
      begin += chunk;
    }
  }
  return chunks;
}

// Pages held are exactly those with a kept token; with one layer nothing else is in the pools.
void ExpectKeptPages(const AttentionCase& test_case, const KvCache& cache, const KvPools& pools) {
  int64_t full = 0;
  int64_t bounded = 0;
  for (const ResolvedRule& rule : test_case.rules) {
    std::set<int64_t> pages;
    for (const TokenRange& range : KeptRanges(rule, cache.num_tokens())) {
      for (int64_t j = range.begin; j < range.end; ++j) pages.insert(j / test_case.page_tokens);
    }
    (rule.Bounded() ? bounded : full) += static_cast<int64_t>(pages.size());
  }
  ASSERT_EQ(pools.full->pages_in_use(), full) << "after " << cache.num_tokens() << " tokens";
  ASSERT_EQ(pools.bounded->pages_in_use(), bounded) << "after " << cache.num_tokens() << " tokens";
}

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

std::vector<NamedBackend> AllBackends() {
  std::vector<NamedBackend> backends;
  backends.push_back({"ref", MakeRefBackend()});
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    backends.push_back({kernels->isa, MakeCpuBackend({.isa = kernels->isa, .num_threads = 2}).value()});
  }
  return backends;
}

void CheckCase(const AttentionCase& test_case, std::mt19937_64& rng) {
  const AttentionData data(test_case);
  const std::vector<double> expected = Oracle(test_case, data);
  for (const NamedBackend& named : AllBackends()) {
    for (const int64_t max_chunk : {int64_t{1}, int64_t{50}, test_case.num_tokens}) {
      const std::vector<int64_t> chunks = RandomChunks(rng, test_case, max_chunk);
      const std::vector<float> out =
          RunAttention(*named.backend, test_case, data, chunks,
                       [&](const KvCache& cache, const KvPools& pools) { ExpectKeptPages(test_case, cache, pools); });
      double worst = 0;
      for (size_t i = 0; i < out.size(); ++i) worst = std::max(worst, std::abs(out[i] - expected[i]));
      ASSERT_LE(worst, AttentionTolerance(test_case.kv_formats, test_case.compute))
          << named.name << " seed " << test_case.seed << " chunks up to " << max_chunk << " D " << test_case.head_dim
          << " format " << NameOf(test_case.kv_formats);
    }
  }
}

TEST(Attention, EqualsDenseAttentionUnderTheRulesMask) {
  std::mt19937_64 rng(7);
  constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16, KvFormat::kQ8};
  for (uint64_t seed = 1; seed <= 80; ++seed) {
    AttentionCase test_case{.num_tokens = 1 + static_cast<int64_t>(rng() % 200)};
    const int64_t dims[] = {16, 20, 32, 64, 80, 128};
    test_case.head_dim = dims[rng() % 6];
    test_case.num_kv_heads = 1 + static_cast<int64_t>(rng() % 3);
    test_case.num_q_heads = test_case.num_kv_heads * (1 + static_cast<int64_t>(rng() % 7));
    test_case.page_tokens = rng() % 2 == 0 ? 16 : 32;
    test_case.kv_formats.full = kFormats[seed % 4];
    // A third of the cases mix two formats.
    test_case.kv_formats.bounded = kFormats[(seed % 3 == 0 ? seed + seed / 12 : seed) % 4];
    test_case.compute = seed % 5 == 4 ? Compute::kBF16 : Compute::kF32;
    test_case.alibi = rng() % 4 == 0;
    test_case.sink_logits = rng() % 4 == 0;
    test_case.seed = seed;
    for (int64_t i = 0; i < test_case.num_kv_heads; ++i) {
      test_case.rules.push_back(RandomRule(rng, test_case.num_tokens));
    }
    ASSERT_NO_FATAL_FAILURE(CheckCase(test_case, rng));
  }
}

// Long enough for several decode pieces of 1024 keys and many prefill tiles.
TEST(Attention, EqualsTheOracleOverManyPieces) {
  std::mt19937_64 rng(11);
  AttentionCase test_case{.num_tokens = 3300, .num_q_heads = 3, .num_kv_heads = 3, .head_dim = 16};
  test_case.rules = {ResolveRule(HeadRule::Full(), {}), ResolveRule(HeadRule::Stream(37, 1500), {}),
                     ResolveRule(HeadRule::Stream(1100, 1100), {})};
  const AttentionData data(test_case);
  const std::vector<double> expected = Oracle(test_case, data);
  std::vector<int64_t> chunks(1, 3000);
  chunks.resize(301, 1);
  for (const NamedBackend& named : AllBackends()) {
    if (named.name == "ref") continue;
    const std::vector<float> out =
        RunAttention(*named.backend, test_case, data, chunks, [](const KvCache&, const KvPools&) {});
    double worst = 0;
    for (size_t i = 0; i < out.size(); ++i) worst = std::max(worst, std::abs(out[i] - expected[i]));
    EXPECT_LE(worst, AttentionTolerance(KvFormat::kF32, Compute::kF32)) << named.name;
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
        std::pair(KvFormat::kQ8, Compute::kF32), std::pair(KvFormat::kQ8, Compute::kBF16)}) {
    test_case.kv_formats = {format, format};
    test_case.compute = compute;
    std::vector<std::vector<float>> outs;
    for (const int num_threads : {1, 2, 5}) {
      const auto backend = MakeCpuBackend({.num_threads = num_threads}).value();
      outs.push_back(RunAttention(*backend, test_case, data, chunks, [](const KvCache&, const KvPools&) {}));
    }
    EXPECT_EQ(outs[0], outs[1]);
    EXPECT_EQ(outs[0], outs[2]);
  }
}

}  // namespace
}  // namespace headwise
