// What kernels of decode attention share (decode_attention.cu, decode_quantised.cu): pages on their way through shared
// memory, which warp reads which of them, and how the warps' states become a piece's. What a format's numbers are its
// Reader knows:
//   Reader(params)
//   LoadQueries(q, appender)  of a KV head's query heads, [G, D], rotated where the appender is on
//   LoadQueries(q)  as they are
//   Begin()         an empty softmax over no tokens
//   Attend(...)     the warp's tokens of a page join it
//   Store(tail)     into shared memory
#ifndef HEADWISE_BACKEND_CUDA_DECODE_RING_CUH_
#define HEADWISE_BACKEND_CUDA_DECODE_RING_CUH_

#include "backend/cuda/activation.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/decode_append.cuh"
#include "backend/cuda/decode_states.cuh"

namespace headwise::cuda::decode {

inline constexpr int kNumConsumers = 8;  // warps
inline constexpr int kConsumerThreads = kNumConsumers * static_cast<int>(kWarp);
inline constexpr int kThreads = kConsumerThreads + static_cast<int>(kWarp);
inline constexpr int kMaxGroup = 8;

// Of pages of kPageTokens tokens that pass through memory in stages of kStageBytes, and whose tokens go to the warps by
// kTokensOfWarp. A shape also says what a stage holds:
//   kAges        whether pages have aged (kQ4)
//   kHalvesNew   whether those that have not take two stages, a half of the tokens each, for one warp each
//   Copy(stage, page, slots, half, is_aged, barrier)  puts the copies of a page, or of a half of it, on their way: of
//                the slots that are read at least
template <int kDim_, int kPageTokens_, int kStageBytes_, int kTokensOfWarp_>
struct RingShape {
  static constexpr int kDim = kDim_;
  static constexpr int kPageTokens = kPageTokens_;
  static constexpr int kTokensOfWarp = kTokensOfWarp_;
  static constexpr int kStageBytes = kStageBytes_;
  static constexpr int kWarpsOfPage = kPageTokens / kTokensOfWarp;
  static constexpr int kGroups = kNumConsumers / kWarpsOfPage;  // of warps, each on a page of its own
  static constexpr int kSplits = kDim / 16;                     // of outputs, for one mma
};

// How shared memory is used: stages, barriers, states of the warps.
struct SharedPlan {
  int num_stages = 0;
  int num_buffers = 1;  // of states: with two, a piece's are put together while the next one's tokens are read
};
inline constexpr int kSoftmaxPairs = kNumConsumers * kMaxGroup;
__host__ __device__ constexpr int OutputFloats(int group, int dim) {
  return kNumConsumers * group * dim;
}
__host__ __device__ constexpr int BufferBytes(int group, int dim) {
  return OutputFloats(group, dim) * 4 + kSoftmaxPairs * 8;
}
__host__ __device__ constexpr int SharedBytes(const SharedPlan& plan, int stage_bytes, int group, int dim) {
  return plan.num_stages * (stage_bytes + 16) + plan.num_buffers * BufferBytes(group, dim);
}
// As many stages as there is room for, in whole rounds of the warp groups: a stage always serves the same group, else
// one could pass a barrier that is a phase behind.
template <typename Shape>
SharedPlan PlanShared(int group, int limit) {
  SharedPlan plan;
  const auto bytes = [&] { return SharedBytes(plan, Shape::kStageBytes, group, Shape::kDim); };
  while (bytes() <= limit) plan.num_stages += Shape::kGroups;
  plan.num_stages -= Shape::kGroups;
  plan.num_buffers = 2;
  if (bytes() > limit) plan.num_buffers = 1;
  return plan;
}

struct SharedTail {
  uint64_t* full;
  uint64_t* empty;
  float* outputs;   // [buffers][warps, G, D]
  float2* softmax;  // [buffers][warps, kMaxGroup]
};
__device__ inline SharedTail TailOf(char* at, const DecodeParams& p, int dim) {
  SharedTail tail;
  tail.full = reinterpret_cast<uint64_t*>(at);
  tail.empty = tail.full + p.num_stages;
  tail.outputs = reinterpret_cast<float*>(tail.empty + p.num_stages);
  tail.softmax = reinterpret_cast<float2*>(tail.outputs + p.num_buffers * OutputFloats(p.group, dim));
  return tail;
}

__device__ inline void SyncConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory");
}

