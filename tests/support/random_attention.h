// A layer of attention without a model: random queries, keys and values read step by step into a KvCache of any
// backend.
#ifndef HEADWISE_TESTS_SUPPORT_RANDOM_ATTENTION_H_
#define HEADWISE_TESTS_SUPPORT_RANDOM_ATTENTION_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kv/cache_step.h"
#include "model/rope.h"
#include "support/random_rows.h"

namespace headwise {

struct AttentionCase {
  int64_t num_tokens = 0;
  int64_t num_q_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t page_tokens = 32;
  KvFormats kv_formats = {KvFormat::kF32, KvFormat::kF32};
  Compute compute = Compute::kF32;
  bool alibi = false;
  bool sink_logits = false;
  float score_cap = 0.0f;
  std::vector<ResolvedRule> rules = {};  // [Hkv]
  uint64_t seed = 1;
  // Pages held a text of NaN before this one, so that what is read of a page beyond its tokens shows.
  bool poisons_pages = false;
};

// Values of a whole text, before rotation, and what they are rotated by.
class AttentionData {
 public:
  explicit AttentionData(const AttentionCase& test_case) : case_(test_case) {
    std::mt19937_64 rng(test_case.seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, int64_t n) {
      values.resize(static_cast<size_t>(n));
      for (float& value : values) value = normal(rng);
    };
    fill(q, test_case.num_tokens * test_case.num_q_heads * test_case.head_dim);
    fill(k, test_case.num_tokens * test_case.num_kv_heads * test_case.head_dim);
    fill(v, test_case.num_tokens * test_case.num_kv_heads * test_case.head_dim);
    fill(sink_logits, test_case.num_q_heads);
    for (int64_t h = 0; h < test_case.num_q_heads; ++h) slopes.push_back(0.5f / static_cast<float>(h + 1));
    for (int64_t i = 0; i < test_case.head_dim / 2; ++i) {
      frequencies.push_back(std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(test_case.head_dim)));
    }
    for (int64_t t = 0; t < test_case.num_tokens; ++t) {
      constexpr TokenMark kMarks[] = {TokenMark::kSpecial, TokenMark::kPunctuation};
      const uint64_t drawn = rng() % 12;
      marks.push_back(drawn < 2 ? kMarks[drawn] : TokenMark::kOther);
    }
  }

  std::vector<float> q, k, v, sink_logits, slopes;
  std::vector<TokenMark> marks;  // [T]
  std::vector<double> frequencies;

 private:
  const AttentionCase case_;
};

// Of every kind that there is, some under a window of the model.
inline ResolvedRule RandomRule(std::mt19937_64& rng, int64_t num_tokens) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  HeadRule rule = HeadRule::Stream(below(40), 1 + below(70));
  const SequenceLimits limits{.prompt_tokens = 1 + below(num_tokens), .max_tokens = num_tokens};
  int64_t window = kNoLimit;
  if (below(4) == 0) window = 5 + below(60);
  switch (below(6)) {
    case 0:
      rule = HeadRule::Full();
      break;
    case 1:
      rule.positions = Positions::kCache;
      break;
    case 2:
      rule.compensate = true;
      window = kNoLimit;
      break;
    case 3:
      rule.compensate = true;
      rule.start = RuleStart::kEndOfPrompt;
      break;
    case 4:
      rule.start = RuleStart::kEndOfPrompt;
      break;
    default:
      break;
  }
  return ResolveRule(rule, limits, window);
}

