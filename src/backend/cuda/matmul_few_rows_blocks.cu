// Products of up to 32 rows with weights in block formats, out = x W^T + bias, by integer products: decoding.
//
// Bound by reading the weights once, in the bits that they have in the file. x is rounded to bytes with a scale for 32
// numbers; weights lie in the order of the operands of mma.m16n8k32 (block_order.h), so that a lane's 16 bytes are a
// run's operand, or two runs' once nibbles are taken apart. At 4.5 TB/s a multiprocessor has 28 clocks, 112 warp
// instructions, for a run of 16 outputs of q8_0, and half of that for 4 bits. For one row a run takes 38 and 30, for up
// to 8 rows 42 and 34 (docs/performance-cuda.md has those of all formats). Three
// things keep it small: the integer product begins at 1.5 * 2^23, so that its bits are a float and nothing is
// converted; that base is taken off by the multiply-add that scales the sum; codes stand at the top of their bytes, so
// that a nibble is an operand after one shift and one mask, and what that multiplies sums by is taken back in the end.
//
// As in matmul_few_rows.cu a warp copies its own slices of K through a ring of 4 to 18 KiB, and waits for nobody; one
// block a multiprocessor does its share of the tiles of 16 outputs, as two teams of warps with tiles of their own. x
// lies in shared memory, copied as whoever made it has left it (Prepared), or rounded there by each block, or, of more
// numbers, by a launch of its own. Of more than 8 rows blocks of a cluster share K where x is too long for one
// (few_rows_clusters.cuh). Rows that do not fit even so take their turn. With a norm x times its weight is rounded, and
// sums are divided by the root mean square, for which nobody waits.
//
// How a sum is put together depends on K and the format alone (eight shares, each in the order of its slices and runs,
// added in their order), so its bits do not depend on who shares the step.
#include <algorithm>
#include <array>
#include <optional>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/few_rows_blocks.cuh"
#include "backend/cuda/few_rows_clusters.cuh"

