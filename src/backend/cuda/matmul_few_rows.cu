// Products of up to 32 rows with bf16 weights, out = x W^T + bias: decoding.
//
// Bound by reading the weights once, 2 N K bytes. Loads straight into the operands of mma.m16n8k16 keep too little on
// its way: what x has to go through stands in between. So weights pass through shared memory, some 16 KiB ahead for
// each of eight warps: a warp copies its own slices of K, 128 numbers of each of 16 rows at a time, and waits for
// nobody. Bulk copies of 2 KiB a row, by a warp for all, read 6 % less for as many consumers: a copy takes its engine
// 50 ns whatever it brings. The weights are the mma's 16 rows, rows of x its 8 columns. One block a multiprocessor
// takes every so many-th tile of 16 outputs.
//
// x must be at hand too: fetched anew for every tile it is more bytes than the weights from 16 rows on. So it lies in
// shared memory as operands for all tiles of a block. Where it is too large for one, the blocks of a cluster share it:
// each has its part of K and does that of as many tiles as there are blocks, and their sums meet where a tile belongs.
// Four more warps put sums together and write them, so that those who multiply never wait for each other. How a sum is
// put together depends on K alone (eight shares, each in the order of its slices, added in their order), so its bits
// depend neither on the cluster nor on who shares the step.
#include <algorithm>
#include <map>
#include <mutex>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/few_rows.cuh"

