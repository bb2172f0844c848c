#include "backend/cpu/block_choice.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

namespace headwise::cpu {
namespace {

int64_t PaddedDim(const AttentionArgs& args) {
  return (args.head_dim() + 15) / 16 * 16;
}

int64_t SignedQueryFloats(const AttentionArgs& args) {
  return 2 * args.group() * PaddedDim(args);
}

// Queries of the group, [G, D].
const float* QueriesOf(const AttentionArgs& args, const HeadWork& work, int64_t row_idx) {
  const int64_t q_row = (work.first_row + row_idx) * args.num_q_heads + work.kv_head * args.group();
  return static_cast<const float*>(args.q.data) + q_row * args.head_dim();
}

// Adds their sum to sums [D].
void AddGroup(const AttentionArgs& args, const float* queries, float* sums) {
  const int64_t dim = args.head_dim();
  for (int64_t d = 0; d < dim; ++d) {
    float sum = 0;
    for (int64_t g = 0; g < args.group(); ++g) sum += queries[g * dim + d];
    sums[d] += sum;
  }
}

// To the nearest f16 that is finite; what is no number stays so.
uint16_t HalfOf(double x) {
  constexpr double kMost = 65504;
  return F32ToF16(static_cast<float>(x > kMost ? kMost : x < -kMost ? -kMost : x));
}

// Of `block`, to where the block `with` has it. Keys come out of their pages as means of one token.
void NoteRepresentatives(const HeadWork& work, int64_t block, int64_t with, const KernelTable& kernels) {
  const KvBlockReads& blocks = *work.blocks;
  const auto dim = static_cast<size_t>(work.layout().head_dim);
  std::vector<double> queries(dim);
  for (int64_t behind = block + 1; behind <= with; ++behind) {
    const float* const sums = work.QuerySums(behind);
    for (size_t d = 0; d < dim; ++d) queries[d] += sums[d];
  }
  const auto num_tokens = static_cast<size_t>(blocks.block_tokens);
  std::vector<float> keys(num_tokens * dim), token(2 * dim);
  std::vector<double> products(num_tokens);
  FoldArgs fold{};
  fold.pages = PagesOf(work);
  fold.state = token.data();
  for (size_t i = 0; i < num_tokens; ++i) {
    fold.sink = block * blocks.block_tokens + static_cast<int64_t>(i);
    fold.fold_end = fold.sink + 1;
    kernels.attention.fold(fold);
    std::copy_n(token.begin(), dim, keys.begin() + static_cast<int64_t>(i * dim));
    products[i] = std::inner_product(queries.begin(), queries.end(), token.begin(), 0.0);
    if (std::isnan(products[i])) products[i] = INFINITY;
  }
  std::vector<size_t> order(num_tokens);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return products[i]; });
  const auto padded_dim = static_cast<size_t>((work.layout().head_dim + 15) / 16 * 16);
  uint16_t* const mean = work.Bounds(with);
  std::fill_n(mean, 2 * padded_dim, uint16_t{0});
  for (size_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (int64_t i = 0; i < blocks.representatives; ++i) sum += keys[order[static_cast<size_t>(i)] * dim + d];
    mean[d] = mean[padded_dim + d] = HalfOf(sum / static_cast<double>(blocks.representatives));
  }
}

struct Threshold {
  float value;
  size_t num_above, num_equal;  // of all numbers, those above it and those that are it
};