namespace headwise::cuda {
namespace {

using namespace few_rows;  // NOLINT(google-build-using-namespace): what this file is made of

// Of up to 8 rows, where a block has more than one tile. With one team of eight warps, two for each scheduler, all wait
// too often for what they have just asked of registers and of shared memory: the logits of q6_k and one row took 128
// microseconds, with two teams they take 104.
constexpr int kMostTeams = 2;
constexpr int ThreadsOf(int num_teams) {
  return num_teams * kThreads;
}
// Of what teams leave in bytes, in shared memory: of a run of 32 outputs, and of all in two buffers.
__host__ __device__ int FloatsOfRun(const FewRowsParams& p) {
  return p.num_rows * kRunElements;
}
__host__ __device__ int LeftFloats(const FewRowsParams& p) {
  if (p.rounded_out.bytes == nullptr) return 0;
  const int num_runs = p.is_gated && p.tiles_at_once > 1 ? p.tiles_at_once >> 1 : p.tiles_at_once;
  return 2 * num_runs * FloatsOfRun(p);
}

// ---- the end of a set of tiles --------------------------------------------------------------------------------------

// Tiles [begin, end) of the team, whose shares are in `sums` one behind the other. `left`: TileWriter::Write's, of one
// unit of tiles behind the other, or null.
template <bool kOneRow>
__device__ void WriteTiles(const Tiles& tiles, int team, int begin, int end, const float* sums, const float* inverses,
                           float* left, TileWriter<1, kOneRow>& writer) {
  const auto for_own = [&](const auto& body) {
    for (int i = begin; i < end; ++i) {
      writer.TakeTurn(i - begin);
      if (writer.HasRows()) body(i);
    }
  };
  if (tiles.p.adds) for_own([&](int i) { writer.LoadOld(tiles.Get(i)); });
  SyncTeam(team);
  const int first_unit = tiles.IndexOfUnit(begin);
  for_own([&](int i) {
    float* const left_of_tile =
        left == nullptr ? nullptr
                        : left + (tiles.IndexOfUnit(i) - first_unit) * FloatsOfRun(tiles.p) + team * kTileOutputs;
    writer.Write(tiles.Get(i), tiles.IsGate(i), sums + (i - begin) * Sums<1, kOneRow>::kFloats, inverses, left_of_tile);
  });
}

// What two teams with neighbouring tiles have left of [begin, end), a half of each run of 32 outputs, as bytes for the
// product behind. By all threads.
__device__ void RoundRuns(const Tiles& tiles, int begin, int end, const float* left) {
  const FewRowsParams& p = tiles.p;
  const int first_unit = tiles.IndexOfUnit(begin);
  const int num_runs = (tiles.IndexOfUnit(end) - first_unit) * p.num_rows;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  // Whole warps go round, those behind the last run with that one again.
  for (auto first = static_cast<int>(threadIdx.x) - lane; first < num_runs * kLanesOfRun;
       first += kMostTeams * kThreads) {
    const int run = min((first + lane) / kLanesOfRun, num_runs - 1);
    const int unit = run / p.num_rows;
    const int quad = lane % kLanesOfRun;
    const int first_output = tiles.Get((first_unit + unit) << (p.is_gated ? 1 : 0)).first_output;
    PutRounded(p.rounded_out.layout, p.rounded_out.bytes, run - unit * p.num_rows,
               first_output / kRunElements * kLanesOfRun + quad,
               reinterpret_cast<const float4*>(left)[run * kLanesOfRun + quad]);
  }
}

// ---- x lies in shared memory ----------------------------------------------------------------------------------------

// `rounded`: x as XBytes says, or null: each block makes it.
template <DType kType, int kStages, int kTeams, bool kOneRow>
__global__ void __launch_bounds__(ThreadsOf(kTeams), 1)
    BlocksKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout, const char* rounded) {
  using SumsOfTile = Sums<1, kOneRow>;
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kSliceBytes = kOrder.slice_bytes();
  constexpr int kTurnsOfSlice = kOrder.runs / 2;
  extern __shared__ __align__(16) char memory[];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int team = kTeams == 1 ? 0 : warp / kNumShares;
  const int share = kTeams == 1 ? warp : warp % kNumShares;
  const bool leaves_bytes = kTeams == kMostTeams && p.rounded_out.bytes != nullptr;
  const Tiles tiles = Tiles::OfTeam(p, team, kTeams, leaves_bytes);
  const auto num_slices = static_cast<int>(kOrder.NumSlices(p.depth));
  BlockRing<kSliceBytes, kStages> ring(memory + warp * kStages * kSliceBytes);
  ShareCopies<decltype(ring)> copies(ring, share, num_slices);
  const auto copy_next = [&] {
    copies.CopyNext([&](int i) { return FirstSliceOf<kSliceBytes>(tiles, i, share, num_slices); });
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) copy_next();

  const int floats_of_team = p.num_buffers * p.tiles_at_once * SumsOfTile::kFloats;
  auto* const first_sums = reinterpret_cast<float*>(memory + kTeams * kNumShares * kStages * kSliceBytes);
  char* const x = reinterpret_cast<char*>(first_sums + kTeams * floats_of_team);
  auto* const behind_x = reinterpret_cast<float*>(x + layout.bytes());  // squares, or what is left in bytes
  float* const sums = first_sums + team * floats_of_team;
  __shared__ float inverses_of_teams[kTeams][kMaxColumns];
  float* const inverses = inverses_of_teams[team];
  RootsOfRows<1> roots;
  if (rounded == nullptr) {
    RowQuads norm;
    if (p.divides_sums() && team == 0) norm.Load(p.norm_weight, 0, p.depth);
    WaitForEarlier();
    LetLaterBegin();
    float* const squares = behind_x + LeftFloats(p);
    if (team == 0) StageBytes(p, layout, norm, x, squares);
    __syncthreads();
    if (p.divides_sums()) roots.Load(p, squares);
  } else {
    WaitForEarlier();
    LetLaterBegin();
    for (int at = static_cast<int>(threadIdx.x) * 16; at < layout.bytes(); at += kTeams * kThreads * 16) {
      CopyChunk(SharedAddress(x + at), rounded + at);
    }
    CommitCopies();
    if (p.divides_sums()) roots.Load(p, p.squares);
  }
  if (p.divides_sums()) roots.Invert(p, inverses);  // they are read behind the next barrier of the team
  if (rounded != nullptr) {
    WaitForCopies<0>();
    __syncthreads();
  }
  const Groups<1> groups(layout, x);
  TileWriter<1, kOneRow> writer(p);
  int first_of_set = 0;
  float* set = sums;
  float* left = leaves_bytes ? behind_x : nullptr;
  for (int tile_idx = 0; tiles.IsThere(tile_idx); ++tile_idx) {
    float acc[1][4] = {};
    for (int slice_idx = share; slice_idx < num_slices; slice_idx += kNumShares) {
      const char* const slice = ring.Wait();
      copy_next();
      MultiplySlice<kType, 1, kOneRow>(slice, layout, groups.of, slice_idx * kTurnsOfSlice, acc);
      ring.Release();
    }
    TakeFactorBack<kType>(acc);
    StoreShare<1, kOneRow>(share, acc, set + (tile_idx - first_of_set) * SumsOfTile::kFloats);
    if (tile_idx + 1 < first_of_set + p.tiles_at_once && tiles.IsThere(tile_idx + 1)) continue;
    WriteTiles<kOneRow>(tiles, team, first_of_set, tile_idx + 1, set, p.divides_sums() ? inverses : nullptr, left,
                        writer);
    if (leaves_bytes) {
      __syncthreads();  // teams have as many sets
      RoundRuns(tiles, first_of_set, tile_idx + 1, left);
      // Of two buffers: all are behind the barrier that comes when this one's turn comes again.
      left = left == behind_x ? behind_x + LeftFloats(p) / 2 : behind_x;
    }
    if (p.num_buffers == 1) {
      SyncTeam(team);
    } else {
      set = set == sums ? sums + p.tiles_at_once * SumsOfTile::kFloats : sums;
    }
    first_of_set = tile_idx + 1;
  }
}

// ---- x is rounded ---------------------------------------------------------------------------------------------------

// Numbers of a row that a block rounds.
constexpr int kNumbersOfPart = 2048;

// x as the product reads it, or with a norm x times its weight, and then its squares. Parts of a row by a block each.
__global__ void __launch_bounds__(kThreads)
    RoundBytesKernel(const __grid_constant__ FewRowsParams p, const __grid_constant__ XBytes layout, char* rounded,
                     float* squares) {
  LetLaterBegin();
  WaitForEarlier();
  const auto row = static_cast<int>(blockIdx.x);
  const auto* x = reinterpret_cast<const float4*>(p.x + static_cast<int64_t>(row) * p.depth);
  const auto* weight = reinterpret_cast<const float4*>(p.norm_weight);
  const int num_quads = layout.num_turns * kTurnElements / 4;
  const int step = static_cast<int>(gridDim.y) * kThreads;
  for (int quad = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); quad < num_quads; quad += step) {
    const bool is_there = 4 * quad < p.depth;
    float4 values = is_there ? x[quad] : float4{0, 0, 0, 0};
    if (weight != nullptr) {
      values = TakeSquares(p, row, quad, values, is_there ? weight[quad] : float4{0, 0, 0, 0}, squares);
    }
    PutRounded(layout, rounded, row, quad, values);
  }
}

