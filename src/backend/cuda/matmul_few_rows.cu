// Products of up to 32 rows with bf16 or f16 weights, out = x W^T + bias: decoding.
//
// Bound by reading the weights once, 2 N K bytes. Loads straight into the operands of mma.m16n8k16 keep too little on
// its way: what x has to go through stands in between. So weights pass through shared memory, 12 to 20 KiB ahead for
// each of eight warps: a warp copies its own slices of K, 128 numbers of each of 16 rows at a time, and waits for
// nobody. Bulk copies of 2 KiB a row, by a warp for all, read 6 % less for as many consumers: a copy takes its engine
// 50 ns whatever it brings. The weights are the mma's 16 rows, rows of x its 8 columns. One block a multiprocessor does
// its share of the tiles of 16 outputs.
//
// x must be at hand too. Of few rows it lies in shared memory as operands, for all tiles of a block. Of more it comes
// through the ring like weights, rounded before, each slice for four tiles at once: as many bytes again as half of the
// weights at 32 rows, from the second-level cache, where for every tile they would be twice the weights.
//
// Where whoever makes x has rounded it already (Prepared), neither is needed. A norm ahead is left to the end: x times
// its weight is multiplied, and sums by 1 / rms(x).
//
// How a sum is put together depends on K alone (eight shares, each in the order of its slices, added in their order),
// so its bits do not depend on who shares the step. Where x is wanted exactly it is three numbers in bf16, and three
// times as many columns.
#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/few_rows.cuh"

namespace headwise::cuda {
namespace {

using namespace few_rows;  // NOLINT(google-build-using-namespace): what this file is made of

static_assert(kMaxColumns == kMaxFewColumns && kExactParts == PartsOfRows(Compute::kF32));

// Of x in shared memory: of more, every block's reading and rounding of them all takes longer than a launch that rounds
// them once. Three rows of 4,096 or one of 14,336 were as fast either way.
constexpr int kMaxStagedNumbers = 15 << 10;

// ---- x lies in shared memory ----------------------------------------------------------------------------------------

// `rounded`: x as it is multiplied, [columns, K], or null: each block rounds it.
template <typename Weight, int kGroups, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    StagedKernel(const __grid_constant__ FewRowsParams p, const Bf16* rounded) {
  extern __shared__ __align__(16) char memory[];
  LetLaterBegin();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int share = static_cast<int>(threadIdx.x / kWarp);
  const Tiles tiles(p);
  SliceRing<kStages> ring(memory + share * kStages * kStageBytes);
  // What is copied next.
  const int first_depth = share * kDepthOfSlice;
  int next_idx = 0;
  int next_depth = first_depth;
  Tile next;
  if (tiles.IsThere(0)) next = tiles.Get(0);
  const auto copy_next = [&] {
    if (next_depth >= p.depth) {  // behind the last slice of the tile, or of a share that has none
      next_depth = first_depth;
      if (next_depth < p.depth && tiles.IsThere(++next_idx)) next = tiles.Get(next_idx);
    }
    if (next_depth < p.depth && tiles.IsThere(next_idx)) {
      ring.Copy(static_cast<const Bf16*>(next.part.weight), next.part.num_outputs, next.first_output, p.depth,
                next_depth);
      next_depth += kNumShares * kDepthOfSlice;
    }
    ring.Commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) copy_next();

  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * kStages * kStageBytes);
  auto* const staged = reinterpret_cast<uint4*>(sums + p.num_buffers * Sums<kGroups>::kFloats);
  __shared__ __align__(16) float squares[kMaxStagedNumbers / kSquared];
  __shared__ float inverses[kMaxColumns];
  RootsOfRows<kGroups> roots;
  if (rounded != nullptr) {
    WaitForEarlier();
    if (p.divides_sums) roots.Load(p, p.squares);
    StageRounded(rounded, p.num_columns(), p.depth, staged);
  } else {
    RowQuads norm;
    if (p.norm_weight != nullptr) norm.Load(p.norm_weight, 0, p.depth);
    WaitForEarlier();
    StageX(p, norm, staged, squares);
    if (p.divides_sums) roots.Load(p, squares);
  }
  if (p.divides_sums) roots.Invert(p, inverses);  // they are read behind the next barrier
  const StagedX layout(p.num_columns());
  TileWriter<kGroups> writer(p);
  for (int tile_idx = 0; tiles.IsThere(tile_idx); ++tile_idx) {
    float acc[kGroups][4] = {};
    for (int depth = first_depth; depth < p.depth; depth += kNumShares * kDepthOfSlice) {
      const char* const slice = ring.Wait();
      copy_next();
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const TurnWeights<Weight> weights(slice, turn);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          // Columns beyond the last are zeros.
          const int column = group * kRowsOfGroup + lane / 4;
          uint4 x = {0, 0, 0, 0};
          if (column < layout.num_columns) x = staged[layout.IndexOf(depth / kDepthOfSlice, turn, column) + lane % 4];
          weights.Multiply(x, acc[group]);
        }
      }
      ring.Release();
    }
    float* const buffer = p.num_buffers == 2 && tile_idx % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
    StoreShare<kGroups>(share, acc, buffer);
    __syncthreads();
    writer.Write(tiles.Get(tile_idx), tiles.IsGate(tile_idx), buffer, p.divides_sums ? inverses : nullptr);
    if (p.num_buffers == 1) __syncthreads();
  }
}