namespace headwise::cuda {
namespace {

using namespace few_rows;  // NOLINT(google-build-using-namespace): what this file is made of

// Where x is read.
enum class XPlace { kShared, kCache };

// ---- x lies in the memory of one block, or is fetched for every tile ------------------------------------------------

template <int kGroups, bool kExact, int kStages, XPlace kPlace>
__global__ void __launch_bounds__(kMultiplyThreads, 1) FewRowsKernel(const __grid_constant__ FewRowsParams p) {
  extern __shared__ __align__(1024) char memory[];
  LetLaterBegin();
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const Tiles tiles(p);
  WeightStream<kStages> weights(tiles, memory + warp * kStages * kStageBytes, warp, 0);
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) weights.CopyNext();
  auto* const sums = reinterpret_cast<float*>(memory + kNumWarps * kStages * kStageBytes);
  TileWriter<kGroups, kMultiplyThreads> writer(p, static_cast<int>(threadIdx.x));
  int stage = 0;
  const auto work = [&](auto& x) {
    for (int tile_idx = 0; tile_idx < weights.num_tiles; ++tile_idx) {
      float acc[kGroups][2][4] = {};
      MultiplyTile<kGroups, kExact>(weights, x, stage, kNumShares, acc);
      // In turns: who reads the one does not hold up who writes the other.
      float* const buffer = sums + (p.num_buffers == 2 ? tile_idx % 2 : 0) * Sums<kGroups>::kFloats;
      StoreShare<kGroups>(warp, acc, [&](int i, const float2& pair) { *reinterpret_cast<float2*>(buffer + i) = pair; });
      __syncthreads();
      const Tile tile = tiles.Get(tile_idx, 0);
      writer.Begin(tile);
      writer.AddShares(buffer);
      writer.Write(tile, tiles.IsGate(tile_idx));
      if (p.num_buffers == 1) __syncthreads();
    }
  };
  WaitForEarlier();
  if constexpr (kPlace == XPlace::kShared) {
    auto* const staged = reinterpret_cast<uint4*>(sums + p.num_buffers * Sums<kGroups>::kFloats);
    StageX<kExact>(p, 0, staged);
    XFromShared<kGroups, kExact> x(p, staged);
    work(x);
  } else {
    XFromCache<kGroups, kExact> x(p, warp * kDepthOfSlice);
    work(x);
  }
}

// ---- x lies in the memory of a cluster's blocks ---------------------------------------------------------------------

constexpr int kSumThreads = 128;  // that put shares together, behind those that multiply
constexpr int kSumBarrier = 2;
constexpr int kClusterThreads = kMultiplyThreads + kSumThreads;

// The way of sums from who multiplies to who puts them together, maybe in another block.
struct SumBarriers {
  uint64_t full[2];              // of each buffer: all shares are there
  uint64_t empty[2][kMaxRanks];  // of each buffer, of each rank: they were read there
};
__device__ void InitSumBarriers(SumBarriers& barriers) {
  if (threadIdx.x > 0) return;
  for (int i = 0; i < 2; ++i) {
    InitBarrier(&barriers.full[i], kNumShares);
    for (int rank = 0; rank < kMaxRanks; ++rank) InitBarrier(&barriers.empty[i][rank], 1);
  }
  FenceBarrierInit();
}
// Which buffer a tile's sums go through, and whether that is used for an even or odd time.
struct BufferTurn {
  int buffer, parity;
  __device__ BufferTurn(const FewRowsParams& p, int tile_idx)
      : buffer(tile_idx % p.num_buffers), parity(tile_idx / p.num_buffers % 2) {}
};

// By the last warps of a block: the tiles of `rank`, one behind the other.
template <int kGroups>
__device__ void WriteTiles(const Tiles& tiles, int rank, const float* sums, SumBarriers& barriers) {
  const FewRowsParams& p = tiles.p;
  const int thread = static_cast<int>(threadIdx.x) - kMultiplyThreads;
  TileWriter<kGroups, kSumThreads> writer(p, thread);
  WaitForEarlier();
  for (int tile_idx = 0; tile_idx < tiles.count(); ++tile_idx) {
    const BufferTurn turn(p, tile_idx);
    const Tile tile = tiles.Get(tile_idx, rank);
    writer.Begin(tile);
    WaitForRanks(&barriers.full[turn.buffer], turn.parity);
    writer.AddShares(sums + turn.buffer * Sums<kGroups>::kFloats);
    SyncThreads(kSumBarrier, kSumThreads);
    if (thread < p.num_ranks) {
      ArriveAtRank(AddressOfRank(SharedAddress(&barriers.empty[turn.buffer][rank]), thread));
    }
    if (tiles.IsThere(tile_idx, rank)) writer.Write(tile, tiles.IsGate(tile_idx));
  }
}

template <int kGroups, bool kExact, int kStages>
__global__ void __launch_bounds__(kClusterThreads, 1) FewRowsClusterKernel(const __grid_constant__ FewRowsParams p) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ SumBarriers barriers;
  LetLaterBegin();
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  // Of the block, and of the tile that the warp works on: its owner puts the shares together.
  const int rank = static_cast<int>(blockIdx.x) % p.num_ranks;
  const int num_shares = kNumShares / p.num_ranks;
  const int share = rank * num_shares + warp % num_shares;
  const int owner = warp / num_shares % p.num_ranks;
  const bool multiplies = warp < kNumWarps;
  const Tiles tiles(p);
  auto* const sums = reinterpret_cast<float*>(memory + kNumWarps * kStages * kStageBytes);
  InitSumBarriers(barriers);
  WeightStream<kStages> weights(tiles, memory + warp % kNumWarps * kStages * kStageBytes, share, owner);
  if (multiplies) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) weights.CopyNext();
  }
  SyncCluster();
  if (!multiplies) {
    WriteTiles<kGroups>(tiles, rank, sums, barriers);
    SyncCluster();
    return;
  }

  auto* const staged = reinterpret_cast<uint4*>(sums + p.num_buffers * Sums<kGroups>::kFloats);
  WaitForEarlier();
  StageX<kExact>(p, rank, staged);
  XFromShared<kGroups, kExact> x(p, staged);
  int stage = 0;
  for (int tile_idx = 0; tile_idx < weights.num_tiles; ++tile_idx) {
    float acc[kGroups][2][4] = {};
    MultiplyTile<kGroups, kExact>(weights, x, stage, num_shares, acc);
    const BufferTurn turn(p, tile_idx);
    WaitForRanks(&barriers.empty[turn.buffer][owner], turn.parity ^ 1);
    const uint32_t to = AddressOfRank(SharedAddress(sums + turn.buffer * Sums<kGroups>::kFloats), owner);
    StoreShare<kGroups>(share, acc, [&](int i, const float2& pair) {
      StoreToRank(to + static_cast<uint32_t>(i * sizeof(float)), pair);
    });
    __syncwarp();
    if (threadIdx.x % kWarp == 0) ArriveAtRank(AddressOfRank(SharedAddress(&barriers.full[turn.buffer]), owner));
  }
  SyncCluster();  // others arrive here until then
}