// ---- what is launched -----------------------------------------------------------------------------------------------

int GroupsOf(int num_rows) {
  return (num_rows + kRowsOfGroup - 1) / kRowsOfGroup;
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
  return BytesOfRows(num_rows, depth, OrderOf(dtype).has_min);
}

// x as it is multiplied, and its squares where there is a norm.
struct RoundedX {
  char* bytes = nullptr;     // as XBytes says
  float* squares = nullptr;  // [T, K / 16]
};
// Where they lie in memory of so many bytes, for any K that is a multiple of 16: squares ahead.
size_t SquaresBytes(int64_t depth) {
  return static_cast<size_t>(kMaxColumns * (depth / kSquared)) * sizeof(float);
}
size_t RoundedBytes(int64_t depth) {
  return SquaresBytes(depth) + static_cast<size_t>(BytesOfRows(kMaxColumns, depth, true).bytes());
}
RoundedX RoundedAt(std::byte* memory, int64_t depth) {
  return {reinterpret_cast<char*>(memory + SquaresBytes(depth)), reinterpret_cast<float*>(memory)};
}

// Tiles whose sums meet at one barrier, if there is memory for them. At a barrier all warps wait for the last one, and
// in few bits a tile is two slices for each: with a barrier for each of them the logits of q4_0 and one row took 98
// microseconds, with one for four 80.
int MostTilesAtOnce(const FewRowsParams& params, int num_rows) {
  int tiles = params.is_gated ? 8 : 4;  // four, or four pairs of a gate and what it gates
  if (!params.adds) return tiles;
  while (tiles * WarpsOfTile(num_rows) > kNumShares) tiles /= 2;  // a warp loads ahead what one tile is added to
  return tiles;
}

