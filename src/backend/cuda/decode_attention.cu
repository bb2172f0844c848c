// Decode attention over 16-bit pages: one new token a sequence, D 64, 128 or 256, pages of 32 or 64 tokens, up to 8
// query heads a KV head. One launch a layer over all heads of all sequences, whatever their rules.
//
// Bound by reading every page once, 4 P D bytes. One block a multiprocessor: a producer warp brings pages by bulk
// copies into a ring of shared memory, 192 KiB ahead (D 256: 128); eight consumer warps take 16 tokens each and
// multiply by mma.m16n8k16 with tokens as its 16 rows and queries as its 8 columns, so that a small group wastes half
// and not three quarters. Queries and weights are split in two numbers of 16 bits where products in f32 are asked for.
// Every piece leaves a state; a second kernel merges them where there are several.
#include <bit>
#include <type_traits>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/decode_states.cuh"

namespace headwise::cuda {
namespace {

constexpr int kNumConsumers = 8;
constexpr int kConsumerThreads = kNumConsumers * static_cast<int>(kWarp);
constexpr int kThreads = kConsumerThreads + static_cast<int>(kWarp);
constexpr int kMaxGroup = 8;
constexpr int kMaxRingBytes = 192 << 10;
constexpr int kTokensOfWarp = 16;
// The maximum is raised where a score exceeds it by more: exp2 of 8 is far from overflow in either format.
constexpr float kMaxSlack = 8.0f;

template <typename T, int kDim, int kPageTokens>
struct Shape16 {
  static constexpr int kPageBytes = 4 * kPageTokens * kDim;
  static constexpr int kWarpsOfPage = kPageTokens / kTokensOfWarp;
  static constexpr int kGroups = kNumConsumers / kWarpsOfPage;  // of warps, each on a page of its own
  // A stage always serves the same group, else one could pass a barrier that is a phase behind.
  static constexpr int kStages = kMaxRingBytes / kPageBytes / kGroups * kGroups;
  static constexpr int kRingBytes = kStages * kPageBytes;
  static constexpr int kSplits = kDim / 16;  // of a row, for one mma
  static_assert(kStages > 0);
};

// How shared memory is used behind the ring.
struct SharedTail {
  uint64_t* full;
  uint64_t* empty;
  float* outputs;   // [buffers][warps, G, D]
  float2* softmax;  // [buffers][warps, kMaxGroup]
};
__host__ __device__ constexpr int OutputFloats(int group, int dim) {
  return kNumConsumers * group * dim;
}
// Of the warps' states: with two, a piece's are put together while the next one's tokens are read.
__host__ __device__ constexpr int NumBuffers(int group, int dim) {
  return group * dim <= 512 ? 2 : 1;
}
constexpr int kSoftmaxPairs = kNumConsumers * kMaxGroup;
__host__ __device__ constexpr int TailBytes(int num_stages, int group, int dim) {
  return num_stages * 16 + NumBuffers(group, dim) * (OutputFloats(group, dim) * 4 + kSoftmaxPairs * 8);
}
__device__ SharedTail TailOf(char* at, int num_stages, int group, int dim) {
  SharedTail tail;
  tail.full = reinterpret_cast<uint64_t*>(at);
  tail.empty = tail.full + num_stages;
  tail.outputs = reinterpret_cast<float*>(tail.empty + num_stages);
  const int num_buffers = NumBuffers(group, dim);
  tail.softmax = reinterpret_cast<float2*>(tail.outputs + num_buffers * OutputFloats(group, dim));
  return tail;
}

__device__ void SyncConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory");
}

// A piece's visits go round the warp groups from the first one on, so that its result does not depend on what else the
// block does; the last round is filled up with visits of nothing.
template <typename Shape>
__device__ int RoundsOf(int num_visits) {
  return (num_visits + Shape::kGroups - 1) / Shape::kGroups * Shape::kGroups;
}

// The heads of the block's run in order, each with its pieces [first_piece, end_piece) there.
template <typename Body>
__device__ void ForHeads(const DecodeParams& p, const Body& body) {
  RunStart at = p.runs[blockIdx.x];
  const RunStart end = p.runs[blockIdx.x + 1];
  while (at.head < end.head || (at.head == end.head && at.piece < end.piece)) {
    const HeadPlan plan = p.heads[at.head];
    const int end_piece = at.head < end.head ? plan.num_pieces : end.piece;
    if (at.piece < end_piece) body(at.head, plan, at.piece, end_piece);
    ++at.head;
    at.piece = 0;
  }
}
// The visits [begin, end) of a piece.
__device__ int2 VisitsOfPiece(const HeadPlan& plan, int piece) {
  const int begin = piece * plan.piece_visits;
  return {begin, min(begin + plan.piece_visits, plan.visits.num_visits)};
}

// Tables of the run's next heads, a lane each: since the layer before, weights have put them out of the second-level
// cache, and what is looked up for a head are four reads one behind the other.
__device__ void WarmTables(const DecodeParams& p) {
  const RunStart end = p.runs[blockIdx.x + 1];
  const int head_idx = p.runs[blockIdx.x].head + 1 + static_cast<int>(threadIdx.x % kWarp);
  if (head_idx > end.head || (head_idx == end.head && end.piece == 0)) return;
  const HeadPlan plan = p.heads[head_idx];
  const DeviceHead head(p.step, p.layer_idx, head_idx);
  PrefetchLine(&p.step.pages[head.head.EntryOf(plan.visits.PageOf(0))]);
}

// Pages in the order of visits; what is looked up for the next ones is on its way meanwhile.
template <typename Shape, int kPageTokens>
__device__ void Produce(const DecodeParams& p, char* ring, const SharedTail& tail) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int count = 0;
  bool has_waited = false;
  const auto enter = [&] {
    const int stage = count % Shape::kStages;
    if (count >= Shape::kStages) WaitFor(tail.empty + stage, (count / Shape::kStages - 1) & 1);
    return stage;
  };
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int first_piece, int end_piece) {
    const DeviceHead head(p.step, p.layer_idx, head_idx);
    const auto newest_page = static_cast<int32_t>(head.rows.first_pos / kPageTokens);
    const int end = VisitsOfPiece(plan, end_piece - 1).y;
    const auto look_up = [&](int visit) -> const std::byte* {
      KvFormat format;
      return visit < end ? head.Page(plan.visits.PageOf(visit), format) : nullptr;
    };
    int in_piece = 0;
    int first = VisitsOfPiece(plan, first_piece).x;
    const std::byte* next = look_up(first + lane);
    for (; first < end; first += kWarp) {
      const std::byte* const page = next;
      next = look_up(first + static_cast<int>(kWarp) + lane);
      // What the kernel before this one writes to: all else may be read while that one runs.
      const bool is_newest = first + lane < end && plan.visits.PageOf(first + lane) == newest_page;
      const unsigned newest = __ballot_sync(kAllLanes, is_newest);
      for (int i = 0; i < min(static_cast<int>(kWarp), end - first); ++i) {
        const auto from = __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(page), i);
        if (!has_waited && (newest >> i & 1) != 0) {
          WaitForEarlier();
          has_waited = true;
        }
        if (lane == 0) {
          const int stage = enter();
          ExpectBytes(tail.full + stage, Shape::kPageBytes);
          BulkCopy(ring + stage * Shape::kPageBytes, reinterpret_cast<const void*>(from), Shape::kPageBytes,
                   tail.full + stage);
        }
        ++count;
        if (++in_piece < plan.piece_visits && first + i + 1 < end) continue;
        for (; in_piece % Shape::kGroups != 0; ++in_piece, ++count) {
          if (lane == 0) Arrive(tail.full + enter());
        }
        in_piece = 0;
      }
      __syncwarp();
    }
  });
}

