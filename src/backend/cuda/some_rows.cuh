// What products of some rows by Hopper's warpgroups are made of (matmul_some_rows.cu, matmul_some_rows_blocks.cu): the
// tiles of their parts, and the sums of those that several blocks have slices of.
//
// Few matrices have tiles in numbers that multiprocessors divide. So slices of all tiles stand in one row, of which
// each block takes an equal run (slice_runs.h); of a tile that several have begun or ended, each leaves its sums, and
// who is last adds them up in the order of K.
#ifndef HEADWISE_BACKEND_CUDA_SOME_ROWS_CUH_
#define HEADWISE_BACKEND_CUDA_SOME_ROWS_CUH_

#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/slice_runs.h"
#include "backend/cuda/wgmma.cuh"

namespace headwise::cuda::some_rows {

using Bf16 = __nv_bfloat16;

inline constexpr int kMaxParts = 4;
inline constexpr int kRowBytes = 128;  // of a panel, 64 numbers of K: what products take
inline constexpr int kPanelDepth = kRowBytes / 2;
inline constexpr int kChunksOfPanel = kRowBytes / 16;
inline constexpr int kDepthOfProduct = 16;
inline constexpr int kMaxTickets = 8192;
inline constexpr int64_t kMaxDepth = int64_t{1} << 23;  // of so many tiles, in slices of 128, fewer than 2^30
inline constexpr int kTicketBytes = kMaxTickets * static_cast<int>(sizeof(unsigned));

struct SomeRowsParams {
  const Bf16* x;  // [T, K]
  int num_rows, depth;
  bool adds;
  bool has_gelu;  // what is gated: else by silu
  Bf16* gated;    // [T, N] act(first part) * second part as the product behind wants it, in place of `out`; or null
  SliceRuns runs;
  float4* partials;   // [2 blocks][sums of a thread / 4][threads]
  unsigned* tickets;  // [tiles], zeros before and after
  struct Part {
    const void* weight;  // [N, K] bf16, or tiles of a block format (block_order.h)
    const float* bias;   // or null
    float* out;          // [T, N]
    int num_outputs;
    int end_tile;
  } parts[kMaxParts];
};

// All but the runs. `gated`, `memory`: as MatMulSomeRows says.
inline SomeRowsParams SomeRowsParamsOf(const ConstTensorView& x, const LinearArgs& linear, void* gated,
                                       std::byte* memory, int tile_outputs) {
  const MatMulArgs& args = linear.product;
  SomeRowsParams params{.x = static_cast<const Bf16*>(x.data),
                        .num_rows = static_cast<int>(x.shape[0]),
                        .depth = static_cast<int>(x.shape[1]),
                        .adds = args.write == MatMulArgs::Write::kAdd,
                        .has_gelu = gated != nullptr && linear.activation->kind == ActivateArgs::Kind::kGatedGeluTanh,
                        .gated = static_cast<Bf16*>(gated),
                        .runs = {},
                        .partials = reinterpret_cast<float4*>(memory + kTicketBytes),
                        .tickets = reinterpret_cast<unsigned*>(memory),
                        .parts = {}};
  int num_tiles = 0;
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const MatMulPart& part = args.parts[i];
    num_tiles += static_cast<int>(Blocks(part.weight.shape[0], tile_outputs));
    params.parts[i] = {.weight = part.weight.planes[0],
                       .bias = F32(part.bias),
                       .out = F32(part.out),
                       .num_outputs = static_cast<int>(part.weight.shape[0]),
                       .end_tile = num_tiles};
  }
  return params;
}
// Of a gate and what it gates a tile has half as many outputs each.
inline int NumTiles(const LinearArgs& linear, const SomeRowsParams& params, int tile_outputs) {
  const std::span<const MatMulPart> parts = linear.product.parts;
  return params.gated != nullptr ? static_cast<int>(Blocks(parts[0].weight.shape[0], tile_outputs / 2))
                                 : params.parts[parts.size() - 1].end_tile;
}

struct TileOfPart {
  SomeRowsParams::Part part;
  int first_output;
};
template <int kTileOutputs>
__device__ TileOfPart TileAt(const SomeRowsParams& p, int tile) {
  if (p.gated != nullptr) return {p.parts[0], tile * (kTileOutputs / 2)};
  int i = 0;
  while (tile >= p.parts[i].end_tile) ++i;
  return {p.parts[i], (tile - (i == 0 ? 0 : p.parts[i - 1].end_tile)) * kTileOutputs};
}

