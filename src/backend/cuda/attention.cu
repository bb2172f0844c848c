// Attention for any head dimension up to 256, any group, any format: products in f32 by FMA, one launch per layer over
// all heads of all sequences. A block takes one tile of (row, query head) pairs of one KV head and one piece of the
// keys that they read (attention_cut.h), 32 keys at a time through shared memory; states of pieces are merged in their
// order. What bounds it: shared memory, 2 reads per multiply-add. The kernels for the shapes that matter are elsewhere.
#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kNumWarps = kThreads / static_cast<int>(kWarp);
constexpr int kTile = static_cast<int>(kTilePairs);
constexpr int kPairsOfWarp = kTile / kNumWarps;
constexpr int kKeys = 32;  // in shared memory at a time: one per lane
constexpr int kMaxDim = 256;
constexpr int kDimsOfLane = kMaxDim / static_cast<int>(kWarp);

struct AttendParams {
  StepView step;
  LayerBlocks blocks;
  int layer_idx;
  int num_heads;  // B * Hkv
  int group;      // G
  int dim;        // D
  float scale;
  float score_cap;  // or 0
  const float* q;
  const float* q_sink;  // null: q
  const float* alibi_slopes;
  const float* sink_logits;
  float* out;
  float* lse;     // or null
  float* states;  // per block of a cut head and pair: maximum, sum, D outputs not divided by it
};

// The block's piece of work.
struct Unit {
  int head_idx, tile, piece;
};
__device__ Unit UnitOf(const AttendParams& p, const AttentionCut& cut, int head_idx, int block) {
  const int local = block - (head_idx > 0 ? p.blocks.ends[head_idx - 1] : 0);
  return {head_idx, static_cast<int>(local / cut.num_pieces), static_cast<int>(local % cut.num_pieces)};
}

__device__ AttentionCut CutOfHead(const DeviceHead& head, int group) {
  return CutOf(head.head.mask, head.rows.first_pos, head.rows.num_rows, group);
}

// What joins a softmax with maximum and sum `m`, `l` at the end: writes pair `out`, sums of `acc` over it.
__device__ void Finish(const AttendParams& p, int64_t row, int q_head, float m, float l, const float* acc) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t pair = row * p.step.num_kv_heads * p.group + q_head;
  float factor = 1.0f;
  if (p.sink_logits != nullptr) {
    const float logit = p.sink_logits[q_head];
    const float larger = fmaxf(m, logit);
    factor = expf(m - larger);
    l = l * factor + expf(logit - larger);
    m = larger;
  }
  for (int i = 0; i < kDimsOfLane; ++i) {
    const int d = lane + i * static_cast<int>(kWarp);
    if (d < p.dim) p.out[pair * p.dim + d] = acc[i] * factor / l;
  }
  if (p.lse != nullptr && lane == 0) p.lse[pair] = m + logf(l);
}

__device__ float* StateOf(const AttendParams& p, int block, int pair) {
  return p.states + (static_cast<int64_t>(block) * kTile + pair) * (p.dim + 2);
}

