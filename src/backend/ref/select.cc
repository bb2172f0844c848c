// Which tokens a head keeps by attention score, literally as backend/ops.h says: note, score, choose, move.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "backend/dropped_mean.h"
#include "backend/page_shares.h"
#include "backend/ref/kv_page.h"
#include "backend/ref/ref_ops.h"

namespace headwise::ref {
namespace {

using Scores = KvSelection::Scores;

class SlotTokens {
 public:
  explicit SlotTokens(const HeadWork& work) : work_(work) {}

  KvPage PageOf(int64_t slot) const { return {work_.Page(slot / work_.page_tokens()), work_.layout()}; }
  float Key(int64_t slot, int64_t d) const { return PageOf(slot).Key(slot % work_.page_tokens(), d); }
  float Value(int64_t slot, int64_t d) const { return PageOf(slot).Value(slot % work_.page_tokens(), d); }
  int32_t& Position(int64_t slot) const {
    return work_.Notes(slot / work_.page_tokens()).positions[slot % work_.page_tokens()];
  }
  float& Score(int64_t slot) const {
    return work_.Notes(slot / work_.page_tokens()).scores[slot % work_.page_tokens()];
  }
  void Move(int64_t from, int64_t to) const {
    PageOf(to).Take(to % work_.page_tokens(), PageOf(from), from % work_.page_tokens());
    Position(to) = Position(from);
    Score(to) = Score(from);
  }

 private:
  const HeadWork& work_;
};

// What one row of the step gives the token in `slot`, summed over the query heads of the group.
double ProbabilityOf(const SelectKvArgs& args, const HeadWork& work, int64_t row_idx, int64_t slot) {
  const int64_t dim = work.layout().head_dim;
  const SlotTokens tokens(work);
  double sum = 0;
  for (int64_t g = 0; g < args.group(); ++g) {
    const int64_t row = (work.first_row + row_idx) * args.num_q_heads + work.kv_head * args.group() + g;
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(F32(args.q)[row * dim + d]) * tokens.Key(slot, d);
    double score = dot * args.scale;
    if (args.score_cap != 0.0f) score = args.score_cap * std::tanh(score / args.score_cap);
    sum += std::exp(score - F32(args.lse)[row]);
  }
  return sum;
}

void ScoreByKeyNorm(const HeadWork& work) {
  const SlotTokens tokens(work);
  for (int64_t slot = work.first_pos; slot < work.num_slots(); ++slot) {
    double sum = 0;
    for (int64_t d = 0; d < work.layout().head_dim; ++d) {
      sum += static_cast<double>(tokens.Key(slot, d)) * tokens.Key(slot, d);
    }
    tokens.Score(slot) = static_cast<float>(-std::sqrt(sum));
  }
}

void ScoreByKeyDirection(const HeadWork& work) {
  const SlotTokens tokens(work);
  const int64_t dim = work.layout().head_dim;
  const auto length = [&](int64_t slot) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += static_cast<double>(tokens.Key(slot, d)) * tokens.Key(slot, d);
    return std::sqrt(sum);
  };
  std::vector<double> mean(static_cast<size_t>(dim));
  for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
    const double key_length = length(slot);
    for (int64_t d = 0; d < dim && key_length > 0; ++d) {
      mean[static_cast<size_t>(d)] += tokens.Key(slot, d) / key_length;
    }
  }
  double mean_length = 0;
  for (const double x : mean) mean_length += x * x;
  mean_length = std::sqrt(mean_length);
  for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += mean[static_cast<size_t>(d)] * tokens.Key(slot, d);
    const double lengths = mean_length * length(slot);
    tokens.Score(slot) = lengths > 0 ? static_cast<float>(-dot / lengths) : 0.0f;
  }
}

void AddExpectation(const SelectKvArgs& args, const HeadWork& work) {
  const KvSelection& selection = *work.selection;
  const SlotTokens tokens(work);
  const int64_t dim = work.layout().head_dim;
  const int64_t begin = std::max<int64_t>(0, selection.observe_begin - work.text_pos);
  const int64_t end = std::min(work.num_rows, selection.observe_end - work.text_pos);
  const auto num_rows = static_cast<double>(end - begin);
  if (begin >= end || selection.keep_first >= work.num_slots()) return;
  for (int64_t g = 0; g < args.group(); ++g) {
    std::vector<double> exponents;
    for (int64_t slot = selection.keep_first; slot < work.num_slots(); ++slot) {
      // The product of a key with a normal query is normal too, with the mean and the variance of these.
      double sum = 0, squares = 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = (work.first_row + i) * args.num_q_heads + work.kv_head * args.group() + g;
        const float* q = F32(args.q_ahead.present() ? args.q_ahead : args.q) + row * dim;
        double dot = 0;
        for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * tokens.Key(slot, d) * args.scale;
        sum += dot;
        squares += dot * dot;
      }
      exponents.push_back((sum + (squares - sum * sum / num_rows) / 2) / num_rows);
    }
    const double largest = *std::max_element(exponents.begin(), exponents.end());
    double sum = 0;
    for (double& e : exponents) sum += e = std::exp(e - largest);
    for (size_t i = 0; i < exponents.size(); ++i) {
      tokens.Score(selection.keep_first + static_cast<int64_t>(i)) +=
          static_cast<float>(num_rows * (exponents[i] / sum + selection.epsilon) / static_cast<double>(args.group()));
    }
  }
}