// ---- x comes through the ring ---------------------------------------------------------------------------------------

constexpr int kNumbersOfPart = 2048;

// Rows of x, or of x times the norm's weight, as they are multiplied, [columns, K] bf16, and the squares of x, where
// there is a norm. Parts of a row by a block each.
__global__ void __launch_bounds__(kThreads)
    RoundRowsKernel(const __grid_constant__ FewRowsParams p, Bf16* rounded, float* squares) {
  LetLaterBegin();
  WaitForEarlier();
  const auto row = static_cast<int>(blockIdx.x);
  const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth);
  const auto* weight = reinterpret_cast<const float4*>(p.norm_weight);
  const int num_pairs = p.depth / 8;
  // Whole warps go round, since they add up squares together.
  for (auto first = static_cast<int>(blockIdx.y * kThreads); first < num_pairs;
       first += static_cast<int>(gridDim.y) * kThreads) {
    const int pair = first + static_cast<int>(threadIdx.x);
    const bool is_there = pair < num_pairs;
    float4 quads[2] = {};
    if (is_there) quads[0] = x[2 * pair], quads[1] = x[2 * pair + 1];
    if (weight != nullptr) {
      const float of_pair = __fadd_rn(SquaresOfQuad(quads[0]), SquaresOfQuad(quads[1]));
      const float of_sixteen = AddOverLanes<1, 2>(of_pair);
      if (!is_there) continue;
      if (pair % 2 == 0) squares[static_cast<int64_t>(row) * (p.depth / kSquared) + pair / 2] = of_sixteen;
#pragma unroll
      for (int i = 0; i < 2; ++i) quads[i] = Scaled(quads[i], 1.0f, weight[2 * pair + i]);
    }
    if (!is_there) continue;
    for (int part = 0; part < p.num_parts; ++part) {
      const int64_t column = static_cast<int64_t>(part) * p.num_rows + row;
      const uint2 low = TakeRounded(quads[0]);
      const uint2 high = TakeRounded(quads[1]);
      reinterpret_cast<uint4*>(rounded + column * p.depth)[pair] = {low.x, low.y, high.x, high.y};
    }
  }
}

constexpr int kTilesAtOnce = 4;
static_assert(kTilesAtOnce % 2 == 0);  // sets but the last leave buffers of sums in turns

// What a warp takes, in order: of every set of tiles, of every slice of its share, x and then the tiles' weights.
template <int kXSlices>
struct Sequence {
  const Tiles& tiles;
  const int first_depth;
  int first_tile = 0;  // of the set
  int depth;
  int item = 0;  // of the slice

  __device__ Sequence(const Tiles& its_tiles, int share)
      : tiles(its_tiles), first_depth(share * kDepthOfSlice), depth(first_depth) {}
  __device__ bool is_there() const { return tiles.IsThere(first_tile) && first_depth < tiles.p.depth; }
  __device__ void Advance() {
    const int tile = ++item - kXSlices;
    if (tile < kTilesAtOnce && tiles.IsThere(first_tile + max(tile, 0))) return;
    item = 0;
    depth += kNumShares * kDepthOfSlice;
    if (depth < tiles.p.depth) return;
    depth = first_depth;
    first_tile += kTilesAtOnce;
  }
};

