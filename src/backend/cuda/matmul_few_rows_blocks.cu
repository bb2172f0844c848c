// Products of up to 32 rows with weights in block formats, out = x W^T + bias, by integer products: decoding.
//
// Bound by reading the weights once, in the bits that they have in the file. x is rounded to bytes with a scale for 32
// numbers; weights lie in the order of the operands of mma.m16n8k32 (block_order.h), so that a lane's 16 bytes are a
// run's operand, or two runs' once nibbles are taken apart. At 4.5 TB/s a multiprocessor has 28 clocks, 112 warp
// instructions, for a run of 16 outputs of q8_0, and half of that for 4 bits. For one row a run takes 38 and 30, for up
// to 8 rows 42 and 34, for up to 32 it takes 74 and 67 (docs/performance-cuda.md has those of all formats). Three
// things keep it small: the integer product begins at 1.5 * 2^23, so that its bits are a float and nothing is
// converted; that base is taken off by the multiply-add that scales the sum; codes stand at the top of their bytes, so
// that a nibble is an operand after one shift and one mask, and x's scale takes the factor back.
//
// As in matmul_few_rows.cu a warp copies its own slices of K through a ring of 4 to 18 KiB, and waits for nobody; one
// block a multiprocessor does its share of the tiles of 16 outputs, of up to 8 rows as two teams of warps with tiles of
// their own. x lies in shared memory, of few numbers rounded there by each block, norm and all, of more by a launch of
// its own, from which it is copied as it is. Of sums that are too long for that every warp brings the part of its next
// slice with its weights, for four tiles at once. Rows that do not fit even so take their turn.
//
// How a sum is put together depends on K and the format alone (eight shares, each in the order of its slices and runs,
// added in their order), so its bits do not depend on who shares the step.
#include <algorithm>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/few_rows_blocks.cuh"