// Two numbers of 16 bits that make one of f32, nearly.
template <typename T>
__device__ void Split(float x, float& high, float& low) {
  high = Round<T>(x);
  low = x - high;
}

// A lane's queries as the second operand of kDim / 16 products: numbers 2 (lane % 4), + 1, + 8 and + 9 of each 16, of
// query lane / 4. `low` holds what rounding left.
template <typename T, int kDim>
__device__ void LoadQueries(const float* q, int group, uint32_t (&high)[kDim / 8], uint32_t (&low)[kDim / 8]) {
  const int query = static_cast<int>(threadIdx.x % kWarp / 4);
  const int first = 2 * static_cast<int>(threadIdx.x % 4);
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
    float2 x = {0, 0};
    if (query < group) x = *reinterpret_cast<const float2*>(q + query * kDim + i * 8 + first);
    float2 h, l;
    Split<T>(x.x, h.x, l.x);
    Split<T>(x.y, h.y, l.y);
    high[i] = Pack<T>(h.x, h.y);
    low[i] = Pack<T>(l.x, l.y);
  }
}

// The softmax of a warp over its tokens so far: of query 2 (lane % 4) and the next. Outputs are [16 dims, 8 queries]
// tiles.
template <int kSplits>
struct WarpState {
  float max0 = kNoScore, max1 = kNoScore;
  float sum0 = 0, sum1 = 0;  // over the lane's tokens
  float outputs[kSplits][4] = {};
};

