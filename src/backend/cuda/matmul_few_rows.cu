// Products of up to 32 rows with bf16 or f16 weights, out = x W^T + bias: decoding.
//
// Bound by reading the weights once, 2 N K bytes. Loads straight into the operands of mma.m16n8k16 keep too little on
// its way: what x has to go through stands in between. So weights pass through shared memory, 8 to 16 KiB ahead for
// each of eight warps: a warp copies its own slices of K, 128 numbers of each of 16 rows at a time, and waits for
// nobody. Bulk copies of 2 KiB a row, by a warp for all, read 6 % less for as many consumers: a copy takes its engine
// 50 ns whatever it brings. The weights are the mma's 16 rows, rows of x its 8 columns. One block a multiprocessor does
// its share of the tiles of 16 outputs.
//
// x must be at hand too. Of few rows it lies in shared memory, for all tiles of a block. Of more it comes slice by
// slice like weights, rounded before, each slice for two to four tiles at once: from the second-level cache, whose
// bandwidth is not what binds. What does, between one product of a tile and the next, is that warps have little else to
// do than to multiply and to ask for more: operands are loaded as products want them, addresses are constants or
// carried along, and a tile's end asks its questions once.
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
  extern __shared__ __align__(kSliceAlign) char memory[];
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
    LetLaterBegin();
    if (p.divides_sums()) roots.Load(p, p.squares);
    StageRounded(rounded, p.num_columns(), p.depth, staged);
  } else {
    RowQuads norm;
    if (p.norm_weight != nullptr) norm.Load(p.norm_weight, 0, p.depth);
    WaitForEarlier();
    LetLaterBegin();
    StageX(p, norm, staged, squares);
    if (p.divides_sums()) roots.Load(p, squares);
  }
  if (p.divides_sums()) roots.Invert(p, inverses);  // they are read behind the next barrier
  const StagedX layout(p.num_columns());
  const uint32_t lane_x = SharedAddress(staged);
  const int lane_offset = TurnWeights<Weight>::LaneOffset();
  TileWriter<kGroups> writer(p);
  for (int tile_idx = 0; tiles.IsThere(tile_idx); ++tile_idx) {
    float acc[kGroups][4] = {};
    for (int depth = first_depth; depth < p.depth; depth += kNumShares * kDepthOfSlice) {
      const uint32_t slice = SharedAddress(ring.Wait()) + lane_offset;
      copy_next();
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const TurnWeights<Weight> weights(slice, turn);
        uint32_t x[kGroups][4];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          // What columns beyond the last come to nobody reads.
          const int column = min(group * kRowsOfGroup + lane % kRowsOfGroup, layout.num_columns - 1);
          const int chunk = depth / 8 + turn * 4 + lane / kRowsOfGroup;
          LoadMatrix(x[group], lane_x + layout.IndexOf(chunk, column) * static_cast<int>(sizeof(uint4)));
        }
        weights.Multiply(x, acc);
      }
      ring.Release();
    }
    float* const buffer = p.num_buffers == 2 && tile_idx % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
    StoreShare<kGroups>(share, acc, buffer);
    writer.LoadOld(tiles.Get(tile_idx));
    __syncthreads();
    writer.Write(tiles.Get(tile_idx), tiles.IsGate(tile_idx), buffer, p.divides_sums() ? inverses : nullptr);
    if (p.num_buffers == 1) __syncthreads();
  }
}

// ---- x comes slice by slice -----------------------------------------------------------------------------------------

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

// A warp's items: of every set of tiles, of every slice of its share, x, 16 columns each, and then the tiles' weights.
// Each has its own place in the warp's memory, where the next slice's goes as soon as this one's is in registers: so
// addresses there are constants, and of those in the matrices a lane's are carried along. Of absent columns, tiles and
// outputs nothing is copied, and what their sums come to nobody reads.
template <int kXSlices, int kTiles>
struct ItemCopies {
  static constexpr int kItems = kXSlices + kTiles;
  static constexpr int kRowsAtOnce = static_cast<int>(kWarp) / kChunksOfSlice;
  static constexpr int kBytes = kItems * kStageBytes;
  const Tiles& tiles;
  const Bf16* const x;  // [columns, K]
  const int num_columns, first_depth;
  const uint32_t memory;  // of the warp
  int first_tile = 0;     // of the set whose slice is copied
  int depth;
  bool is_there;
  const Bf16* from[kItems];  // the lane's chunk of a slice's first two rows
  int num_rows[kItems];

