// One KV head whose pages have aged in part, driven without an engine, and attention over it in double: the oracle
// makes the numbers from their definition (backend/kv_format.h).
#ifndef HEADWISE_TESTS_SUPPORT_AGED_HEAD_H_
#define HEADWISE_TESTS_SUPPORT_AGED_HEAD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/backends.h"
#include "support/head_pages.h"
#include "support/read_token.h"
#include "support/tolerance.h"
#include "tensor/dtype.h"

namespace headwise::aged {

inline constexpr int64_t kHeadDims[] = {16, 40, 64, 80, 128};
inline constexpr int64_t kPageTokens[] = {16, 32, 64};

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
inline Text RandomText(int64_t num_tokens, int64_t head_dim, int64_t group, uint64_t seed) {
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

inline float AsF16(float x) {
  return F16ToF32(F32ToF16(x));
}

inline void RoundToQ8(float* row, int64_t dim) {
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
inline void RoundToQ4(float* x, int64_t num, int64_t stride) {
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
inline Text Stored(const Text& text, int64_t page_tokens, const Aged& aged) {
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
    const TestHead head{.num_rows = num_tokens, .layout = layout_, .pages = Table(0, 0)};
    const HeadsStep step({&head, 1});
    backend.AppendKv({.step = &step.step(), .k = ViewOf(text.k, num_tokens), .v = ViewOf(text.v, num_tokens)});
    Age(aged);
  }

  Backend& backend() const { return backend_; }
  Text& text() const { return text_; }

  TestHead Work() const {
    return {.layout = layout_, .pages = Table(0, 0), .aged_begin = aged_.begin, .aged_end = aged_.end};
  }

  // Sinks, and pages from that of token `recent_begin` on.
  PageTable Table(int64_t sink, int64_t recent_begin) const {
    return TableOf(pages_, layout_.page_tokens, sink, recent_begin);
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
    buffers_.push_back(DeviceBuffer::Make(backend_.device(), bytes).value());
    backend_.device().CopyFromHost(buffers_.back().data(), garbage.data(), bytes);
    return buffers_.back().data();
  }

  void Age(const Aged& aged) {
    KvLayout layout = layout_;
    layout.format = KvFormat::kQ4;
    std::vector<std::byte*> to;
    std::vector<PageMove> moves;
    for (int64_t i = aged.begin; i < aged.end; ++i) {
      moves.push_back({.to_space = 1, .from = static_cast<uint32_t>(i), .to = static_cast<uint32_t>(to.size())});
      to.push_back(NewPage(layout));
    }
    const PageSpace spaces[] = {{.layout = layout_, .extents = pages_}, {.layout = layout, .extents = to}};
    const auto age_end = static_cast<int64_t>(moves.size());
    KvStep step{.num_layers = 1, .num_kv_heads = 1};
    step.spaces = spaces;
    step.ages = moves;
    step.age_ends = {&age_end, 1};
    backend_.AgeKv({.step = &step});
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

inline TestHead WorkOf(const Head& head, const Query& query) {
  TestHead work = head.Work();
  work.num_rows = query.num_rows;
  work.first_pos = query.first_pos;
  work.pages = head.Table(query.sink, std::max<int64_t>(0, query.first_pos - query.recent + 1));
  work.sink = query.sink;
  work.recent = query.recent;
  work.sink_reach = query.sink_reach;
  work.sink_pos_limit = query.sink_pos_limit;
  return work;
}

inline Outputs Attend(const Head& head, const Query& query) {
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
  const TestHead work = WorkOf(head, query);
  const HeadsStep step({&work, 1});
  head.backend().Attention({.step = &step.step(),
                            .q = ViewOf(q, query.num_rows),
                            .q_sink = query.uses_sink_query ? ViewOf(q_sink, query.num_rows) : TensorView{},
                            .out = ViewOf(outputs.out, query.num_rows),
                            .lse = ViewOf(outputs.lse, query.num_rows),
                            .alibi_slopes = query.alibi ? slopes : TensorView{},
                            .sink_logits = query.sink_logits ? logits : TensorView{},
                            .num_q_heads = text.group,
                            .scale = 1.0f / std::sqrt(static_cast<float>(text.head_dim)),
                            .compute = query.compute});
  return outputs;
}

inline KeyMask WorkMask(const Query& query) {
  return {.sink = query.sink,
          .recent = query.recent,
          .sink_reach = query.sink_reach,
          .sink_pos_limit = query.sink_pos_limit};
}

// One query head at one position over `stored` keys and values: outputs [D], then the log-sum-exp.
inline std::vector<double> ExactRow(const Text& stored, const Query& query, int64_t pos, int64_t g) {
  const int64_t dim = stored.head_dim;
  const KeyMask mask = WorkMask(query);
  const int64_t sink_pos = mask.SinkPos(pos);
  std::vector<double> sums(static_cast<size_t>(dim) + 1, 0.0);
  double& denominator = sums.back();
  if (query.sink_logits) denominator = std::exp(stored.logits[static_cast<size_t>(g)]);
  for (int64_t j = 0; j <= pos; ++j) {
    const bool is_sink = j < query.sink;
    if (!mask.Reads(pos, j)) continue;
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

inline std::vector<std::vector<double>> Exact(const Text& stored, const Query& query) {
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

// Of the rows [first_row, end_row) and dimensions [first_dim, end_dim).
inline Errors ErrorsOf(const Outputs& outputs, const std::vector<std::vector<double>>& expected, size_t first_row,
                       size_t end_row, size_t first_dim, size_t end_dim) {
  double errors = 0, squares = 0;
  Errors result;
  for (size_t row = first_row; row < end_row; ++row) {
    const size_t dim = expected[row].size() - 1;
    for (size_t d = first_dim; d < end_dim; ++d) {
      const double want = expected[row][d];
      const double error = outputs.out[row * dim + d] - want;
      errors += error * error;
      squares += want * want;
    }
    result.lse = Worse(result.lse, outputs.lse[row], expected[row].back());
  }
  result.relative = std::sqrt(errors / squares);
  return result;
}

inline Errors ErrorsOf(const Outputs& outputs, const std::vector<std::vector<double>>& expected) {
  return ErrorsOf(outputs, expected, 0, expected.size(), 0, expected[0].size() - 1);
}

}  // namespace headwise::aged

#endif  // HEADWISE_TESTS_SUPPORT_AGED_HEAD_H_
