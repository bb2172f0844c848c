// Products of up to 64 rows with bf16 weights, out = x W^T + bias, by Hopper's warpgroups: decoding of more sequences
// than matmul_few_rows.cu takes, and few rows in calls that it does not.
//
// Still bound by reading the weights once, 2 N K bytes: the tensor cores need a fifth of that time. Weights are a
// product's 64 rows, rows of x its columns, both as they lie in shared memory, so that nothing passes through registers
// but sums. Four warps copy, some slices ahead, weights ahead of WaitForEarlier; a warpgroup multiplies.
//
// Of a gate and what it gates a tile has 32 outputs each, by eights in turn: so a thread has the sums of both.
#include <algorithm>

#include "backend/cuda/some_rows.cuh"

namespace headwise::cuda {
namespace {

using namespace some_rows;  // NOLINT(google-build-using-namespace): what this file is made of

constexpr int kTileOutputs = 64;
constexpr int kColumns = kMaxSomeRows;
constexpr int kSums = kTileOutputs * kColumns / kWarpgroup;  // of a thread
constexpr int kCopyThreads = 128;
constexpr int kThreads = kWarpgroup + kCopyThreads;
constexpr int kPanelBytes = kTileOutputs * kRowBytes;  // of weights, and of x
static_assert(kTileOutputs == kColumns);
// A slice of K. Of single panels, 128 bytes of each of 64 rows that lie far apart, small matrices came a tenth
// to a twentieth slower.
constexpr int kPanels = 2;
constexpr int kSliceDepth = kPanels * kPanelDepth;
constexpr int kXOffset = kPanels * kPanelBytes;
constexpr int kStageBytes = 2 * kXOffset;
constexpr int kStages = 6;
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kChunksOfRow = kPanels * kChunksOfPanel;
constexpr int kRowsAtOnce = kCopyThreads / kChunksOfRow;  // that copying threads copy
static_assert(kRowsAtOnce == 8);                          // so that a thread's chunks are swizzled alike
constexpr int kEights = kTileOutputs / kRowsAtOnce;

#if HW_HAS_WGMMA

// What copying threads do for a run. Rows that a tile or x does not have stay what they were in the ring: what comes of
// them nobody reads.
__device__ void CopyRun(const SomeRowsParams& p, char* memory, uint64_t* full, uint64_t* empty, int begin, int end) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  const int line = thread / kChunksOfRow;
  const int chunk = thread % kChunksOfRow;
  const uint32_t lane_place = SharedAddress(memory) + chunk / kChunksOfPanel * kPanelBytes + line * kRowBytes +
                              ((chunk % kChunksOfPanel) ^ (line % 8)) * 16;
  const int64_t step = static_cast<int64_t>(kRowsAtOnce) * p.depth;

  // Rows of a tile's eights, even ones and odd ones: of both parts, or of one in turn.
  const int odd_row = p.gated != nullptr ? 0 : kRowsAtOnce;
  const int pair_rows = odd_row + kRowsAtOnce;
  int tile = begin / p.runs.slices_of_tile;
  int slice = begin % p.runs.slices_of_tile;
  const Bf16* even = nullptr;
  const Bf16* odd = nullptr;
  int num_rows = 0;
  const auto find_tile = [&] {
    const TileOfPart found = TileAt<kTileOutputs>(p, tile);
    num_rows = found.part.num_outputs - found.first_output - line;
    const int64_t first = static_cast<int64_t>(found.first_output + line) * p.depth + slice * kSliceDepth + chunk * 8;
    even = static_cast<const Bf16*>(found.part.weight) + first;
    odd = p.gated != nullptr ? static_cast<const Bf16*>(p.parts[1].weight) + first : even + step;
  };
  find_tile();
  const auto copy_weights = [&](int /*slice*/, int at) {
    const uint32_t to = lane_place + at * kStageBytes;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const int row = i / 2 * pair_rows + i % 2 * odd_row;
      if (row >= num_rows) break;
      CopyChunkOnce(to + i * kRowsAtOnce * kRowBytes,
                    (i % 2 == 0 ? even : odd) + static_cast<int64_t>(i / 2 * pair_rows) * p.depth);
    }
    even += kSliceDepth;
    odd += kSliceDepth;
    if (++slice == p.runs.slices_of_tile) {
      slice = 0;
      if (++tile < p.runs.num_tiles) find_tile();
    }
  };
  int x_slice = slice;
  const Bf16* const x = p.x + static_cast<int64_t>(line) * p.depth + chunk * 8;
  const auto copy_x = [&](int at) {
    const uint32_t to = lane_place + at * kStageBytes + kXOffset;
    const Bf16* from = x + x_slice * kSliceDepth;
#pragma unroll
    for (int i = 0; i < kEights; ++i, from += step) {
      if (line + i * kRowsAtOnce < p.num_rows) CopyChunk(to + i * kRowsAtOnce * kRowBytes, from);
    }
    if (++x_slice == p.runs.slices_of_tile) x_slice = 0;
    CommitCopies();
  };
  CopyAhead<kStages>(end - begin, full, empty, copy_weights, copy_x);
}