bool StagesTooMany(const FewRowsParams& params) {
  const bool is_one = params.num_rows == 1 && params.norm_weight == nullptr;
  return int64_t{params.num_rows} * params.depth > (is_one ? kMaxStagedOfOneRow : kMaxStagedNumbers);
}

// How a product fits into shared memory.
struct Layout {
  int num_stages = 0;  // of a warp's ring; 0: it does not fit
  int num_teams = 1;
  std::optional<ClusterShape> cluster;  // of more rows than a group's
  int num_buffers = 1;                  // of a team's sums
  int tiles_at_once = 1;
  size_t bytes = 0;
};
// What a block has anyway: 1 / rms of rows for each team.
constexpr size_t kBesides = 1024;

// Clusters that run at once, each block alone on its multiprocessor: of four blocks and more some multiprocessors are
// in none. 0: such clusters cannot be.
int MostClusters(int log_blocks, const CudaDevice& device) {
  if (log_blocks == 0) return device.facts().num_multiprocessors;
  static const std::array<int, kMaxLogBlocks + 1> kMost = [&] {
    std::array<int, kMaxLogBlocks + 1> most{};
    const auto* const kernel = reinterpret_cast<const void*>(ClusterKernel<DType::kQ8_0, 2, kClusterStages>);
    // A kernel that was compiled for older devices does without clusters here too.
    cudaFuncAttributes attributes{};
    if (!device.facts().has_clusters() || cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess ||
        attributes.ptxVersion < 90) {
      return most;
    }
    for (int log = 1; log <= kMaxLogBlocks; ++log) {
      cudaLaunchAttribute attribute{};
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = 1u << log;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
      const cudaLaunchConfig_t config{.gridDim = dim3(1u << log),
                                      .blockDim = dim3(kClusterThreads),
                                      .dynamicSmemBytes = 0,
                                      .attrs = &attribute,
                                      .numAttrs = 1};
      if (cudaOccupancyMaxActiveClusters(&most[log], kernel, &config) != cudaSuccess) most[log] = 0;
    }
    static_cast<void>(cudaGetLastError());  // no launch is to find it
    return most;
  }();
  return kMost[static_cast<size_t>(log_blocks)];
}

// Of more rows than a group's: as few blocks to a cluster as hold x beside one buffer of sums, and a second one where
// there is room: of four blocks clusters do not take all multiprocessors.
Layout ClusterLayoutFor(DType dtype, const FewRowsParams& params, const CudaDevice& device) {
  const BlockOrder order = OrderOf(dtype);
  const auto of_slice = static_cast<size_t>(SliceOfX(LayoutOfX(dtype, params.num_rows, params.depth), dtype).bytes());
  const auto rounds = static_cast<size_t>((order.NumSlices(params.depth) + kNumShares - 1) / kNumShares);
  constexpr size_t kTeams = ClusterShape::kTeamsOfCluster;
  const auto of_stage = kTeams * static_cast<size_t>(kNumShares * order.slice_bytes());
  const size_t sums = kTeams * sizeof(float) * kNumShares * kTileOutputs * kRowsOfGroup *
                      static_cast<size_t>(PaddedGroups(GroupsOf(params.num_rows)));
  for (int log_blocks = 0; log_blocks <= kMaxLogBlocks; ++log_blocks) {
    if (MostClusters(log_blocks, device) == 0) continue;
    const ClusterShape shape{log_blocks};
    const size_t x = rounds * static_cast<size_t>(shape.shares_of_block()) * of_slice;
    for (const int num_buffers : {2, 1}) {
      for (int stages = MostClusterStages(dtype); stages >= kClusterStages; --stages) {
        const size_t bytes = static_cast<size_t>(stages) * of_stage + static_cast<size_t>(num_buffers) * sums + x;
        if (bytes + kBesides > device.facts().shared_bytes_of_block) continue;
        return {
            .num_stages = stages, .num_teams = kTeams, .cluster = shape, .num_buffers = num_buffers, .bytes = bytes};
      }
    }
  }
  return {};
}

