// A head that keeps every token and reads blocks of them, as its paper says it: in double, over the whole text
// [quest, infllm].
#ifndef HEADWISE_TESTS_SUPPORT_BLOCK_READ_SIMULATION_H_
#define HEADWISE_TESTS_SUPPORT_BLOCK_READ_SIMULATION_H_

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "support/selection_simulation.h"

namespace headwise {

// x to the next number of 11 binary digits that is not above it; below 2^-14 to the next multiple of 2^-24.
inline double RoundedDown(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -13) - 11);
  return std::floor(x / unit) * unit;
}

// To the nearest of these.
inline double Rounded(double x) {
  const double below = RoundedDown(x), above = -RoundedDown(-x);
  return x - below < above - x ? below : above;
}

// One KV head of a text.
class BlockReadSimulation {
 public:
  BlockReadSimulation(const AttentionCase& test_case, const AttentionData& data, int64_t kv_head)
      : case_(test_case),
        blocks_(test_case.rules[static_cast<size_t>(kv_head)].blocks),
        kv_head_(kv_head),
        group_(test_case.num_q_heads / test_case.num_kv_heads) {
    TakeHead(test_case, data, kv_head, keys_, values_, queries_);
  }

  // Blocks that the query at t reads; and in `margin` by how much the last that is chosen is ahead of the first that is
  // not, as a share of it.
  std::set<int64_t> BlocksAt(int64_t t, double& margin) const {
    const int64_t newest = t / blocks_.block_tokens;
    std::set<int64_t> read;
    margin = 1;
    std::vector<std::pair<double, int64_t>> bounds;
    for (int64_t block = 0; block <= newest; ++block) {
      if (t < blocks_.from || block < blocks_.first || block + blocks_.newest > newest) {
        read.insert(block);
      } else {
        bounds.push_back({blocks_.representatives > 0 ? LikenessOf(t, block, margin) : BoundOf(t, block), block});
      }
    }
    std::sort(bounds.rbegin(), bounds.rend());
    const auto places = static_cast<size_t>(blocks_.most - blocks_.newest);
    if (t >= blocks_.from && places > 0 && bounds.size() > places) {
      margin = std::min(margin, (bounds[places - 1].first - bounds[places].first) / std::abs(bounds[places].first));
    }
    for (size_t i = 0; i < std::min(places, bounds.size()); ++i) read.insert(bounds[i].second);
    return read;
  }

  // Of the queries of the group at t, [G*D], over the tokens of `blocks`.
  Row Attend(int64_t t, const std::set<int64_t>& blocks) const {
    Row out(static_cast<size_t>(group_ * case_.head_dim));
    for (int64_t g = 0; g < group_; ++g) {
      double denominator = 0;
      Row sum(static_cast<size_t>(case_.head_dim));
      for (int64_t j = 0; j <= t; ++j) {
        if (!blocks.contains(j / blocks_.block_tokens)) continue;
        const Row& q = queries_[static_cast<size_t>(t * group_ + g)];
        const Row& k = keys_[static_cast<size_t>(j)];
        double score = std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(case_.head_dim);
        if (case_.score_cap > 0) score = case_.score_cap * std::tanh(score / case_.score_cap);
        denominator += std::exp(score);
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += std::exp(score) * values_[static_cast<size_t>(j)][d];
      }
      for (size_t d = 0; d < sum.size(); ++d) out[static_cast<size_t>(g * case_.head_dim) + d] = sum[d] / denominator;
    }
    return out;
  }

 private:
  // The product of the group's queries at t, all together, with the mean of the block's representatives: the tokens
  // that queries of the newest - 1 blocks behind it give the largest products. A near tie among these narrows `margin`.
  double LikenessOf(int64_t t, int64_t block, double& margin) const {
    const auto dim = static_cast<size_t>(case_.head_dim);
    const int64_t first = block * blocks_.block_tokens, end = first + blocks_.block_tokens;
    std::vector<std::pair<double, int64_t>> products;
    for (int64_t j = first; j < end; ++j) {
      double product = 0;
      for (int64_t row = end * group_; row < (end + (blocks_.newest - 1) * blocks_.block_tokens) * group_; ++row) {
        const Row& q = queries_[static_cast<size_t>(row)];
        product += std::inner_product(q.begin(), q.end(), keys_[static_cast<size_t>(j)].begin(), 0.0);
      }
      products.push_back({product, j});
    }
    std::sort(products.rbegin(), products.rend());
    const auto num = static_cast<size_t>(blocks_.representatives);
    if (num < products.size()) {
      margin = std::min(margin, (products[num - 1].first - products[num].first) / std::abs(products[num].first));
    }
    double likeness = 0;
    for (size_t d = 0; d < dim; ++d) {
      double mean = 0, query = 0;
      for (size_t i = 0; i < num; ++i) mean += keys_[static_cast<size_t>(products[i].second)][d];
      for (int64_t g = 0; g < group_; ++g) query += queries_[static_cast<size_t>(t * group_ + g)][d];
      likeness += query * Rounded(mean / static_cast<double>(num));
    }
    return likeness;
  }

  // The most that a key between the least and the largest of the block's could score, for one of the group's queries.
  double BoundOf(int64_t t, int64_t block) const {
    double largest = -INFINITY;
    for (int64_t g = 0; g < group_; ++g) {
      double bound = 0;
      for (size_t d = 0; d < static_cast<size_t>(case_.head_dim); ++d) {
        double low = INFINITY, high = -INFINITY;
        for (int64_t j = block * blocks_.block_tokens; j < (block + 1) * blocks_.block_tokens; ++j) {
          low = std::min(low, keys_[static_cast<size_t>(j)][d]);
          high = std::max(high, keys_[static_cast<size_t>(j)][d]);
        }
        const double q = queries_[static_cast<size_t>(t * group_ + g)][d];
        bound += std::max(q * RoundedDown(low), q * -RoundedDown(-high));
      }
      largest = std::max(largest, bound);
    }
    return largest;
  }

  const AttentionCase& case_;
  const KvBlockReads blocks_;
  const int64_t kv_head_;
  const int64_t group_;
  std::vector<Row> keys_, values_;  // [n][D]
  std::vector<Row> queries_;        // [n * G][D]
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_BLOCK_READ_SIMULATION_H_