  __device__ ItemCopies(const Tiles& its_tiles, const Bf16* its_x, int share, const char* its_memory)
      : tiles(its_tiles),
        x(its_x),
        num_columns(its_tiles.p.num_columns()),
        first_depth(share * kDepthOfSlice),
        memory(SharedAddress(its_memory)),
        depth(first_depth) {
#pragma unroll
    for (int i = 0; i < kXSlices; ++i) num_rows[i] = num_columns - i * kTileOutputs;
    FindSet();
  }

  static __device__ int LaneRow() {
    return static_cast<int>(threadIdx.x % kWarp) / kChunksOfSlice;
  }
  static __device__ int LaneChunk() {
    return static_cast<int>(threadIdx.x % kWarp) % kChunksOfSlice;
  }
  __device__ const Bf16* LanesChunk(const Bf16* matrix, int first_row) const {
    return matrix + static_cast<int64_t>(first_row + LaneRow()) * tiles.p.depth + depth + LaneChunk() * 8;
  }
  __device__ void FindSet() {
    is_there = tiles.IsThere(first_tile) && depth < tiles.p.depth;
#pragma unroll
    for (int i = 0; i < kXSlices; ++i) from[i] = LanesChunk(x, i * kTileOutputs);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      num_rows[kXSlices + i] = 0;
      if (!is_there || !tiles.IsThere(first_tile + i)) continue;
      const Tile tile = tiles.Get(first_tile + i);
      num_rows[kXSlices + i] = tile.part.num_outputs - tile.first_output;
      from[kXSlices + i] = LanesChunk(static_cast<const Bf16*>(tile.part.weight), tile.first_output);
    }
  }
  // To the next slice of the share, or the first one of the next set.
  __device__ void Advance() {
    depth += kNumShares * kDepthOfSlice;
    if (depth >= tiles.p.depth) {
      depth = first_depth;
      first_tile += kTiles;
      return FindSet();
    }
#pragma unroll
    for (int i = 0; i < kItems; ++i) from[i] += kNumShares * kDepthOfSlice;
  }
  __device__ uint32_t At(int item) const {
    return memory + item * kStageBytes;
  }
  __device__ void Copy(int item) const {
    if (!is_there) return;
    constexpr int kTimes = kTileOutputs / kRowsAtOnce;
    const uint32_t to = At(item) + SliceRing<2>::OffsetOf(LaneRow(), LaneChunk());
    const Bf16* chunk = from[item];
    const int64_t step = kRowsAtOnce * tiles.p.depth;
    if (num_rows[item] >= kTileOutputs && depth + kDepthOfSlice <= tiles.p.depth) {
#pragma unroll
      for (int i = 0; i < kTimes; ++i, chunk += step) {
        const uint32_t place = (to ^ (i % 4 * 16)) + i * kRowsAtOnce * kRowBytes;
        item < kXSlices ? CopyChunk(place, chunk) : CopyChunkOnce(place, chunk);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kTimes; ++i, chunk += step) {
      if (LaneRow() + i * kRowsAtOnce >= num_rows[item]) return;
      CopyChunkOrZeros((to ^ (i % 4 * 16)) + i * kRowsAtOnce * kRowBytes,
                       depth + LaneChunk() * 8 < tiles.p.depth ? chunk : nullptr);
    }
  }
};