// A piece's parts go round the warp groups from the first one on, so that its result does not depend on what else the
// block does; the last round is filled up with parts of nothing.
template <typename Shape>
__device__ int RoundsOf(int num_parts) {
  return (num_parts + Shape::kGroups - 1) / Shape::kGroups * Shape::kGroups;
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
__device__ inline int2 VisitsOfPiece(const HeadPlan& plan, int piece) {
  return {plan.BeginOf(piece), plan.BeginOf(piece + 1)};
}

// Tables of the run's next heads, a lane each: since the layer before, weights have put them out of the second-level
// cache, and what is looked up for a head are four reads one behind the other.
__device__ inline void WarmTables(const DecodeParams& p) {
  const RunStart end = p.runs[blockIdx.x + 1];
  const int head_idx = p.runs[blockIdx.x].head + 1 + static_cast<int>(threadIdx.x % kWarp);
  if (head_idx > end.head || (head_idx == end.head && end.piece == 0)) return;
  const HeadPlan plan = p.heads[head_idx];
  if (plan.num_pieces == 0) return;  // of the other kind: it has no pages here
  const DeviceHead head(p.step, p.layer_idx, head_idx);
  PrefetchLine(&p.step.pages[head.head.EntryOf(plan.visits.PageOf(0))]);
}

// Slots [begin, end) of a page, those that a visit reads.
struct Slots {
  int begin, end;
};

// How a head's visits pass through memory.
template <typename Shape>
__device__ VisitParts PartsOfHead(const HeadPlan& plan, const StepHead& head, int64_t first_pos) {
  if constexpr (!Shape::kHalvesNew) return {0, plan.visits.num_visits};
  return PartsOf(plan.visits, head.aged_begin, head.AgedEnd(first_pos, Shape::kPageTokens));
}

// Parts of pages in the order of visits; what is looked up for the next ones is on its way meanwhile.
// `may_read_all`: the kernel ahead writes none of them.
template <typename Shape>
__device__ void Produce(const DecodeParams& p, bool may_read_all, char* ring, const SharedTail& tail) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  int stage = 0;
  int round = 0;
  const auto enter = [&] {
    if (lane == 0 && round > 0) WaitFor(tail.empty + stage, (round - 1) & 1);
  };
  const auto leave = [&] {
    if (++stage < p.num_stages) return;
    stage = 0;
    ++round;
  };
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int first_piece, int end_piece) {
    const DeviceHead head(p.step, p.layer_idx, head_idx);
    const auto newest_page = static_cast<int32_t>(head.rows.first_pos / Shape::kPageTokens);
    const VisitParts parts = PartsOfHead<Shape>(plan, head.head, head.rows.first_pos);
    const KeyRanges keys = head.head.mask.KeysOf(head.rows.first_pos);
    const int end = parts.FirstOf(VisitsOfPiece(plan, end_piece - 1).y);
    struct Page {
      const std::byte* data = nullptr;
      KvFormat format = KvFormat::kF16;
      VisitParts::Part part;
      Slots slots = {0, 0};
    };
    const auto look_up = [&](int i) {
      Page page;
      if (i >= end) return page;
      page.part = parts.PartOf(i);
      const int64_t page_idx = plan.visits.PageOf(page.part.visit);
      page.data = head.Page(page_idx, page.format);
      const bool is_sink = page.part.visit < plan.visits.num_sink;
      const int64_t first = page_idx * Shape::kPageTokens;
      page.slots.begin = static_cast<int>(max((is_sink ? keys.sink_begin : keys.recent_begin) - first, int64_t{0}));
      page.slots.end = static_cast<int>(
          min((is_sink ? keys.sink_end : keys.recent_end) - first, static_cast<int64_t>(Shape::kPageTokens)));
      return page;
    };
    int in_piece = 0;
    int piece = first_piece;
    int end_of_piece = parts.FirstOf(VisitsOfPiece(plan, piece).y);
    int first = parts.FirstOf(VisitsOfPiece(plan, first_piece).x);
    Page next = look_up(first + lane);
    for (; first < end; first += kWarp) {
      const Page page = next;
      next = look_up(first + static_cast<int>(kWarp) + lane);
      // What the kernel before this one writes to: all else may be read while that one runs.
      const bool is_newest = first + lane < end && plan.visits.PageOf(page.part.visit) == newest_page;
      const unsigned newest = __ballot_sync(kAllLanes, is_newest);
      const unsigned aged = __ballot_sync(kAllLanes, page.format == KvFormat::kQ4);
      const unsigned second = __ballot_sync(kAllLanes, page.part.half == 1);
      for (int i = 0; i < min(static_cast<int>(kWarp), end - first); ++i) {
        const auto from = __shfl_sync(kAllLanes, reinterpret_cast<uint64_t>(page.data), i);
        const Slots slots = {__shfl_sync(kAllLanes, page.slots.begin, i), __shfl_sync(kAllLanes, page.slots.end, i)};
        if (!may_read_all && (newest >> i & 1) != 0) {
          WaitForEarlier();
          may_read_all = true;
        }
        enter();
        if (lane == 0) {
          Shape::Copy(ring + stage * Shape::kStageBytes, reinterpret_cast<const std::byte*>(from), slots,
                      static_cast<int>(second >> i & 1), (aged >> i & 1) != 0, tail.full + stage);
        }
        leave();
        ++in_piece;
        if (first + i + 1 < end_of_piece) continue;
        for (; in_piece % Shape::kGroups != 0; ++in_piece) {
          enter();
          if (lane == 0) Arrive(tail.full + stage);
          leave();
        }
        in_piece = 0;
        if (++piece < end_piece) end_of_piece = parts.FirstOf(VisitsOfPiece(plan, piece).y);
      }
      __syncwarp();
    }
  });
}