void WeighByValues(const HeadWork& work) {
  const SlotTokens tokens(work);
  for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
    double squared = 0;
    for (int64_t d = 0; d < work.layout().head_dim; ++d) squared += std::pow(tokens.Value(slot, d), 2);
    tokens.Score(slot) = static_cast<float>(tokens.Score(slot) * std::sqrt(squared));
  }
}

void ScoreTokens(const SelectKvArgs& args, const HeadWork& work) {
  const KvSelection& selection = *work.selection;
  const SlotTokens tokens(work);
  if (selection.scores == Scores::kLast) {
    for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
      tokens.Score(slot) = static_cast<float>(ProbabilityOf(args, work, work.num_rows - 1, slot));
    }
    return;
  }
  for (int64_t i = 0; i < work.num_rows; ++i) {
    const int64_t pos = work.text_pos + i;
    if (pos < selection.observe_begin || pos >= selection.observe_end) continue;
    for (int64_t slot = 0; slot <= work.first_pos + i; ++slot) {
      tokens.Score(slot) += static_cast<float>(ProbabilityOf(args, work, i, slot));
    }
  }
}

// The score that counts of the token in `slot`.
double PooledScore(const HeadWork& work, int64_t slot) {
  const KvSelection& selection = *work.selection;
  const SlotTokens tokens(work);
  if (selection.kernel == 1) return tokens.Score(slot);
  const int64_t reach = selection.kernel / 2;
  const int64_t end = std::min(slot + reach + 1, work.num_slots() - selection.keep_newest);
  double sum = 0;
  double largest = -INFINITY;
  for (int64_t other = std::max<int64_t>(0, slot - reach); other < end; ++other) {
    sum += tokens.Score(other);
    largest = std::max<double>(largest, tokens.Score(other));
  }
  return selection.pooling == KvSelection::Pooling::kMean ? sum / selection.kernel : largest;
}

struct Candidate {
  double score;
  int64_t pos;
  int64_t kv_head;
  int64_t slot;

  // Who goes first.
  bool operator<(const Candidate& other) const {
    if (score != other.score) return score < other.score;
    return pos != other.pos ? pos < other.pos : kv_head < other.kv_head;
  }
};

// Tokens that may go, those that go first in front.
std::vector<Candidate> CandidatesOf(const HeadWork& work) {
  const KvSelection& selection = *work.selection;
  const SlotTokens tokens(work);
  const int64_t end_pos = work.text_pos + work.num_rows;
  std::vector<Candidate> candidates;
  for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
    const int64_t pos = tokens.Position(slot);
    if (pos < selection.keep_first || pos >= end_pos - selection.keep_newest) continue;
    const double score = PooledScore(work, slot);
    candidates.push_back({std::isnan(score) ? -INFINITY : score, pos, work.kv_head, slot});
  }
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

// Tokens in `slots` join the mean: mean += (x - mean) / n, with n counting the new token [razor §3.3].
void FoldDropped(const HeadWork& work, std::span<const int64_t> slots) {
  if (!HasDroppedMean(work)) return;
  const SlotTokens tokens(work);
  const int64_t dim = work.layout().head_dim;
  float* const state = work.State();
  int64_t n = NumInDroppedMean(work);
  for (const int64_t slot : InOrderOfText(work, slots)) {
    ++n;
    const auto fold = [&](float& mean, float x) { mean = n == 1 ? x : mean + (x - mean) / static_cast<float>(n); };
    for (int64_t d = 0; d < dim; ++d) {
      fold(state[d], tokens.Key(slot, d));
      fold(state[dim + d], tokens.Value(slot, d));
    }
  }
}