// ---- what is launched -----------------------------------------------------------------------------------------------

int GroupsOf(int64_t num_rows) {
  return num_rows <= kRowsOfGroup ? 1 : num_rows <= 2 * kRowsOfGroup ? 2 : kMaxGroups;
}
size_t SumsBytes(int num_groups) {
  return sizeof(float) * kNumShares * kTileOutputs * kRowsOfGroup * static_cast<size_t>(num_groups);
}

// How a product fits into shared memory.
struct Layout {
  XPlace place = XPlace::kShared;
  int num_stages = 0;
  int num_ranks = 1;
  int num_buffers = 1;  // of sums
  size_t bytes = 0;
};
Layout LayoutFor(int64_t num_rows, int64_t depth, bool is_exact, const CudaDevice& device) {
  constexpr size_t kBesides = 512;  // what a block has anyway: barriers, sums of a norm
  const size_t limit = device.facts().shared_bytes_of_block - kBesides;
  const size_t sums = SumsBytes(GroupsOf(num_rows));
  const bool has_clusters = device.facts().major >= 9;
  struct Way {
    int num_ranks, num_stages;
  };
  // From four blocks on some multiprocessors of an H200 are in no cluster; two stages hold too little on its way.
  for (const Way& way : {Way{1, 4}, Way{2, 4}, Way{2, 3}, Way{4, 4}, Way{4, 3}, Way{8, 4}, Way{8, 3}, Way{1, 2}}) {
    if (way.num_ranks > 1 && !has_clusters) continue;
    const StagedX staged(static_cast<int>(num_rows), static_cast<int>(depth), way.num_ranks);
    const size_t bytes = static_cast<size_t>(way.num_stages) * kNumWarps * kStageBytes + sums +
                         static_cast<size_t>(staged.num_chunks()) * (is_exact ? 2 : 1) * sizeof(uint4);
    if (bytes > limit) continue;
    const int num_buffers = bytes + sums <= limit ? 2 : 1;
    return {.num_stages = way.num_stages,
            .num_ranks = way.num_ranks,
            .num_buffers = num_buffers,
            .bytes = bytes + (num_buffers == 2 ? sums : 0)};
  }
  return {.place = XPlace::kCache,
          .num_stages = 2,
          .num_buffers = 2,
          .bytes = size_t{2} * kNumWarps * kStageBytes + 2 * sums};
}

// Clusters that the device holds at once: its multiprocessors come in groups of which one may have some over.
int NumClusters(const void* kernel, const Layout& layout, CudaDevice& device) {
  if (layout.num_ranks == 1) return device.facts().num_multiprocessors;
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> known;
  const std::lock_guard lock(mutex);
  const auto [it, is_new] = known.try_emplace({kernel, layout.num_ranks}, 0);
  if (!is_new) return it->second;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(layout.num_ranks), 1, 1};
  const cudaLaunchConfig_t config{.gridDim = dim3(static_cast<unsigned>(layout.num_ranks)),
                                  .blockDim = dim3(kClusterThreads),
                                  .dynamicSmemBytes = layout.bytes,
                                  .stream = nullptr,
                                  .attrs = &cluster,
                                  .numAttrs = 1};
  device.Note(PrepareKernel(kernel, layout.bytes), "MatMul");
  device.Note(cudaOccupancyMaxActiveClusters(&it->second, kernel, &config), "MatMul");
  it->second = std::max(it->second, 1);
  return it->second;
}

void LaunchKernel(void (*kernel)(FewRowsParams), const FewRowsParams& params, const Layout& layout,
                  CudaDevice& device) {
  const int num_sets =
      static_cast<int>(Blocks(params.is_gated ? params.num_tiles / 2 : params.num_tiles, layout.num_ranks));
  const int num_clusters = std::min(NumClusters(reinterpret_cast<const void*>(kernel), layout, device), num_sets);
  const bool is_alone = layout.num_ranks == 1;
  LaunchShape shape =
      Overlapping(num_clusters * layout.num_ranks, is_alone ? kMultiplyThreads : kClusterThreads, layout.bytes);
  shape.cluster_blocks = static_cast<unsigned>(layout.num_ranks);
  Launch(device, "MatMul", shape, kernel, params);
}