// The softmax of a warp over its tokens so far: of query 2 (lane % 4) and the next. Outputs are [16 dims, 8 queries]
// tiles.
template <int kSplits>
struct WarpState {
  float max0 = kNoScore, max1 = kNoScore;
  float sum0 = 0, sum1 = 0;  // over the lane's tokens
  float outputs[kSplits][4] = {};

  __device__ void Scale(float factor0, float factor1) {
    sum0 *= factor0;
    sum1 *= factor1;
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      outputs[i][0] *= factor0;
      outputs[i][1] *= factor1;
      outputs[i][2] *= factor0;
      outputs[i][3] *= factor1;
    }
  }
};

// Scores of the lane, `larger0` and `larger1` at most, join the maxima of all lanes' where one exceeds them by so much.
template <typename State>
__device__ void RaiseMaxima(float larger0, float larger1, State& state) {
  if (!__any_sync(kAllLanes, larger0 > state.max0 + kMaxSlack || larger1 > state.max1 + kMaxSlack)) return;
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    larger0 = fmaxf(larger0, __shfl_xor_sync(kAllLanes, larger0, distance));
    larger1 = fmaxf(larger1, __shfl_xor_sync(kAllLanes, larger1, distance));
  }
  larger0 = fmaxf(larger0, state.max0);
  larger1 = fmaxf(larger1, state.max1);
  state.Scale(Exp2(state.max0 - larger0), Exp2(state.max1 - larger1));
  state.max0 = larger0;
  state.max1 = larger1;
}

// The warp's tokens of a page: which of them are read, and how far they are from the query, under ALiBi.
struct TokenSpan {
  int first_slot;      // in the page
  int64_t first;       // position of the first
  int64_t begin, end;  // positions that the visit reads
  int64_t query_pos;

