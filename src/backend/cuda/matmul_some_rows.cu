// Products of up to 64 rows with bf16 weights, out = x W^T + bias, by Hopper's warpgroups: decoding of more sequences
// than matmul_few_rows.cu takes, and few rows in calls that it does not.
//
// Still bound by reading the weights once, 2 N K bytes: the tensor cores need a fifth of that time. Weights are a
// product's 64 rows, rows of x its columns, both as they lie in shared memory, so that nothing passes through registers
// but sums. Four warps copy, some slices ahead, weights ahead of WaitForEarlier; a warpgroup multiplies.
//
// Few matrices have tiles in numbers that multiprocessors divide. So slices of all tiles stand in one row, of which
// each block takes an equal run (slice_runs.h); of a tile that several have begun or ended, each leaves its sums, and
// who is last adds them up in the order of K.
//
// Of a gate and what it gates a tile has 32 outputs each, by eights in turn: so a thread has the sums of both.
#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/slice_runs.h"
#include "backend/cuda/wgmma.cuh"

namespace headwise::cuda {
namespace {

using Bf16 = __nv_bfloat16;

constexpr int kMaxParts = 4;
constexpr int kTileOutputs = 64;
constexpr int kColumns = kMaxSomeRows;
constexpr int kSums = kTileOutputs * kColumns / kWarpgroup;  // of a thread
constexpr int kQuads = kSums / 4;
constexpr int kCopyThreads = 128;
constexpr int kThreads = kWarpgroup + kCopyThreads;
constexpr int kRowBytes = 128;  // of a panel, 64 numbers of K: what products take
constexpr int kPanelDepth = kRowBytes / 2;
constexpr int kChunksOfPanel = kRowBytes / 16;
constexpr int kPanelBytes = kTileOutputs * kRowBytes;  // of weights, and of x
static_assert(kTileOutputs == kColumns);
constexpr int kDepthOfProduct = 16;
constexpr int kMaxTickets = 8192;
constexpr int kTicketBytes = kMaxTickets * static_cast<int>(sizeof(unsigned));

struct SomeRowsParams {
  const Bf16* x;  // [T, K]
  int num_rows, depth;
  bool adds;
  bool has_gelu;  // what is gated: else by silu
  Bf16* gated;    // [T, N] act(first part) * second part as the product behind wants it, in place of `out`; or null
  SliceRuns runs;
  float4* partials;   // [2 blocks][kQuads][kWarpgroup]
  unsigned* tickets;  // [tiles], zeros before and after
  struct Part {
    const Bf16* weight;  // [N, K]
    const float* bias;   // or null
    float* out;          // [T, N]
    int num_outputs;
    int end_tile;
  } parts[kMaxParts];
};

// A slice of K. Of single panels, 128 bytes of each of 64 rows that lie far apart, small matrices came a tenth
// to a twentieth slower.
constexpr int kPanels = 2;
constexpr int kSliceDepth = kPanels * kPanelDepth;
constexpr int kXOffset = kPanels * kPanelBytes;
constexpr int kStageBytes = 2 * kXOffset;
constexpr int kStages = 6;
constexpr int kAhead = kStages - 1;  // slices on their way
constexpr int kRingBytes = kStages * kStageBytes;
constexpr int kChunksOfRow = kPanels * kChunksOfPanel;
constexpr int kRowsAtOnce = kCopyThreads / kChunksOfRow;  // that copying threads copy
static_assert(kRowsAtOnce == 8);                          // so that a thread's chunks are swizzled alike
constexpr int kEights = kTileOutputs / kRowsAtOnce;

struct TileOfPart {
  SomeRowsParams::Part part;
  int first_output;
};
__device__ TileOfPart TileAt(const SomeRowsParams& p, int tile) {
  if (p.gated != nullptr) return {p.parts[0], tile * (kTileOutputs / 2)};
  int i = 0;
  while (tile >= p.parts[i].end_tile) ++i;
  return {p.parts[i], (tile - (i == 0 ? 0 : p.parts[i - 1].end_tile)) * kTileOutputs};
}

// A place in the ring, and how often it was passed.
struct RingPlace {
  int at = 0, round = 0;
  __device__ void Advance() {
    if (++at == kStages) at = 0, ++round;
  }
};

#if HW_HAS_WGMMA

// What copying threads do for a run. Rows that a tile or x does not have stay what they were in the ring: what comes of
// them nobody reads.
__device__ void CopyRun(const SomeRowsParams& p, char* memory, uint64_t* full, uint64_t* empty, int64_t begin,
                        int64_t end) {
  const int thread = static_cast<int>(threadIdx.x) - kWarpgroup;
  const int line = thread / kChunksOfRow;
  const int chunk = thread % kChunksOfRow;
  const uint32_t lane_place = SharedAddress(memory) + chunk / kChunksOfPanel * kPanelBytes + line * kRowBytes +
                              ((chunk % kChunksOfPanel) ^ (line % 8)) * 16;
  const int64_t step = static_cast<int64_t>(kRowsAtOnce) * p.depth;
  const auto count = static_cast<int>(end - begin);

  // Rows of a tile's eights, even ones and odd ones: of both parts, or of one in turn.
  const int odd_row = p.gated != nullptr ? 0 : kRowsAtOnce;
  const int pair_rows = odd_row + kRowsAtOnce;
  int tile = static_cast<int>(begin / p.runs.slices_of_tile);
  auto slice = static_cast<int>(begin % p.runs.slices_of_tile);
  const Bf16* even = nullptr;
  const Bf16* odd = nullptr;
  int num_rows = 0;
  const auto find_tile = [&] {
    const TileOfPart found = TileAt(p, tile);
    num_rows = found.part.num_outputs - found.first_output - line;
    const int64_t first = static_cast<int64_t>(found.first_output + line) * p.depth + slice * kSliceDepth + chunk * 8;
    even = found.part.weight + first;
    odd = p.gated != nullptr ? p.parts[1].weight + first : even + step;
  };
  find_tile();
  const auto copy_weights = [&](int at) {
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
  auto x_slice = slice;
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
  int arrived_at = 0;
  const auto arrive = [&] {
    FenceSharedWrites();
    Arrive(&full[arrived_at]);
    if (++arrived_at == kStages) arrived_at = 0;
  };

  const int first_count = min(count, kAhead);
  for (int i = 0; i < first_count; ++i) copy_weights(i);
  WaitForEarlier();
  LetLaterBegin();
  for (int i = 0; i < first_count; ++i) copy_x(i);
  RingPlace place;
  for (int i = 0; i < first_count; ++i) place.Advance();
  for (int i = first_count; i < count; ++i) {
    // Slice i - kAhead is there, and goes to those who multiply, before anybody waits for them.
    WaitForCopies<kAhead - 1>();
    arrive();
    if (place.round > 0) WaitFor(&empty[place.at], (place.round - 1) & 1);
    copy_weights(place.at);
    copy_x(place.at);
    place.Advance();
  }
  // The last ones in two turns.
  WaitForCopies<kAhead / 2>();
  for (int i = 0; i < first_count - kAhead / 2; ++i) arrive();
  WaitForCopies<0>();
  for (int i = max(first_count - kAhead / 2, 0); i < first_count; ++i) arrive();
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

// Leaves the block's sums of a tile that others have a part of. Returns whether it was the last one: then `d` is the
// sums of all.
__device__ bool AddUp(const SomeRowsParams& p, int tile, float (&d)[kSums]) {
  __shared__ bool is_last_of_all;
  const int thread = static_cast<int>(threadIdx.x);
  const auto at = [&](int block) {
    return p.partials + static_cast<int64_t>(p.runs.PlaceOf(block, tile)) * kQuads * kWarpgroup + thread;
  };
  const auto own = static_cast<int>(blockIdx.x);
  const int first = p.runs.FirstBlockOf(tile);
  const int last = p.runs.LastBlockOf(tile);
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    __stcg(at(own) + i * kWarpgroup, float4{d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]});
  }
  SyncThreads(1, kWarpgroup);
  if (thread == 0) {
    __threadfence();
    const bool is_last = atomicAdd(p.tickets + tile, 1) == static_cast<unsigned>(last - first);
    if (is_last) p.tickets[tile] = 0;
    is_last_of_all = is_last;
    __threadfence();
  }
  SyncThreads(1, kWarpgroup);
  if (!is_last_of_all) return false;
  float sums[kSums] = {};
#pragma unroll 1
  for (int block = first; block <= last; ++block) {
    float4 quads[kQuads];
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      quads[i] = {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
      if (block != own) quads[i] = __ldcg(at(block) + i * kWarpgroup);
    }
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      sums[4 * i] += quads[i].x;
      sums[4 * i + 1] += quads[i].y;
      sums[4 * i + 2] += quads[i].z;
      sums[4 * i + 3] += quads[i].w;
    }
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) d[i] = sums[i];
  return true;
}

__device__ void MultiplyRun(const SomeRowsParams& p, const char* memory, uint64_t* full, uint64_t* empty, int64_t begin,
                            int64_t end) {
  const uint32_t base = SharedAddress(memory);
  WaitForEarlier();
  LetLaterBegin();
  RingPlace place;
  for (int64_t next = begin; next < end;) {
    const auto tile = static_cast<int>(next / p.runs.slices_of_tile);
    const int64_t tile_begin = static_cast<int64_t>(tile) * p.runs.slices_of_tile;
    const int64_t tile_end = tile_begin + p.runs.slices_of_tile;
    const auto count = static_cast<int>(min(tile_end, end) - next);
    const TileOfPart its = TileAt(p, tile);
    const Outputs outputs(p, its);
    float d[kSums] = {};
    float old[kSums] = {};
    for (int i = 0; i < count; ++i) {
      if (i == count - 1 && p.adds) {
        outputs.ForEach(p, its, [&](int j, int64_t at) { old[j] = its.part.out[at]; });
      }
      WaitFor(&full[place.at], place.round & 1);
      const uint32_t slice = base + place.at * kStageBytes;
      KeepInPlace(d);
      BeginProducts();
#pragma unroll
      for (int panel = 0; panel < kPanels; ++panel) {
        const uint64_t weights = DescribeRows(slice + panel * kPanelBytes);
        const uint64_t x = DescribeRows(slice + kXOffset + panel * kPanelBytes);
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
    if (!is_whole && !AddUp(p, tile, d)) continue;
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
  const int64_t begin = p.runs.Begin(block);
  const int64_t end = p.runs.Begin(block + 1);
  if (threadIdx.x >= kWarpgroup) {
    CopyRun(p, memory, full, empty, begin, end);
  } else {
    MultiplyRun(p, memory, full, empty, begin, end);
  }
#endif
}

}  // namespace

bool HasSomeRows(const MatMulArgs& args, const CudaDevice& device) {
#if HEADWISE_HAS_SM90A
  int64_t num_tiles = 0;
  for (const MatMulPart& part : args.parts) {
    if (part.weight.dtype != DType::kBF16) return false;
    num_tiles += Blocks(part.weight.shape[0], kTileOutputs);
  }
  return device.facts().major == 9 && device.facts().minor == 0 && args.x.shape[0] <= kMaxSomeRows &&
         args.x.shape[1] % kSliceDepth == 0 && args.parts.size() <= kMaxParts && num_tiles <= kMaxTickets;
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
  return kTicketBytes +
         2 * static_cast<size_t>(device.facts().num_multiprocessors) * kQuads * kWarpgroup * sizeof(float4);
}

void MatMulSomeRows(const ConstTensorView& x, const LinearArgs& linear, void* gated, std::byte* memory,
                    CudaDevice& device) {
  if (!device.ok()) return;
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
    num_tiles += static_cast<int>(Blocks(part.weight.shape[0], kTileOutputs));
    params.parts[i] = {.weight = static_cast<const Bf16*>(part.weight.rows().data),
                       .bias = F32(part.bias),
                       .out = F32(part.out),
                       .num_outputs = static_cast<int>(part.weight.shape[0]),
                       .end_tile = num_tiles};
  }
  if (gated != nullptr) num_tiles = static_cast<int>(Blocks(args.parts[0].weight.shape[0], kTileOutputs / 2));
  if (num_tiles == 0 || params.num_rows == 0 || params.depth == 0) return;
  params.runs = RunsFor(num_tiles, params.depth / kSliceDepth, device.facts().num_multiprocessors);
  LaunchShape shape = Overlapping(params.runs.num_blocks(), kThreads, kRingBytes);
  shape.lets_begin_late = true;
  Launch(device, "MatMul", shape, SomeRowsKernel, params);
}

}  // namespace headwise::cuda
