// Which tokens a head keeps by attention score: see SelectKvArgs in backend/ops.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/attention.h"

namespace headwise::cpu {
namespace {

using Scores = KvSelection::Scores;

// Slots that are scored as one task: whole groups, whatever the number of threads.
constexpr int64_t kTaskSlots = 1024;

// One head, and the rows of it that are observed.
struct Selecting {
  HeadWork work;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t scores_begin = kNoLimit;  // slots from here on are scored; a multiple of a group

  bool SomeGo() const { return work.num_kept() < work.num_slots(); }
};

// In [begin, end) of a head's slots.
struct ScoreTask {
  size_t head_idx;
  int64_t begin, end;
};

Selecting Observed(const SelectKvArgs& args, const HeadWork& work) {
  const KvSelection& selection = *work.selection;
  Selecting selecting{.work = work};
  if (selection.scores == Scores::kKeyNorm) {
    selecting.scores_begin = work.first_pos / kGroupTokens * kGroupTokens;
    return selecting;
  }
  if (!args.q.present()) return selecting;
  if (selection.scores == Scores::kLast) {
    selecting.first_row = work.num_rows - 1;
    selecting.num_rows = selecting.SomeGo() ? 1 : 0;
    if (selecting.num_rows > 0) selecting.scores_begin = 0;
    return selecting;
  }
  const int64_t begin = std::clamp<int64_t>(selection.observe_begin - work.text_pos, 0, work.num_rows);
  const int64_t end = std::clamp<int64_t>(selection.observe_end - work.text_pos, begin, work.num_rows);
  selecting.first_row = begin;
  selecting.num_rows = end - begin;
  if (begin < end) selecting.scores_begin = 0;
  return selecting;
}

void NoteNewTokens(const HeadWork& work) {
  for (int64_t i = 0; i < work.num_rows; ++i) {
    const int64_t slot = work.first_pos + i;
    const KvNotes notes = work.Notes(slot / work.page_tokens());
    notes.positions[slot % work.page_tokens()] = static_cast<int32_t>(work.text_pos + i);
    notes.scores[slot % work.page_tokens()] = 0.0f;
  }
}

void Score(const SelectKvArgs& args, const Selecting& head, const ScoreTask& task, const KernelTable& kernels,
           std::byte* tile) {
  const HeadWork& work = head.work;
  if (work.selection->scores == Scores::kKeyNorm) {
    return kernels.attention.select_norm(
        {.pages = PagesOf(work), .begin = task.begin, .end = task.end, .tile = reinterpret_cast<float*>(tile)});
  }
  const int64_t row = work.first_row + head.first_row;
  const int64_t q_head = work.kv_head * args.group();
  const int64_t row_floats = args.q.shape[1];
  kernels.attention.select_score(
      {.pages = PagesOf(work),
       .begin = task.begin,
       .end = task.end,
       .first_slot = work.first_pos + head.first_row,
       .num_tokens = head.num_rows,
       .num_q = args.group(),
       .q = static_cast<const float*>(args.q.data) + row * row_floats + q_head * work.layout().head_dim,
       .stride = row_floats,
       .lse = static_cast<const float*>(args.lse.data) + row * args.num_q_heads + q_head,
       .lse_stride = args.num_q_heads,
       .scale = args.scale,
       .score_cap = args.score_cap,
       .resets = work.selection->scores == Scores::kLast,
       .tile = reinterpret_cast<float*>(tile)});
}

// body(slot, position, score) for every slot in order.
template <typename Body>
void ForSlots(const HeadWork& work, const Body& body) {
  const int64_t page_tokens = work.page_tokens();
  for (int64_t begin = 0; begin < work.num_slots(); begin += page_tokens) {
    const KvNotes notes = work.Notes(begin / page_tokens);
    const int64_t num = std::min(page_tokens, work.num_slots() - begin);
    for (int64_t i = 0; i < num; ++i) body(begin + i, notes.positions[i], notes.scores[i]);
  }
}

// Scores of tokens in slots [0, scores.size()) as pooled over their neighbours there.
std::vector<double> Pooled(const std::vector<float>& scores, const KvSelection& selection) {
  const auto size = static_cast<int64_t>(scores.size());
  const int64_t reach = selection.kernel / 2;
  std::vector<double> pooled(scores.size());
  for (int64_t slot = 0; slot < size; ++slot) {
    const auto begin = scores.begin() + std::max<int64_t>(0, slot - reach);
    const auto end = scores.begin() + std::min(size, slot + reach + 1);
    double& result = pooled[static_cast<size_t>(slot)];
    if (selection.pooling == KvSelection::Pooling::kMax) {
      result = *std::max_element(begin, end);
    } else {
      for (auto it = begin; it != end; ++it) result += *it;
      result /= selection.kernel;
    }
  }
  return pooled;
}

struct Candidate {
  double score;  // a number
  int64_t position;
  int64_t slot;

