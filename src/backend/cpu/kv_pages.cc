// What is done to pages of keys and values beside reading them (attention.cc): written, copied, aged, folded.
#include <cstring>

#include "backend/cpu/attention.h"
#include "backend/dropped_mean.h"
#include "base/round_up.h"

namespace headwise::cpu {
namespace {

// Below so many bytes of pages one thread ages them as fast.
constexpr int64_t kMinParallelAge = 48 << 10;

KvType TypeOf(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return KvType::kF32;
    case KvFormat::kF16:
      return KvType::kF16;
    case KvFormat::kBF16:
      return KvType::kBF16;
    case KvFormat::kQ8:
      return KvType::kQ8;
    case KvFormat::kQ4:  // written as kQ8: a layout of pages, not of heads
      break;
  }
  HW_CHECK(false, "format {}", static_cast<int>(format));
}

KvSpace SpaceOf(const PageSpace& space) {
  return {.extents = space.extents.data(), .page_bytes = space.page_bytes, .extent_shift = space.extent_shift};
}

const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}
float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}

// body(idx, thread) for every head of a layer of the step.
enum class Spread { kThreads, kCaller };
template <typename Body>
void ForHeads(const KvStep& step, Spread spread, ThreadPool& pool, const Body& body) {
  if (spread == Spread::kThreads) return pool.ParallelFor(step.num_heads(), body);
  for (int64_t i = 0; i < step.num_heads(); ++i) body(i, 0);
}

}  // namespace

KvPages PagesOf(const HeadWork& work) {
  const StepHead& head = *work.head;
  const KvLayout& layout = work.layout();
  const KvSpace newest = SpaceOf(work.newest());
  return {.table = work.step->pages.data() + head.table,
          .num_sink = head.sink_pages,
          .ring_first = head.ring_first,
          .ring_pages = head.ring_pages,
          .page_tokens = layout.page_tokens,
          .dim = layout.head_dim,
          .padded_dim = RoundUp(layout.head_dim, 16),
          .type = TypeOf(layout.format),
          .aged_begin = work.aged_begin(),
          .aged_end = work.aged_end(),
          .newest = newest,
          .aged = head.aged < 0 ? newest : SpaceOf(work.step->spaces[static_cast<size_t>(head.aged)])};
}

size_t PageBytes(const KvLayout& layout) {
  return static_cast<size_t>(RoundUp(TokensBytes(layout.format, RoundUp(layout.head_dim, 16), layout.page_tokens), 64));
}

void AppendKv(const AppendKvArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const int64_t stride = args.k.shape[1];
  const auto append = [&](int64_t idx, int) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    const int64_t offset = work.first_row * stride + work.kv_head * work.layout().head_dim;
    kernels.attention.append({.pages = PagesOf(work),
                              .first_pos = work.first_pos,
                              .num_tokens = work.num_rows,
                              .k = F32(args.k) + offset,
                              .v = F32(args.v) + offset,
                              .stride = stride});
    if (!work.HasBounds()) return;
    kernels.attention.bound_keys({.pages = PagesOf(work),
                                  .block_tokens = work.blocks->block_tokens,
                                  .first_pos = work.first_pos,
                                  .num_tokens = work.num_rows});
  };
  const bool small = args.k.shape.num_elements() < (int64_t{8} << 10);
  ForHeads(*args.step, small ? Spread::kCaller : Spread::kThreads, pool, append);
}

void CopyPages(const CopyPagesArgs& args, ThreadPool& pool) {
  const std::span<const PageMove> moves = args.step->copies;
  pool.ParallelFor(static_cast<int64_t>(moves.size()), [&](int64_t idx, int) {
    const PageMove& move = moves[static_cast<size_t>(idx)];
    const PageSpace& space = args.step->spaces[static_cast<size_t>(move.from_space)];
    std::memcpy(space.Page(move.to), space.Page(move.from), static_cast<size_t>(space.page_bytes));
  });
}

void AgeKv(const AgeKvArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const std::span<const PageMove> moves = args.step->AgesOf(args.layer_idx);
  if (moves.empty()) return;
  const auto age = [&](int64_t idx, int) {
    const PageMove& move = moves[static_cast<size_t>(idx)];
    const PageSpace& from = args.step->spaces[static_cast<size_t>(move.from_space)];
    const PageSpace& to = args.step->spaces[static_cast<size_t>(move.to_space)];
    kernels.attention.age({.from = from.Page(move.from),
                           .to = to.Page(move.to),
                           .page_tokens = from.layout.page_tokens,
                           .dim = from.layout.head_dim,
                           .padded_dim = RoundUp(from.layout.head_dim, 16)});
  };
  const auto num_pages = static_cast<int64_t>(moves.size());
  const KvLayout& layout = args.step->spaces[static_cast<size_t>(moves[0].from_space)].layout;
  const bool small = num_pages * static_cast<int64_t>(PageBytes(layout)) < kMinParallelAge;
  if (!small) return pool.ParallelFor(num_pages, age);
  for (int64_t i = 0; i < num_pages; ++i) age(i, 0);
}

void Compensate(const CompensateArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const auto fold = [&](int64_t idx, int) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    const int64_t num_dropped = NumInDroppedMean(work);
    if (!work.Folds() && num_dropped == 0) return;
    const int64_t dim = work.layout().head_dim;
    const bool has_rows = (work.head->reads_mean || num_dropped > 0) && args.q.present();
    const int64_t group = has_rows ? args.group() : 0;
    const int64_t head = work.first_row * args.num_q_heads + work.kv_head * group;
    kernels.attention.fold(
        {.pages = PagesOf(work),
         .sink = work.head->fold_from,
         .recent = work.mask().recent,  // no limit where the head selects: SelectKv folds
         .first_pos = work.first_pos,
         .num_rows = has_rows ? work.num_rows : 0,
         .num_folded = num_dropped > 0 ? num_dropped : work.fold_begin() - work.head->fold_from,
         .fold_end = work.fold_end(),
         .state = work.State(),
         .q = has_rows ? F32(args.q) + head * dim : nullptr,
         .out = has_rows ? F32(args.out) + head * dim : nullptr,
         .stride = args.num_q_heads * dim,
         .lse = has_rows ? F32(args.lse) + head : nullptr,
         .lse_stride = args.num_q_heads,
         .num_q = group,
         .scale = args.scale,
         .score_cap = args.score_cap,
         .slopes = args.alibi_slopes.present() ? F32(args.alibi_slopes) + work.kv_head * group : nullptr});
  };
  ForHeads(*args.step, Spread::kThreads, pool, fold);
}

}  // namespace headwise::cpu