// 16 tokens of a page: which of them are read, and how far they are from the query, under ALiBi.
struct TokenSpan {
  int64_t first;       // position of the first
  int64_t begin, end;  // positions that the visit reads
  int64_t query_pos;
};

template <typename T, typename Shape, int kDim, int kPageTokens, bool kExact>
__device__ void AttendTokens(const char* page, int first_slot, const TokenSpan& span,
                             const uint32_t (&q_high)[kDim / 8], const uint32_t (&q_low)[kDim / 8],
                             const DecodeParams& p, float slope0, float slope1, WarpState<Shape::kSplits>& state) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  constexpr int kRowBytes = 128;  // of 64 numbers
  const uint32_t keys = SharedAddress(page);
  const uint32_t values = keys + kPageTokens * kDim * 2;

  float scores[2][4] = {};
  {
    const int row = first_slot + (lane & 7) + ((lane >> 3) & 1) * 8;
    const uint32_t at = keys + row * kRowBytes;
#pragma unroll
    for (int k = 0; k < Shape::kSplits; ++k) {
      const int chunk = (k % 4) * 2 + (lane >> 4);
      uint32_t tile[4];
      LoadMatrix(tile, at + (k / 4) * kPageTokens * kRowBytes + ((chunk ^ (row & 7)) << 4));
      MultiplyAdd<T>(scores[kExact ? 0 : k % 2], tile, q_high[2 * k], q_high[2 * k + 1]);
      if constexpr (kExact) MultiplyAdd<T>(scores[1], tile, q_low[2 * k], q_low[2 * k + 1]);
    }
  }
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = (scores[0][i] + scores[1][i]) * p.scale;
  if (p.score_cap != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = SoftCapped(x[i], p.score_cap);
  }
  const bool is_whole = span.first >= span.begin && span.first + kTokensOfWarp <= span.end;
  if (!is_whole || p.alibi_slopes != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t pos = span.first + lane / 4 + (i / 2) * 8;
      const bool is_read = pos >= span.begin && pos < span.end;
      const float lag = static_cast<float>(pos - span.query_pos);
      x[i] = is_read ? x[i] + (i % 2 == 0 ? slope0 : slope1) * lag : -INFINITY;
    }
  }
  float larger0 = fmaxf(x[0], x[2]);
  float larger1 = fmaxf(x[1], x[3]);
  if (__any_sync(kAllLanes, larger0 > state.max0 + kMaxSlack || larger1 > state.max1 + kMaxSlack)) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      larger0 = fmaxf(larger0, __shfl_xor_sync(kAllLanes, larger0, distance));
      larger1 = fmaxf(larger1, __shfl_xor_sync(kAllLanes, larger1, distance));
    }
    larger0 = fmaxf(larger0, state.max0);
    larger1 = fmaxf(larger1, state.max1);
    const float factor0 = exp2f(state.max0 - larger0);
    const float factor1 = exp2f(state.max1 - larger1);
    state.max0 = larger0;
    state.max1 = larger1;
    state.sum0 *= factor0;
    state.sum1 *= factor1;
