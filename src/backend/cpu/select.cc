// Which tokens a head keeps by attention score: see SelectKvArgs in backend/ops.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/expectation.h"
#include "backend/dropped_mean.h"
#include "backend/page_shares.h"

namespace headwise::cpu {
namespace {

using Scores = KvSelection::Scores;

// Slots that are scored as one task: whole groups, whatever the number of threads.
constexpr int64_t kTaskSlots = 1024;
// Of a head: with so many, and one token, all of them and what follows are done by one thread where that keeps all
// busy.
constexpr size_t kFewTasks = 4;

// One head, and the rows of it that are observed.
struct Selecting {
  HeadWork work;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t scores_begin = kNoLimit;  // slots from here on are scored; a multiple of a group
  float* mean = nullptr;            // [D], of kKeyDiff: where keys point on the whole, of length 1 or 0
  size_t first_task = 0, num_tasks = 0;
  float* directions = nullptr;   // [num_tasks, D], of kKeyDiff: sums of the keys' directions
  size_t first_expectation = 0;  // of as many as the group has query heads, where there are some

  bool ScoresByDirection() const { return work.selection->scores == Scores::kKeyDiff && num_tasks > 0; }
  bool Expects() const {
    return work.selection->scores == Scores::kExpected && num_rows > 0 && work.selection->keep_first < work.num_slots();
  }
  bool SomeGo() const { return work.num_kept() < work.num_slots(); }
};

size_t DimOf(const Selecting& head) {
  return static_cast<size_t>(head.work.layout().head_dim);
}

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
  if (selection.scores == Scores::kKeyDiff) {
    if (selecting.SomeGo()) selecting.scores_begin = 0;
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
  if (begin < end && selection.scores != Scores::kExpected) selecting.scores_begin = 0;
  return selecting;
}

void NoteNewTokens(const HeadWork& work) {
  for (int64_t i = 0; i < work.num_rows; ++i) {
    const int64_t slot = work.first_pos + i;
    const KvNotes notes = work.Notes(slot / work.page_tokens());
    notes.positions[slot % work.page_tokens()] = static_cast<int32_t>(work.text_pos + i);
    notes.scores[slot % work.page_tokens()] = ScoreOfMark(*work.selection, work.MarkOf(i));
  }
}

void Score(const SelectKvArgs& args, const Selecting& head, const ScoreTask& task, const KernelTable& kernels,
           std::byte* tile) {
  const HeadWork& work = head.work;
  if (work.selection->scores == Scores::kKeyNorm) {
    return kernels.attention.select_norm(
        {.pages = PagesOf(work), .begin = task.begin, .end = task.end, .tile = reinterpret_cast<float*>(tile)});
  }
  if (work.selection->scores == Scores::kKeyDiff) {
    return kernels.attention.select_cosine({.pages = PagesOf(work),
                                            .begin = task.begin,
                                            .end = task.end,
                                            .mean = head.mean,
                                            .tile = reinterpret_cast<float*>(tile)});
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
  int64_t kv_head;
  int64_t slot;

  // Who goes first.
  bool operator<(const Candidate& other) const {
    if (score != other.score) return score < other.score;
    return position != other.position ? position < other.position : kv_head < other.kv_head;
  }
};

double NumberOf(double score) {
  return std::isnan(score) ? -INFINITY : score;
}

// Whether the token at `position` in the text may go.
bool MayGo(const HeadWork& work, int64_t position) {
  const KvSelection& selection = *work.selection;
  return position >= selection.keep_first && position < work.text_pos + work.num_rows - selection.keep_newest;
}

// Tokens that may go, to the end of `candidates`.
void AddCandidates(const HeadWork& work, std::vector<Candidate>& candidates) {
  const KvSelection& selection = *work.selection;
  const int64_t newest_begin = work.text_pos + work.num_rows - selection.keep_newest;
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
  candidates.reserve(candidates.size() + static_cast<size_t>(work.num_slots()));
  ForSlots(work, [&](int64_t slot, int64_t position, float score) {
    if (!MayGo(work, position)) return;
    candidates.push_back(
        {NumberOf(pooled.empty() ? score : pooled[static_cast<size_t>(slot)]), position, work.kv_head, slot});
  });
}

// The slot of the lowest score of those that may go; of equal ones that of the earliest token. First each page's lowest
// score, in chains of minima that do not wait for each other; only pages that reach the lowest so far are searched for
// the slot. One by one, with every comparison's outcome to be guessed, this takes as long as reading all keys.
int64_t LowestSlot(const HeadWork& work) {
  constexpr int64_t kChains = 8;
  const int64_t page_tokens = work.page_tokens();
  const auto keep_first = static_cast<int32_t>(std::min(work.selection->keep_first, int64_t{INT32_MAX}));
  const auto newest_begin = static_cast<int32_t>(work.text_pos + work.num_rows - work.selection->keep_newest);
  const auto may_go = [&](int32_t position) { return position >= keep_first && position < newest_begin; };
  const auto score_of = [&](const KvNotes& notes, int64_t i) {
    const float score = std::isnan(notes.scores[i]) ? -INFINITY : notes.scores[i];
    return may_go(notes.positions[i]) ? score : INFINITY;
  };
  float least = INFINITY;
  int64_t slot_of_least = -1;
  int32_t position_of_least = INT32_MAX;
  for (int64_t begin = 0; begin < work.num_slots(); begin += page_tokens) {
    const KvNotes notes = work.Notes(begin / page_tokens);
    const int64_t num = std::min(page_tokens, work.num_slots() - begin);
    float lowest[kChains];
    std::fill_n(lowest, kChains, INFINITY);
    int64_t i = 0;
    for (; i + kChains <= num; i += kChains) {
      for (int64_t chain = 0; chain < kChains; ++chain) {
        lowest[chain] = std::min(lowest[chain], score_of(notes, i + chain));
      }
    }
    for (; i < num; ++i) lowest[0] = std::min(lowest[0], score_of(notes, i));
    const float of_page = *std::min_element(lowest, lowest + kChains);
    if (of_page > least) continue;
    for (i = 0; i < num; ++i) {
      const float score = score_of(notes, i);
      const int32_t position = notes.positions[i];
      if (!may_go(position) || score > least || (score == least && position > position_of_least)) continue;
      least = score;
      slot_of_least = begin + i;
      position_of_least = position;
    }
  }
  return slot_of_least;
}

// Slots of the tokens that go where `num_kept` stay, ascending.
std::vector<int64_t> SlotsThatGo(const HeadWork& work, int64_t num_kept) {
  const int64_t num_go = work.num_slots() - num_kept;
  if (num_go == 0) return {};
  if (num_go == 1 && work.selection->kernel == 1) return {LowestSlot(work)};
  std::vector<Candidate> candidates;
  AddCandidates(work, candidates);
  std::nth_element(candidates.begin(), candidates.begin() + (num_go - 1), candidates.end());
  std::vector<int64_t> slots;
  slots.reserve(static_cast<size_t>(num_go));
  for (int64_t i = 0; i < num_go; ++i) slots.push_back(candidates[static_cast<size_t>(i)].slot);
  std::sort(slots.begin(), slots.end());
  return slots;
}

// Tokens in `slots` join the mean of those that were dropped before.
void FoldDropped(const HeadWork& work, std::span<const int64_t> slots, const KernelTable& kernels) {
  if (!HasDroppedMean(work)) return;
  FoldArgs fold{};
  fold.pages = PagesOf(work);
  fold.num_folded = NumInDroppedMean(work);
  fold.state = work.State();
  for (const int64_t slot : InOrderOfText(work, slots)) {
    fold.sink = slot - fold.num_folded;  // the next to be folded is the one behind so many
    fold.fold_end = slot + 1;
    kernels.attention.fold(fold);
    ++fold.num_folded;
  }
}

// All but `num_kept` tokens.
void Drop(const HeadWork& work, int64_t num_kept, const KernelTable& kernels) {
  const std::vector<int64_t> go = SlotsThatGo(work, num_kept);
  FoldDropped(work, go, kernels);
  std::vector<int64_t> from;
  auto gone = std::lower_bound(go.begin(), go.end(), num_kept);
  for (int64_t slot = num_kept; slot < work.num_slots(); ++slot) {
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

// Heads of one sequence that share, where tokens go. heads[kv_head].
struct Sharing {
  std::vector<HeadWork> heads;
  std::span<int32_t> gained;  // [Hkv]
};

std::vector<Sharing> SharingOf(const SelectKvArgs& args) {
  const KvStep& step = *args.step;
  std::vector<Sharing> all;
  if (step.gained.empty()) return all;
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    const auto sequence_idx = static_cast<int64_t>(i);
    Sharing sharing{.heads = {}, .gained = step.GainedOf(args.layer_idx, sequence_idx)};
    for (int64_t kv_head = 0; kv_head < step.num_kv_heads; ++kv_head) {
      const HeadWork work = step.Head(args.layer_idx, sequence_idx * step.num_kv_heads + kv_head);
      if (work.SharesNow()) sharing.heads.push_back(work);
    }
    if (!sharing.heads.empty()) all.push_back(std::move(sharing));
  }
  return all;
}

// Settles how many pages each head gains.
void Share(const Sharing& sharing) {
  const HeadWork& first = sharing.heads.front();
  const auto num_heads = static_cast<int64_t>(sharing.heads.size());
  std::vector<Candidate> candidates;
  for (const HeadWork& head : sharing.heads) AddCandidates(head, candidates);
  const int64_t num_tokens = static_cast<int64_t>(candidates.size()) / num_heads;
  const int64_t num_go = first.num_slots() - first.num_kept();
  const auto stay = candidates.begin() + num_go * num_heads;
  std::nth_element(candidates.begin(), stay, candidates.end());
  std::vector<int64_t> best_of(sharing.gained.size());  // by KV head
  for (auto it = stay; it != candidates.end(); ++it) ++best_of[static_cast<size_t>(it->kv_head)];
  std::vector<int64_t> num_best;
  for (const HeadWork& head : sharing.heads) num_best.push_back(best_of[static_cast<size_t>(head.kv_head)]);
  const std::vector<int64_t> gained = GainedPages({.num_best = num_best,
                                                   .places = num_tokens - num_go,
                                                   .num_tokens = num_tokens,
                                                   .page_tokens = first.page_tokens(),
                                                   .floor = first.selection->floor});
  for (size_t i = 0; i < gained.size(); ++i) {
    sharing.gained[static_cast<size_t>(sharing.heads[i].kv_head)] = static_cast<int32_t>(gained[i]);
  }
}

void MovePages(const Sharing& sharing) {
  const auto head_of = [&](int64_t kv_head) -> const HeadWork& {
    return *std::find_if(sharing.heads.begin(), sharing.heads.end(),
                         [&](const HeadWork& head) { return head.kv_head == kv_head; });
  };
  ForGivenPages(sharing.gained, sharing.heads.front().num_pages_kept(),
                [&](int64_t from_head, int64_t from_page, int64_t to_head, int64_t to_page) {
                  const HeadWork& to = head_of(to_head);
                  std::memcpy(head_of(from_head).Page(from_page), to.Page(to_page),
                              static_cast<size_t>(to.newest().page_bytes));
                });
}

void DropShared(const SelectKvArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const std::vector<Sharing> all = SharingOf(args);
  if (all.empty()) return;
  pool.ParallelFor(static_cast<int64_t>(all.size()), [&](int64_t idx, int) { Share(all[static_cast<size_t>(idx)]); });
  const int64_t num_kv_heads = args.step->num_kv_heads;
  pool.ParallelFor(static_cast<int64_t>(all.size()) * num_kv_heads, [&](int64_t idx, int) {
    const Sharing& sharing = all[static_cast<size_t>(idx / num_kv_heads)];
    const auto i = static_cast<size_t>(idx % num_kv_heads);
    if (i >= sharing.heads.size()) return;
    const HeadWork& head = sharing.heads[i];
    Drop(head, head.num_kept() + sharing.gained[static_cast<size_t>(head.kv_head)] * head.page_tokens(), kernels);
  });
  pool.ParallelFor(static_cast<int64_t>(all.size()),
                   [&](int64_t idx, int) { MovePages(all[static_cast<size_t>(idx)]); });
}

// Of the task's keys alone.
void SumDirections(const Selecting& head, size_t task_idx, const ScoreTask& task, const KernelTable& kernels,
                   std::byte* tile) {
  const size_t dim = DimOf(head);
  kernels.attention.select_directions({.pages = PagesOf(head.work),
                                       .begin = task.begin,
                                       .end = task.end,
                                       .sums = head.directions + (task_idx - head.first_task) * dim,
                                       .tile = reinterpret_cast<float*>(tile)});
}

// Memory for the sums and means of heads that score by direction; whether there are any.
bool PlaceDirections(std::vector<Selecting>& heads, AttentionScratch& scratch) {
  size_t num_floats = 0;
  for (const Selecting& head : heads) {
    if (head.ScoresByDirection()) num_floats += (head.num_tasks + 1) * DimOf(head);
  }
  if (num_floats == 0) return false;
  float* place = scratch.Shared(num_floats);
  for (Selecting& head : heads) {
    if (!head.ScoresByDirection()) continue;
    head.directions = std::exchange(place, place + head.num_tasks * DimOf(head));
    head.mean = std::exchange(place, place + DimOf(head));
  }
  return true;
}

// Where the head's keys point on the whole: the sums of its tasks, in order.
void FindDirection(const Selecting& head) {
  const size_t dim = DimOf(head);
  std::vector<double> mean(dim);
  for (size_t idx = 0; idx < head.num_tasks; ++idx) {
    for (size_t d = 0; d < dim; ++d) mean[d] += head.directions[idx * dim + d];
  }
  double squared = 0;
  for (const double x : mean) squared += x * x;
  for (size_t d = 0; d < dim; ++d) {
    head.mean[d] = squared > 0 ? static_cast<float>(mean[d] / std::sqrt(squared)) : 0.0f;
  }
}

}  // namespace

void SelectKv(const SelectKvArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch) {
  std::vector<Selecting> heads;
  std::vector<ScoreTask> tasks;
  bool is_little = true;  // to do for each head
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (!work.Selects() || work.num_rows == 0) continue;
    NoteNewTokens(work);
    Selecting head = Observed(args, work);
    head.first_task = tasks.size();
    for (int64_t begin = head.scores_begin; begin < work.num_slots(); begin += kTaskSlots) {
      tasks.push_back({heads.size(), begin, std::min(begin + kTaskSlots, work.num_slots())});
    }
    head.num_tasks = tasks.size() - head.first_task;
    if (head.num_tasks == 0 && head.num_rows == 0 && !head.SomeGo()) continue;
    is_little = is_little && work.num_rows == 1 && head.num_tasks <= kFewTasks;
    heads.push_back(head);
  }
  if (heads.empty()) return;
  const int64_t padded_dim = PagesOf(heads.front().work).padded_dim;
  const auto tile_bytes = static_cast<size_t>(kSelectGroups * padded_dim * kGroupTokens) * sizeof(float);
  scratch.ReservePerThread(pool.num_threads(), tile_bytes);
  const bool some_score_by_direction = PlaceDirections(heads, scratch);

  const auto sum_directions = [&](size_t idx, int thread_idx) {
    const Selecting& head = heads[tasks[idx].head_idx];
    if (head.ScoresByDirection()) SumDirections(head, idx, tasks[idx], kernels, scratch.OfThread(thread_idx));
  };
  const auto find_direction = [&](const Selecting& head) {
    if (head.ScoresByDirection()) FindDirection(head);
  };
  const auto score = [&](size_t idx, int thread_idx) {
    Score(args, heads[tasks[idx].head_idx], tasks[idx], kernels, scratch.OfThread(thread_idx));
  };
  std::vector<Expectation> expectations;
  for (Selecting& head : heads) {
    if (!head.Expects()) continue;
    head.first_expectation = expectations.size();
    for (int64_t q_idx = 0; q_idx < args.group(); ++q_idx) {
      expectations.push_back({head.work, head.first_row, head.num_rows, q_idx, {}});
    }
  }
  pool.ParallelFor(static_cast<int64_t>(expectations.size()), [&](int64_t i, int thread_idx) {
    auto* const tile = reinterpret_cast<float*>(scratch.OfThread(thread_idx));
    Expect(args, kernels, tile, expectations[static_cast<size_t>(i)]);
  });
  const auto drop = [&](const Selecting& head) {
    if (head.work.selection->scores == Scores::kExpected) {
      if (head.Expects()) AddExpectations({&expectations[head.first_expectation], static_cast<size_t>(args.group())});
      if (head.SomeGo()) WeighByValues(head.work, kernels);
    }
    if (head.SomeGo() && !head.work.selection->shares) Drop(head.work, head.work.num_kept(), kernels);
  };
  const auto num_heads = static_cast<int64_t>(heads.size()), num_tasks = static_cast<int64_t>(tasks.size());
  if (is_little && num_heads >= pool.num_threads()) {
    // Waiting for the other threads between the parts would be a good part of it all.
    pool.ParallelFor(num_heads, [&](int64_t i, int thread_idx) {
      const Selecting& head = heads[static_cast<size_t>(i)];
      const size_t end = head.first_task + head.num_tasks;
      for (size_t idx = head.first_task; idx < end; ++idx) sum_directions(idx, thread_idx);
      find_direction(head);
      for (size_t idx = head.first_task; idx < end; ++idx) score(idx, thread_idx);
      drop(head);
    });
  } else {
    const auto for_tasks = [&](const auto& body) {
      pool.ParallelFor(num_tasks, [&](int64_t idx, int thread_idx) { body(static_cast<size_t>(idx), thread_idx); });
    };
    if (some_score_by_direction) for_tasks(sum_directions);
    std::ranges::for_each(heads, find_direction);
    for_tasks(score);
    pool.ParallelFor(num_heads, [&](int64_t i, int) { drop(heads[static_cast<size_t>(i)]); });
  }
  DropShared(args, kernels, pool);
}

}  // namespace headwise::cpu