// Random chunks that respect the ends of prompts.
inline std::vector<int64_t> RandomChunks(std::mt19937_64& rng, const AttentionCase& test_case, int64_t max_chunk) {
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

// A text of NaN, whose attention is of no use to anybody.
inline void FillWithNan(Backend& backend, const AttentionCase& test_case, const KvPools& pools, int64_t num_tokens,
                        KvCache& cache) {
  const auto rows = [&](int64_t num_heads) {
    const Shape shape{num_tokens, num_heads * test_case.head_dim};
    const std::vector<float> values(static_cast<size_t>(shape.num_elements()), std::nanf(""));
    DeviceBuffer buffer = DeviceBuffer::Make(backend.device(), values.size() * sizeof(float)).value();
    backend.device().CopyFromHost(buffer.data(), values.data(), buffer.size_bytes());
    const TensorView view{.data = buffer.data(), .dtype = DType::kF32, .shape = shape};
    return std::pair(std::move(buffer), view);
  };
  const auto [kv_buffer, kv] = rows(test_case.num_kv_heads);
  const auto [q_buffer, q] = rows(test_case.num_q_heads);
  const auto [out_buffer, out] = rows(test_case.num_q_heads);
  DeviceBuffer lse_buffer =
      DeviceBuffer::Make(backend.device(), static_cast<size_t>(num_tokens * test_case.num_q_heads) * 4).value();
  CacheStep step(backend, pools);
  EXPECT_TRUE(cache.PlanStep(num_tokens).ok());
  step.Add(cache);
  step.Begin();
  step.RunLayer(0,
                {.k = kv,
                 .v = kv,
                 .q = q,
                 .q_sink = {},
                 .out = out,
                 .lse = {.data = lse_buffer.data(), .dtype = DType::kF32, .shape = {num_tokens, test_case.num_q_heads}},
                 .alibi_slopes = {},
                 .sink_logits = {},
                 .num_q_heads = test_case.num_q_heads,
                 .scale = 1.0f,
                 .compute = test_case.compute});
  step.Finish();
  EXPECT_TRUE(backend.device().Wait().ok());
}

// For who looks at outputs alone.
inline void Nothing(const KvCache&, const KvPools&) {}

// Reads the text in the given chunks and returns [num_tokens, Hq*D]. After every step `after_step` sees the cache and
// its pools.
template <typename AfterStep>
std::vector<float> RunAttention(Backend& backend, const AttentionCase& test_case, const AttentionData& data,
                                const std::vector<int64_t>& chunks, const AfterStep& after_step) {
  const int64_t q_dim = test_case.num_q_heads * test_case.head_dim;
  const int64_t kv_dim = test_case.num_kv_heads * test_case.head_dim;
  // None is shared, so that the pages of each kind of heads can be counted.
  const KvPoolSet apart(backend, {.head_dim = test_case.head_dim,
                                  .page_tokens = test_case.page_tokens,
                                  .formats = test_case.kv_formats,
                                  .sharing = KvPoolSet::Sharing::kNone});
  // One page of each pool stays in use, so that the others' memory does.
  KvCache keeper(apart.pools(), test_case.num_kv_heads, test_case.rules);
  if (test_case.poisons_pages) {
    FillWithNan(backend, test_case, apart.pools(), 1, keeper);
    KvCache before(apart.pools(), test_case.num_kv_heads, test_case.rules);
    FillWithNan(backend, test_case, apart.pools(), test_case.num_tokens, before);
  }
  KvCache cache(apart.pools(), test_case.num_kv_heads, test_case.rules);
  CacheStep step(backend, apart.pools());
  const auto device = [&](const std::vector<float>& values, Shape shape) {
    DeviceBuffer buffer = DeviceBuffer::Make(backend.device(), values.size() * sizeof(float)).value();
    backend.device().CopyFromHost(buffer.data(), values.data(), buffer.size_bytes());
    const TensorView view{.data = buffer.data(), .dtype = DType::kF32, .shape = shape};
    return std::pair(std::move(buffer), view);
  };
  const auto [slopes_buffer, slopes] = device(data.slopes, {test_case.num_q_heads});
  const auto [logits_buffer, logits] = device(data.sink_logits, {test_case.num_q_heads});
  std::vector<float> out(static_cast<size_t>(test_case.num_tokens * q_dim));
  int64_t begin = 0;
  for (const int64_t chunk : chunks) {
    const auto rows = [&](const std::vector<float>& values, int64_t dim) {
      return std::vector<float>(values.begin() + begin * dim, values.begin() + (begin + chunk) * dim);
    };
    const auto [q_buffer, q] = device(rows(data.q, q_dim), {chunk, q_dim});
    const auto [k_buffer, k] = device(rows(data.k, kv_dim), {chunk, kv_dim});
    const auto [v_buffer, v] = device(rows(data.v, kv_dim), {chunk, kv_dim});
    const auto [sink_buffer, q_sink] = device(rows(data.q, q_dim), {chunk, q_dim});
    const auto [out_buffer, out_view] = device(std::vector<float>(static_cast<size_t>(chunk * q_dim)), {chunk, q_dim});
    const auto [lse_buffer, lse] =
        device(std::vector<float>(static_cast<size_t>(chunk * test_case.num_q_heads)), {chunk, test_case.num_q_heads});
    if (!test_case.alibi) {
      std::vector<float> angles;
      std::vector<int32_t> text_rows, sink_rows;
      for (int64_t i = 0; i < chunk; ++i) {
        text_rows.push_back(static_cast<int32_t>(angles.size() / data.frequencies.size() / 2));
        AppendRopeAngles(data.frequencies, 1.0, begin + i, angles);
        for (int64_t h = 0; h < test_case.num_kv_heads; ++h) {
          sink_rows.push_back(static_cast<int32_t>(angles.size() / data.frequencies.size() / 2));
          AppendRopeAngles(data.frequencies, 1.0, cache.rule(0, h).SinkPosition(begin + i), angles);
        }
      }
      const auto half = static_cast<int64_t>(data.frequencies.size());
      const auto [angle_buffer, angle_view] = device(angles, {static_cast<int64_t>(angles.size()) / half / 2, half, 2});
      RopeArgs rope{.x = q, .out = q_sink, .angles = angle_view, .rows = sink_rows};
      rope.rows_per_token = test_case.num_kv_heads;
      rope.num_heads = test_case.num_q_heads;
      rope.head_dim = test_case.head_dim;
      backend.Rope(rope);
      rope.out = q;
      rope.rows = text_rows;
      rope.rows_per_token = 1;
      backend.Rope(rope);
      rope.x = rope.out = k;
      rope.num_heads = test_case.num_kv_heads;
      backend.Rope(rope);
    }
    EXPECT_TRUE(cache.PlanStep(chunk).ok());
    step.Add(cache);
    step.Begin(std::span(data.marks).subspan(static_cast<size_t>(begin), static_cast<size_t>(chunk)));
    step.RunLayer(0, {.k = k,
                      .v = v,
                      .q = q,
                      .q_sink = test_case.alibi ? TensorView{} : q_sink,
                      .out = out_view,
                      .lse = lse,
                      .alibi_slopes = test_case.alibi ? slopes : TensorView{},
                      .sink_logits = test_case.sink_logits ? logits : TensorView{},
                      .num_q_heads = test_case.num_q_heads,
                      .scale = 1.0f / std::sqrt(static_cast<float>(test_case.head_dim)),
                      .score_cap = test_case.score_cap,
                      .compute = test_case.compute});
    step.Finish();
    backend.device().CopyToHost(out.data() + begin * q_dim, out_buffer.data(), static_cast<size_t>(chunk * q_dim) * 4);
    const Status status = backend.device().Wait();
    EXPECT_TRUE(status.ok()) << status.message();
    begin += chunk;
    after_step(cache, apart.pools());
  }
  return out;
}

// Rows [begin, begin + num_rows) of a text, unrotated, into its cache.
struct ChunkOfText {
  KvCache* cache = nullptr;
  const AttentionData* data = nullptr;
  int64_t begin = 0;
  int64_t num_rows = 0;
};

// All of them in one step: the outputs of their rows, one chunk behind the other. [rows, Hq*D]
inline std::vector<float> OutputsOf(Backend& backend, const KvPools& pools, const AttentionCase& test_case,
                                    const std::vector<ChunkOfText>& chunks) {
  const int64_t q_dim = test_case.num_q_heads * test_case.head_dim;
  const int64_t kv_dim = test_case.num_kv_heads * test_case.head_dim;
  std::vector<float> q, k, v;
  std::vector<TokenMark> marks;
  CacheStep step(backend, pools);
  for (const ChunkOfText& chunk : chunks) {
    const auto append = [&](std::vector<float>& to, const std::vector<float>& from, int64_t dim) {
      to.insert(to.end(), from.begin() + chunk.begin * dim, from.begin() + (chunk.begin + chunk.num_rows) * dim);
    };
    append(q, chunk.data->q, q_dim);
    append(k, chunk.data->k, kv_dim);
    append(v, chunk.data->v, kv_dim);
    const auto first_mark = chunk.data->marks.begin() + chunk.begin;
    marks.insert(marks.end(), first_mark, first_mark + chunk.num_rows);
    EXPECT_TRUE(chunk.cache->PlanStep(chunk.num_rows).ok());
    step.Add(*chunk.cache);
  }
  const auto num_rows = static_cast<int64_t>(q.size()) / q_dim;
  const Held on_device[] = {Held(backend, {num_rows, q_dim}, q), Held(backend, {num_rows, kv_dim}, k),
                            Held(backend, {num_rows, kv_dim}, v)};
  const Held out = Held::Poisoned(backend, {num_rows, q_dim});
  const Held lse = Held::Poisoned(backend, {num_rows, test_case.num_q_heads});
  const bool some_select =
      std::ranges::any_of(test_case.rules, [](const ResolvedRule& rule) { return rule.SelectsByScore(); });
  step.Begin(marks);
  step.RunLayer(0, {.k = on_device[1].view(),
                    .v = on_device[2].view(),
                    .q = on_device[0].view(),
                    .q_sink = {},
                    .out = out.view(),
                    .lse = some_select ? lse.view() : TensorView{},
                    .alibi_slopes = {},
                    .sink_logits = {},
                    .num_q_heads = test_case.num_q_heads,
                    .scale = 1.0f / std::sqrt(static_cast<float>(test_case.head_dim)),
                    .compute = test_case.compute});
  step.Finish();
  return out.Read();
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_RANDOM_ATTENTION_H_
