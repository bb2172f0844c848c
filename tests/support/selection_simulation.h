// Heads that choose by score which tokens they keep, as their papers say it: dense attention in double over explicit
// sets of kept tokens, which a policy cuts behind every step. It knows nothing of pages and slots.
#ifndef HEADWISE_TESTS_SUPPORT_SELECTION_SIMULATION_H_
#define HEADWISE_TESTS_SUPPORT_SELECTION_SIMULATION_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "support/random_attention.h"

namespace headwise {

using Row = std::vector<double>;

inline Row Rotated(const AttentionCase& test_case, const AttentionData& data, const float* x, int64_t pos) {
  const int64_t half = test_case.head_dim / 2;
  Row out(static_cast<size_t>(test_case.head_dim));
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(pos) * data.frequencies[static_cast<size_t>(i)];
    out[static_cast<size_t>(i)] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    out[static_cast<size_t>(i + half)] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return out;
}

// Of one KV head: keys and values of each token, [n][D], and the rotated queries of its group, [n * G][D].
inline void TakeHead(const AttentionCase& test_case, const AttentionData& data, int64_t kv_head, std::vector<Row>& keys,
                     std::vector<Row>& values, std::vector<Row>& queries) {
  const int64_t dim = test_case.head_dim;
  const int64_t group = test_case.num_q_heads / test_case.num_kv_heads;
  for (int64_t t = 0; t < test_case.num_tokens; ++t) {
    const int64_t kv = (t * test_case.num_kv_heads + kv_head) * dim;
    keys.push_back(Rotated(test_case, data, &data.k[static_cast<size_t>(kv)], t));
    values.emplace_back(data.v.begin() + kv, data.v.begin() + kv + dim);
    for (int64_t g = 0; g < group; ++g) {
      const int64_t q = (t * test_case.num_q_heads + kv_head * group + g) * dim;
      queries.push_back(Rotated(test_case, data, &data.q[static_cast<size_t>(q)], t));
    }
  }
}

// One KV head of a text under one policy.
class SelectionSimulation {
 public:
  // The score of what stays for what it is, above every sum of probabilities.
  static constexpr double kKept = 1e9;

  SelectionSimulation(const AttentionCase& test_case, const AttentionData& data, int64_t kv_head)
      : case_(test_case),
        rule_(test_case.rules[static_cast<size_t>(kv_head)]),
        kv_head_(kv_head),
        group_(test_case.num_q_heads / test_case.num_kv_heads) {
    TakeHead(test_case, data, kv_head, keys_, values_, queries_);
    if (rule_.select.kind != TokenSelector::Kind::kFastGen) return;
    // What special tokens and punctuation got from queries does not matter: all others go before them [fastgen].
    for (int64_t t = 0; t < test_case.num_tokens; ++t) {
      const TokenMark mark = data.marks[static_cast<size_t>(t)];
      if (mark == TokenMark::kSpecial) scores_[t] = 2 * kKept;
      if (mark == TokenMark::kPunctuation && rule_.select.punctuation) scores_[t] = kKept;
    }
  }

  // Tokens [begin, end) come; their outputs go to rows of out, [num_tokens, Hq*D].
  void Step(int64_t begin, int64_t end, std::vector<double>& out) {
    for (int64_t t = begin; t < end; ++t) {
      kept_.insert(t);
      std::map<int64_t, double> seen;  // what the group's queries give each kept token
      for (int64_t g = 0; g < group_; ++g) Attend(t, g, seen, out);
      Observe(t, seen);
    }
    if (end < rule_.holds_from) return;
    const auto budget = static_cast<size_t>(rule_.sink + rule_.recent);
    if (rule_.select.kind == TokenSelector::Kind::kSnapKv && end == rule_.holds_from) CutTo(budget);
    if (rule_.select.CutsOnce()) return;
    if (rule_.select.kind == TokenSelector::Kind::kKeyDiff && kept_.size() > budget) ScoreByDirection();
    // As many of the newest as H2O and FastGen keep whatever they scored; TOVA keeps none for that.
    const int64_t newest = rule_.select.SumsAll()
                               ? static_cast<int64_t>(rule_.select.recent_share * static_cast<double>(rule_.recent))
                               : 0;
    while (kept_.size() > budget) {
      int64_t lowest = -1;
      for (const int64_t j : kept_) {
        if (j < rule_.sink || j >= end - newest) continue;
        if (lowest < 0 || scores_[j] < scores_[lowest]) lowest = j;
      }
      Drop(lowest);
    }
  }

  // At the end of the prompt: tokens that may go and what counts of them [snapkv].
  std::vector<std::pair<double, int64_t>> Pooled() {
    const int64_t prefix = rule_.holds_from - std::min(rule_.select.window, rule_.recent);
    const int64_t reach = rule_.select.kernel / 2;
    std::vector<std::pair<double, int64_t>> pooled;
    for (int64_t j = rule_.sink; j < prefix; ++j) {
      double sum = 0, largest = 0;
      for (int64_t i = std::max<int64_t>(0, j - reach); i <= std::min(prefix - 1, j + reach); ++i) {
        sum += scores_[i];
        largest = std::max(largest, scores_[i]);
      }
      pooled.push_back({rule_.select.pooling == TokenSelector::Pooling::kMean ? sum : largest, j});
    }
    return pooled;
  }
  void CutTo(size_t num_kept) {
    if (kept_.size() <= num_kept) return;
    std::vector<std::pair<double, int64_t>> pooled = Pooled();
    std::sort(pooled.begin(), pooled.end());
    for (size_t i = 0; kept_.size() > num_kept; ++i) Drop(pooled[i].second);
  }