#pragma unroll
    for (int i = 0; i < Shape::kSplits; ++i) {
      state.outputs[i][0] *= factor0;
      state.outputs[i][1] *= factor1;
      state.outputs[i][2] *= factor0;
      state.outputs[i][3] *= factor1;
    }
  }
  float high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float weight = exp2f(x[i] - (i % 2 == 0 ? state.max0 : state.max1));
    (i % 2 == 0 ? state.sum0 : state.sum1) += weight;
    Split<T>(weight, high[i], low[i]);
  }
  const uint32_t high0 = Transpose(Pack<T>(high[0], high[1]));
  const uint32_t high1 = Transpose(Pack<T>(high[2], high[3]));
  uint32_t low0 = 0, low1 = 0;
  if constexpr (kExact) {
    low0 = Transpose(Pack<T>(low[0], low[1]));
    low1 = Transpose(Pack<T>(low[2], low[3]));
  }
  const int row = first_slot + (lane & 7) + (lane >> 4) * 8;
  const uint32_t at = values + row * kRowBytes;
#pragma unroll
  for (int i = 0; i < Shape::kSplits; ++i) {
    const int chunk = (i % 4) * 2 + ((lane >> 3) & 1);
    uint32_t tile[4];
    LoadMatrixTransposed(tile, at + (i / 4) * kPageTokens * kRowBytes + ((chunk ^ (row & 7)) << 4));
    MultiplyAdd<T>(state.outputs[i], tile, high0, high1);
    if constexpr (kExact) MultiplyAdd<T>(state.outputs[i], tile, low0, low1);
  }
}

// The warp's state into shared memory.
template <int kSplits>
__device__ void StoreWarpState(WarpState<kSplits>& state, int group, const SharedTail& tail) {
  constexpr int kDim = kSplits * 16;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  for (int distance = 4; distance < 32; distance *= 2) {
    state.sum0 += __shfl_xor_sync(kAllLanes, state.sum0, distance);
    state.sum1 += __shfl_xor_sync(kAllLanes, state.sum1, distance);
  }
  const int query = 2 * (lane % 4);
  if (lane < 4) {
    tail.softmax[warp * kMaxGroup + query] = {state.max0, state.sum0};
    tail.softmax[warp * kMaxGroup + query + 1] = {state.max1, state.sum1};
  }
  for (int i = 0; i < kSplits; ++i) {
    const int d = i * 16 + lane / 4;
    float* outputs = tail.outputs + (warp * group + query) * kDim + d;
    if (query < group) {
      outputs[0] = state.outputs[i][0];
      outputs[8] = state.outputs[i][2];
    }
    if (query + 1 < group) {
      outputs[kDim] = state.outputs[i][1];
      outputs[kDim + 8] = state.outputs[i][3];
    }
  }
}

// The eight warps' states become the piece's: written as the output where the head has one piece.
template <int kDim>
__device__ void FinishPiece(const DecodeParams& p, const HeadPlan& plan, int piece, int64_t first_pair,
                            int first_q_head, const SharedTail& tail) {
  for (int i = static_cast<int>(threadIdx.x); i < p.group * kDim; i += kConsumerThreads) {
    const int query = i / kDim;
    float larger = kNoScore;
    for (int w = 0; w < kNumConsumers; ++w) larger = fmaxf(larger, tail.softmax[w * kMaxGroup + query].x);
    float sum = 0;
    float output = 0;
    for (int w = 0; w < kNumConsumers; ++w) {
      const float2 softmax = tail.softmax[w * kMaxGroup + query];
      const float factor = exp2f(softmax.x - larger);
      sum += factor * softmax.y;
      output += factor * tail.outputs[w * p.group * kDim + i];
    }
    if (plan.num_pieces == 1) {
      const int64_t pair = first_pair + query;
      p.out[pair * kDim + i % kDim] = output * FactorOf(p, pair, first_q_head + query, larger, sum, i % kDim == 0);
      continue;
    }
    const int64_t state = (static_cast<int64_t>(plan.first_state) + piece) * p.group + query;
    __stcg(p.state_outputs + state * kDim + i % kDim, output);
    if (i % kDim == 0) __stcg(p.state_softmax + state, make_float2(larger, sum));
  }
}