// The k-th largest, 1 <= k <= x.size(). x is overwritten; others: as many. Every pass writes each number where it may
// belong and goes on without a branch: of a thousand numbers std::nth_element, which has to guess where each goes,
// takes several times as long.
Threshold KthLargest(std::span<float> x, std::span<float> others, size_t k) {
  size_t num_passed = 0;  // larger ones that are no longer in x
  for (int num_left = 4 * std::bit_width(x.size()); num_left > 0; --num_left) {
    const float first = x[0], middle = x[x.size() / 2], last = x[x.size() - 1];
    const float pivot = std::max(std::min(first, middle), std::min(std::max(first, middle), last));
    size_t num_above = 0, num_below = 0;
    for (const float value : x) {
      x[num_above] = value;
      others[num_below] = value;
      num_above += value > pivot ? 1 : 0;
      num_below += value < pivot ? 1 : 0;
    }
    const size_t num_others = x.size() - num_below;
    if (k <= num_above) {
      x = x.first(num_above);
    } else if (k <= num_others) {
      return {pivot, num_passed + num_above, num_others - num_above};
    } else {
      std::swap(x, others);
      x = x.first(num_below);
      k -= num_others;
      num_passed += num_others;
    }
  }
  // An order in which every pivot is among the largest or smallest.
  std::ranges::nth_element(x, x.begin() + static_cast<int64_t>(k - 1), std::greater<>());
  const float value = x[k - 1];
  const auto num_above = static_cast<size_t>(std::ranges::count_if(x, [&](float each) { return each > value; }));
  return {value, num_passed + num_above, static_cast<size_t>(std::ranges::count(x, value))};
}

// Ascending. bounds: those of the blocks behind the first ones that are always read, up to the newest ones; `last` is
// the last of these. scratch: room for twice as many.
std::vector<int64_t> ChosenBlocks(std::span<const float> bounds, std::span<float> scratch, const KvBlockReads& blocks,
                                  int64_t last) {
  const auto places = static_cast<size_t>(blocks.most - blocks.newest);
  Threshold least{.value = INFINITY, .num_above = 0, .num_equal = 0};  // of those that are read
  if (places > 0) {
    const std::span<float> in_turn = scratch.first(bounds.size());
    std::ranges::copy(bounds, in_turn.begin());
    least = KthLargest(in_turn, scratch.subspan(bounds.size()), places);
  }
  // Of those with just that bound the first are not read.
  size_t num_passed = least.num_above + least.num_equal - std::min(least.num_above + least.num_equal, places);
  std::vector<int64_t> chosen;
  chosen.reserve(static_cast<size_t>(blocks.first + blocks.most));
  for (int64_t block = 0; block < blocks.first; ++block) chosen.push_back(block);
  for (size_t i = 0; i < bounds.size() && places > 0; ++i) {
    if (bounds[i] < least.value) continue;
    if (bounds[i] == least.value && num_passed > 0) {
      --num_passed;
    } else {
      chosen.push_back(blocks.first + static_cast<int64_t>(i));
    }
  }
  for (int64_t block = last + 1 - blocks.newest; block <= last; ++block) chosen.push_back(block);
  return chosen;
}

}  // namespace

BlockChoice::BlockChoice(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool,
                         AttentionScratch& scratch) {
  if (args.step->selections.empty()) return;  // no plan of any sequence chooses anything
  NoteQueries(args, kernels, pool);
  const int64_t num_heads = args.step->num_heads();
  int64_t most_blocks = 0;
  for (int64_t idx = 0; idx < num_heads; ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    const int64_t last_pos = work.first_pos + work.num_rows - 1;
    if (work.num_rows == 0 || !work.ChoosesBlocks() || work.blocks->ReadsAll(last_pos)) continue;
    if (first_rows_.empty()) first_rows_.assign(static_cast<size_t>(num_heads), -1);
    first_rows_[static_cast<size_t>(idx)] = static_cast<int64_t>(rows_.size());
    for (int64_t row_idx = 0; row_idx < work.num_rows; ++row_idx) rows_.push_back({work, row_idx});
    most_blocks = std::max(most_blocks, work.blocks->NumBlocks(last_pos));
  }
  if (rows_.empty()) return;
  const int64_t floats = SignedQueryFloats(args) + PaddedDim(args) + 3 * most_blocks;  // bounds, and a choice's scratch
  scratch.ReservePerThread(pool.num_threads(), static_cast<size_t>(floats) * sizeof(float));
  pool.ParallelFor(static_cast<int64_t>(rows_.size()), [&](int64_t i, int thread_idx) {
    Choose(args, kernels, scratch.OfThread(thread_idx), rows_[static_cast<size_t>(i)]);
  });
}