// Steps 3 and 4 for a head that keeps `num_kept` tokens.
void Drop(const HeadWork& work, int64_t num_kept) {
  const SlotTokens tokens(work);
  const std::vector<Candidate> candidates = CandidatesOf(work);
  std::vector<int64_t> go;
  for (int64_t i = 0; i < work.num_slots() - num_kept; ++i) go.push_back(candidates[static_cast<size_t>(i)].slot);
  std::sort(go.begin(), go.end());
  FoldDropped(work, go);
  auto freed = go.begin();
  auto gone = std::lower_bound(go.begin(), go.end(), num_kept);
  for (int64_t slot = num_kept; slot < work.num_slots(); ++slot) {
    if (gone != go.end() && *gone == slot) {
      ++gone;
    } else {
      tokens.Move(slot, *freed++);
    }
  }
}

// Of heads of one layer that share.
std::vector<int64_t> GainedBy(const std::vector<HeadWork>& heads) {
  const HeadWork& first = heads.front();
  std::vector<Candidate> candidates;
  for (const HeadWork& head : heads) {
    const std::vector<Candidate> of_head = CandidatesOf(head);
    candidates.insert(candidates.end(), of_head.begin(), of_head.end());
  }
  std::sort(candidates.begin(), candidates.end());
  const auto num_heads = static_cast<int64_t>(heads.size());
  const int64_t num_tokens = static_cast<int64_t>(candidates.size()) / num_heads;
  const int64_t places = num_tokens - (first.num_slots() - first.num_kept());
  std::vector<int64_t> num_best(heads.size());
  for (size_t i = candidates.size() - static_cast<size_t>(places * num_heads); i < candidates.size(); ++i) {
    for (size_t head = 0; head < heads.size(); ++head) num_best[head] += heads[head].kv_head == candidates[i].kv_head;
  }
  return GainedPages({.num_best = num_best,
                      .places = places,
                      .num_tokens = num_tokens,
                      .page_tokens = first.page_tokens(),
                      .floor = first.selection->floor});
}

// Of one sequence: the heads of the layer that share, where tokens go.
void DropShared(const KvStep& step, int64_t layer_idx, int64_t sequence_idx) {
  std::vector<HeadWork> heads;
  for (int64_t kv_head = 0; kv_head < step.num_kv_heads; ++kv_head) {
    const HeadWork work = step.Head(layer_idx, sequence_idx * step.num_kv_heads + kv_head);
    if (work.SharesNow()) heads.push_back(work);
  }
  if (heads.empty()) return;
  const std::vector<int64_t> of_heads = GainedBy(heads);
  const std::span<int32_t> gained = step.GainedOf(layer_idx, sequence_idx);
  for (size_t i = 0; i < heads.size(); ++i) {
    gained[static_cast<size_t>(heads[i].kv_head)] = static_cast<int32_t>(of_heads[i]);
    Drop(heads[i], heads[i].num_kept() + of_heads[i] * heads[i].page_tokens());
  }
  ForGivenPages(gained, heads.front().num_pages_kept(),
                [&](int64_t from_head, int64_t from_page, int64_t to_head, int64_t to_page) {
                  const HeadWork from = step.Head(layer_idx, sequence_idx * step.num_kv_heads + from_head);
                  const HeadWork to = step.Head(layer_idx, sequence_idx * step.num_kv_heads + to_head);
                  std::memcpy(from.Page(from_page), to.Page(to_page), static_cast<size_t>(to.newest().page_bytes));
                });
}

void SelectOfHead(const SelectKvArgs& args, const HeadWork& work) {
  const SlotTokens tokens(work);
  for (int64_t i = 0; i < work.num_rows; ++i) {
    tokens.Position(work.first_pos + i) = static_cast<int32_t>(work.text_pos + i);
    tokens.Score(work.first_pos + i) = ScoreOfMark(*work.selection, work.MarkOf(i));
  }
  const bool some_go = work.num_kept() < work.num_slots();
  if (work.selection->scores == Scores::kKeyNorm) {
    ScoreByKeyNorm(work);
  } else if (work.selection->scores == Scores::kKeyDiff) {
    if (some_go) ScoreByKeyDirection(work);
  } else if (work.selection->scores == Scores::kExpected) {
    if (args.q.present()) AddExpectation(args, work);
    if (some_go) WeighByValues(work);
  } else if (args.q.present() && (some_go || work.selection->scores == Scores::kSum)) {
    ScoreTokens(args, work);
  }
  if (some_go && !work.selection->shares) Drop(work, work.num_kept());
}

}  // namespace

void SelectKv(const SelectKvArgs& args) {
  Validate(args);
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (work.Selects() && work.num_rows > 0) SelectOfHead(args, work);
  }
  for (size_t i = 0; i < args.step->sequences.size() && !args.step->gained.empty(); ++i) {
    DropShared(*args.step, args.layer_idx, static_cast<int64_t>(i));
  }
}

}  // namespace headwise::ref