__global__ void __launch_bounds__(kThreads) AttendKernel(AttendParams p) {
  LetLaterBegin();
  WaitForEarlier();
  extern __shared__ float shared[];
  const int row_floats = p.dim + 1;                // so that 32 keys' elements of one dimension lie in 32 banks
  float* const kv = shared;                        // [kKeys, D + 1]
  float* const queries = kv + kKeys * row_floats;  // [kTile, D]
  float* const sink_queries = p.q_sink == nullptr ? queries : queries + kTile * p.dim;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);

  const int block = static_cast<int>(blockIdx.x);
  const int head_idx = FirstEndAbove(p.blocks.ends, p.num_heads, block);
  const DeviceHead head(p.step, p.layer_idx, head_idx);
  const AttentionCut cut = CutOfHead(head, p.group);
  const Unit unit = UnitOf(p, cut, head_idx, block);
  const KeyMask mask = head.head.mask;
  const int first_pair = unit.tile * kTile;
  const int num_pairs = min(kTile, static_cast<int>(head.rows.num_rows * p.group) - first_pair);
  // A head whose keys are cut is cut alike in all its tiles.
  const bool is_cut = cut.num_pieces > 1;
  const int64_t first_row = is_cut ? 0 : first_pair / p.group;
  const int64_t last_row = is_cut ? head.rows.num_rows - 1 : (first_pair + num_pairs - 1) / p.group;
  const KeyWindow window = WindowOf(mask, head.rows.first_pos + first_row, head.rows.first_pos + last_row);
  const int64_t begin = unit.piece * cut.piece_keys;
  const int64_t end = is_cut ? min(begin + cut.piece_keys, window.num_keys()) : window.num_keys();

  const auto row_of = [&](int pair) { return (first_pair + pair) / p.group; };
  const auto q_head_of = [&](int pair) { return head.kv_head * p.group + (first_pair + pair) % p.group; };
  for (int i = static_cast<int>(threadIdx.x); i < num_pairs * p.dim; i += kThreads) {
    const int pair = i / p.dim;
    const int64_t row = head.rows.first_row + row_of(pair);
    const int64_t from = (row * p.step.num_kv_heads * p.group + q_head_of(pair)) * p.dim + i % p.dim;
    queries[i] = p.q[from];
    if (p.q_sink != nullptr) sink_queries[i] = p.q_sink[from];
  }

  float max_score[kPairsOfWarp], sum[kPairsOfWarp], acc[kPairsOfWarp][kDimsOfLane];
  for (int i = 0; i < kPairsOfWarp; ++i) {
    max_score[i] = -INFINITY;
    sum[i] = 0;
    for (int j = 0; j < kDimsOfLane; ++j) acc[i][j] = 0;
  }
  const int page_tokens = head.newest.page_tokens;
  const auto load_tile = [&](int64_t first_key, int first_page_row) {
    for (int key = warp; key < kKeys; key += kNumWarps) {
      if (first_key + key >= end) {
        for (int d = lane; d < p.dim; d += kWarp) kv[key * row_floats + d] = 0;
        continue;
      }
      const int64_t pos = window.PosOf(first_key + key);
      KvFormat format;
      const std::byte* page = head.Page(pos / page_tokens, format);
      const int row = first_page_row + static_cast<int>(pos % page_tokens);
      for (int d = lane; d < p.dim; d += kWarp) {
        kv[key * row_floats + d] = LoadKv(format, page, p.dim, page_tokens, row, d);
      }
    }
  };

  for (int64_t first_key = begin; first_key < end; first_key += kKeys) {
    __syncthreads();
    load_tile(first_key, 0);
    __syncthreads();
    // Lane's key for each of the warp's pairs.
    float weights[kPairsOfWarp];
    const int64_t key = first_key + lane;
    const int64_t key_pos = window.PosOf(key < end ? key : begin);
    const bool is_sink = key_pos < mask.sink;
#pragma unroll
    for (int i = 0; i < kPairsOfWarp; ++i) {
      const int pair = warp * kPairsOfWarp + i;
      weights[i] = 0;
      if (pair >= num_pairs) continue;
      const int64_t pos = head.rows.first_pos + row_of(pair);
      const float* query = (is_sink ? sink_queries : queries) + pair * p.dim;
      float score = 0;
      for (int d = 0; d < p.dim; ++d) score = fmaf(query[d], kv[lane * row_floats + d], score);
      score *= p.scale;
      if (p.score_cap != 0) score = SoftCapped(score, p.score_cap);
      if (p.alibi_slopes != nullptr) {
        score += p.alibi_slopes[q_head_of(pair)] * static_cast<float>(key_pos - (is_sink ? mask.SinkPos(pos) : pos));
      }
      if (key >= end || !mask.Reads(pos, key_pos)) score = -INFINITY;
      const float tile_max = MaxOfWarp(score);
      if (tile_max == -INFINITY) continue;
      const float larger = fmaxf(max_score[i], tile_max);
      const float factor = expf(max_score[i] - larger);
      weights[i] = expf(score - larger);
      sum[i] = sum[i] * factor + SumOfWarp(weights[i]);
      max_score[i] = larger;
      for (int j = 0; j < kDimsOfLane; ++j) acc[i][j] *= factor;
    }
    __syncthreads();
    load_tile(first_key, page_tokens);
    __syncthreads();
    for (int k = 0; k < kKeys; ++k) {
#pragma unroll
      for (int i = 0; i < kPairsOfWarp; ++i) {
        const float weight = __shfl_sync(kAllLanes, weights[i], k);
        for (int j = 0; j < kDimsOfLane; ++j) {
          const int d = lane + j * static_cast<int>(kWarp);
          if (d < p.dim) acc[i][j] = fmaf(weight, kv[k * row_floats + d], acc[i][j]);
        }
      }
    }
  }

  for (int i = 0; i < kPairsOfWarp; ++i) {
    const int pair = warp * kPairsOfWarp + i;
    if (pair >= num_pairs) continue;
    if (!is_cut) {
      Finish(p, head.rows.first_row + row_of(pair), q_head_of(pair), max_score[i], sum[i], acc[i]);
      continue;
    }
    float* state = StateOf(p, block, pair);
    if (lane == 0) {
      state[0] = max_score[i];
      state[1] = sum[i];
    }
    for (int j = 0; j < kDimsOfLane; ++j) {
      const int d = lane + j * static_cast<int>(kWarp);
      if (d < p.dim) state[2 + d] = acc[i][j];
    }
  }
}

