// Attention of a prompt's rows over 16-bit pages, D 64, 128 or 256, in 16-bit products: one launch a layer over all
// heads with many rows, whatever their rules. A block takes 128 (row, query head) pairs of one KV head, a warp 16 of
// them, and goes through the keys that they read 64 at a time (D 256: 32): the sink range, then the recent one, so that
// a bounded head costs its window. Products by mma.m16n8k16 with an online softmax in registers; the next keys come by
// cp.async meanwhile. Bound by what ldmatrix brings: every warp reads all keys for its 16 pairs.
#include <span>
#include <vector>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/prefill.cuh"

namespace headwise::cuda {
namespace {

constexpr int kNumWarps = 8;
constexpr int kThreads = kNumWarps * static_cast<int>(kWarp);
constexpr int kPairs = static_cast<int>(kPrefillPairs);
constexpr int kPairsOfWarp = kPairs / kNumWarps;
static_assert(kPairsOfWarp == 16);
// At a time. Of long rows fewer, so that scores find room in registers beside queries and outputs.
constexpr int KeysOf(int dim) {
  return dim <= 128 ? 64 : 32;
}
constexpr int kStages = 2;
constexpr int kRowBytes = 128;  // of 64 numbers

// What one range of keys is to the lane's two pairs, rows lane / 4 and lane / 4 + 8 of the warp's tile. Counted from
// the first key of the block's tiles.
struct RangeOfLane {
  int begin[2], end[2];
  int query_pos[2];
};

template <typename T, int kDim>
struct Lane {
  uint32_t queries[kDim / 16][4];
  float outputs[kDim / 8][4] = {};
  // Times log2 e, kWeightBits below the running maximum, which scores exceed by kMaxSlack at most.
  float max[2] = {kNoScore, kNoScore};
  float sum[2] = {0, 0};  // over the lane's keys
};

template <typename T, int kDim>
__device__ void LoadQueries(const float* upper, const float* lower, uint32_t (&queries)[kDim / 16][4]) {
  const int first = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* row = i % 2 == 0 ? upper : lower;
      float2 x = {0, 0};
      if (row != nullptr) x = *reinterpret_cast<const float2*>(row + k * 16 + i / 2 * 8 + first);
      queries[k][i] = Pack<T>(x.x, x.y);
    }
  }
}

// The block's keys from `first` on and their values into a stage: four threads a token, or eight. Tokens outside
// [begin, end) are zeros.
template <int kDim>
__device__ void CopyKeys(const DeviceHead& head, int64_t first, int64_t begin, int64_t end, char* stage) {
  constexpr int kKeys = KeysOf(kDim);
  constexpr int kChunks = kDim / 8;
  constexpr int kThreadsOfRow = kThreads / kKeys;
  const int row = static_cast<int>(threadIdx.x) / kThreadsOfRow;
  const auto pos = static_cast<uint32_t>(first) + row;
  const auto page_tokens = static_cast<uint32_t>(head.newest.page_tokens);
  const bool is_there = pos >= begin && pos < end;
  const std::byte* from = nullptr;
  if (is_there) {
    KvFormat format;
    from = head.Page(pos / page_tokens, format) + pos % page_tokens * kRowBytes;
  }
#pragma unroll
  for (int i = 0; i < kChunks / kThreadsOfRow; ++i) {
    const int chunk = static_cast<int>(threadIdx.x) % kThreadsOfRow + i * kThreadsOfRow;
    const int half = chunk / 8;
    const uint32_t to = SharedAddress(stage) + half * kKeys * kRowBytes + row * kRowBytes + chunk % 8 * 16;
    const std::byte* key = from + half * page_tokens * kRowBytes + chunk % 8 * 16;
    const std::byte* value = key + page_tokens * kDim * 2;
    CopyChunkOrZeros(to, is_there ? key : nullptr);
    CopyChunkOrZeros(to + kKeys * kDim * 2, is_there ? value : nullptr);
  }
}

// Raises maxima only where a score exceeds one by more than kMaxSlack: most tiles rescale nothing.
template <typename T, int kDim>
__device__ void RaiseMax(const float (&scores)[KeysOf(kDim) / 8][4], float scale, Lane<T, kDim>& lane_state) {
  float larger[4] = {scores[0][0], scores[0][1], scores[0][2], scores[0][3]};
#pragma unroll
  for (int n = 1; n < KeysOf(kDim) / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) larger[i] = fmaxf(larger[i], scores[n][i]);
  }
  constexpr float kMost = kMaxSlack + kWeightBits;
  float of_row[2];
  bool is_higher = false;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    of_row[r] = fmaxf(larger[2 * r], larger[2 * r + 1]) * scale;
    is_higher = is_higher || of_row[r] > lane_state.max[r] + kMost;
  }
  if (!__any_sync(kAllLanes, is_higher)) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    of_row[r] = fmaxf(of_row[r], __shfl_xor_sync(kAllLanes, of_row[r], 1));
    of_row[r] = fmaxf(of_row[r], __shfl_xor_sync(kAllLanes, of_row[r], 2));
    if (of_row[r] <= lane_state.max[r] + kMost) continue;
    of_row[r] -= kWeightBits;
    const float factor = Exp2(lane_state.max[r] - of_row[r]);
    lane_state.max[r] = of_row[r];
    lane_state.sum[r] *= factor;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      lane_state.outputs[i][2 * r] *= factor;
      lane_state.outputs[i][2 * r + 1] *= factor;
    }
  }
}