namespace headwise::cuda {
namespace {

using namespace few_rows;  // NOLINT(google-build-using-namespace): what this file is made of

// Tiles [begin, end) of the team, whose shares are in `sums` one behind the other.
template <int kGroups, bool kOneRow>
__device__ void WriteTiles(const Tiles& tiles, int team, int begin, int end, const float* sums,
                           TileWriter<kGroups, kOneRow>& writer) {
  if constexpr (kGroups > 1) {  // of its one tile most warps have rows
    writer.LoadOld(tiles.Get(begin));
    SyncTeam(team);
    writer.Write(tiles.Get(begin), tiles.IsGate(begin), sums);
    return;
  }
  const auto for_own = [&](const auto& body) {
    for (int i = begin; i < end; ++i) {
      writer.TakeTurn(i - begin);
      if (writer.HasRows()) body(i);
    }
  };
  if (tiles.p.adds) for_own([&](int i) { writer.LoadOld(tiles.Get(i)); });
  SyncTeam(team);
  for_own([&](int i) {
    writer.Write(tiles.Get(i), tiles.IsGate(i), sums + (i - begin) * Sums<kGroups, kOneRow>::kFloats);
  });
}

// Of up to 8 rows, where a block has more than one tile. With one team of eight warps, two for each scheduler, all wait
// too often for what they have just asked of registers and of shared memory: the logits of q6_k and one row took 128
// microseconds, with two teams they take 104.
constexpr int kMostTeams = 2;
// Registers are shared out as for blocks of so many threads: then what two teams leave is enough for a block of
// RoundBytesKernel beside theirs, which the next product waits for (8 rows of q8_0, a token: 3.02 ms became 2.83). One
// row is rounded by a launch of its own for one product of a layer's four, and more registers are worth more to it.
constexpr int ThreadsOfBound(int num_teams, bool is_one_row) {
  return num_teams > 1 && !is_one_row ? 640 : num_teams * kThreads;
}
static_assert(ThreadsOfBound(kMostTeams, false) > kMostTeams * kThreads);

// ---- x lies in shared memory ----------------------------------------------------------------------------------------

// `rounded`: x as XBytes says, or null: each block makes it.
template <DType kType, int kGroups, int kStages, int kTeams, bool kOneRow>
__global__ void __launch_bounds__(ThreadsOfBound(kTeams, kOneRow), 1)
    BlocksKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout, const char* rounded) {
  using SumsOfTile = Sums<kGroups, kOneRow>;
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kSliceBytes = kOrder.slice_bytes();
  constexpr int kTurnsOfSlice = kOrder.runs / 2;
  extern __shared__ __align__(16) char memory[];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int team = kTeams == 1 ? 0 : warp / kNumShares;
  const int share = kTeams == 1 ? warp : warp % kNumShares;
  const Tiles tiles(p, team, kTeams);
  const auto num_slices = static_cast<int>(kOrder.NumSlices(p.depth));
  BlockRing<kSliceBytes, kStages> ring(memory + warp * kStages * kSliceBytes);
  ShareCopies<decltype(ring)> copies(ring, share, num_slices);
  const auto copy_next = [&] {
    copies.CopyNext([&](int tile_idx) -> const char* {
      if (!tiles.IsThere(tile_idx)) return nullptr;
      const Tile tile = tiles.Get(tile_idx);
      return static_cast<const char*>(tile.part.weight) +
             (static_cast<int64_t>(tile.first_output / kTileOutputs) * num_slices + share) * kSliceBytes;
    });
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_next();

  const int floats_of_team = p.num_buffers * p.tiles_at_once * SumsOfTile::kFloats;
  auto* const first_sums = reinterpret_cast<float*>(memory + kTeams * kNumShares * kStages * kSliceBytes);
  char* const x = reinterpret_cast<char*>(first_sums + kTeams * floats_of_team);
  float* const sums = first_sums + team * floats_of_team;
  if (rounded == nullptr) {
    RowQuads norm;
    if (p.norm_weight != nullptr && team == 0) norm.Load(p.norm_weight, 0, p.depth);
    WaitForEarlier();
    LetLaterBegin();
    if (team == 0) StageBytes(p, layout, norm, x);
  } else {
    WaitForEarlier();
    LetLaterBegin();
    for (int at = static_cast<int>(threadIdx.x) * 16; at < layout.bytes(); at += kTeams * kThreads * 16) {
      CopyChunk(SharedAddress(x + at), rounded + at);
    }
    CommitCopies();
    WaitForCopies<0>();
  }
  __syncthreads();
  const Groups<kGroups> groups(layout, x);
  TileWriter<kGroups, kOneRow> writer(p);
  int first_of_set = 0;
  float* set = sums;
  for (int tile_idx = 0; tiles.IsThere(tile_idx); ++tile_idx) {
    float acc[kGroups][4] = {};
    for (int slice_idx = share; slice_idx < num_slices; slice_idx += kNumShares) {
      const char* const slice = ring.Wait();
      copy_next();
      MultiplySlice<kType, kGroups, kOneRow>(slice, layout, groups.of, slice_idx * kTurnsOfSlice, acc);
      ring.Release();
    }
    StoreShare<kGroups, kOneRow>(share, acc, set + (tile_idx - first_of_set) * SumsOfTile::kFloats);
    if (tile_idx + 1 < first_of_set + p.tiles_at_once && tiles.IsThere(tile_idx + 1)) continue;
    WriteTiles<kGroups, kOneRow>(tiles, team, first_of_set, tile_idx + 1, set, writer);
    if (p.num_buffers == 1) {
      SyncTeam(team);
    } else {
      set = set == sums ? sums + p.tiles_at_once * SumsOfTile::kFloats : sums;
    }
    first_of_set = tile_idx + 1;
  }
}

// ---- x comes with the weights ---------------------------------------------------------------------------------------

constexpr int kTilesAtOnce = 4;
static_assert(kTilesAtOnce % 2 == 0);  // sets but the last leave buffers of sums in turns
// The first tile of a slice is copied when that of the slice before is there, and with it x of the slice.
constexpr int kStreamStages = kTilesAtOnce + 1;

// The part of x that belongs to a slice, as XBytes of so many turns, by a warp.
template <int kTurns>
__device__ void CopySliceOfX(const XBytes& layout, const char* rounded, int slice_idx, char* to) {
  const int at = static_cast<int>(threadIdx.x % kWarp) * 16;
  const auto copy = [&](const char* from, int bytes) {
    for (int i = at; i < bytes; i += 16 * static_cast<int>(kWarp)) CopyChunk(SharedAddress(to + i), from + i);
    to += bytes;
  };
  const int codes_bytes = kTurns * layout.num_columns * 64;
  const int scales_bytes = kTurns * layout.num_pairs() * 16;
  const char* const scales = rounded + layout.scales_at() + slice_idx * scales_bytes;
  copy(rounded + slice_idx * codes_bytes, codes_bytes);
  copy(scales, scales_bytes);
  if (layout.has_sums) copy(scales + layout.scales_bytes(), scales_bytes);
}

template <DType kType, int kGroups>
__global__ void __launch_bounds__(kThreads, 1)
    StreamedBlocksKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout,
                         const char* rounded) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kSliceBytes = kOrder.slice_bytes();
  constexpr int kTurnsOfSlice = kOrder.runs / 2;
  extern __shared__ __align__(16) char memory[];
  const int share = static_cast<int>(threadIdx.x / kWarp);
  const Tiles tiles(p);
  const auto num_slices = static_cast<int>(kOrder.NumSlices(p.depth));
  BlockRing<kSliceBytes, kStreamStages> ring(memory + share * kStreamStages * kSliceBytes);
  auto* const sums = reinterpret_cast<float*>(memory + kNumShares * kStreamStages * kSliceBytes);
  XBytes of_slice = layout;
  of_slice.num_turns = kTurnsOfSlice;
  const int x_bytes = of_slice.bytes();
  char* const x = reinterpret_cast<char*>(sums + p.num_buffers * Sums<kGroups>::kFloats) + share * 2 * x_bytes;
  // What is copied next: of every set of tiles the slices of the share, of every slice the tiles. Tiles that are not
  // there count, so that a slice's are always as many.
  int next_first = 0;
  int next_slice = share;
  int next_item = 0;
  int next_x = 0;
  const auto find = [&](int tile_idx, int slice_idx) {
    const Tile tile = tiles.Get(tile_idx);
    return static_cast<const char*>(tile.part.weight) +
           (static_cast<int64_t>(tile.first_output / kTileOutputs) * num_slices + slice_idx) * kSliceBytes;
  };
  const auto copy_next = [&] {
    if (next_slice < num_slices && tiles.IsThere(next_first)) {
      if (next_item == 0) {
        CopySliceOfX<kTurnsOfSlice>(layout, rounded, next_slice, x + next_x * x_bytes);
        next_x ^= 1;
      }
      if (tiles.IsThere(next_first + next_item)) ring.Copy(find(next_first + next_item, next_slice) + ring.LaneAt());
      if (++next_item == kTilesAtOnce) {
        next_item = 0;
        next_slice += kNumShares;
        if (next_slice >= num_slices) {
          next_slice = share;
          next_first += kTilesAtOnce;
        }
      }
    }
    ring.Commit();
  };
  // x is not there yet: the first weights wait in the second-level cache.
  if (share < num_slices) {
    const int at = static_cast<int>(threadIdx.x % kWarp) * 128;
    for (int i = 0; i < kTilesAtOnce && tiles.IsThere(i); ++i) {
      if (at < kSliceBytes) PrefetchLine(find(i, share) + at);
    }
  }
  WaitForEarlier();
  LetLaterBegin();
#pragma unroll 1
  for (int i = 0; i < kStreamStages - 1; ++i) copy_next();