// A block a tile of a cut head, a warp a pair at a time.
__global__ void MergeKernel(AttendParams p) {
  LetLaterBegin();
  WaitForEarlier();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int tile_idx = static_cast<int>(blockIdx.x);
  const int head_idx = FirstEndAbove(p.blocks.tile_ends, p.num_heads, tile_idx);
  const DeviceHead head(p.step, p.layer_idx, head_idx);
  const AttentionCut cut = CutOfHead(head, p.group);
  const int tile = tile_idx - (head_idx > 0 ? p.blocks.tile_ends[head_idx - 1] : 0);
  const int first_block = (head_idx > 0 ? p.blocks.ends[head_idx - 1] : 0) + tile * static_cast<int>(cut.num_pieces);
  const int first_pair = tile * kTile;
  const int num_pairs = min(kTile, static_cast<int>(head.rows.num_rows * p.group) - first_pair);
  for (int pair = static_cast<int>(threadIdx.x / kWarp); pair < num_pairs; pair += kNumWarps) {
    float larger = -INFINITY;
    for (int piece = 0; piece < cut.num_pieces; ++piece) {
      larger = fmaxf(larger, StateOf(p, first_block + piece, pair)[0]);
    }
    float sum = 0;
    float acc[kDimsOfLane] = {};
    for (int piece = 0; piece < cut.num_pieces; ++piece) {
      const float* state = StateOf(p, first_block + piece, pair);
      if (state[0] == -INFINITY) continue;
      const float factor = expf(state[0] - larger);
      sum = fmaf(factor, state[1], sum);
      for (int j = 0; j < kDimsOfLane; ++j) {
        const int d = lane + j * static_cast<int>(kWarp);
        if (d < p.dim) acc[j] = fmaf(factor, state[2 + d], acc[j]);
      }
    }
    Finish(p, head.rows.first_row + (first_pair + pair) / p.group,
           head.kv_head * p.group + (first_pair + pair) % p.group, larger, sum, acc);
  }
}

}  // namespace

void Attention(const AttentionArgs& args, StepTables& tables, bool has_decode, CudaDevice& device) {
  HW_CHECK(args.head_dim() <= kMaxDim, "head_dim {}", args.head_dim());
  if (!device.ok() || args.step->num_rows() == 0) return;
  const LayerBlocks blocks = tables.AttentionBlocks(*args.step, args.layer_idx, args.group(),
                                                    {.has_prefill = HasPrefillKernel(args), .has_decode = has_decode});
  if (blocks.num_prefill_blocks > 0) PrefillAttention(args, blocks, tables, device);
  const auto dim = static_cast<int>(args.head_dim());
  float* states = nullptr;
  if (blocks.num_tiles > 0) {
    const size_t floats = static_cast<size_t>(blocks.num_blocks) * kTile * static_cast<size_t>(dim + 2);
    states = reinterpret_cast<float*>(device.Scratch(floats * sizeof(float)));
  }
  if (!device.ok() || blocks.num_blocks == 0) return;
  const AttendParams params{.step = tables.view(),
                            .blocks = blocks,
                            .layer_idx = static_cast<int>(args.layer_idx),
                            .num_heads = static_cast<int>(args.step->num_heads()),
                            .group = static_cast<int>(args.group()),
                            .dim = dim,
                            .scale = args.scale,
                            .score_cap = args.score_cap,
                            .q = F32(args.q),
                            .q_sink = F32(args.q_sink),
                            .alibi_slopes = F32(args.alibi_slopes),
                            .sink_logits = F32(args.sink_logits),
                            .out = F32(args.out),
                            .lse = F32(args.lse),
                            .states = states};
  const int num_queries = (args.q_sink.present() ? 2 : 1) * kTile * dim;
  const size_t shared_bytes = static_cast<size_t>(kKeys * (dim + 1) + num_queries) * sizeof(float);
  Launch(device, "Attention", Overlapping(blocks.num_blocks, kThreads, shared_bytes), AttendKernel, params);
  if (blocks.num_tiles == 0) return;
  Launch(device, "Attention", Overlapping(blocks.num_tiles, kThreads), MergeKernel, params);
}

}  // namespace headwise::cuda