// Where a thread's sums belong: of two outputs, or of one and its gate.
struct Outputs {
  int at[2];         // in row 0
  bool is_there[2];  // whether the part has them
  int column;        // its first of two in each eight
  __device__ Outputs(const SomeRowsParams& p, const TileOfPart& tile) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int warp = static_cast<int>(threadIdx.x / kWarp) % 4;
    column = lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      at[half] = tile.first_output + lane / 4 + (p.gated != nullptr ? warp * 8 : warp * 16 + half * 8);
      is_there[half] = at[half] < tile.part.num_outputs;
    }
  }
  // body(i, at) for each sum whose row and output there are.
  template <typename Body>
  __device__ void ForEach(const SomeRowsParams& p, const TileOfPart& tile, const Body& body) const {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int row = i / 4 * 8 + column + i % 2;
      const int half = i / 2 % 2;
      if (row < p.num_rows && is_there[half]) {
        body(i, static_cast<int64_t>(row) * tile.part.num_outputs + at[half]);
      }
    }
  }
};

__device__ void MultiplyRun(const SomeRowsParams& p, const char* memory, uint64_t* full, uint64_t* empty, int begin,
                            int end) {
  const uint32_t base = SharedAddress(memory);
  WaitForEarlier();
  LetLaterBegin();
  RingPlace<kStages> place;
  for (int next = begin; next < end;) {
    const int tile = next / p.runs.slices_of_tile;
    const int tile_begin = tile * p.runs.slices_of_tile;
    const int tile_end = tile_begin + p.runs.slices_of_tile;
    const int count = min(tile_end, end) - next;
    const TileOfPart its = TileAt<kTileOutputs>(p, tile);
    const Outputs outputs(p, its);
    float d[kSums] = {};
    float old[kSums] = {};
    for (int i = 0; i < count; ++i) {
      if (i == count - 1 && p.adds) {
        outputs.ForEach(p, its, [&](int j, int64_t at) { old[j] = its.part.out[at]; });
      }
      WaitFor(&full[place.at], place.round & 1);
      const uint64_t slice = DescribeRows(OfWarp(base + place.at * kStageBytes));
      KeepInPlace(d);
      BeginProducts();
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint64_t weights = slice + (panel * kPanelBytes >> 4);
        const uint64_t x = slice + ((kXOffset + panel * kPanelBytes) >> 4);
#pragma unroll
        for (int k = 0; k < kPanelDepth / kDepthOfProduct; ++k) MultiplyShared(d, weights + 2 * k, x + 2 * k);
      }
      CommitProducts();
      WaitForProducts<0>();
      KeepInPlace(d);
      __syncwarp();
      if (threadIdx.x % kWarp == 0) Arrive(&empty[place.at]);
      place.Advance();
    }
    const bool is_whole = next == tile_begin && next + count == tile_end;
    next += count;
    if (!is_whole && !AddUp<kWarpgroup>(p, tile, d)) continue;
    float bias[2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* const all = p.gated != nullptr ? p.parts[half].bias : its.part.bias;
      if (all != nullptr && outputs.is_there[half]) bias[half] = all[outputs.at[half]];
    }
    if (p.gated != nullptr) {
      outputs.ForEach(p, its, [&](int i, int64_t at) {
        if (i / 2 % 2 == 0) return;
        const float gate = d[i - 2] + bias[0];
        p.gated[at] = __float2bfloat16_rn((p.has_gelu ? GeluTanh(gate) : Silu(gate)) * (d[i] + bias[1]));
      });
      continue;
    }
    outputs.ForEach(p, its, [&](int i, int64_t at) {
      const float sum = d[i] + bias[i / 2 % 2];
      its.part.out[at] = p.adds ? old[i] + sum : sum;
    });
  }
}