  const std::set<int64_t>& kept() const { return kept_; }
  double ScoreOf(int64_t j) { return scores_[j]; }

 private:
  void Drop(int64_t j) {
    kept_.erase(j);
    ++num_dropped_;
    const auto add = [&](Row& sum, const Row& x) {
      sum.resize(x.size());
      for (size_t d = 0; d < x.size(); ++d) sum[d] += x[d];
    };
    add(dropped_keys_, keys_[static_cast<size_t>(j)]);
    add(dropped_values_, values_[static_cast<size_t>(j)]);
  }

  void Attend(int64_t t, int64_t g, std::map<int64_t, double>& seen, std::vector<double>& out) const {
    std::map<int64_t, double> weights;
    double denominator = 0;
    for (const int64_t j : kept_) {
      const Row& q = queries_[static_cast<size_t>(t * group_ + g)];
      const Row& k = keys_[static_cast<size_t>(j)];
      double score = std::inner_product(q.begin(), q.end(), k.begin(), 0.0) / std::sqrt(case_.head_dim);
      if (case_.score_cap > 0) score = case_.score_cap * std::tanh(score / case_.score_cap);
      denominator += weights[j] = std::exp(score);
    }
    const int64_t row = (t * case_.num_q_heads + kv_head_ * group_ + g) * case_.head_dim;
    if (num_dropped_ > 0 && rule_.compensate) {
      // One more key and value, the mean of those that were dropped, as often as these are [razor §3.3].
      const auto n = static_cast<double>(num_dropped_);
      const Row& q = queries_[static_cast<size_t>(t * group_ + g)];
      double score = std::inner_product(q.begin(), q.end(), dropped_keys_.begin(), 0.0) / n / std::sqrt(case_.head_dim);
      if (case_.score_cap > 0) score = case_.score_cap * std::tanh(score / case_.score_cap);
      const double weight = n * std::exp(score);
      denominator += weight;
      for (int64_t d = 0; d < case_.head_dim; ++d) {
        out[static_cast<size_t>(row + d)] += weight / denominator * dropped_values_[static_cast<size_t>(d)] / n;
      }
    }
    for (const auto& [j, weight] : weights) {
      seen[j] += weight / denominator;
      for (int64_t d = 0; d < case_.head_dim; ++d) {
        out[static_cast<size_t>(row + d)] +=
            weight / denominator * values_[static_cast<size_t>(j)][static_cast<size_t>(d)];
      }
    }
  }

  void Observe(int64_t t, const std::map<int64_t, double>& seen) {
    switch (rule_.select.kind) {
      case TokenSelector::Kind::kKeyNorm: {
        const Row& k = keys_[static_cast<size_t>(t)];
        scores_[t] = -std::sqrt(std::inner_product(k.begin(), k.end(), k.begin(), 0.0));
        break;
      }
      case TokenSelector::Kind::kTova:
        scores_ = seen;
        break;
      case TokenSelector::Kind::kKeyDiff:
        break;  // of all kept keys together, at the cut
      case TokenSelector::Kind::kSnapKv:
      case TokenSelector::Kind::kAdaKv:
        if (t < rule_.holds_from - rule_.select.window || t >= rule_.holds_from) break;
        [[fallthrough]];
      default:
        for (const auto& [j, weight] : seen) scores_[j] += scores_[j] < kKept ? weight : 0;
    }
  }

  // Minus the cosine with the mean of the directions of all kept keys [keydiff].
  void ScoreByDirection() {
    const auto length = [](const Row& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); };
    Row mean(static_cast<size_t>(case_.head_dim));
    for (const int64_t j : kept_) {
      const Row& k = keys_[static_cast<size_t>(j)];
      for (size_t d = 0; d < mean.size(); ++d) mean[d] += k[d] / length(k) / static_cast<double>(kept_.size());
    }
    for (const int64_t j : kept_) {
      const Row& k = keys_[static_cast<size_t>(j)];
      scores_[j] = -std::inner_product(k.begin(), k.end(), mean.begin(), 0.0) / length(k) / length(mean);
    }
  }

  const AttentionCase& case_;
  const ResolvedRule rule_;
  const int64_t kv_head_;
  const int64_t group_;
  std::vector<Row> keys_, values_;  // [n][D]
  std::vector<Row> queries_;        // [n * G][D]
  std::set<int64_t> kept_;
  std::map<int64_t, double> scores_;
  int64_t num_dropped_ = 0;
  Row dropped_keys_, dropped_values_;  // [D], sums
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_SELECTION_SIMULATION_H_