template <typename Weight, int kGroups, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    StreamedKernel(const __grid_constant__ FewRowsParams p, const Bf16* rounded) {
  constexpr int kXSlices = (kGroups + 1) / 2;
  using Copies = ItemCopies<kXSlices, kTiles>;
  extern __shared__ __align__(kSliceAlign) char memory[];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int share = static_cast<int>(threadIdx.x / kWarp);
  const Tiles tiles(p);
  // x is not there yet, but weights are.
  Copies copies(tiles, rounded, share, memory + share * Copies::kBytes);
#pragma unroll
  for (int i = kXSlices; i < Copies::kItems; ++i) copies.Copy(i);
  WaitForEarlier();
  LetLaterBegin();
#pragma unroll
  for (int i = 0; i < kXSlices; ++i) copies.Copy(i);
  CommitCopies();
  __shared__ float inverses[kMaxColumns];  // read behind the next barrier
  if (p.divides_sums()) {
    RootsOfRows<kGroups> roots;
    roots.Load(p, p.squares);
    roots.Invert(p, inverses);
  }
  WaitForCopies<0>();

  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * Copies::kBytes);
  const int lane_weights = TurnWeights<Weight>::LaneOffset();
  const int lane_x = SliceRing<2>::OffsetOf(lane % kRowsOfGroup, lane / kRowsOfGroup);
  TileWriter<kGroups> writer(p);
  int num_written = 0;
  for (int first_tile = 0; tiles.IsThere(first_tile); first_tile += kTiles) {
    float acc[kTiles][kGroups][4] = {};
    for (int depth = share * kDepthOfSlice; depth < p.depth; depth += kNumShares * kDepthOfSlice) {
      copies.Advance();
      // An item of this slice is there where all but those behind it and what was copied into places before it is.
      const auto wait = [&] {
        WaitForCopies<Copies::kItems - 1>();
        __syncwarp();
      };
      const auto copy_next = [&](int item) {
        __syncwarp();  // all lanes have it in registers
        copies.Copy(item);
        CommitCopies();
      };
      uint32_t x[kTurns][kGroups][4];
#pragma unroll
      for (int i = 0; i < kXSlices; ++i) {
        wait();
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
#pragma unroll
          for (int group = 2 * i; group < min(2 * i + 2, kGroups); ++group) {
            LoadMatrix(x[turn][group], ((copies.At(i) + lane_x) ^ (turn % 2 * 64)) + turn / 2 * 128 +
                                           (group - 2 * i) * kRowsOfGroup * kRowBytes);
          }
        }
        copy_next(i);
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        wait();
#pragma unroll
        for (int turn = 0; turn < kTurns; ++turn) {
          const TurnWeights<Weight> weights(copies.At(kXSlices + i) + lane_weights, turn);
          weights.Multiply(x[turn], acc[i]);
        }
        copy_next(kXSlices + i);
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (!tiles.IsThere(first_tile + i)) break;
      float* const buffer = p.num_buffers == 2 && num_written++ % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
      StoreShare<kGroups>(share, acc[i], buffer);
      const Tile tile = tiles.Get(first_tile + i);
      writer.LoadOld(tile);
      __syncthreads();
      writer.Write(tile, tiles.IsGate(first_tile + i), buffer, p.divides_sums() ? inverses : nullptr);
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

constexpr int kManyStages = 4;
constexpr int kFewStages = 2;
constexpr int kMostTiles = 4;  // at once

// How a product fits into shared memory: of stages of a ring for each warp where x lies there, else of so many tiles at
// once.
struct Layout {
  bool is_staged = false;
  int num_stages = 0;
  int num_tiles = 0;
  int num_buffers = 1;  // of sums
  size_t bytes = 0;
};
size_t SumsBytes(int num_columns) {
  return sizeof(float) * kNumShares * kTileOutputs * kRowsOfGroup * static_cast<size_t>(GroupsOf(num_columns));
}
size_t RingBytes(int num_stages) {
  return static_cast<size_t>(num_stages) * kNumShares * kStageBytes;
}
int XSlicesOf(int num_columns) {
  return (GroupsOf(num_columns) + 1) / 2;
}
// Of a block, beside what kernels have anyway: squares for a norm where x lies there, and 1 / rms of rows.
size_t SharedLimit(bool is_staged, const CudaDevice& device) {
  return device.facts().shared_bytes_of_block - (is_staged ? 4608 : 512);
}
// Rows that a block can stream of. Those of 32 need two tiles at once, as otherwise x would be twice the weights.
int MostColumns(const CudaDevice& device) {
  const size_t bytes = RingBytes(XSlicesOf(kMaxColumns) + 2) + SumsBytes(kMaxColumns);
  return bytes <= SharedLimit(false, device) ? kMaxColumns : kMaxColumns / 2;
}
// `tiles_of_block`: rounded up. Who has three does them at once.
Layout LayoutFor(int num_columns, int64_t depth, int tiles_of_block, const CudaDevice& device) {
  const size_t sums = SumsBytes(num_columns);
  const auto with_sums = [&](Layout layout) {
    layout.num_buffers = layout.bytes + 2 * sums <= SharedLimit(layout.is_staged, device) ? 2 : 1;
    // More than half of what there is: two blocks on one multiprocessor would leave another without work.
    layout.bytes = std::max(layout.bytes + sums * static_cast<size_t>(layout.num_buffers),
                            device.facts().shared_bytes_of_block / 2 + 1);
    return layout;
  };
  const size_t staged = static_cast<size_t>(StagedX(num_columns).num_chunks(static_cast<int>(depth))) * sizeof(uint4);
  const auto staged_layout = [&](int num_stages) {
    return Layout{.is_staged = true, .num_stages = num_stages, .bytes = RingBytes(num_stages) + staged};
  };
  const auto may_stage = [&](int num_stages) {
    return num_columns * depth <= kMaxStagedNumbers &&
           staged_layout(num_stages).bytes + sums <= SharedLimit(true, device);
  };
  if (may_stage(kManyStages)) return with_sums(staged_layout(kManyStages));
  for (int tiles = std::clamp(tiles_of_block, 2, kMostTiles); tiles >= 1; --tiles) {
    if (tiles == 1 && may_stage(kFewStages)) return with_sums(staged_layout(kFewStages));
    const size_t bytes = RingBytes(XSlicesOf(num_columns) + tiles);
    if (tiles == 1 || bytes + sums <= SharedLimit(false, device)) {
      return with_sums({.num_tiles = tiles, .bytes = bytes});
    }
  }
  return {};
}

// `rounded`: x as it is multiplied, or null.
template <typename Weight, int kGroups>
void LaunchFor(const FewRowsParams& params, const Layout& layout, const Bf16* rounded, CudaDevice& device) {
  LaunchShape shape =
      Overlapping(std::min(device.facts().num_multiprocessors, params.num_units()), kThreads, layout.bytes);
  shape.lets_begin_late = true;
  const auto launch = [&](auto kernel) { Launch(device, "MatMul", shape, kernel, params, rounded); };
  if (layout.is_staged) {
    return layout.num_stages == kManyStages ? launch(StagedKernel<Weight, kGroups, kManyStages>)
                                            : launch(StagedKernel<Weight, kGroups, kFewStages>);
  }
  switch (layout.num_tiles) {
    case 1:
      return launch(StreamedKernel<Weight, std::min(kGroups, 2), 1>);
    case 2:
      return launch(StreamedKernel<Weight, kGroups, 2>);
    case 3:
      return launch(StreamedKernel<Weight, kGroups, 3>);
    default:
      return launch(StreamedKernel<Weight, kGroups, kMostTiles>);
  }
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
  const int num_blocks = std::min(device.facts().num_multiprocessors, params.num_units());
  const int tiles_of_block = (params.num_tiles + num_blocks - 1) / num_blocks;
  const Layout layout = LayoutFor(params.num_columns(), params.depth, tiles_of_block, device);
  params.num_buffers = layout.num_buffers;
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
  if (args.activation && !GoesWithProduct(args.activation->kind)) return false;
  if (args.norm && !DividesSums(*args.norm, depth)) return false;
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
  // Exact rows are three columns each: of more than ten the weights are read again.
  const int most = MostColumns(device) / params.num_parts;
  const bool is_prepared = prepared.num_put == device.num_put() && !prepared.are_bytes && prepared.x == params.x &&
                           prepared.norm_weight == params.norm_weight && prepared.num_rows == num_rows &&
                           prepared.num_parts == params.num_parts && num_rows <= most;
  const bool has_then = DoesThen(linear);
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