#endif  // HW_HAS_WGMMA

__global__ void __launch_bounds__(kThreads, 1) SomeRowsKernel(const __grid_constant__ SomeRowsParams p) {
#if HW_HAS_WGMMA
  extern __shared__ __align__(1024) char memory[];
  __shared__ uint64_t full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&full[i], kCopyThreads);
      InitBarrier(&empty[i], kWarpgroup / static_cast<int>(kWarp));
    }
    FenceBarrierInit();
  }
  __syncthreads();
  const auto block = static_cast<int>(blockIdx.x);
  const int begin = p.runs.Begin(block);
  const int end = p.runs.Begin(block + 1);
  if (threadIdx.x >= kWarpgroup) {
    CopyRun(p, memory, full, empty, begin, end);
  } else {
    MultiplyRun(p, memory, full, empty, begin, end);
  }
#endif
}

}  // namespace

bool HasSomeRows(const MatMulArgs& args, const CudaDevice& device) {
  if (HasSomeRowsInBlocks(args, device)) return true;
#if HEADWISE_HAS_SM90A
  int64_t num_tiles = 0;
  for (const MatMulPart& part : args.parts) {
    if (part.weight.dtype != DType::kBF16) return false;
    num_tiles += Blocks(part.weight.shape[0], kTileOutputs);
  }
  return device.facts().major == 9 && device.facts().minor == 0 && args.x.shape[0] <= kMaxSomeRows &&
         args.x.shape[1] % kSliceDepth == 0 && args.x.shape[1] <= kMaxDepth && args.parts.size() <= kMaxParts &&
         num_tiles <= kMaxTickets;
#else
  return false;
#endif
}

bool GatesSomeRows(const LinearArgs& args, const CudaDevice& device) {
  const std::span<const MatMulPart> parts = args.product.parts;
  return args.activation && GoesWithProduct(args.activation->kind) && HasSomeRows(args.product, device) &&
         parts.size() == 2 && parts[0].weight.shape[0] == parts[1].weight.shape[0];
}

size_t SomeRowsBytes(const CudaDevice& device) {
  const size_t bytes =
      kTicketBytes + 2 * static_cast<size_t>(device.facts().num_multiprocessors) * kSums * kWarpgroup * sizeof(float);
  return std::max(bytes, SomeRowsInBlocksBytes(device));
}

void MatMulSomeRows(const ConstTensorView& x, const LinearArgs& linear, void* gated, std::byte* memory,
                    CudaDevice& device) {
  if (!device.ok()) return;
  if (IsBlockFormat(linear.product.parts[0].weight.dtype)) {
    return MatMulSomeRowsInBlocks(x, linear, gated, memory, device);
  }
  SomeRowsParams params = SomeRowsParamsOf(x, linear, gated, memory, kTileOutputs);
  const int num_tiles = NumTiles(linear, params, kTileOutputs);
  if (num_tiles == 0 || params.num_rows == 0 || params.depth == 0) return;
  params.runs = RunsFor(num_tiles, params.depth / kSliceDepth, device.facts().num_multiprocessors);
  LaunchShape shape = Overlapping(params.runs.num_blocks(), kThreads, kRingBytes);
  shape.lets_begin_late = true;
  Launch(device, "MatMul", shape, SomeRowsKernel, params);
}

}  // namespace headwise::cuda
