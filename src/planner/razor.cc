#include "planner/razor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "grad/gemm.h"

namespace headwise {
namespace {

std::vector<size_t> HighestFirst(const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  return order;
}

// Rows [first_row, first_row + num_rows) of W with the bias as one more column: [num_rows, K + 1] in f64.
std::vector<double> WithBias(const LinearWeights& linear, int64_t first_row, int64_t num_rows) {
  const int64_t columns = linear.weight.shape[1];
  std::vector<double> rows(static_cast<size_t>(num_rows * (columns + 1)));
  for (int64_t row = 0; row < num_rows; ++row) {
    double* out = rows.data() + row * (columns + 1);
    WidenElements(linear.weight.rows(), (first_row + row) * columns, columns, out);
    out[columns] = linear.bias.present() ? static_cast<const float*>(linear.bias.data)[first_row + row] : 0.0;
  }
  return rows;
}

// A A^T of an [n, columns] matrix.
std::vector<double> Gram(const std::vector<double>& rows, int64_t n) {
  const int64_t columns = static_cast<int64_t>(rows.size()) / n;
  std::vector<double> gram(static_cast<size_t>(n * n));
  Gemm(GemmArgs<double>{.transpose_b = Transpose::kYes,
                        .m = n,
                        .n = n,
                        .k = columns,
                        .a = rows.data(),
                        .a_stride = columns,
                        .b = rows.data(),
                        .b_stride = columns,
                        .c = gram.data(),
                        .c_stride = n});
  return gram;
}

// || Q^T K ||_2 of two [n, columns] matrices: its square is the largest eigenvalue of (Q Q^T)(K K^T), which is only
// [n, n]; found by power iteration.
double ProductNorm(const std::vector<double>& q, const std::vector<double>& k, int64_t n) {
  const std::vector<double> q_gram = Gram(q, n);
  const std::vector<double> k_gram = Gram(k, n);
  const auto times = [n](const std::vector<double>& matrix, const std::vector<double>& x) {
    std::vector<double> y(x.size());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        y[static_cast<size_t>(i)] += matrix[static_cast<size_t>(i * n + j)] * x[static_cast<size_t>(j)];
      }
    }
    return y;
  };
  constexpr int kMaxIterations = 20000;
  constexpr double kTolerance = 1e-13;
  // Any start that is not orthogonal to the answer does; unequal entries make that unlikely.
  std::vector<double> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = 1.0 + 0.37 * std::sin(static_cast<double>(i) + 1.0);
  double eigenvalue = 0;
  for (int iteration = 0; iteration < kMaxIterations; ++iteration) {
    std::vector<double> y = times(q_gram, times(k_gram, x));
    const double norm = std::sqrt(std::inner_product(y.begin(), y.end(), y.begin(), 0.0));
    if (norm == 0) return 0;
    for (double& value : y) value /= norm;
    x = std::move(y);
    const bool settled = std::abs(norm - eigenvalue) <= kTolerance * norm;
    eigenvalue = norm;
    if (settled) break;
  }
  return std::sqrt(eigenvalue);
}

double SquaredNorm(const ConstTensorView& vector) {
  if (!vector.present()) return 0;
  const auto* data = static_cast<const float*>(vector.data);
  double sum = 0;
  for (int64_t i = 0; i < vector.shape.num_elements(); ++i) sum += static_cast<double>(data[i]) * data[i];
  return sum;
}

}  // namespace

int64_t RazorTokensPerRepetition(const ModelConfig& config) {
  int64_t tokens = std::min({kRazorMaxTokens, config.trained_length / kRazorRepetitions, config.vocab_size / 2});
  if (config.positions == PositionKind::kLearned) {
    tokens = std::min(tokens, (config.num_positions - 1) / kRazorRepetitions);
  }
  return tokens;
}

Result<std::vector<int32_t>> MakeRepeatedTokens(int64_t tokens_per_repetition, int64_t vocab_size,
                                                const std::function<bool(int32_t)>& is_ordinary,
                                                std::span<const int32_t> start_ids, Rng& rng) {
  std::vector<int32_t> ordinary;
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (is_ordinary(id)) ordinary.push_back(id);
  }
  if (static_cast<int64_t>(ordinary.size()) < tokens_per_repetition || tokens_per_repetition < 1) {
    return Status::InvalidInput(
        fmt::format("repeated random tokens: the vocabulary has {} ordinary tokens, expected {}", ordinary.size(),
                    std::max<int64_t>(1, tokens_per_repetition)));
  }
  const auto count = static_cast<size_t>(tokens_per_repetition);
  for (size_t i = 0; i < count; ++i) std::swap(ordinary[i], ordinary[i + rng.Below(ordinary.size() - i)]);
  std::vector<int32_t> ids(start_ids.begin(), start_ids.end());
  for (int64_t i = 0; i < kRazorRepetitions; ++i) {
    ids.insert(ids.end(), ordinary.begin(), ordinary.begin() + tokens_per_repetition);
  }
  return ids;
}