// Of `params` with its rows, and with what it leaves.
Layout LayoutFor(DType dtype, FewRowsParams params, const CudaDevice& device) {
  const int num_rows = params.num_rows;
  if (num_rows > kRowsOfGroup) return ClusterLayoutFor(dtype, params, device);
  const size_t limit = device.facts().shared_bytes_of_block - kBesides;
  const BlockOrder order = OrderOf(dtype);
  auto held = static_cast<size_t>(LayoutOfX(dtype, num_rows, params.depth).bytes());
  if (params.norm_weight != nullptr && !StagesTooMany(params)) {
    held += sizeof(float) * static_cast<size_t>(num_rows * (params.depth / kSquared));
  }
  const int most_at_once = MostTilesAtOnce(params, num_rows);
  const auto fits = [&](Layout& layout) {
    const auto num_teams = static_cast<size_t>(layout.num_teams);
    const int columns = HasOneRow(num_rows, layout.num_teams) ? 1 : kRowsOfGroup;
    const size_t sums = num_teams * sizeof(float) * kNumShares * kTileOutputs * static_cast<size_t>(columns);
    const auto left = [&](int tiles) {
      params.tiles_at_once = tiles;
      return layout.num_teams == kMostTeams ? sizeof(float) * static_cast<size_t>(LeftFloats(params)) : 0;
    };
    const size_t least =
        num_teams * kNumShares * static_cast<size_t>(layout.num_stages * order.slice_bytes()) + sums + held;
    layout.bytes = least + left(1);
    if (layout.bytes > limit) return false;
    for (int tiles = most_at_once; tiles >= 1; tiles /= 2) {
      const size_t all = least + (2 * static_cast<size_t>(tiles) - 1) * sums + left(tiles);
      if (all > limit) continue;
      layout.num_buffers = 2;
      layout.tiles_at_once = tiles;
      layout.bytes = all;
      break;
    }
    return true;
  };
  Layout layout{.num_stages = StagesOfTeams(dtype), .num_teams = kMostTeams};
  if (params.num_units() > device.facts().num_multiprocessors && fits(layout) && layout.num_buffers == 2) return layout;
  for (const int ring_bytes : {kDeepRing, kShallowRing}) {
    layout = {.num_stages = StagesOf(dtype, ring_bytes)};
    if (fits(layout)) return layout;
  }
  return {};
}

template <DType kType, int kGroups>
void LaunchCluster(const FewRowsParams& params, const Layout& layout, const char* rounded, CudaDevice& device) {
  const ClusterShape& cluster = *layout.cluster;
  const XBytes x = LayoutOfX(kType, params.num_rows, params.depth);
  const int most = MostClusters(cluster.log_blocks, device);
  const int num_clusters = std::min(most, (params.num_units() + cluster.tiles_at_once() - 1) / cluster.tiles_at_once());
  LaunchShape shape = Overlapping(num_clusters << cluster.log_blocks, kClusterThreads, layout.bytes);
  shape.lets_begin_late = true;
  shape.cluster_blocks = static_cast<unsigned>(cluster.num_blocks());
  const auto launch = [&](auto kernel) {
    Launch(device, "MatMul", shape, kernel, params, x, SliceOfX(x, kType), rounded, cluster);
  };
  launch(layout.num_stages == kClusterStages ? ClusterKernel<kType, kGroups, kClusterStages>
                                             : ClusterKernel<kType, kGroups, MostClusterStages(kType)>);
}

template <DType kType>
void LaunchBlocks(const FewRowsParams& params, const Layout& layout, const char* rounded, CudaDevice& device) {
  const XBytes x = LayoutOfX(kType, params.num_rows, params.depth);
  const int num_units = params.rounded_out.bytes == nullptr ? params.num_units() : params.num_units() / kMostTeams;
  LaunchShape shape = Overlapping(std::min(device.facts().num_multiprocessors, num_units),
                                  static_cast<unsigned>(ThreadsOf(layout.num_teams)), layout.bytes);
  shape.lets_begin_late = true;
  const auto launch = [&](auto kernel) { Launch(device, "MatMul", shape, kernel, params, x, rounded); };
  constexpr int kDeep = StagesOf(kType, kDeepRing);
  constexpr int kShallow = StagesOf(kType, kShallowRing);
  if (HasOneRow(params.num_rows, layout.num_teams)) {
    return launch(BlocksKernel<kType, StagesOfTeams(kType), kMostTeams, true>);
  }
  if (layout.num_teams > 1) return launch(BlocksKernel<kType, StagesOfTeams(kType), kMostTeams, false>);
  launch(layout.num_stages == kDeep ? BlocksKernel<kType, kDeep, 1, false> : BlocksKernel<kType, kShallow, 1, false>);
}