template <typename Weight, int kGroups, int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    StreamedKernel(const __grid_constant__ FewRowsParams p, const Bf16* rounded) {
  constexpr int kXSlices = (kGroups + 1) / 2;
  extern __shared__ __align__(16) char memory[];
  LetLaterBegin();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int share = static_cast<int>(threadIdx.x / kWarp);
  const int num_columns = p.num_columns();
  const Tiles tiles(p);
  SliceRing<kStages> ring(memory + share * kStages * kStageBytes);
  Sequence<kXSlices> next(tiles, share);
  const auto copy_next = [&] {
    if (next.is_there()) {
      if (next.item < kXSlices) {
        ring.Copy(rounded, num_columns, next.item * kTileOutputs, p.depth, next.depth);
      } else {
        const Tile tile = tiles.Get(next.first_tile + next.item - kXSlices);
        ring.Copy(static_cast<const Bf16*>(tile.part.weight), tile.part.num_outputs, tile.first_output, p.depth,
                  next.depth);
      }
      next.Advance();
    }
    ring.Commit();
  };
  // x is not there yet: the first weights wait in the second-level cache.
  Sequence<kXSlices> early(tiles, share);
  for (int i = 0; i < kXSlices + kTilesAtOnce && early.is_there(); ++i, early.Advance()) {
    if (early.item < kXSlices) continue;
    const Tile tile = tiles.Get(early.first_tile + early.item - kXSlices);
    const int64_t output = min(tile.first_output + lane / 2, tile.part.num_outputs - 1);
    const int depth = early.depth + lane % 2 * (kDepthOfSlice / 2);
    if (depth < p.depth) PrefetchLine(static_cast<const Bf16*>(tile.part.weight) + output * p.depth + depth);
  }
  WaitForEarlier();
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_next();
  __shared__ float inverses[kMaxColumns];  // read behind the next barrier
  if (p.divides_sums) {
    RootsOfRows<kGroups> roots;
    roots.Load(p, p.squares);
    roots.Invert(p, inverses);
  }

  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * kStages * kStageBytes);
  TileWriter<kGroups> writer(p);
  for (int first_tile = 0; tiles.IsThere(first_tile); first_tile += kTilesAtOnce) {
    float acc[kTilesAtOnce][kGroups][4] = {};
    for (int depth = share * kDepthOfSlice; depth < p.depth; depth += kNumShares * kDepthOfSlice) {
      uint4 x[kTurns][kGroups];
#pragma unroll
      for (int i = 0; i < kXSlices; ++i) {
        const char* const slice = ring.Wait();
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
          for (int group = 2 * i; group < min(2 * i + 2, kGroups); ++group) {
            const int row = (group - 2 * i) * kRowsOfGroup + lane / 4;
            x[turn][group] = *reinterpret_cast<const uint4*>(slice + ring.OffsetOf(row, turn * 4 + lane % 4));
          }
        }
        ring.Release();
        copy_next();
      }
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        if (!tiles.IsThere(first_tile + i)) break;
        const char* const slice = ring.Wait();
        copy_next();
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
          const TurnWeights<Weight> weights(slice, turn);
#pragma unroll
          for (int group = 0; group < kGroups; ++group) weights.Multiply(x[turn][group], acc[i][group]);
        }
        ring.Release();
      }
    }
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) {
      if (!tiles.IsThere(first_tile + i)) break;
      float* const buffer = p.num_buffers == 2 && i % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
      StoreShare<kGroups>(share, acc[i], buffer);
      __syncthreads();
      writer.Write(tiles.Get(first_tile + i), tiles.IsGate(first_tile + i), buffer,
                   p.divides_sums ? inverses : nullptr);
      if (p.num_buffers == 1) __syncthreads();
    }
  }
}

// ---- what is launched -----------------------------------------------------------------------------------------------

int GroupsOf(int num_columns) {
  return num_columns <= kRowsOfGroup ? 1 : num_columns <= 2 * kRowsOfGroup ? 2 : kMaxGroups;
}

// Rows as they are multiplied, and their squares where there is a norm.
struct Columns {
  Bf16* columns = nullptr;   // [columns, K]
  float* squares = nullptr;  // [T, K / 16]
};
// Where they lie in memory of kMaxColumns of them, squares ahead, for any K that is a multiple of 16.
Columns ColumnsAt(std::byte* memory, int64_t depth) {
  return {reinterpret_cast<Bf16*>(memory + kMaxColumns * (depth / kSquared) * sizeof(float)),
          reinterpret_cast<float*>(memory)};
}