RetrievalScores ScoreRepeatedTokens(GradDecoder<float>& decoder, const std::vector<int32_t>& ids,
                                    int64_t tokens_per_repetition, const std::function<void(int64_t)>& on_layer) {
  const ModelConfig& config = decoder.model().config;
  const auto num_heads = static_cast<size_t>(config.num_layers * config.num_q_heads);
  RetrievalScores scores{std::vector<double>(num_heads), std::vector<double>(num_heads)};
  const int64_t num_tokens = static_cast<int64_t>(ids.size());
  const int64_t first_token = num_tokens - kRazorRepetitions * tokens_per_repetition;  // behind the start
  const int64_t first_query = first_token + tokens_per_repetition;
  const double share = 1.0 / static_cast<double>(num_tokens - first_query);
  std::vector<float> hidden;
  decoder.Forward({.ids = ids,
                   .wanted = {},
                   .on_attention =
                       [&](const AttentionView<float>& view) {
                         decoder.pool().ParallelFor(config.num_q_heads, [&](int64_t q_head, int) {
                           double echo = 0;
                           double induction = 0;
                           for (int64_t query = first_query; query < num_tokens; ++query) {
                             for (int64_t key = query - tokens_per_repetition; key >= first_token;
                                  key -= tokens_per_repetition) {
                               echo += view.Probability(q_head, query, key);
                               induction += view.Probability(q_head, query, key + 1);
                             }
                           }
                           const auto at = static_cast<size_t>(view.layer_idx * config.num_q_heads + q_head);
                           scores.echo[at] = echo * share;
                           scores.induction[at] = induction * share;
                         });
                         if (on_layer) on_layer(view.layer_idx);
                       }},
                  hidden);
  return scores;
}

std::vector<bool> ProtectedHeads(const RetrievalScores& scores, const ModelShape& shape, int64_t num_induction,
                                 int64_t num_echo) {
  std::vector<bool> is_protected(static_cast<size_t>(shape.num_layers * shape.num_kv_heads), false);
  const auto group = static_cast<size_t>(shape.num_q_heads / shape.num_kv_heads);
  const auto protect = [&](const std::vector<double>& of_heads, int64_t count) {
    const std::vector<size_t> order = HighestFirst(of_heads);
    for (int64_t i = 0; i < std::min(count, static_cast<int64_t>(order.size())); ++i) {
      is_protected[order[static_cast<size_t>(i)] / group] = true;
    }
  };
  protect(scores.induction, num_induction);
  protect(scores.echo, num_echo);
  return is_protected;
}

// The paper's norm leaves projection biases out; where a model has them, the normed input is taken with a constant 1
// appended, which adds 1 to its squared norm.
std::vector<int64_t> AlibiScopes(const Model& model, double epsilon) {
  const ModelConfig& config = model.config;
  HW_CHECK(config.positions == PositionKind::kAlibi);
  HW_CHECK(config.norm_places != NormPlaces::kAfter && config.qk_norm == QkNorm::kNone);
  std::vector<int64_t> scopes;
  for (const LayerWeights& layer : model.weights.layers) {
    const double input_norm = SquaredNorm(layer.norm.weight) + SquaredNorm(layer.norm.bias) +
                              (layer.q.bias.present() || layer.k.bias.present() ? 1.0 : 0.0);
    for (int64_t q_head = 0; q_head < config.num_q_heads; ++q_head) {
      const int64_t kv_head = q_head / config.q_heads_per_kv_head();
      const double norm = config.softmax_scale *
                          ProductNorm(WithBias(layer.q, q_head * config.head_dim, config.head_dim),
                                      WithBias(layer.k, kv_head * config.head_dim, config.head_dim), config.head_dim);
      const double scope = (2 * norm * input_norm - std::log(epsilon)) /
                           static_cast<double>(config.alibi_slopes[static_cast<size_t>(q_head)]);
      scopes.push_back(static_cast<int64_t>(std::ceil(std::clamp(scope, 1.0, 1e12))));
    }
  }
  return scopes;
}

}  // namespace headwise
