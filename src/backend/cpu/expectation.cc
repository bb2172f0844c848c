#include "backend/cpu/expectation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cpu/attention.h"

namespace headwise::cpu {
namespace {

// Rows whose products with any vector have the squares, summed over all and divided by their number, that those of n
// `rows` have: the columns of a root of their covariance. [n, D] in, [D, D] out.
void RootOfCovariance(int64_t n, int64_t dim, const float* rows, float* root) {
  const auto size = static_cast<size_t>(dim);
  std::vector<double> lower(size * size);
  for (int64_t i = 0; i < n; ++i) {
    const float* const row = rows + i * dim;
    for (size_t a = 0; a < size; ++a) {
      const double x = row[a];
      for (size_t b = 0; b <= a; ++b) lower[a * size + b] += x * row[b];
    }
  }
  // Of a matrix without an inverse, as that of numbers that are alike, some columns are left at zero.
  constexpr double kLeastShare = 1e-12;
  for (size_t j = 0; j < size; ++j) {
    double* const of_j = &lower[j * size];
    double pivot = of_j[j];
    for (size_t k = 0; k < j; ++k) pivot -= of_j[k] * of_j[k];
    const double diagonal = pivot > kLeastShare * of_j[j] ? std::sqrt(pivot) : 0;
    for (size_t i = j + 1; i < size; ++i) {
      double* const of_i = &lower[i * size];
      for (size_t k = 0; k < j; ++k) of_i[j] -= of_i[k] * of_j[k];
      of_i[j] = diagonal > 0 ? of_i[j] / diagonal : 0;
    }
    of_j[j] = diagonal;
  }
  const double scale = std::sqrt(static_cast<double>(dim) / static_cast<double>(n));
  for (size_t j = 0; j < size; ++j) {
    for (size_t d = 0; d < size; ++d) {
      root[j * size + d] = d < j ? 0.0f : static_cast<float>(lower[d * size + j] * scale);
    }
  }
}

}  // namespace

void Expect(const SelectKvArgs& args, const KernelTable& kernels, float* tile, Expectation& expectation) {
  const HeadWork& work = expectation.work;
  const ConstTensorView& q = args.q_ahead.present() ? args.q_ahead : args.q;
  const int64_t stride = q.shape[1], dim = work.layout().head_dim, num_slots = work.num_slots();
  const int64_t first = work.selection->keep_first, num_rows = expectation.num_rows;
  std::vector<float> rows(static_cast<size_t>((1 + num_rows) * dim));
  float* const mean = rows.data();
  float* const deviations = mean + dim;
  const float* const from = static_cast<const float*>(q.data) + (work.first_row + expectation.first_row) * stride +
                            (work.kv_head * args.group() + expectation.q_idx) * dim;
  for (int64_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (int64_t i = 0; i < num_rows; ++i) sum += from[i * stride + d];
    mean[d] = static_cast<float>(sum / static_cast<double>(num_rows));
    for (int64_t i = 0; i < num_rows; ++i) deviations[i * dim + d] = from[i * stride + d] - mean[d];
  }
  if (num_rows > dim) {
    std::vector<float> root(static_cast<size_t>(dim * dim));
    RootOfCovariance(num_rows, dim, deviations, root.data());
    std::ranges::copy(root, deviations);
  }
  std::vector<float>& shares = expectation.shares;
  shares.resize(static_cast<size_t>(num_slots + kGroupTokens));
  SelectScoreArgs score{};
  score.pages = PagesOf(work);
  score.end = score.first_slot = num_slots;
  score.num_tokens = 1 + std::min(num_rows, dim);
  score.num_q = 1;
  score.q = mean;
  score.stride = dim;
  score.scale = args.scale;
  score.resets = true;
  score.tile = tile;
  score.exponents = shares.data();
  kernels.attention.select_score(score);
  std::fill_n(shares.begin(), first, 0.0f);
  const std::span<float> e =
      std::span(shares).subspan(static_cast<size_t>(first), static_cast<size_t>(num_slots - first));
  const float largest = *std::ranges::max_element(e);
  double sum = 0;
  for (float& x : e) sum += x = std::exp(x - largest);
  for (float& x : e) x = static_cast<float>(x / sum);
}

void AddExpectations(std::span<const Expectation> group) {
  const HeadWork& work = group.front().work;
  for (int64_t slot = work.selection->keep_first; slot < work.num_slots(); ++slot) {
    double sum = 0;
    for (const Expectation& expectation : group) sum += expectation.shares[static_cast<size_t>(slot)];
    const double share = sum / static_cast<double>(group.size()) + work.selection->epsilon;
    work.Notes(slot / work.page_tokens()).scores[slot % work.page_tokens()] +=
        static_cast<float>(static_cast<double>(group.front().num_rows) * share);
  }
}

void WeighByValues(const HeadWork& work, const KernelTable& kernels) {
  const int64_t dim = work.layout().head_dim;
  std::vector<float> token(static_cast<size_t>(2 * dim));
  const auto value = token.begin() + dim;
  FoldArgs fold{};
  fold.pages = PagesOf(work);
  fold.state = token.data();
  for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
    fold.sink = slot;
    fold.fold_end = slot + 1;
    kernels.attention.fold(fold);  // the mean of one token is that token
    float& score = work.Notes(slot / work.page_tokens()).scores[slot % work.page_tokens()];
    score = static_cast<float>(score * std::sqrt(std::inner_product(value, token.end(), value, 0.0)));
  }
}

}  // namespace headwise::cpu