  __device__ bool ReadsAny(int num_tokens) const { return first < end && first + num_tokens > begin; }
  __device__ bool IsWhole(int num_tokens) const { return first >= begin && first + num_tokens <= end; }
  // Whether the token so far behind the first is read.
  __device__ bool Reads(int slot) const { return first + slot >= begin && first + slot < end; }
};

// A lane's score of the token `slot` behind the span's first; queries of the lane differ in their slope.
__device__ inline float ScoreOf(float score, int slot, bool is_whole, const TokenSpan& span, float slope) {
  if (!is_whole && !span.Reads(slot)) return -INFINITY;
  return score + slope * static_cast<float>(span.first + slot - span.query_pos);
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
      const int64_t at = pair * kDim + i % kDim;
      output *= FactorOf(p, pair, first_q_head + query, larger, sum, i % kDim == 0);
      p.out[at] = output;
      if (p.rounded_out.data != nullptr) p.rounded_out.Store(at, output);
      continue;
    }
    const int64_t state = (static_cast<int64_t>(plan.first_state) + piece) * p.group + query;
    __stcg(p.state_outputs + state * kDim + i % kDim, output);
    if (i % kDim == 0) __stcg(p.state_softmax + state, make_float2(larger, sum));
  }
}

// A decode kernel's whole work. Appender: Appender16 or NoAppender (decode_append.cuh).
template <typename Shape, typename Reader, typename Appender>
__device__ void RunDecode(const DecodeParams& p) {
  constexpr int kDim = Shape::kDim;
  LetLaterBegin();
  extern __shared__ __align__(1024) char shared[];
  char* const ring = shared;
  const SharedTail tail = TailOf(shared + p.num_stages * Shape::kStageBytes, p, kDim);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp == kNumConsumers && lane == 0) {
    for (int i = 0; i < p.num_stages; ++i) {
      InitBarrier(tail.full + i, 1);
      InitBarrier(tail.empty + i, Shape::kWarpsOfPage);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (warp == kNumConsumers) {
    Produce<Shape>(p, Appender(p).is_on(), ring, tail);
    return;
  }
  if (warp == kNumConsumers - 1) WarmTables(p);

  bool has_waited = false;
  const int warp_group = warp / Shape::kWarpsOfPage;
  const int warp_of_page = warp % Shape::kWarpsOfPage;
  const int first_slot = warp_of_page * Shape::kTokensOfWarp;
  // Of the ring: every kGroups-th stage is the warp's.
  int stage = warp_group;
  int parity = 0;
  SharedTail buffer = tail;  // of the piece under way
  Reader reader(p);
  Appender appender(p);
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int first_piece, int end_piece) {
    const int num_kv_heads = p.step.num_kv_heads;
    const StepRows rows = p.step.sequences[head_idx / num_kv_heads];
    const int kv_head = head_idx % num_kv_heads;
    const StepHead& head = p.step.heads[rows.first_head + p.layer_idx * num_kv_heads + kv_head];
    const KeyMask mask = head.mask;
    const KeyRanges keys = mask.KeysOf(rows.first_pos);
    const VisitParts parts = PartsOfHead<Shape>(plan, head, rows.first_pos);
    [[maybe_unused]] int64_t aged_begin = 0, aged_end = 0;
    if constexpr (Shape::kAges) {
      aged_begin = head.aged_begin;
      aged_end = head.AgedEnd(rows.first_pos, Shape::kPageTokens);
    }
    const int first_q_head = kv_head * p.group;
    const int64_t first_pair = rows.first_row * num_kv_heads * p.group + first_q_head;
    float slope0 = 0, slope1 = 0;
    if (p.alibi_slopes != nullptr) {
      const int query = 2 * (lane % 4);
      if (query < p.group) slope0 = p.alibi_slopes[first_q_head + query] * kLog2E;
      if (query + 1 < p.group) slope1 = p.alibi_slopes[first_q_head + query + 1] * kLog2E;
    }
    appender.BeginHead(head_idx, rows, end_piece == plan.num_pieces);
    if (!has_waited) WaitForEarlier();
    has_waited = true;
    bool has_sink_queries = VisitsOfPiece(plan, first_piece).x < plan.visits.num_sink && p.q_sink != nullptr;
    reader.LoadQueries((has_sink_queries ? p.q_sink : p.q) + first_pair * kDim, appender);
    appender.Load(static_cast<int64_t>(rows.first_row) * num_kv_heads + kv_head);
    for (int piece = first_piece; piece < end_piece; ++piece) {
      const auto [begin, end] = VisitsOfPiece(plan, piece);
      reader.Begin();
      const int first_part = parts.FirstOf(begin);
      const int num_parts = parts.FirstOf(end) - first_part;
      for (int i = warp_group; i < RoundsOf<Shape>(num_parts); i += Shape::kGroups) {
        WaitFor(tail.full + stage, parity);
        const VisitParts::Part part = i < num_parts ? parts.PartOf(first_part + i) : VisitParts::Part{};
        if (i < num_parts && (!Shape::kHalvesNew || part.half < 0 || part.half == warp_of_page)) {
          const bool is_sink = part.visit < plan.visits.num_sink;
          if (has_sink_queries && !is_sink) {
            has_sink_queries = false;
            reader.LoadQueries(p.q + first_pair * kDim);
          }
          const int64_t page_idx = plan.visits.PageOf(part.visit);
          const TokenSpan span = {
              .first_slot = first_slot,
              .first = page_idx * Shape::kPageTokens + first_slot,
              .begin = is_sink ? keys.sink_begin : keys.recent_begin,
              .end = is_sink ? keys.sink_end : keys.recent_end,
              .query_pos = is_sink ? mask.SinkPos(rows.first_pos) : rows.first_pos,
          };
          const bool is_aged = Shape::kAges && page_idx >= aged_begin && page_idx < aged_end;
          // The newest token is in the last page that is visited.
          if (appender.stores() && part.visit == plan.visits.num_visits - 1) {
            appender.Store(ring + stage * Shape::kStageBytes, first_slot, Shape::kTokensOfWarp);
          }
          if (span.ReadsAny(Shape::kTokensOfWarp)) {
            reader.Attend(ring + stage * Shape::kStageBytes, is_aged, span, slope0, slope1);
          }
          __syncwarp();
        }
        if (lane == 0) Arrive(tail.empty + stage);
        stage += Shape::kGroups;
        if (stage >= p.num_stages) {
          stage = warp_group;
          parity ^= 1;
        }
      }
      reader.Store(buffer);
      SyncConsumers();
      FinishPiece<kDim>(p, plan, piece, first_pair, first_q_head, buffer);
      if (p.num_buffers == 1) {
        SyncConsumers();
        continue;
      }
      // Who is behind by more than a piece is waited for above.
      const bool is_first = buffer.outputs == tail.outputs;
      buffer.outputs = tail.outputs + (is_first ? OutputFloats(p.group, kDim) : 0);
      buffer.softmax = tail.softmax + (is_first ? kSoftmaxPairs : 0);
    }
  });
  // In a layer whose heads are all of the other kind nobody has: who waits for this kernel waits for those ahead too.
  if (!has_waited && blockIdx.x == 0) WaitForEarlier();
}

// Fills in how shared memory is used.
template <typename Shape>
LaunchShape ShapeOfLaunch(DecodeParams& params, const CudaDevice& device) {
  const SharedPlan plan = PlanShared<Shape>(params.group, static_cast<int>(device.facts().shared_bytes_of_block));
  params.num_stages = plan.num_stages;
  params.num_buffers = plan.num_buffers;
  const int bytes = SharedBytes(plan, Shape::kStageBytes, params.group, Shape::kDim);
  return Overlapping(device.facts().num_multiprocessors, kThreads, static_cast<size_t>(bytes));
}

}  // namespace headwise::cuda::decode

#endif  // HEADWISE_BACKEND_CUDA_DECODE_RING_CUH_
