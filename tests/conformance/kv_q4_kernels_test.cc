// q4 pages of the cpu backend, driven directly: pages are written as q8 and aged, then read by all that reads pages.
// The oracle makes the numbers from their definition (backend/kv_format.h) and attends to them in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/backends.h"
#include "support/read_token.h"
#include "tensor/dtype.h"

namespace headwise {
namespace {

TensorView ViewOf(std::vector<float>& values, int64_t num_rows) {
  return {
      .data = values.data(), .dtype = DType::kF32, .shape = {num_rows, static_cast<int64_t>(values.size()) / num_rows}};
}

// ---- a text of one KV head, and what q8 and q4 make of it ----------------------------------------------------------

struct Text {
  int64_t head_dim = 0;
  int64_t group = 1;
  std::vector<float> k, v;            // [n, D]
  std::vector<float> q, q_sink;       // [n, G*D]
  std::vector<float> slopes, logits;  // [G]

  int64_t num_tokens() const { return static_cast<int64_t>(k.size()) / head_dim; }
};

// Tokens differ in size, and keys have a dimension that is large, one that is far from 0 in every token, and both.
Text RandomText(int64_t num_tokens, int64_t head_dim, int64_t group, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> size(0.3f, 1.0f);
  const auto draw = [&](int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = normal(rng);
    return values;
  };
  Text text{.head_dim = head_dim,
            .group = group,
            .k = draw(num_tokens * head_dim),
            .v = draw(num_tokens * head_dim),
            .q = draw(num_tokens * group * head_dim),
            .q_sink = draw(num_tokens * group * head_dim),
            .slopes = {},
            .logits = draw(group)};
  for (int64_t i = 0; i < num_tokens; ++i) {
    const float factor = size(rng);
    float* key = text.k.data() + i * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) {
      key[d] *= factor;
      text.v[static_cast<size_t>(i * head_dim + d)] *= factor;
    }
    key[1] *= 3.0f;
    key[head_dim / 2] += 12.0f;
    key[head_dim - 1] = 2.0f * key[head_dim - 1] - 9.0f;
  }
  for (int64_t g = 0; g < group; ++g) text.slopes.push_back(0.1f / static_cast<float>(g + 1));
  return text;
}

float AsF16(float x) {
  return F16ToF32(F32ToF16(x));
}

void RoundToQ8(float* row, int64_t dim) {
  float largest = 0;
  for (int64_t d = 0; d < dim; ++d) {
    if (std::abs(row[d]) > largest || std::isnan(row[d])) largest = std::abs(row[d]);
  }
  const float scale = AsF16(largest / 127.0f);
  const bool has_codes = scale > 0 && std::isfinite(scale);
  for (int64_t d = 0; d < dim; ++d) {
    row[d] = scale * (has_codes ? std::clamp(std::nearbyint(row[d] / scale), -127.0f, 127.0f) : 0.0f);
  }
}

// `num` numbers with one scale, `stride` apart.
void RoundToQ4(float* x, int64_t num, int64_t stride) {
  float low = x[0], high = x[0];
  for (int64_t i = 0; i < num; ++i) {
    const float element = x[i * stride];
    if (element < low || std::isnan(element)) low = element;
    if (element > high || std::isnan(element)) high = element;
  }
  const float scale = AsF16((high - low) / 15.0f);
  low = AsF16(low);
  for (int64_t i = 0; i < num; ++i) {
    const float code = scale > 0 ? std::clamp(std::nearbyint((x[i * stride] - low) / scale), 0.0f, 15.0f) : 0.0f;
    x[i * stride] = scale * code + low;
  }
}

// Pages [begin, end) are aged.
struct Aged {
  int64_t begin = 0;
  int64_t end = 0;
};

// Keys and values as pages of P tokens hold them.
Text Stored(const Text& text, int64_t page_tokens, const Aged& aged) {
  Text stored = text;
  const int64_t dim = text.head_dim;
  for (int64_t i = 0; i < text.num_tokens(); ++i) {
    RoundToQ8(stored.k.data() + i * dim, dim);
    RoundToQ8(stored.v.data() + i * dim, dim);
  }
  for (int64_t page = aged.begin; page < aged.end; ++page) {
    const int64_t first = page * page_tokens * dim;
    for (int64_t d = 0; d < dim; ++d) RoundToQ4(stored.k.data() + first + d, page_tokens, dim);
    for (int64_t i = 0; i < page_tokens; ++i) {
      for (int64_t d = 0; d < dim; d += 32) {
        RoundToQ4(stored.v.data() + first + i * dim + d, std::min<int64_t>(32, dim - d), 1);
      }
    }
  }
  return stored;
}

// ---- the same in pages ----------------------------------------------------------------------------------------------

class Head {
 public:
  // Pages start out as 0xFF bytes, which are NaN where they are scales: what was never written must not show.
  Head(Backend& backend, Text& text, int64_t page_tokens, const Aged& aged) : backend_(backend), text_(text) {
    layout_ = {.head_dim = text.head_dim, .page_tokens = page_tokens, .format = KvFormat::kQ8};
    const int64_t num_tokens = text.num_tokens();
    for (int64_t i = 0; i * page_tokens < num_tokens; ++i) pages_.push_back(NewPage(layout_));
    const HeadWork work{.num_rows = num_tokens, .layout = layout_, .pages = Table(0, 0)};
    backend.AppendKv({.k = ViewOf(text.k, num_tokens), .v = ViewOf(text.v, num_tokens), .heads = {&work, 1}});
    Age(aged);
  }