template <int kGroups, bool kExact>
void LaunchFor(const FewRowsParams& params, const Layout& layout, CudaDevice& device) {
  const auto kernel = [&]() -> void (*)(FewRowsParams) {
    if (layout.place == XPlace::kCache) return FewRowsKernel<kGroups, kExact, 2, XPlace::kCache>;
    if (layout.num_ranks > 1) {
      return layout.num_stages == 4 ? FewRowsClusterKernel<kGroups, kExact, 4>
                                    : FewRowsClusterKernel<kGroups, kExact, 3>;
    }
    return layout.num_stages == 4 ? FewRowsKernel<kGroups, kExact, 4, XPlace::kShared>
                                  : FewRowsKernel<kGroups, kExact, 2, XPlace::kShared>;
  }();
  LaunchKernel(kernel, params, layout, device);
}

template <bool kExact>
void LaunchFor(const FewRowsParams& params, const Layout& layout, CudaDevice& device) {
  switch (GroupsOf(params.num_rows)) {
    case 1:
      return LaunchFor<1, kExact>(params, layout, device);
    case 2:
      return LaunchFor<2, kExact>(params, layout, device);
    default:
      return LaunchFor<4, kExact>(params, layout, device);
  }
}

}  // namespace

bool HasFewRows(const LinearArgs& args, const CudaDevice& device) {
  const MatMulArgs& product = args.product;
  const int64_t num_rows = product.x.shape[0];
  const int64_t depth = product.x.shape[1];
  if (num_rows > kMaxRows || depth % kDepthOfTurn != 0) return false;
  if (args.activation && args.activation->kind != ActivateArgs::Kind::kGatedSilu) return false;
  if (args.norm) {
    const bool is_rms = args.norm->kind == NormArgs::Kind::kRms && !args.norm->bias.present();
    const bool is_aligned = reinterpret_cast<uintptr_t>(args.norm->weight.data) % sizeof(float4) == 0;
    // A norm's bits are those of the kernel that does it alone.
    if (!is_rms || !is_aligned || depth > kMaxNormDim) return false;
    const Layout layout = LayoutFor(num_rows, depth, product.compute == Compute::kF32, device);
    if (layout.place != XPlace::kShared || layout.num_ranks > 1) return false;
  }
  return product.parts.size() <= kMaxParts &&
         std::all_of(product.parts.begin(), product.parts.end(),
                     [](const MatMulPart& part) { return part.weight.dtype == DType::kBF16; });
}

void MatMulFewRows(const LinearArgs& linear, CudaDevice& device) {
  const MatMulArgs& args = linear.product;
  if (!device.ok() || args.x.shape[0] == 0) return;
  const bool is_exact = args.compute == Compute::kF32;
  const Layout layout = LayoutFor(args.x.shape[0], args.x.shape[1], is_exact, device);
  FewRowsParams params{.x = F32(linear.norm ? linear.norm->x : args.x),
                       .num_rows = static_cast<int>(args.x.shape[0]),
                       .depth = static_cast<int>(args.x.shape[1]),
                       .norm_weight = linear.norm ? F32(linear.norm->weight) : nullptr,
                       .norm_eps = linear.norm ? linear.norm->eps : 0.0f,
                       .adds = args.write == MatMulArgs::Write::kAdd,
                       .is_gated = linear.activation.has_value(),
                       .num_buffers = layout.num_buffers,
                       .num_ranks = layout.num_ranks,
                       .num_tiles = 0,
                       .parts = {}};
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const MatMulPart& part = args.parts[i];
    params.num_tiles += static_cast<int>(Blocks(part.weight.shape[0], kTileOutputs));
    params.parts[i] = {.weight = static_cast<const Bf16*>(part.weight.rows().data),
                       .bias = F32(part.bias),
                       .out = F32(part.out),
                       .num_outputs = static_cast<int>(part.weight.shape[0]),
                       .end_tile = params.num_tiles};
  }
  if (is_exact) return LaunchFor<true>(params, layout, device);
  LaunchFor<false>(params, layout, device);
}

}  // namespace headwise::cuda