// A product of some rows, and where its x is rounded: by whoever made it, or on the way, through `scratch`.
struct Rows {
  int first = 0;
  int count = 0;
  RoundedX x;                    // bytes == nullptr: on the way
  std::byte* scratch = nullptr;  // of RoundedBytes
};
// Requires: `params` has the rows' number, and `layout` is its.
void LaunchRows(FewRowsParams params, const Rows& rows, DType dtype, const Layout& layout, CudaDevice& device) {
  params.x += static_cast<int64_t>(rows.first) * params.depth;
  params.num_buffers = layout.num_buffers;
  params.tiles_at_once = layout.tiles_at_once;
  for (FewRowsParams::Part& part : params.parts) {
    if (part.out != nullptr) part.out += static_cast<int64_t>(rows.first) * part.num_outputs;
  }
  RoundedX x = rows.x;
  if (x.bytes == nullptr && (layout.cluster || StagesTooMany(params))) {
    x = RoundedAt(rows.scratch, params.depth);
    LaunchShape rounding = Overlapping(params.num_rows, kThreads);
    rounding.grid.y = Blocks(params.depth, kNumbersOfPart);
    Launch(device, "MatMul: round", rounding, RoundBytesKernel, params, LayoutOfX(dtype, params.num_rows, params.depth),
           x.bytes, x.squares);
  }
  params.squares = x.squares;
  WithBlockFormat(dtype, [&](auto type) {
    constexpr DType kType = decltype(type)::value;
    switch (GroupsOf(params.num_rows)) {
      case 1:
        return LaunchBlocks<kType>(params, layout, x.bytes, device);
      case 2:
        return LaunchCluster<kType, 2>(params, layout, x.bytes, device);
      case 3:
        return LaunchCluster<kType, 3>(params, layout, x.bytes, device);
      default:
        return LaunchCluster<kType, kMaxGroups>(params, layout, x.bytes, device);
    }
  });
}

// As many of `count` rows as fit at once, and how.
std::pair<int, Layout> MostRows(DType dtype, FewRowsParams params, int count, const CudaDevice& device) {
  params.num_rows = std::min(kMaxColumns, count);
  while (true) {
    const Layout layout = LayoutFor(dtype, params, device);
    if (layout.num_stages != 0 || params.num_rows == 1) return {params.num_rows, layout};
    const int whole_groups = (params.num_rows - 1) / kRowsOfGroup * kRowsOfGroup;
    params.num_rows = whole_groups > 0 ? whole_groups : params.num_rows - 1;
  }
}

// `params` with what it leaves in bytes for a product behind it, where it can: of rows that go at once, by two teams.
// Requires: one part, or a gate and what it gates, or it leaves nothing.
bool MayLeave(FewRowsParams& params, DType dtype, int num_rows, char* bytes, const CudaDevice& device) {
  const int num_outputs = params.parts[params.is_gated ? 1 : 0].num_outputs;
  if (num_rows > kRowsOfGroup || num_outputs % kPadElements != 0) return false;
  FewRowsParams leaving = params;
  leaving.num_rows = num_rows;
  leaving.rounded_out.bytes = bytes;
  leaving.rounded_out.layout = BytesOfRows(num_rows, num_outputs, true);
  if (LayoutFor(dtype, leaving, device).num_teams != kMostTeams) return false;
  params.rounded_out = leaving.rounded_out;
  return true;
}

DType FormatOf(const MatMulArgs& product) {
  return product.parts.front().weight.dtype;
}

}  // namespace

bool HasFewRowsInBlocks(const LinearArgs& args, const CudaDevice& device) {
  const MatMulArgs& product = args.product;
  const bool is_asked = product.compute == Compute::kInt8 || product.compute == Compute::kFp8;
  if (!is_asked || product.x.shape[0] > kMaxRowsInBlocks || product.parts.empty()) return false;
  // Not where FP8 is asked for, which is for prompts alone: such rows would be rounded to it.
  if (product.x.shape[0] > kMaxColumns && product.compute == Compute::kInt8 && HasSomeRowsInBlocks(product, device)) {
    return false;
  }
  if (args.activation && !GoesWithProduct(args.activation->kind)) return false;
  const int64_t depth = product.x.shape[1];
  if (args.norm && !DividesSums(*args.norm, depth)) return false;
  const DType dtype = FormatOf(product);
  if (product.parts.size() > kMaxParts || !IsBlockFormat(dtype) ||
      !std::all_of(product.parts.begin(), product.parts.end(),
                   [&](const MatMulPart& part) { return part.weight.dtype == dtype; })) {
    return false;
  }
  FewRowsParams params = FewRowsParamsOf(args);
  params.num_rows = 1;
  return LayoutFor(dtype, params, device).num_stages != 0;
}