  Backend& backend() const { return backend_; }
  Text& text() const { return text_; }

  HeadWork Work() const {
    return {.layout = layout_, .pages = Table(0, 0), .aged_begin = aged_.begin, .aged_end = aged_.end};
  }

  // Sinks, and pages from that of token `recent_begin` on.
  PageTable Table(int64_t sink, int64_t recent_begin) const {
    const int64_t num_sink = (sink + layout_.page_tokens - 1) / layout_.page_tokens;
    const int64_t first = std::max(num_sink, recent_begin / layout_.page_tokens);
    const std::span<std::byte* const> all(pages_);
    return {.sink = all.first(std::min(all.size(), static_cast<size_t>(num_sink))),
            .recent = static_cast<size_t>(first) < all.size() ? all.subspan(static_cast<size_t>(first))
                                                              : std::span<std::byte* const>{},
            .recent_first = first};
  }

  // Keys, then values of all tokens, as they are read.
  std::vector<float> Read() const {
    const int64_t dim = layout_.head_dim;
    std::vector<float> read(text_.k.size() + text_.v.size());
    for (int64_t pos = 0; pos < text_.num_tokens(); ++pos) {
      const std::vector<float> state = ReadToken(backend_, Work(), pos);
      std::copy_n(state.begin(), dim, read.begin() + pos * dim);
      std::copy_n(state.begin() + dim, dim, read.begin() + static_cast<int64_t>(text_.k.size()) + pos * dim);
    }
    return read;
  }

 private:
  std::byte* NewPage(const KvLayout& layout) {
    const size_t bytes = backend_.PageBytes(layout);
    const std::vector<std::byte> garbage(bytes, std::byte{0xFF});
    buffers_.emplace_back(backend_, bytes);
    backend_.CopyFromHost(buffers_.back().data(), garbage.data(), bytes);
    return buffers_.back().data();
  }

  void Age(const Aged& aged) {
    KvLayout layout = layout_;
    layout.format = KvFormat::kQ4;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (int64_t i = aged.begin; i < aged.end; ++i) {
      from.push_back(pages_[static_cast<size_t>(i)]);
      to.push_back(NewPage(layout));
    }
    backend_.AgeKv({.layout = layout_, .from = from, .to = to});
    std::copy(to.begin(), to.end(), pages_.begin() + aged.begin);
    aged_ = aged;
  }

