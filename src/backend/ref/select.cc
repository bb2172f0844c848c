// Which tokens a head keeps by attention score, literally as backend/ops.h says: note, score, choose, move.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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

// Slots of the tokens that go, ascending.
std::vector<int64_t> SlotsThatGo(const HeadWork& work) {
  const KvSelection& selection = *work.selection;
  const SlotTokens tokens(work);
  const int64_t end_pos = work.text_pos + work.num_rows;
  struct Candidate {
    double score;
    int64_t pos;
    int64_t slot;
  };
  std::vector<Candidate> candidates;
  for (int64_t slot = 0; slot < work.num_slots(); ++slot) {
    const int64_t pos = tokens.Position(slot);
    if (pos < selection.keep_first || pos >= end_pos - selection.keep_newest) continue;
    const double score = PooledScore(work, slot);
    candidates.push_back({std::isnan(score) ? -INFINITY : score, pos, slot});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score < b.score : a.pos < b.pos;
  });
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < work.num_slots() - work.num_kept(); ++i) {
    slots.push_back(candidates[static_cast<size_t>(i)].slot);
  }
  std::sort(slots.begin(), slots.end());
  return slots;
}

void SelectOfHead(const SelectKvArgs& args, const HeadWork& work) {
  const SlotTokens tokens(work);
  for (int64_t i = 0; i < work.num_rows; ++i) {
    tokens.Position(work.first_pos + i) = static_cast<int32_t>(work.text_pos + i);
    tokens.Score(work.first_pos + i) = 0;
  }
  const bool some_go = work.num_kept() < work.num_slots();
  if (work.selection->scores == Scores::kKeyNorm) {
    ScoreByKeyNorm(work);
  } else if (args.q.present() && (some_go || work.selection->scores == Scores::kSum)) {
    ScoreTokens(args, work);
  }
  if (!some_go) return;
  const std::vector<int64_t> go = SlotsThatGo(work);
  auto freed = go.begin();
  auto gone = std::lower_bound(go.begin(), go.end(), work.num_kept());
  for (int64_t slot = work.num_kept(); slot < work.num_slots(); ++slot) {
    if (gone != go.end() && *gone == slot) {
      ++gone;
    } else {
      tokens.Move(slot, *freed++);
    }
  }
}

}  // namespace

void SelectKv(const SelectKvArgs& args) {
  Validate(args);
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (work.Selects() && work.num_rows > 0) SelectOfHead(args, work);
  }
}

}  // namespace headwise::ref