  TileWriter<kGroups> writer(p);
  int x_idx = 0;
  for (int first_tile = 0; tiles.IsThere(first_tile); first_tile += kTilesAtOnce) {
    float acc[kTilesAtOnce][kGroups][4] = {};
    for (int slice_idx = share; slice_idx < num_slices; slice_idx += kNumShares) {
      const Groups<kGroups> groups(of_slice, x + x_idx * x_bytes);
      x_idx ^= 1;
#pragma unroll
      for (int i = 0; i < kTilesAtOnce; ++i) {
        const char* const slice = ring.Wait();
        copy_next();
        if (tiles.IsThere(first_tile + i)) MultiplySlice<kType, kGroups>(slice, of_slice, groups.of, 0, acc[i]);
        ring.Release();
      }
    }
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) {
      if (!tiles.IsThere(first_tile + i)) break;
      float* const buffer = p.num_buffers == 2 && i % 2 == 1 ? sums + Sums<kGroups>::kFloats : sums;
      StoreShare<kGroups>(share, acc[i], buffer);
      writer.LoadOld(tiles.Get(first_tile + i));
      __syncthreads();
      writer.Write(tiles.Get(first_tile + i), tiles.IsGate(first_tile + i), buffer);
      if (p.num_buffers == 1) __syncthreads();
    }
  }
}