template <typename T, int kDim, int kPageTokens, bool kExact>
__global__ void __launch_bounds__(kThreads, 1) DecodeKernel(DecodeParams p) {
  LetLaterBegin();
  using Shape = Shape16<T, kDim, kPageTokens>;
  extern __shared__ __align__(1024) char shared[];
  char* const ring = shared;
  const SharedTail tail = TailOf(shared + Shape::kRingBytes, Shape::kStages, p.group, kDim);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp == kNumConsumers && lane == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(tail.full + i, 1);
      InitBarrier(tail.empty + i, Shape::kWarpsOfPage);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (warp == kNumConsumers) {
    Produce<Shape, kPageTokens>(p, ring, tail);
    return;
  }
  if (warp == kNumConsumers - 1) WarmTables(p);

  bool has_waited = false;
  const int warp_group = warp / Shape::kWarpsOfPage;
  const int first_slot = warp % Shape::kWarpsOfPage * kTokensOfWarp;
  int visits_before = 0;  // in the block's run, a multiple of the groups
  const int num_buffers = NumBuffers(p.group, kDim);
  SharedTail buffer = tail;  // of the piece under way
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int first_piece, int end_piece) {
    const int num_kv_heads = p.step.num_kv_heads;
    const StepRows rows = p.step.sequences[head_idx / num_kv_heads];
    const int kv_head = head_idx % num_kv_heads;
    const KeyMask mask = p.step.heads[rows.first_head + p.layer_idx * num_kv_heads + kv_head].mask;
    const KeyRanges keys = mask.KeysOf(rows.first_pos);
    const int first_q_head = kv_head * p.group;
    const int64_t first_pair = rows.first_row * num_kv_heads * p.group + first_q_head;
    float slope0 = 0, slope1 = 0;
    if (p.alibi_slopes != nullptr) {
      const int query = 2 * (lane % 4);
      if (query < p.group) slope0 = p.alibi_slopes[first_q_head + query] * kLog2E;
      if (query + 1 < p.group) slope1 = p.alibi_slopes[first_q_head + query + 1] * kLog2E;
    }
    if (!has_waited) WaitForEarlier();
    has_waited = true;
    uint32_t q_high[kDim / 8], q_low[kDim / 8];
    bool has_sink_queries = VisitsOfPiece(plan, first_piece).x < plan.visits.num_sink && p.q_sink != nullptr;
    LoadQueries<T, kDim>((has_sink_queries ? p.q_sink : p.q) + first_pair * kDim, p.group, q_high, q_low);
    for (int piece = first_piece; piece < end_piece; ++piece) {
      const auto [begin, end] = VisitsOfPiece(plan, piece);
      WarpState<Shape::kSplits> state;
      const int num_padded = RoundsOf<Shape>(end - begin);
      for (int i = warp_group; i < num_padded; i += Shape::kGroups) {
        const int visit = begin + i;
        const int stage = (visits_before + i) % Shape::kStages;
        WaitFor(tail.full + stage, (visits_before + i) / Shape::kStages & 1);
        if (visit >= end) {
          if (lane == 0) Arrive(tail.empty + stage);
          continue;
        }
        const bool is_sink = visit < plan.visits.num_sink;
        if (has_sink_queries && !is_sink) {
          has_sink_queries = false;
          LoadQueries<T, kDim>(p.q + first_pair * kDim, p.group, q_high, q_low);
        }
        const TokenSpan span = {
            .first = static_cast<int64_t>(plan.visits.PageOf(visit)) * kPageTokens + first_slot,
            .begin = is_sink ? keys.sink_begin : keys.recent_begin,
            .end = is_sink ? keys.sink_end : keys.recent_end,
            .query_pos = is_sink ? mask.SinkPos(rows.first_pos) : rows.first_pos,
        };
        AttendTokens<T, Shape, kDim, kPageTokens, kExact>(ring + stage * Shape::kPageBytes, first_slot, span, q_high,
                                                          q_low, p, slope0, slope1, state);
        __syncwarp();
        if (lane == 0) Arrive(tail.empty + stage);
      }
      visits_before += num_padded;
      StoreWarpState(state, p.group, buffer);
      SyncConsumers();
      FinishPiece<kDim>(p, plan, piece, first_pair, first_q_head, buffer);
      if (num_buffers == 1) {
        SyncConsumers();
        continue;
      }
      // Who is behind by more than a piece is waited for above.
      const bool is_first = buffer.outputs == tail.outputs;
      buffer.outputs = tail.outputs + (is_first ? OutputFloats(p.group, kDim) : 0);
      buffer.softmax = tail.softmax + (is_first ? kSoftmaxPairs : 0);
    }
  });
}