template <typename T, int kDim>
__device__ void AttendKeys(const char* stage, int first, bool is_inner, const RangeOfLane& range,
                           const PrefillParams& p, const float (&slopes)[2], Lane<T, kDim>& lane_state) {
  constexpr int kKeys = KeysOf(kDim);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const uint32_t keys = SharedAddress(stage);
  const uint32_t values = keys + kKeys * kDim * 2;
  float scores[kKeys / 8][4] = {};
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      // 16 keys, 16 numbers of each: two second operands.
      const int row = n * 16 + (lane & 7) + (lane >> 4) * 8;
      const int chunk = (k % 4) * 2 + ((lane >> 3) & 1);
      uint32_t tile[4];
      LoadMatrix(tile, keys + (k / 4) * kKeys * kRowBytes + row * kRowBytes + ((chunk ^ (row & 7)) << 4));
      MultiplyAdd<T>(scores[2 * n], lane_state.queries[k], tile[0], tile[1]);
      MultiplyAdd<T>(scores[2 * n + 1], lane_state.queries[k], tile[2], tile[3]);
    }
  }
  // What is not a multiple of the products is made of them first.
  float scale = p.scale;
  if (p.score_cap != 0 || p.alibi_slopes != nullptr) {
    scale = 1;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float score = scores[n][i] * p.scale;
        if (p.score_cap != 0) score = SoftCapped(score, p.score_cap);
        const int key = first + n * 8 + lane % 4 * 2 + i % 2;
        scores[n][i] = score + slopes[i / 2] * static_cast<float>(key - range.query_pos[i / 2]);
      }
    }
  }
  if (!is_inner) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first + n * 8 + lane % 4 * 2 + i % 2;
        if (key < range.begin[i / 2] || key >= range.end[i / 2]) scores[n][i] = -INFINITY;
      }
    }
  }
  RaiseMax<T, kDim>(scores, scale, lane_state);
  float more[4] = {};  // sums of four chains, which do not wait for each other
#pragma unroll
  for (int n = 0; n < kKeys / 16; ++n) {
    uint32_t weights[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = Exp2(fmaf(scores[2 * n + half][2 * r], scale, -lane_state.max[r]));
        const float y = Exp2(fmaf(scores[2 * n + half][2 * r + 1], scale, -lane_state.max[r]));
        more[2 * r] += x;
        more[2 * r + 1] += y;
        weights[2 * half + r] = Pack<T>(x, y);
      }
    }
#pragma unroll
    for (int d = 0; d < kDim / 16; ++d) {
      const int row = n * 16 + (lane & 15);
      const int chunk = (d % 4) * 2 + (lane >> 4);
      uint32_t tile[4];
      LoadMatrixTransposed(tile, values + (d / 4) * kKeys * kRowBytes + row * kRowBytes + ((chunk ^ (row & 7)) << 4));
      MultiplyAdd<T>(lane_state.outputs[2 * d], weights, tile[0], tile[1]);
      MultiplyAdd<T>(lane_state.outputs[2 * d + 1], weights, tile[2], tile[3]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) lane_state.sum[r] += more[2 * r] + more[2 * r + 1];
}

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) PrefillKernel(PrefillParams p) {
  extern __shared__ __align__(1024) char shared[];
  constexpr int kKeys = KeysOf(kDim);
  constexpr int kStageBytes = 2 * kKeys * kDim * 2;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const PrefillBlock block(p);
  const DeviceHead& head = block.head;
  const KeyMask mask = head.head.mask;
  const int64_t first_pos = block.PosOf(block.first_pair, p.group);
  const int64_t last_pos = block.PosOf(block.first_pair + kPairs - 1, p.group);
  const LanePairs pairs(block, p, block.first_pair + warp * kPairsOfWarp + lane / 4);
  float slopes[2] = {0, 0};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (p.alibi_slopes != nullptr) slopes[r] = p.alibi_slopes[pairs.q_head[r]] * kLog2E;
  }

  const KeyWindow window = WindowOf(mask, first_pos, last_pos);
  Lane<T, kDim> state;
  for (int part = 0; part < 2; ++part) {
    const KeyRange keys(window, part);
    if (keys.empty()) continue;
    const float* q = keys.is_sink && p.q_sink != nullptr ? p.q_sink : p.q;
    LoadQueries<T, kDim>(pairs.is_there[0] ? q + pairs.row[0] * kDim : nullptr,
                         pairs.is_there[1] ? q + pairs.row[1] * kDim : nullptr, state.queries);
    const int64_t aligned = keys.begin / kKeys * kKeys;
    const auto from_first = [&](int64_t key) { return static_cast<int>(key - aligned); };
    RangeOfLane range;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRanges of_row = mask.KeysOf(pairs.pos[r]);
      range.begin[r] = from_first(keys.BeginOf(of_row));
      range.end[r] = from_first(keys.EndOf(of_row));
      range.query_pos[r] = from_first(keys.is_sink ? mask.SinkPos(pairs.pos[r]) : pairs.pos[r]);
    }
    // Keys that all rows of the block read.
    const int inner_begin = from_first(keys.BeginOf(mask.KeysOf(last_pos)));
    const int inner_end = from_first(keys.EndOf(mask.KeysOf(first_pos)));
    const int end = from_first(keys.end);
    __syncthreads();  // the range before has read its stages
    CopyKeys<kDim>(head, aligned, keys.begin, keys.end, shared);
    CommitCopies();
    for (int first = 0, stage = 0; first < end; first += kKeys, stage ^= kStageBytes) {
      WaitForCopies<0>();
      __syncthreads();  // all of the tile is there, and the one before it is read
      if (first + kKeys < end) {
        CopyKeys<kDim>(head, aligned + first + kKeys, keys.begin, keys.end, shared + (stage ^ kStageBytes));
        CommitCopies();
      }
      const bool is_inner = first >= inner_begin && first + kKeys <= inner_end;
      AttendKeys<T, kDim>(shared + stage, first, is_inner, range, p, slopes, state);
    }
  }

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = state.sum[r];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (!pairs.is_there[r]) continue;
    const float factor = FactorOf(p, pairs.row[r], pairs.q_head[r], state.max[r], sum, lane % 4 == 0);
    float* out = p.out + pairs.row[r] * kDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      *reinterpret_cast<float2*>(out + i * 8) = {state.outputs[i][2 * r] * factor,
                                                 state.outputs[i][2 * r + 1] * factor};
    }
  }
}