// ---- x is rounded ---------------------------------------------------------------------------------------------------

// Numbers of a row that a block rounds where nothing is normalised.
constexpr int kNumbersOfPart = 2048;

// x as the product reads it. A block a row, or a part of one.
__global__ void __launch_bounds__(kThreads)
    RoundBytesKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout, char* rounded) {
  LetLaterBegin();
  WaitForEarlier();
  const auto row = static_cast<int>(blockIdx.x);
  const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth);
  const auto* weight = reinterpret_cast<const float4*>(p.norm_weight);
  float inverse = 1;
  if (weight != nullptr) {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x); i < p.depth / 4; i += kThreads) squares = AddSquares(squares, x[i]);
    inverse = InverseRoot(SumOfBlock(squares), p.depth, p.norm_eps);
  }
  const int num_quads = layout.num_turns * kTurnElements / 4;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int quad = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); quad < num_quads; quad += step) {
    float4 values = {0, 0, 0, 0};
    if (4 * quad < p.depth) {
      values = x[quad];
      if (weight != nullptr) values = Scaled(values, inverse, weight[quad]);
    }
    PutRounded(layout, rounded, row, quad, values);
  }
}

// ---- what is launched -----------------------------------------------------------------------------------------------

int GroupsOf(int num_rows) {
  return num_rows <= kRowsOfGroup ? 1 : num_rows <= 2 * kRowsOfGroup ? 2 : kMaxGroups;
}

// Whether there is a kernel for the one row alone.
constexpr bool HasOneRow(int num_rows, int num_teams) {
  return num_rows == 1 && num_teams == kMostTeams;
}

// Of x: of more, every block's rounding of them all is taken to last longer than a launch that rounds them once. Of one
// row of 14,336 without a norm it was 1.1 to 1.7 microseconds longer.
constexpr int64_t kMaxStagedNumbers = 15 << 10;
constexpr int64_t kMaxStagedOfOneRow = 8 << 10;

// Of a warp's ring, in bytes: what has to be on its way, and what is enough where x takes much of the memory.
constexpr int kDeepRing = 18 << 10;
constexpr int kShallowRing = 10 << 10;
constexpr int StagesOf(DType dtype, int ring_bytes) {
  return ring_bytes / OrderOf(dtype).slice_bytes();
}
static_assert(StagesOf(DType::kQ6_K, kShallowRing) >= 3 && StagesOf(DType::kQ8_0, kDeepRing) == 8);
// Of two teams, in elements of K. Twice as many warps have as much on its way with half as much each, and what is asked
// for ahead of need stands in the way of what is needed now (docs/performance-cuda.md, "Short rings").
constexpr int kRingOfTeams = 512;
constexpr int StagesOfTeams(DType dtype) {
  return kRingOfTeams / OrderOf(dtype).slice_elements();
}

XBytes LayoutOfX(DType dtype, int num_rows, int64_t depth) {
  const BlockOrder order = OrderOf(dtype);
  return {.num_columns = num_rows,
          .num_turns = static_cast<int>((depth + kPadElements - 1) / kPadElements) * (kPadElements / kTurnElements),
          .has_sums = order.has_min,
          .factor = OperandFactor(order)};
}

// Tiles whose sums meet at one barrier, if there is memory for them. At a barrier all warps wait for the last one, and
// in few bits a tile is two slices for each: with a barrier for each of them the logits of q4_0 and one row took 98
// microseconds, with one for four 80.
int MostTilesAtOnce(const FewRowsParams& params, int num_rows) {
  if (num_rows > kRowsOfGroup) return 1;  // most warps have rows of every tile
  int tiles = params.is_gated ? 8 : 4;    // four, or four pairs of a gate and what it gates
  if (!params.adds) return tiles;
  while (tiles * WarpsOfTile(num_rows) > kNumShares) tiles /= 2;  // a warp loads ahead what one tile is added to
  return tiles;
}