template <typename T, int kDim, int kPageTokens, bool kExact>
void LaunchFor(const DecodeParams& params, CudaDevice& device) {
  using Shape = Shape16<T, kDim, kPageTokens>;
  const auto bytes = static_cast<size_t>(Shape::kRingBytes + TailBytes(Shape::kStages, params.group, kDim));
  Launch(device, "Attention", Overlapping(device.facts().num_multiprocessors, kThreads, bytes),
         DecodeKernel<T, kDim, kPageTokens, kExact>, params);
}

template <typename T, int kDim>
void LaunchFor(const DecodeParams& params, int64_t page_tokens, Compute compute, CudaDevice& device) {
  const bool is_exact = compute == Compute::kF32;
  if (page_tokens == 64) {
    return is_exact ? LaunchFor<T, kDim, 64, true>(params, device) : LaunchFor<T, kDim, 64, false>(params, device);
  }
  return is_exact ? LaunchFor<T, kDim, 32, true>(params, device) : LaunchFor<T, kDim, 32, false>(params, device);
}

template <typename T>
void LaunchFor(const DecodeParams& params, const KvLayout& layout, Compute compute, CudaDevice& device) {
  switch (layout.head_dim) {
    case 64:
      return LaunchFor<T, 64>(params, layout.page_tokens, compute, device);
    case 128:
      return LaunchFor<T, 128>(params, layout.page_tokens, compute, device);
    default:
      return LaunchFor<T, 256>(params, layout.page_tokens, compute, device);
  }
}

}  // namespace

bool DecodesFast(const AttentionArgs& args, const StepTables& tables) {
  return tables.decode().heads != nullptr && args.group() <= kMaxGroup;
}

void DecodeAttention(const AttentionArgs& args, const StepTables& tables, CudaDevice& device) {
  const KvStep step = tables.Decoding(*args.step);
  const KvLayout layout = step.Head(args.layer_idx, 0).layout();
  const int num_blocks = device.facts().num_multiprocessors;
  const DecodeTables& plan = tables.decode();
  const int64_t num_heads = step.num_heads();
  // Positions alone bound the pieces of a sequence's heads; in powers of two, so that many steps are launched alike.
  int64_t max_states = 0;
  bool has_pieces = false;
  for (const StepRows& rows : step.sequences) {
    const int64_t max_visits = CeilDiv(rows.first_pos + 1, layout.page_tokens) + 1;
    const auto pieces = static_cast<uint64_t>(PlanPieces(max_visits, layout.page_tokens));
    has_pieces = has_pieces || pieces > 1;
    max_states += step.num_kv_heads * static_cast<int64_t>(std::bit_ceil(pieces));
  }
  const int64_t state_floats = args.group() * layout.head_dim;
  const int64_t scratch_floats = max_states * (state_floats + 2 * args.group());
  auto* const states = reinterpret_cast<float*>(device.Scratch(static_cast<size_t>(scratch_floats) * sizeof(float)));
  if (!device.ok()) return;
  const DecodeParams params{
      .step = tables.decoding_view(),
      .heads = plan.heads + args.layer_idx * num_heads,
      .runs = plan.runs + args.layer_idx * (num_blocks + 1),
      .layer_idx = static_cast<int>(args.layer_idx),
      .group = static_cast<int>(args.group()),
      .scale = args.scale * kLog2E,
      .score_cap = args.score_cap * kLog2E,
      .q = F32(args.q),
      .q_sink = F32(args.q_sink),
      .alibi_slopes = F32(args.alibi_slopes),
      .sink_logits = F32(args.sink_logits),
      .out = F32(args.out),
      .lse = F32(args.lse),
      .state_outputs = states,
      .state_softmax = reinterpret_cast<float2*>(states + max_states * state_floats),
  };
  if (layout.format == KvFormat::kF16) {
    LaunchFor<__half>(params, layout, args.compute, device);
  } else {
    LaunchFor<__nv_bfloat16>(params, layout, args.compute, device);
  }
  if (has_pieces) MergeStates(params, static_cast<int>(num_heads), static_cast<int>(layout.head_dim), device);
}

}  // namespace headwise::cuda