// How a product fits into shared memory.
struct Layout {
  bool is_staged = false;
  int num_stages = 2;
  int num_buffers = 1;  // of sums
  size_t bytes = 0;
};
Layout LayoutFor(int num_columns, int64_t depth, const CudaDevice& device) {
  constexpr size_t kBesides = 4608;  // what a block has anyway: squares for a norm
  const size_t limit = device.facts().shared_bytes_of_block - kBesides;
  const size_t sums =
      sizeof(float) * kNumShares * kTileOutputs * kRowsOfGroup * static_cast<size_t>(GroupsOf(num_columns));
  const size_t staged = static_cast<size_t>(StagedX(num_columns).num_chunks(static_cast<int>(depth))) * sizeof(uint4);
  struct Way {
    bool is_staged;
    int num_stages;
  };
  for (const Way& way : {Way{true, 4}, Way{false, 6}, Way{true, 2}, Way{false, 4}}) {
    const size_t bytes =
        static_cast<size_t>(way.num_stages) * kNumShares * kStageBytes + sums + (way.is_staged ? staged : 0);
    if (bytes > limit || (way.is_staged && num_columns * depth > kMaxStagedNumbers)) continue;
    const int num_buffers = bytes + sums <= limit ? 2 : 1;
    return {.is_staged = way.is_staged,
            .num_stages = way.num_stages,
            .num_buffers = num_buffers,
            .bytes = bytes + (num_buffers == 2 ? sums : 0)};
  }
  return {.bytes = size_t{2} * kNumShares * kStageBytes + sums};
}

// `rounded`: x as it is multiplied, or null.
template <typename Weight, int kGroups>
void LaunchFor(const FewRowsParams& params, const Layout& layout, const Bf16* rounded, CudaDevice& device) {
  const int num_units = params.is_gated ? params.num_tiles / 2 : params.num_tiles;
  const LaunchShape shape =
      Overlapping(std::min(device.facts().num_multiprocessors, num_units), kThreads, layout.bytes);
  if (layout.is_staged) {
    return Launch(device, "MatMul", shape,
                  layout.num_stages == 4 ? StagedKernel<Weight, kGroups, 4> : StagedKernel<Weight, kGroups, 2>, params,
                  rounded);
  }
  Launch(device, "MatMul", shape,
         layout.num_stages == 6   ? StreamedKernel<Weight, kGroups, 6>
         : layout.num_stages == 4 ? StreamedKernel<Weight, kGroups, 4>
                                  : StreamedKernel<Weight, kGroups, 2>,
         params, rounded);
}

template <typename Weight>
void LaunchFor(const FewRowsParams& params, const Layout& layout, const Bf16* rounded, CudaDevice& device) {
  switch (GroupsOf(params.num_columns())) {
    case 1:
      return LaunchFor<Weight, 1>(params, layout, rounded, device);
    case 2:
      return LaunchFor<Weight, 2>(params, layout, rounded, device);
    default:
      return LaunchFor<Weight, kMaxGroups>(params, layout, rounded, device);
  }
}

// A product of some rows, and where its x is rounded: by whoever made it, or on the way, through `scratch`.
struct Rows {
  int first = 0;
  int count = 0;
  Columns x;                     // columns == nullptr: on the way
  std::byte* scratch = nullptr;  // of ColumnsBytes
};
void LaunchRows(FewRowsParams params, const Rows& rows, DType weight_type, CudaDevice& device) {
  params.x += static_cast<int64_t>(rows.first) * params.depth;
  params.num_rows = rows.count;
  for (FewRowsParams::Part& part : params.parts) {
    if (part.out != nullptr) part.out += static_cast<int64_t>(rows.first) * part.num_outputs;
  }
  const Layout layout = LayoutFor(params.num_columns(), params.depth, device);
  params.num_buffers = layout.num_buffers;
  params.divides_sums = params.norm_weight != nullptr;
  Columns x = rows.x;
  if (x.columns == nullptr && !layout.is_staged) {
    x = ColumnsAt(rows.scratch, params.depth);
    LaunchShape rounding = Overlapping(params.num_rows, kThreads);
    rounding.grid.y = Blocks(params.depth, kNumbersOfPart);
    Launch(device, "MatMul: round", rounding, RoundRowsKernel, params, x.columns, x.squares);
  }
  params.squares = x.squares;
  if (weight_type == DType::kF16) return LaunchFor<__half>(params, layout, x.columns, device);
  LaunchFor<Bf16>(params, layout, x.columns, device);
}

}  // namespace