// How a product fits into shared memory.
struct Layout {
  int num_stages = 0;  // of a warp's ring; 0: it does not fit
  int num_teams = 1;
  bool is_streamed = false;
  int num_buffers = 1;  // of a team's sums
  int tiles_at_once = 1;
  size_t bytes = 0;
};
Layout LayoutFor(DType dtype, int num_rows, int64_t depth, int most_at_once, int num_teams, const CudaDevice& device) {
  constexpr size_t kBesides = 512;  // what a block has anyway: sums of a norm
  const size_t limit = device.facts().shared_bytes_of_block - kBesides;
  const BlockOrder order = OrderOf(dtype);
  XBytes x = LayoutOfX(dtype, num_rows, depth);
  const auto held = static_cast<size_t>(x.bytes());
  x.num_turns = order.runs / 2;
  const size_t streamed = size_t{2} * kNumShares * static_cast<size_t>(x.bytes());
  const auto fits = [&](Layout& layout) {
    const auto num_teams = static_cast<size_t>(layout.num_teams);
    const int columns = HasOneRow(num_rows, layout.num_teams) ? 1 : kRowsOfGroup * GroupsOf(num_rows);
    const size_t sums = num_teams * sizeof(float) * kNumShares * kTileOutputs * static_cast<size_t>(columns);
    layout.bytes = num_teams * kNumShares * static_cast<size_t>(layout.num_stages * order.slice_bytes()) + sums +
                   (layout.is_streamed ? streamed : held);
    if (layout.bytes > limit) return false;
    for (int tiles = most_at_once; tiles >= 1; tiles /= 2) {
      const size_t all = layout.bytes + (2 * static_cast<size_t>(tiles) - 1) * sums;
      if (all > limit) continue;
      layout.num_buffers = 2;
      layout.tiles_at_once = tiles;
      layout.bytes = all;
      break;
    }
    return true;
  };
  Layout layout{.num_stages = StagesOfTeams(dtype), .num_teams = num_teams};
  if (layout.num_teams > 1 && fits(layout) && layout.num_buffers == 2) return layout;
  for (const int ring_bytes : {kDeepRing, kShallowRing}) {
    layout = {.num_stages = StagesOf(dtype, ring_bytes)};
    if (fits(layout)) return layout;
  }
  layout = {.num_stages = kStreamStages, .is_streamed = true};
  return num_rows > kRowsOfGroup && fits(layout) ? layout : Layout{};
}

bool StagesTooMany(const FewRowsParams& params) {
  const bool is_one = params.num_rows == 1 && params.norm_weight == nullptr;
  return int64_t{params.num_rows} * params.depth > (is_one ? kMaxStagedOfOneRow : kMaxStagedNumbers);
}

template <DType kType, int kGroups>
void LaunchFor(const FewRowsParams& params, const Layout& layout, CudaDevice& device) {
  const XBytes x = LayoutOfX(kType, params.num_rows, params.depth);
  char* rounded = nullptr;
  if (layout.is_streamed || StagesTooMany(params)) {
    rounded = reinterpret_cast<char*>(device.Scratch(static_cast<size_t>(x.bytes())));
    if (rounded == nullptr) return;
    LaunchShape rounding = Overlapping(params.num_rows, kThreads);
    if (params.norm_weight == nullptr) rounding.grid.y = Blocks(params.depth, kNumbersOfPart);
    Launch(device, "MatMul: round", rounding, RoundBytesKernel, params, x, rounded);
  }
  LaunchShape shape = Overlapping(std::min(device.facts().num_multiprocessors, params.num_units()),
                                  static_cast<unsigned>(layout.num_teams) * kThreads, layout.bytes);
  shape.lets_begin_late = true;
  if constexpr (kGroups > 1) {
    if (layout.is_streamed) {
      return Launch(device, "MatMul", shape, StreamedBlocksKernel<kType, kGroups>, params, x, rounded);
    }
  }
  const auto launch = [&](auto kernel) { Launch(device, "MatMul", shape, kernel, params, x, rounded); };
  constexpr int kDeep = StagesOf(kType, kDeepRing);
  constexpr int kShallow = StagesOf(kType, kShallowRing);
  if constexpr (kGroups == 1) {
    if (HasOneRow(params.num_rows, layout.num_teams)) {
      return launch(BlocksKernel<kType, kGroups, StagesOfTeams(kType), kMostTeams, true>);
    }
    if (layout.num_teams > 1) {
      return launch(BlocksKernel<kType, kGroups, StagesOfTeams(kType), kMostTeams, false>);
    }
  }
  launch(layout.num_stages == kDeep ? BlocksKernel<kType, kGroups, kDeep, 1, false>
                                    : BlocksKernel<kType, kGroups, kShallow, 1, false>);
}