template <typename T, int kDim>
void LaunchFor(const PrefillParams& params, int num_blocks, CudaDevice& device) {
  constexpr size_t kBytes = size_t{kStages} * 2 * KeysOf(kDim) * kDim * 2;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_blocks)), .threads = kThreads, .shared_bytes = kBytes};
  Launch(device, "Attention", shape, PrefillKernel<T, kDim>, params);
}

template <typename T>
void LaunchFor(const PrefillParams& params, int64_t dim, int num_blocks, CudaDevice& device) {
  switch (dim) {
    case 64:
      return LaunchFor<T, 64>(params, num_blocks, device);
    case 128:
      return LaunchFor<T, 128>(params, num_blocks, device);
    default:
      return LaunchFor<T, 256>(params, num_blocks, device);
  }
}

void LaunchFor(const PrefillParams& params, const KvLayout& layout, int num_blocks, CudaDevice& device) {
  if (HasHopperPrefill(params, layout, device)) return HopperPrefill(params, layout, num_blocks, device);
  if (layout.format == KvFormat::kF16) {
    LaunchFor<__half>(params, layout.head_dim, num_blocks, device);
  } else {
    LaunchFor<__nv_bfloat16>(params, layout.head_dim, num_blocks, device);
  }
}

}  // namespace

bool HasPrefillKernel(const AttentionArgs& args) {
  return args.compute != Compute::kF32 && FastPagesOf(*args.step).present();
}

void PrefillAttention(const AttentionArgs& args, const LayerBlocks& blocks, const StepTables& tables,
                      CudaDevice& device) {
  const FastPages pages = FastPagesOf(*args.step);
  PrefillParams params{.step = tables.view(),
                       .ends = blocks.prefill_ends,
                       .layer_idx = static_cast<int>(args.layer_idx),
                       .num_heads = static_cast<int>(args.step->num_heads()),
                       .group = static_cast<int>(args.group()),
                       .scale = args.scale * kLog2E,
                       .score_cap = args.score_cap * kLog2E,
                       .q = F32(args.q),
                       .q_sink = F32(args.q_sink),
                       .alibi_slopes = F32(args.alibi_slopes),
                       .sink_logits = F32(args.sink_logits),
                       .out = F32(args.out),
                       .lse = F32(args.lse)};
  KvLayout layout{.head_dim = pages.head_dim,
                  .page_tokens = pages.page_tokens,
                  .format = pages.has_halves ? pages.halves : KvFormat::kBF16};
  if (!pages.has_codes) return LaunchFor(params, layout, blocks.num_prefill_blocks, device);
  ForWidened(args, tables, pages, device, [&](const StepView& step, std::span<const bool> is_there) {
    std::vector<int32_t> ends;
    int32_t num_blocks = 0;
    for (size_t i = 0; i < is_there.size(); ++i) {
      const int64_t num_rows = args.step->Head(args.layer_idx, static_cast<int64_t>(i)).num_rows;
      if (is_there[i]) num_blocks += static_cast<int32_t>(CeilDiv(num_rows * args.group(), kPrefillPairs));
      ends.push_back(num_blocks);
    }
    params.step = step;
    params.layer_idx = 0;
    params.ends = device.Upload(std::span<const int32_t>(ends));
    if (device.ok()) LaunchFor(params, layout, num_blocks, device);
  });
}

}  // namespace headwise::cuda