void BlockChoice::NoteQueries(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool) const {
  std::vector<HeadWork> heads;
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (work.num_rows > 0 && work.HasRepresentatives()) heads.push_back(work);
  }
  if (heads.empty()) return;
  const auto note = [&](int64_t idx, int) {
    const HeadWork& work = heads[static_cast<size_t>(idx)];
    const KvBlockReads& blocks = *work.blocks;
    for (int64_t row_idx = 0; row_idx < work.num_rows; ++row_idx) {
      const int64_t pos = work.first_pos + row_idx;
      const int64_t block = pos / blocks.block_tokens;
      float* const sums = work.QuerySums(block);
      if (pos % blocks.block_tokens == 0) std::fill_n(sums, PaddedDim(args), 0.0f);
      AddGroup(args, QueriesOf(args, work, row_idx), sums);
      const bool is_complete = (pos + 1) % blocks.block_tokens == 0;
      if (is_complete && block + 1 >= blocks.newest) {
        NoteRepresentatives(work, block + 1 - blocks.newest, block, kernels);
      }
    }
  };
  const bool is_much = std::ranges::any_of(heads, [](const HeadWork& work) {
    return work.num_rows > 1 || (work.first_pos + 1) % work.blocks->block_tokens == 0;
  });
  if (is_much) return pool.ParallelFor(static_cast<int64_t>(heads.size()), note);
  // A few additions are over before another thread has woken up.
  for (size_t idx = 0; idx < heads.size(); ++idx) note(static_cast<int64_t>(idx), 0);
}

void BlockChoice::Choose(const AttentionArgs& args, const KernelTable& kernels, std::byte* scratch, Row& row) const {
  const HeadWork& work = row.work;
  const KvBlockReads& blocks = *work.blocks;
  const int64_t pos = work.first_pos + row.row_idx;
  if (blocks.ReadsAll(pos)) return;
  const int64_t last = blocks.NumBlocks(pos) - 1;
  // None is looked at where those that are always read are as many as may be.
  const int64_t num_bounds = blocks.most > blocks.newest ? last + 1 - blocks.newest - blocks.first : 0;
  auto* signed_q = reinterpret_cast<float*>(scratch);
  float* const group_sum = signed_q + SignedQueryFloats(args);
  float* const bounds = group_sum + PaddedDim(args);
  const float* queries = QueriesOf(args, work, row.row_idx);
  if (work.HasRepresentatives()) {
    std::fill_n(group_sum, PaddedDim(args), 0.0f);
    AddGroup(args, queries, group_sum);
    queries = group_sum;
  }
  kernels.attention.score_blocks({.pages = PagesOf(work),
                                  .block_tokens = blocks.block_tokens,
                                  .begin = blocks.NotedWith(blocks.first),
                                  .end = blocks.NotedWith(blocks.first) + num_bounds,
                                  .num_q = work.HasRepresentatives() ? 1 : args.group(),
                                  .q = queries,
                                  .signed_q = signed_q,
                                  .bounds = bounds});
  const auto num = static_cast<size_t>(num_bounds);
  const std::vector<int64_t> chosen = ChosenBlocks({bounds, num}, {bounds + num, 2 * num}, blocks, last);
  row.groups.reserve(chosen.size() * static_cast<size_t>(blocks.block_tokens / kGroupTokens));
  for (const int64_t block : chosen) {
    const int64_t end = std::min(pos + 1, (block + 1) * blocks.block_tokens);
    for (int64_t at = block * blocks.block_tokens; at < end; at += kGroupTokens) row.groups.push_back(at);
  }
}

}  // namespace headwise::cpu