// `params` of rows [first_row, first_row + num_rows) alone.
template <DType kType>
void LaunchRows(FewRowsParams params, int first_row, int num_rows, const Layout& layout, CudaDevice& device) {
  params.x += static_cast<int64_t>(first_row) * params.depth;
  params.num_rows = num_rows;
  params.num_buffers = layout.num_buffers;
  params.tiles_at_once = layout.tiles_at_once;
  for (FewRowsParams::Part& part : params.parts) {
    if (part.out != nullptr) part.out += static_cast<int64_t>(first_row) * part.num_outputs;
  }
  switch (GroupsOf(num_rows)) {
    case 1:
      return LaunchFor<kType, 1>(params, layout, device);
    case 2:
      return LaunchFor<kType, 2>(params, layout, device);
    default:
      return LaunchFor<kType, kMaxGroups>(params, layout, device);
  }
}

// As many rows at a time as fit.
template <DType kType>
void LaunchAll(const FewRowsParams& params, int num_rows, CudaDevice& device) {
  const auto layout_for = [&](int count) {
    const bool has_two = count <= kRowsOfGroup && params.num_units() > device.facts().num_multiprocessors;
    return LayoutFor(kType, count, params.depth, MostTilesAtOnce(params, count), has_two ? kMostTeams : 1, device);
  };
  for (int first = 0; first < num_rows;) {
    int count = std::min(kMaxColumns, num_rows - first);
    Layout layout = layout_for(count);
    while (layout.num_stages == 0 && count > 1) {
      count = (count - 1) / kRowsOfGroup > 0 ? (count - 1) / kRowsOfGroup * kRowsOfGroup : count - 1;
      layout = layout_for(count);
    }
    LaunchRows<kType>(params, first, count, layout, device);
    first += count;
  }
}

}  // namespace

bool HasFewRowsInBlocks(const LinearArgs& args, const CudaDevice& device) {
  const MatMulArgs& product = args.product;
  const bool is_asked = product.compute == Compute::kInt8 || product.compute == Compute::kFp8;
  if (!is_asked || product.x.shape[0] > kMaxRowsInBlocks || product.parts.empty()) return false;
  if (args.activation && !GoesWithProduct(args.activation->kind)) return false;
  const int64_t depth = product.x.shape[1];
  if (args.norm) {
    const bool is_rms = args.norm->kind == NormArgs::Kind::kRms && !args.norm->bias.present();
    const bool is_aligned = reinterpret_cast<uintptr_t>(args.norm->weight.data) % sizeof(float4) == 0;
    // A norm's bits are those of the kernel that does it alone.
    if (!is_rms || !is_aligned || depth > kMaxNormDim) return false;
  }
  const DType dtype = product.parts.front().weight.dtype;
  return product.parts.size() <= kMaxParts && IsBlockFormat(dtype) &&
         std::all_of(product.parts.begin(), product.parts.end(),
                     [&](const MatMulPart& part) { return part.weight.dtype == dtype; }) &&
         LayoutFor(dtype, 1, depth, 1, 1, device).num_stages != 0;
}

void MatMulFewRowsInBlocks(const LinearArgs& linear, CudaDevice& device) {
  const auto num_rows = static_cast<int>(linear.product.x.shape[0]);
  if (!device.ok() || num_rows == 0) return;
  const FewRowsParams params = FewRowsParamsOf(linear);
  WithBlockFormat(linear.product.parts.front().weight.dtype,
                  [&](auto type) { LaunchAll<decltype(type)::value>(params, num_rows, device); });
}

}  // namespace headwise::cuda
