#include "backend/cpu/block_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace headwise::cpu {
namespace {

int64_t SignedQueryFloats(const AttentionArgs& args) {
  return 2 * args.group() * ((args.head_dim() + 15) / 16 * 16);
}

// Ascending. bounds: those of the blocks behind the first ones that are always read, up to the newest.
std::vector<int64_t> ChosenBlocks(std::span<const float> bounds, const KvBlockReads& blocks, int64_t newest) {
  const auto places = static_cast<size_t>(blocks.most - 1);
  std::vector<float> in_order(bounds.begin(), bounds.end());
  float least = INFINITY;  // of those that are read
  if (places > 0) {
    std::nth_element(in_order.begin(), in_order.begin() + (blocks.most - 2), in_order.end(), std::greater<>());
    least = in_order[places - 1];
  }
  const auto num_above =
      static_cast<size_t>(std::count_if(bounds.begin(), bounds.end(), [&](float x) { return x > least; }));
  // Of those with just that bound the first are not read.
  const auto num_equal = static_cast<size_t>(std::count(bounds.begin(), bounds.end(), least));
  size_t num_passed = num_equal - std::min(num_equal, places - num_above);
  std::vector<int64_t> chosen;
  chosen.reserve(static_cast<size_t>(blocks.first) + places + 1);
  for (int64_t block = 0; block < blocks.first; ++block) chosen.push_back(block);
  for (size_t i = 0; i < bounds.size() && places > 0; ++i) {
    if (bounds[i] < least) continue;
    if (bounds[i] == least && num_passed > 0) {
      --num_passed;
    } else {
      chosen.push_back(blocks.first + static_cast<int64_t>(i));
    }
  }
  chosen.push_back(newest);
  return chosen;
}

}  // namespace

BlockChoice::BlockChoice(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool,
                         AttentionScratch& scratch) {
  if (args.step->selections.empty()) return;  // no plan of any sequence chooses anything
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
  const int64_t floats = SignedQueryFloats(args) + most_blocks;
  scratch.ReservePerThread(pool.num_threads(), static_cast<size_t>(floats) * sizeof(float));
  pool.ParallelFor(static_cast<int64_t>(rows_.size()), [&](int64_t i, int thread_idx) {
    Choose(args, kernels, scratch.OfThread(thread_idx), rows_[static_cast<size_t>(i)]);
  });
}

void BlockChoice::Choose(const AttentionArgs& args, const KernelTable& kernels, std::byte* scratch, Row& row) const {
  const HeadWork& work = row.work;
  const KvBlockReads& blocks = *work.blocks;
  const int64_t pos = work.first_pos + row.row_idx;
  if (blocks.ReadsAll(pos)) return;
  const int64_t newest = blocks.NumBlocks(pos) - 1;
  const int64_t q_row = (work.first_row + row.row_idx) * args.num_q_heads + work.kv_head * args.group();
  auto* signed_q = reinterpret_cast<float*>(scratch);
  float* const bounds = signed_q + SignedQueryFloats(args);
  kernels.attention.score_blocks({.pages = PagesOf(work),
                                  .block_tokens = blocks.block_tokens,
                                  .begin = blocks.first,
                                  .end = newest,
                                  .num_q = args.group(),
                                  .q = static_cast<const float*>(args.q.data) + q_row * args.head_dim(),
                                  .signed_q = signed_q,
                                  .bounds = bounds});
  const std::vector<int64_t> chosen =
      ChosenBlocks({bounds, static_cast<size_t>(newest - blocks.first)}, blocks, newest);
  row.groups.reserve(chosen.size() * static_cast<size_t>(blocks.block_tokens / kGroupTokens));
  for (const int64_t block : chosen) {
    const int64_t end = std::min(pos + 1, (block + 1) * blocks.block_tokens);
    for (int64_t at = block * blocks.block_tokens; at < end; at += kGroupTokens) row.groups.push_back(at);
  }
}

}  // namespace headwise::cpu