  Backend& backend_;
  Text& text_;
  KvLayout layout_;
  Aged aged_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::byte*> pages_;
};

// ---- attention ------------------------------------------------------------------------------------------------------

struct Query {
  int64_t first_pos = 0;
  int64_t num_rows = 1;
  int64_t sink = 0;
  int64_t recent = kNoLimit;
  int64_t sink_reach = kNoLimit;
  int64_t sink_pos_limit = kNoLimit;
  bool uses_sink_query = false;
  bool alibi = false;
  bool sink_logits = false;
  Compute compute = Compute::kF32;
};

struct Outputs {
  std::vector<float> out;  // [rows, G*D]
  std::vector<float> lse;  // [rows, G]

  friend bool operator==(const Outputs&, const Outputs&) = default;
};

HeadWork WorkOf(const Head& head, const Query& query) {
  HeadWork work = head.Work();
  work.num_rows = query.num_rows;
  work.first_pos = query.first_pos;
  work.pages = head.Table(query.sink, std::max<int64_t>(0, query.first_pos - query.recent + 1));
  work.sink = query.sink;
  work.recent = query.recent;
  work.sink_reach = query.sink_reach;
  work.sink_pos_limit = query.sink_pos_limit;
  work.uses_sink_query = query.uses_sink_query;
  return work;
}

Outputs Attend(const Head& head, const Query& query) {
  Text& text = head.text();
  const int64_t q_dim = text.group * text.head_dim;
  const auto rows = [&](const std::vector<float>& values) {
    const auto begin = values.begin() + query.first_pos * q_dim;
    return std::vector<float>(begin, begin + query.num_rows * q_dim);
  };
  std::vector<float> q = rows(text.q), q_sink = rows(text.q_sink);
  Outputs outputs{.out = std::vector<float>(q.size()),
                  .lse = std::vector<float>(static_cast<size_t>(query.num_rows * text.group))};
  const TensorView slopes{.data = text.slopes.data(), .dtype = DType::kF32, .shape = {text.group}};
  const TensorView logits{.data = text.logits.data(), .dtype = DType::kF32, .shape = {text.group}};
  const HeadWork work = WorkOf(head, query);
  head.backend().Attention({.q = ViewOf(q, query.num_rows),
                            .q_sink = ViewOf(q_sink, query.num_rows),
                            .out = ViewOf(outputs.out, query.num_rows),
                            .lse = ViewOf(outputs.lse, query.num_rows),
                            .alibi_slopes = query.alibi ? slopes : TensorView{},
                            .sink_logits = query.sink_logits ? logits : TensorView{},
                            .heads = {&work, 1},
                            .num_q_heads = text.group,
                            .num_kv_heads = 1,
                            .scale = 1.0f / std::sqrt(static_cast<float>(text.head_dim)),
                            .compute = query.compute});
  return outputs;
}

// One query head at one position over `stored` keys and values: outputs [D], then the log-sum-exp.
std::vector<double> ExactRow(const Text& stored, const Query& query, int64_t pos, int64_t g) {
  const int64_t dim = stored.head_dim;
  const int64_t sink_pos = std::min(pos, query.sink_pos_limit);
  std::vector<double> sums(static_cast<size_t>(dim) + 1, 0.0);
  double& denominator = sums.back();
  if (query.sink_logits) denominator = std::exp(stored.logits[static_cast<size_t>(g)]);
  for (int64_t j = 0; j <= pos; ++j) {
    const bool is_sink = j < query.sink;
    if (is_sink ? sink_pos - j >= query.sink_reach : pos - j >= query.recent) continue;
    const float* q =
        (is_sink && query.uses_sink_query ? stored.q_sink : stored.q).data() + (pos * stored.group + g) * dim;
    double score = 0;
    for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[d]) * stored.k[static_cast<size_t>(j * dim + d)];
    score /= std::sqrt(static_cast<double>(dim));
    if (query.alibi) {
      score += stored.slopes[static_cast<size_t>(g)] * static_cast<double>(j - (is_sink ? sink_pos : pos));
    }
    const double p = std::exp(score);
    denominator += p;
    for (int64_t d = 0; d < dim; ++d) sums[static_cast<size_t>(d)] += p * stored.v[static_cast<size_t>(j * dim + d)];
  }
  for (int64_t d = 0; d < dim; ++d) sums[static_cast<size_t>(d)] /= denominator;
  denominator = std::log(denominator);
  return sums;
}