bool DoesThenInBlocks(const LinearArgs& linear, const CudaDevice& device) {
  if (!linear.activation || !linear.then || linear.then->compute != linear.product.compute) return false;
  if (!HasFewRowsInBlocks(linear, device) || !HasFewRowsInBlocks({.product = *linear.then}, device)) return false;
  const auto num_rows = static_cast<int>(linear.product.x.shape[0]);
  FewRowsParams params = FewRowsParamsOf(linear);
  char some = 0;
  return MayLeave(params, FormatOf(linear.product), num_rows, &some, device) &&
         MostRows(FormatOf(*linear.then), FewRowsParamsOf({.product = *linear.then}), num_rows, device).first ==
             num_rows;
}

Prepared MatMulFewRowsInBlocks(const LinearArgs& linear, const Prepared& prepared, const NormBehind& behind,
                               CudaDevice& device) {
  const MatMulArgs& args = linear.product;
  const auto num_rows = static_cast<int>(args.x.shape[0]);
  if (!device.ok() || num_rows == 0) return {};
  FewRowsParams params = FewRowsParamsOf(linear);
  const DType dtype = FormatOf(args);
  const bool has_then = DoesThenInBlocks(linear, device);
  const int64_t then_depth = has_then ? linear.then->x.shape[1] : 0;
  // What attention has left lies in scratch memory too.
  const bool is_prepared = prepared.num_put == device.num_put() && prepared.are_bytes && prepared.x == params.x &&
                           prepared.norm_weight == params.norm_weight && prepared.num_rows == num_rows &&
                           (!has_then || params.divides_sums()) && params.depth % kPadElements == 0 &&
                           MostRows(dtype, params, num_rows, device).first == num_rows;
  const size_t own_bytes = is_prepared ? 0 : RoundedBytes(params.depth);
  std::byte* const scratch = device.Scratch(own_bytes + (has_then ? RoundedBytes(then_depth) : 0));
  if (scratch == nullptr && !device.ok()) return {};
  // The last product's outputs, for a norm behind it.
  const MatMulArgs& last = has_then ? *linear.then : args;
  const int64_t num_last = last.parts[0].weight.shape[0];
  const RoundedX next = behind.weight != nullptr ? RoundedAt(behind.room, num_last) : RoundedX{};
  bool prepares = false;
  const auto prepare = [&](FewRowsParams& product) {
    prepares = behind.weight != nullptr && MayLeave(product, FormatOf(last), num_rows, next.bytes, device);
    if (!prepares) return;
    product.next_norm = behind.weight;
    product.next_squares = next.squares;
  };
  const RoundedX then_x = has_then ? RoundedAt(scratch + own_bytes, then_depth) : RoundedX{};
  if (has_then) {
    MayLeave(params, dtype, num_rows, then_x.bytes, device);
  } else {
    prepare(params);
  }
  for (int first = 0; first < num_rows;) {
    const auto [count, layout] = MostRows(dtype, params, num_rows - first, device);
    Rows rows{.first = first, .count = count, .x = {}, .scratch = scratch};
    if (is_prepared) rows.x = {static_cast<char*>(prepared.columns), prepared.squares};  // all rows
    params.num_rows = count;
    LaunchRows(params, rows, dtype, layout, device);
    first += count;
  }
  if (has_then) {
    FewRowsParams then = FewRowsParamsOf({.product = last});
    prepare(then);
    then.num_rows = num_rows;
    LaunchRows(then, {.first = 0, .count = num_rows, .x = {then_x.bytes, nullptr}}, FormatOf(last),
               LayoutFor(FormatOf(last), then, device), device);
  }
  Prepared left{.x = params.x, .norm_weight = params.norm_weight, .num_rows = num_rows, .are_bytes = true};
  if (prepares) {
    left.x = last.parts[0].out.data;
    left.norm_weight = behind.weight;
    left.columns = next.bytes;
    left.squares = next.squares;
  } else if (is_prepared && !has_then) {  // as a product of the same rows with weights in another format may want it
    left.columns = prepared.columns;
    left.squares = prepared.squares;
  } else {
    return {};
  }
  left.num_put = device.num_put();
  return left;
}

}  // namespace headwise::cuda