  // Who goes first.
  bool operator<(const Candidate& other) const {
    return score != other.score ? score < other.score : position < other.position;
  }
};

double NumberOf(double score) {
  return std::isnan(score) ? -INFINITY : score;
}

// Slots of the tokens that go, ascending.
std::vector<int64_t> SlotsThatGo(const HeadWork& work) {
  const KvSelection& selection = *work.selection;
  const int64_t newest_begin = work.text_pos + work.num_rows - selection.keep_newest;
  const auto is_candidate = [&](int64_t position) {
    return position >= selection.keep_first && position < newest_begin;
  };
  const int64_t num_go = work.num_slots() - work.num_kept();
  if (num_go == 1 && selection.kernel == 1) {
    Candidate lowest{.score = 0, .position = 0, .slot = -1};
    ForSlots(work, [&](int64_t slot, int64_t position, float score) {
      if (!is_candidate(position)) return;
      const Candidate candidate{NumberOf(score), position, slot};
      if (lowest.slot < 0 || candidate < lowest) lowest = candidate;
    });
    return {lowest.slot};
  }
  std::vector<double> pooled;
  if (selection.kernel > 1) {
    // Slots are positions here.
    std::vector<float> scores;
    scores.reserve(static_cast<size_t>(work.num_slots()));
    ForSlots(work, [&](int64_t, int64_t position, float score) {
      if (position < newest_begin) scores.push_back(score);
    });
    pooled = Pooled(scores, selection);
  }
  std::vector<Candidate> candidates;
  candidates.reserve(static_cast<size_t>(work.num_slots()));
  ForSlots(work, [&](int64_t slot, int64_t position, float score) {
    if (!is_candidate(position)) return;
    candidates.push_back({NumberOf(pooled.empty() ? score : pooled[static_cast<size_t>(slot)]), position, slot});
  });
  std::nth_element(candidates.begin(), candidates.begin() + (num_go - 1), candidates.end());
  std::vector<int64_t> slots;
  slots.reserve(static_cast<size_t>(num_go));
  for (int64_t i = 0; i < num_go; ++i) slots.push_back(candidates[static_cast<size_t>(i)].slot);
  std::sort(slots.begin(), slots.end());
  return slots;
}

void Drop(const HeadWork& work, const KernelTable& kernels) {
  const std::vector<int64_t> go = SlotsThatGo(work);
  std::vector<int64_t> from;
  auto gone = std::lower_bound(go.begin(), go.end(), work.num_kept());
  for (int64_t slot = work.num_kept(); slot < work.num_slots(); ++slot) {
    if (gone != go.end() && *gone == slot) {
      ++gone;
    } else {
      from.push_back(slot);
    }
  }
  if (from.empty()) return;
  kernels.attention.move_slots({.pages = PagesOf(work),
                                .from = from.data(),
                                .to = go.data(),  // as many as these are below num_kept, and come first
                                .num_tokens = static_cast<int64_t>(from.size())});
}

}  // namespace

void SelectKv(const SelectKvArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch) {
  std::vector<Selecting> heads;
  std::vector<ScoreTask> tasks;
  int64_t padded_dim = 0;
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (!work.Selects() || work.num_rows == 0) continue;
    NoteNewTokens(work);
    const Selecting head = Observed(args, work);
    padded_dim = PagesOf(work).padded_dim;
    for (int64_t begin = head.scores_begin; begin < work.num_slots(); begin += kTaskSlots) {
      tasks.push_back({heads.size(), begin, std::min(begin + kTaskSlots, work.num_slots())});
    }
    if (head.scores_begin < kNoLimit || head.SomeGo()) heads.push_back(head);
  }
  if (heads.empty()) return;
  const auto tile_bytes = static_cast<size_t>(kSelectGroups * padded_dim * kGroupTokens) * sizeof(float);
  scratch.ReservePerThread(pool.num_threads(), tile_bytes);
  pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t idx, int thread_idx) {
    const ScoreTask& task = tasks[static_cast<size_t>(idx)];
    Score(args, heads[task.head_idx], task, kernels, scratch.OfThread(thread_idx));
  });
  pool.ParallelFor(static_cast<int64_t>(heads.size()), [&](int64_t idx, int) {
    const Selecting& head = heads[static_cast<size_t>(idx)];
    if (head.SomeGo()) Drop(head.work, kernels);
  });
}

}  // namespace headwise::cpu