std::vector<std::vector<double>> Exact(const Text& stored, const Query& query) {
  std::vector<std::vector<double>> rows;
  for (int64_t row = 0; row < query.num_rows * stored.group; ++row) {
    rows.push_back(ExactRow(stored, query, query.first_pos + row / stored.group, row % stored.group));
  }
  return rows;
}

struct Errors {
  double relative = 0;  // root mean square of all outputs' errors, as a part of that of outputs
  double lse = 0;       // largest
};

Errors ErrorsOf(const Outputs& outputs, const std::vector<std::vector<double>>& expected) {
  double errors = 0, squares = 0;
  Errors result;
  for (size_t row = 0; row < expected.size(); ++row) {
    const size_t dim = expected[row].size() - 1;
    for (size_t d = 0; d < dim; ++d) {
      const double want = expected[row][d];
      const double error = outputs.out[row * dim + d] - want;
      errors += error * error;
      squares += want * want;
    }
    result.lse = std::max(result.lse, std::abs(outputs.lse[row] - expected[row].back()));
  }
  result.relative = std::sqrt(errors / squares);
  return result;
}

// ---- tests ----------------------------------------------------------------------------------------------------------

constexpr int64_t kHeadDims[] = {16, 40, 64, 80, 128};
constexpr int64_t kPageTokens[] = {16, 32, 64};

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

TEST(KvQ4Kernels, AttentionEqualsTheOracle) {
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

// As for q8 (kv_q8_test.cc). Each head by itself: the steepest reads so few keys that its outputs would hide the
// others'.
TEST(KvQ4Kernels, ScoresMayRiseFarAboveTheFirst) {
  constexpr int64_t kTokens = 1300;
  constexpr Aged kAged{.begin = 1, .end = 19};
  for (const float slope : {3.0f, 0.5f, 0.1f, 0.02f, 0.0f}) {
    Text text = RandomText(kTokens, 40, 1, 1);
    text.slopes = {slope};
    const Query query{.first_pos = kTokens - 1, .sink = 20, .recent = kTokens - 100, .alibi = true};
    const std::vector<std::vector<double>> expected = Exact(Stored(text, 64, kAged), query);
    for (const NamedBackend& named : CpuBackends()) {
      const Head head(*named.backend, text, 64, kAged);
      const Errors errors = ErrorsOf(Attend(head, query), expected);
      EXPECT_LE(errors.relative, Tolerance(query).relative) << named.name << " slope " << slope;
      EXPECT_LE(errors.lse, Tolerance(query).lse) << named.name << " slope " << slope;
    }
  }
}

// Several heads, mixed pages, cuts into pieces: the same bits whatever the number of threads, and alone or in a batch.
TEST(KvQ4Kernels, ThreadsAndBatchesChangeNothing) {
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
      std::vector<HeadWork> work;
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
      args.heads = work;
      args.num_q_heads = kGroup;
      args.num_kv_heads = 1;
      args.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
      backend->Attention(args);
      if (alone.empty()) alone = each;
      EXPECT_EQ(each, alone) << kernels->isa << " " << num_threads << " threads";
      EXPECT_EQ(out, alone) << kernels->isa << " " << num_threads << " threads, one batch";
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
    std::vector<float> state(static_cast<size_t>(2 * kDim));
    HeadFold fold{.work = head.Work(), .state = state.data(), .fold_end = kTokens - 20};
    fold.work.first_pos = kTokens;
    fold.work.sink = kSink;
    fold.work.recent = 20;
    CompensateArgs args;
    args.heads = {&fold, 1};
    args.num_q_heads = args.num_kv_heads = 1;
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
}  // namespace headwise