bool HasFewRows(const LinearArgs& args) {
  const MatMulArgs& product = args.product;
  const int64_t depth = product.x.shape[1];
  if (product.x.shape[0] > kMaxColumns || depth % kDepthOfTurn != 0) return false;
  if (args.activation && !IsFewRowsActivation(args.activation->kind)) return false;
  if (args.norm) {
    const bool is_rms = args.norm->kind == NormArgs::Kind::kRms && !args.norm->bias.present();
    const bool is_aligned = reinterpret_cast<uintptr_t>(args.norm->weight.data) % sizeof(float4) == 0;
    if (!is_rms || !is_aligned || depth > kMaxNormDim || depth % (4 * kSquared) != 0) return false;
  }
  const DType type = product.parts.front().weight.dtype;
  return product.parts.size() <= kMaxParts && (type == DType::kBF16 || type == DType::kF16) &&
         std::all_of(product.parts.begin(), product.parts.end(),
                     [&](const MatMulPart& part) { return part.weight.dtype == type; });
}

bool DoesThen(const LinearArgs& linear) {
  return linear.activation && linear.then && linear.then->compute == linear.product.compute && HasFewRows(linear) &&
         HasFewRows({.product = *linear.then});
}

size_t ColumnsBytes(int64_t depth) {
  return static_cast<size_t>(kMaxColumns * (depth / kSquared)) * sizeof(float) +
         static_cast<size_t>(kMaxColumns * depth) * sizeof(Bf16);
}

// Rows are cut alike for both products, and each cut leaves the second what it rounded for it.
Prepared MatMulFewRows(const LinearArgs& linear, const Prepared& prepared, const NormBehind& behind,
                       CudaDevice& device) {
  const MatMulArgs& args = linear.product;
  const auto num_rows = static_cast<int>(args.x.shape[0]);
  if (!device.ok() || num_rows == 0) return {};
  FewRowsParams params = FewRowsParamsOf(linear);
  params.num_parts = PartsOfRows(args.compute);
  const bool is_prepared = prepared.num_put == device.num_put() && prepared.x == params.x &&
                           prepared.norm_weight == params.norm_weight && prepared.num_rows == num_rows &&
                           prepared.num_parts == params.num_parts;
  const bool has_then = DoesThen(linear);
  // Exact rows are three columns each: of more than ten the weights are read again.
  const int most = kMaxColumns / params.num_parts;
  const int64_t depth = args.x.shape[1];
  const int64_t then_depth = has_then ? linear.then->x.shape[1] : 0;
  const size_t own_bytes = is_prepared ? 0 : ColumnsBytes(depth);
  const int64_t then_numbers = num_rows * params.num_parts * then_depth;
  std::byte* const scratch = device.Scratch(own_bytes + static_cast<size_t>(then_numbers) * sizeof(Bf16));
  if (scratch == nullptr) return {};
  // The last product's outputs, for a norm behind it.
  const MatMulArgs& last = has_then ? *linear.then : args;
  const bool prepares = behind.weight != nullptr && num_rows <= most;
  const Columns next = prepares ? ColumnsAt(behind.room, last.parts[0].weight.shape[0]) : Columns{};
  const auto prepare = [&](FewRowsParams& product) {
    if (!prepares) return;
    product.next_norm = behind.weight;
    product.next_squares = next.squares;
    product.rounded_out = {
        .data = next.columns, .num_parts = product.num_parts, .part_numbers = num_rows * last.parts[0].weight.shape[0]};
  };
  for (int first = 0; first < num_rows; first += most) {
    Rows rows{.first = first, .count = std::min(most, num_rows - first), .x = {}, .scratch = scratch};
    if (is_prepared) {  // all rows: one cut
      rows.x = {static_cast<Bf16*>(prepared.columns), prepared.squares};
    }
    if (has_then) {
      params.rounded_out = {
          .data = reinterpret_cast<Bf16*>(scratch + own_bytes) + first * params.num_parts * then_depth,
          .num_parts = params.num_parts,
          .part_numbers = rows.count * then_depth};
    } else {
      prepare(params);
    }
    LaunchRows(params, rows, args.parts.front().weight.dtype, device);
    if (!has_then) continue;
    FewRowsParams then = FewRowsParamsOf({.product = last});
    then.num_parts = params.num_parts;
    rows.x = {params.rounded_out.data, nullptr};
    prepare(then);
    LaunchRows(then, rows, last.parts.front().weight.dtype, device);
  }
  if (!prepares) return {};
  return {.x = last.parts[0].out.data,
          .norm_weight = behind.weight,
          .num_rows = num_rows,
          .num_parts = params.num_parts,
          .columns = next.columns,
          .squares = next.squares,
          .num_put = device.num_put()};
}

}  // namespace headwise::cuda