// A place in a ring, and how often it was passed.
template <int kStages>
struct RingPlace {
  int at = 0, round = 0;
  __device__ void Advance() {
    if (++at == kStages) at = 0, ++round;
  }
};

// What copying threads do for `count` slices of x, which pass through a ring of kStages: copy_weights(i, place) for
// slice i, and copy_x(place), behind which CommitCopies. All of a thread's copies of a slice are one group: it arrives
// at full[place] when they are there, and waits at empty[place] for those who multiply.
template <int kStages, typename CopyWeights, typename CopyX>
__device__ void CopyAhead(int count, uint64_t* full, uint64_t* empty, const CopyWeights& copy_weights,
                          const CopyX& copy_x) {
  constexpr int kAhead = kStages - 1;  // slices on their way
  int arrived_at = 0;
  const auto arrive = [&] {
    FenceSharedWrites();
    Arrive(&full[arrived_at]);
    if (++arrived_at == kStages) arrived_at = 0;
  };
  const int first_count = min(count, kAhead);
  for (int i = 0; i < first_count; ++i) copy_weights(i, i);
  WaitForEarlier();
  LetLaterBegin();
  RingPlace<kStages> place;
  for (int i = 0; i < first_count; ++i, place.Advance()) copy_x(place.at);
  for (int i = first_count; i < count; ++i, place.Advance()) {
    // Slice i - kAhead is there, and goes to those who multiply, before anybody waits for them.
    WaitForCopies<kAhead - 1>();
    arrive();
    if (place.round > 0) WaitFor(&empty[place.at], (place.round - 1) & 1);
    copy_weights(i, place.at);
    copy_x(place.at);
  }
  // The last ones in two turns.
  WaitForCopies<kAhead / 2>();
  for (int i = 0; i < first_count - kAhead / 2; ++i) arrive();
  WaitForCopies<0>();
  for (int i = max(first_count - kAhead / 2, 0); i < first_count; ++i) arrive();
}

// How many took one of that counter before. What a block's threads wrote ahead of a barrier ahead of it is seen by
// who takes a later one, and behind a barrier by all of that one's block.
__device__ inline unsigned TakeTicket(unsigned* counter) {
  unsigned taken;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(taken) : "l"(counter) : "memory");
  return taken;
}

// Leaves the block's sums of a tile that others have a part of. Returns whether it was the last one: then `d` is the
// sums of all. By the block's first kThreads.
template <int kThreads, int kSums>
__device__ bool AddUp(const SomeRowsParams& p, int tile, float (&d)[kSums]) {
  constexpr int kQuads = kSums / 4;
  __shared__ bool is_last_of_all;
  const int thread = static_cast<int>(threadIdx.x);
  const auto at = [&](int block) {
    return p.partials + static_cast<int64_t>(p.runs.PlaceOf(block, tile)) * kQuads * kThreads + thread;
  };
  const auto own = static_cast<int>(blockIdx.x);
  const int first = p.runs.FirstBlockOf(tile);
  const int last = p.runs.LastBlockOf(tile);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    __stcg(at(own) + i * kThreads, float4{d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]});
  }
  SyncThreads(1, kThreads);
  if (thread == 0) {
    const bool is_last = TakeTicket(p.tickets + tile) == static_cast<unsigned>(last - first);
    if (is_last) p.tickets[tile] = 0;
    is_last_of_all = is_last;
  }
  SyncThreads(1, kThreads);
  // The same for all lanes anyway: so the compiler knows that a warp goes one way.
  if (!__any_sync(kAllLanes, is_last_of_all)) return false;
    // From the first on, whose sums the others' are added to. Its own were left too.
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float4 quad = __ldcg(at(first) + i * kThreads);
    d[4 * i] = quad.x, d[4 * i + 1] = quad.y, d[4 * i + 2] = quad.z, d[4 * i + 3] = quad.w;
  }
#pragma unroll 1
  for (int block = first + 1; block <= last; ++block) {
    float4 quads[kQuads];  // all loads on their way at once
#pragma unroll
    for (int i = 0; i < kQuads; ++i) quads[i] = __ldcg(at(block) + i * kThreads);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      float* const sums = d + 4 * i;
      sums[0] += quads[i].x, sums[1] += quads[i].y, sums[2] += quads[i].z, sums[3] += quads[i].w;
    }
  }
  return true;
}

}  // namespace headwise::cuda::some_rows

#endif  // HEADWISE_BACKEND_CUDA_SOME_ROWS_CUH_
