// What kernels of decode attention share (decode_attention.cu, decode_quantised.cu): pages on their way through shared
// memory, which warp reads which of them, and how the warps' states become a piece's. What a format's numbers are its
// Reader knows:
//   Reader(params)
//   LoadQueries(q, angles)  of a KV head's query heads, [G, D], rotated on the way unless `angles` is null
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

inline constexpr int kMaxGroup = 8;

// Of pages of kPageTokens tokens that pass through memory in stages of kStageBytes, and whose tokens go to
// kNumConsumers warps by kTokensOfWarp. A shape also says what a stage holds:
//   kAges        whether pages have aged (kQ4)
//   kHalvesNew   whether those that have not take two stages, a half of the tokens each, for one warp each
//   Copy(stage, page, visit, barrier)  puts the copies of a page, or of a half of it, on their way: of the slots that
//                are read at least
template <int kDim_, int kPageTokens_, int kStageBytes_, int kTokensOfWarp_, int kNumConsumers_>
struct RingShape {
  static constexpr int kDim = kDim_;
  static constexpr int kPageTokens = kPageTokens_;
  static constexpr int kTokensOfWarp = kTokensOfWarp_;
  static constexpr int kStageBytes = kStageBytes_;
  static constexpr int kNumConsumers = kNumConsumers_;
  static constexpr int kConsumerThreads = kNumConsumers * static_cast<int>(kWarp);
  // With a warp that makes copies and one that appends: registers are given to four warps at a time, so that both cost
  // what one would.
  static constexpr int kThreads = kConsumerThreads + 2 * static_cast<int>(kWarp);
  static constexpr int kWarpsOfPage = kPageTokens / kTokensOfWarp;
  static constexpr int kGroups = kNumConsumers / kWarpsOfPage;  // of warps, each on a page of its own
  static_assert(kNumConsumers % kWarpsOfPage == 0);
  static constexpr int kSplits = kDim / 16;  // of outputs, for one mma
  static constexpr int kSoftmaxPairs = kNumConsumers * kMaxGroup;
};

// How shared memory is used: stages, what they hold, barriers, states of the warps.
struct SharedPlan {
  int num_stages = 0;
  int num_buffers = 1;  // of states: with two, a piece's are put together while the next one's tokens are read
};
template <int kDim>
inline constexpr int kOutputRow = kDim + 4;  // so that a warp's queries are in other banks each
template <typename Shape>
__host__ __device__ constexpr int OutputFloats(int group) {
  return Shape::kNumConsumers * group * kOutputRow<Shape::kDim>;
}

// What a stage holds, said by who makes its copies: readers look up nothing themselves.
struct alignas(16) StageVisit {
  enum Flag : uint32_t {
    kIsAged = 1,
    kIsSink = 2,     // of the sink range
    kHasFirst = 4,   // the first half of the page's tokens,
    kHasSecond = 8,  // the second
  };
  int32_t begin = 0, end = 0;  // slots of the page that are read: none where a ring is filled up
  int32_t distance = 0;        // of the page's first slot from the query, in positions
  uint32_t flags = 0;

  __device__ bool Is(Flag flag) const { return (flags & flag) != 0; }
  __device__ bool HasHalf(int half) const { return Is(half == 0 ? kHasFirst : kHasSecond); }
};

// A copy of a head's newest page on its way, to which the newest token is added before it is read.
struct alignas(16) NewestPage {
  std::byte* page = nullptr;
  int32_t stage = 0;
};
inline constexpr int kNewestPages = 2;  // at a time: the next head's is copied while a token is added to this one
inline constexpr int kNewestBytes = kNewestPages * static_cast<int>(sizeof(NewestPage) + 2 * sizeof(uint64_t));

template <typename Shape>
constexpr int SharedBytes(const SharedPlan& plan, int group) {
  const int of_stage = Shape::kStageBytes + static_cast<int>(sizeof(StageVisit) + 2 * sizeof(uint64_t));
  const int of_buffer = OutputFloats<Shape>(group) * 4 + Shape::kSoftmaxPairs * 8;
  return plan.num_stages * of_stage + kNewestBytes + plan.num_buffers * of_buffer;
}
// As many stages as there is room for, in whole rounds of the warp groups: a stage always serves the same group, else
// one could pass a barrier that is a phase behind.
template <typename Shape>
SharedPlan PlanShared(int group, int limit) {
  SharedPlan plan;
  while (SharedBytes<Shape>(plan, group) <= limit) plan.num_stages += Shape::kGroups;
  plan.num_stages -= Shape::kGroups;
  plan.num_buffers = 2;
  if (SharedBytes<Shape>(plan, group) > limit) plan.num_buffers = 1;
  return plan;
}

struct SharedTail {
  StageVisit* visits;  // [stages]
  uint64_t* full;
  uint64_t* empty;
  NewestPage* newest;  // [kNewestPages]
  uint64_t* newest_full;
  uint64_t* newest_empty;
  float* outputs;   // [buffers][warps, G, kOutputRow]
  float2* softmax;  // [buffers][warps, kMaxGroup]
};
template <typename Shape>
__device__ SharedTail TailOf(char* at, const DecodeParams& p) {
  SharedTail tail;
  tail.visits = reinterpret_cast<StageVisit*>(at);
  tail.full = reinterpret_cast<uint64_t*>(tail.visits + p.num_stages);
  tail.empty = tail.full + p.num_stages;
  tail.newest = reinterpret_cast<NewestPage*>(tail.empty + p.num_stages);
  tail.newest_full = reinterpret_cast<uint64_t*>(tail.newest + kNewestPages);
  tail.newest_empty = tail.newest_full + kNewestPages;
  tail.outputs = reinterpret_cast<float*>(tail.newest_empty + kNewestPages);
  tail.softmax = reinterpret_cast<float2*>(tail.outputs + p.num_buffers * OutputFloats<Shape>(p.group));
  return tail;
}

template <typename Shape>
__device__ void SyncConsumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(Shape::kConsumerThreads) : "memory");
}

// Parts of a head's visits go round the warp groups by their number in the head, so that a piece's result does not
// depend on what else the block does. How many empty parts come ahead of a head's first one in a run, so that part
// `first` falls to group `first` mod kGroups: `group` has the next turn.
template <typename Shape>
__device__ int NumFilling(int group, int first) {
  return (first % Shape::kGroups - group + Shape::kGroups) % Shape::kGroups;
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

// How a head's visits pass through memory.
template <typename Shape>
__device__ VisitParts PartsOfHead(const HeadPlan& plan, const StepHead& head, int64_t first_pos) {
  if constexpr (!Shape::kHalvesNew) return {0, plan.visits.num_visits};
  return PartsOf(plan.visits, head.aged_begin, head.AgedEnd(first_pos, Shape::kPageTokens));
}

// Parts of pages in the order of visits, 32 at a time: a lane looks up its own part, while those ahead are on their
// way, and makes its copies. Where the newest token is to be appended, the copy of its page goes by AppendNewest.
template <typename Shape>
__device__ void Produce(const DecodeParams& p, char* ring, const SharedTail& tail) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const bool appends = Appends<Shape::kDim>(p);
  bool has_waited = false;
  int num_newest = 0;
  int stage = 0;
  int round = 0;
  const auto enter = [&] {
    if (round > 0) WaitFor(tail.empty + stage, (round - 1) & 1);
  };
  const auto leave = [&] {
    if (++stage < p.num_stages) return;
    stage = 0;
    ++round;
  };
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int first_piece, int end_piece) {
    const DeviceHead head(p.step, p.layer_idx, head_idx);
    const int64_t query_pos = head.rows.first_pos;
    const int64_t sink_query_pos = head.head.mask.SinkPos(query_pos);
    const auto newest_page = static_cast<int32_t>(query_pos / Shape::kPageTokens);
    const int newest_slot = static_cast<int>(query_pos % Shape::kPageTokens);
    const VisitParts parts = PartsOfHead<Shape>(plan, head.head, query_pos);
    const KeyRanges keys = head.head.mask.KeysOf(query_pos);
    const int end = parts.FirstOf(VisitsOfPiece(plan, end_piece - 1).y);
    struct Page {
      std::byte* data = nullptr;
      bool needs_newest = false;  // the token: its copy waits for whoever writes that
      StageVisit visit;
    };
    const auto look_up = [&](int i) {
      Page page;
      if (i >= end) return page;
      const VisitParts::Part part = parts.PartOf(i);
      const int32_t page_idx = plan.visits.PageOf(part.visit);
      KvFormat format;
      page.data = head.Page(page_idx, format);
      const bool is_sink = part.visit < plan.visits.num_sink;
      const bool is_last = part.visit == plan.visits.num_visits - 1;
      const int64_t first = static_cast<int64_t>(page_idx) * Shape::kPageTokens;
      const int64_t begin = (is_sink ? keys.sink_begin : keys.recent_begin) - first;
      const int64_t end_of_range = (is_sink ? keys.sink_end : keys.recent_end) - first;
      page.visit = {
          .begin = static_cast<int32_t>(max(begin, int64_t{0})),
          .end = static_cast<int32_t>(min(end_of_range, static_cast<int64_t>(Shape::kPageTokens))),
          .distance = static_cast<int32_t>(first - (is_sink ? sink_query_pos : query_pos)),
          .flags = (format == KvFormat::kQ4 ? StageVisit::kIsAged : 0u) | (is_sink ? StageVisit::kIsSink : 0u) |
                   (part.half != 1 ? StageVisit::kHasFirst : 0u) | (part.half != 0 ? StageVisit::kHasSecond : 0u),
      };
      // Both ranges may touch the page: the last visit reads the token.
      page.needs_newest =
          page_idx == newest_page &&
          (!appends || (is_last && (!Shape::kHalvesNew || page.visit.HasHalf(newest_slot / Shape::kTokensOfWarp))));
      return page;
    };
    int first = parts.FirstOf(VisitsOfPiece(plan, first_piece).x);
    Page next = look_up(first + lane);
    for (int filling = NumFilling<Shape>(stage % Shape::kGroups, first); filling > 0; --filling) {
      enter();
      if (lane == 0) {
        tail.visits[stage] = {};
        Arrive(tail.full + stage);
      }
      __syncwarp();
      leave();
    }
    for (; first < end; first += kWarp) {
      const Page page = next;
      next = look_up(first + static_cast<int>(kWarp) + lane);
      const unsigned need_newest = __ballot_sync(kAllLanes, page.needs_newest);
      for (int i = 0; i < min(static_cast<int>(kWarp), end - first); ++i) {
        const bool needs_newest = (need_newest >> i & 1) != 0;
        // What the kernel before this one writes: all else may be read while that one runs.
        if (!appends && needs_newest && !has_waited) {
          WaitForEarlier();
          has_waited = true;
        }
        enter();
        uint64_t* barrier = tail.full + stage;
        if (appends && needs_newest) {
          const int at = num_newest % kNewestPages;
          if (num_newest >= kNewestPages) WaitFor(tail.newest_empty + at, (num_newest / kNewestPages - 1) & 1);
          ++num_newest;
          barrier = tail.newest_full + at;
          if (lane == i) tail.newest[at] = {page.data, stage};
        }
        if (lane == i) {
          tail.visits[stage] = page.visit;
          Shape::Copy(ring + stage * Shape::kStageBytes, page.data, page.visit, barrier);
        }
        __syncwarp();  // a lane that has made its copies may not be lapped
        leave();
      }
    }
  });
}

// Adds the newest tokens of the run's heads to their pages, and to the copies of these before they are read.
template <typename Shape, typename Appender>
__device__ void AppendNewest(const DecodeParams& p, char* ring, const SharedTail& tail) {
  if (!Appends<Shape::kDim>(p)) return;
  int count = 0;
  SequenceAtHand<Shape::kDim> sequence;
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int /*first_piece*/, int end_piece) {
    if (end_piece < plan.num_pieces) return;  // another block has it
    const int num_kv_heads = p.step.num_kv_heads;
    sequence.MoveTo(p, head_idx / num_kv_heads);
    const StepRows& rows = sequence.rows;
    Appender token(sequence.angles);
    if (count == 0) WaitForEarlier();
    token.Load(p.new_rows, static_cast<int64_t>(rows.first_row) * num_kv_heads + head_idx % num_kv_heads);
    const int at = count % kNewestPages;
    WaitFor(tail.newest_full + at, count / kNewestPages & 1);
    const NewestPage newest = tail.newest[at];
    token.Store(newest.page, ring + newest.stage * Shape::kStageBytes,
                static_cast<int>(rows.first_pos % Shape::kPageTokens));
    FenceSharedWrites();
    __syncwarp();
    if (threadIdx.x % kWarp == 0) {
      Arrive(tail.full + newest.stage);
      Arrive(tail.newest_empty + at);
    }
    ++count;
  });
}

// The softmax of a warp over its tokens so far: of query 2 (lane % 4) and the next. Outputs are [16 dims, 8 queries]
// tiles. Weights are powers of two of what scores exceed `max` by, which lies kWeightBits below the running maximum.
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

// Scores of the lane, `larger0` and `larger1` at most, join the maxima of all lanes' where one exceeds them by more
// than kMaxSlack.
template <typename State>
__device__ void RaiseMaxima(float larger0, float larger1, State& state) {
  constexpr float kMost = kMaxSlack + kWeightBits;
  if (!__any_sync(kAllLanes, larger0 > state.max0 + kMost || larger1 > state.max1 + kMost)) return;
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
    larger0 = fmaxf(larger0, __shfl_xor_sync(kAllLanes, larger0, distance));
    larger1 = fmaxf(larger1, __shfl_xor_sync(kAllLanes, larger1, distance));
  }
  larger0 = fmaxf(larger0 - kWeightBits, state.max0);
  larger1 = fmaxf(larger1 - kWeightBits, state.max1);
  state.Scale(Exp2(state.max0 - larger0), Exp2(state.max1 - larger1));
  state.max0 = larger0;
  state.max1 = larger1;
}

// The warp's tokens of a page: which of them are read, and how far they are from the query, under ALiBi.
struct TokenSpan {
  int first_slot;  // in the page
  int begin, end;  // slots of the page that the visit reads
  int distance;    // of the page's first slot from the query

  __device__ bool ReadsAny(int num_tokens) const { return first_slot < end && first_slot + num_tokens > begin; }
  __device__ bool IsWhole(int num_tokens) const { return first_slot >= begin && first_slot + num_tokens <= end; }
  // Whether the token so far behind the first is read.
  __device__ bool Reads(int slot) const { return first_slot + slot >= begin && first_slot + slot < end; }
};

// A lane's score of the token `slot` behind the span's first; queries of the lane differ in their slope.
__device__ inline float ScoreOf(float score, int slot, bool is_whole, const TokenSpan& span, float slope) {
  if (!is_whole && !span.Reads(slot)) return -INFINITY;
  return score + slope * static_cast<float>(span.distance + span.first_slot + slot);
}

// The warp's state into shared memory.
template <int kSplits>
__device__ void StoreWarpState(WarpState<kSplits>& state, int group, const SharedTail& tail) {
  constexpr int kRow = kOutputRow<kSplits * 16>;
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
    float* outputs = tail.outputs + (warp * group + query) * kRow + d;
    if (query < group) {
      outputs[0] = state.outputs[i][0];
      outputs[8] = state.outputs[i][2];
    }
    if (query + 1 < group) {
      outputs[kRow] = state.outputs[i][1];
      outputs[kRow + 8] = state.outputs[i][3];
    }
  }
}

// The warps' states become the piece's: written as the output where the head has one piece. Four numbers a thread: the
// warps that have none go on, other ones for each piece.
template <typename Shape>
__device__ void FinishPiece(const DecodeParams& p, const HeadPlan& plan, int piece, int64_t first_pair,
                            int first_q_head, const SharedTail& tail) {
  constexpr int kOfQuery = Shape::kDim / 4;
  constexpr int kRow = kOutputRow<Shape::kDim>;
  const int num = p.group * kOfQuery;
  int first = static_cast<int>(threadIdx.x) - piece * num % Shape::kConsumerThreads;
  if (first < 0) first += Shape::kConsumerThreads;
  for (int i = first; i < num; i += Shape::kConsumerThreads) {
    const int query = i / kOfQuery;
    const int d = i % kOfQuery * 4;
    float larger = kNoScore;
#pragma unroll
    for (int w = 0; w < Shape::kNumConsumers; ++w) larger = fmaxf(larger, tail.softmax[w * kMaxGroup + query].x);
    float sum = 0;
    float4 output = {0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < Shape::kNumConsumers; ++w) {
      const float2 softmax = tail.softmax[w * kMaxGroup + query];
      const float4 of_warp = *reinterpret_cast<const float4*>(tail.outputs + (w * p.group + query) * kRow + d);
      const float factor = Exp2(softmax.x - larger);
      sum += factor * softmax.y;
      output.x += factor * of_warp.x;
      output.y += factor * of_warp.y;
      output.z += factor * of_warp.z;
      output.w += factor * of_warp.w;
    }
    if (plan.num_pieces == 1) {
      const int64_t pair = first_pair + query;
      const int64_t at = pair * Shape::kDim + d;
      const float factor = FactorOf(p, pair, first_q_head + query, larger, sum, d == 0);
      const float4 scaled = {output.x * factor, output.y * factor, output.z * factor, output.w * factor};
      *reinterpret_cast<float4*>(p.out + at) = scaled;
      if (p.rounded_out.are_wanted()) p.rounded_out.StoreQuad(at / 4, scaled);
      continue;
    }
    const int64_t state = (static_cast<int64_t>(plan.first_state) + piece) * p.group + query;
    __stcg(reinterpret_cast<float4*>(p.state_outputs + state * Shape::kDim + d), output);
    if (d == 0) __stcg(p.state_softmax + state, make_float2(larger, sum));
  }
}

// A decode kernel's whole work. Appender: as decode_append.cuh has them.
template <typename Shape, typename Reader, typename Appender>
__device__ void RunDecode(const DecodeParams& p) {
  constexpr int kDim = Shape::kDim;
  LetLaterBegin();
  extern __shared__ __align__(1024) char shared[];
  char* const ring = shared;
  const SharedTail tail = TailOf<Shape>(shared + p.num_stages * Shape::kStageBytes, p);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp == Shape::kNumConsumers && lane == 0) {
    for (int i = 0; i < p.num_stages; ++i) {
      InitBarrier(tail.full + i, 1);
      InitBarrier(tail.empty + i, Shape::kWarpsOfPage);
    }
    for (int i = 0; i < kNewestPages; ++i) {
      InitBarrier(tail.newest_full + i, 1);
      InitBarrier(tail.newest_empty + i, 1);
    }
    FenceBarrierInit();
  }
  __syncthreads();
  if (warp == Shape::kNumConsumers) return Produce<Shape>(p, ring, tail);
  if (warp == Shape::kNumConsumers + 1) return AppendNewest<Shape, Appender>(p, ring, tail);
  if (warp == Shape::kNumConsumers - 1) WarmTables(p);

  bool has_waited = false;
  const int warp_group = warp / Shape::kWarpsOfPage;
  const int warp_of_page = warp % Shape::kWarpsOfPage;
  const int first_slot = warp_of_page * Shape::kTokensOfWarp;
  // Of the ring: every kGroups-th stage is the warp's.
  int stage = warp_group;
  int parity = 0;
  int turn = 0;              // the warp group that the ring's next part is for
  SharedTail buffer = tail;  // of the piece under way
  SequenceAtHand<kDim> sequence;
  Reader reader(p);
  ForHeads(p, [&](int head_idx, const HeadPlan& plan, int first_piece, int end_piece) {
    const int num_kv_heads = p.step.num_kv_heads;
    const bool is_next = sequence.MoveTo(p, head_idx / num_kv_heads);
    const StepRows& rows = sequence.rows;
    const float* const angles = sequence.angles;
    // Held, they would cost registers.
    if (is_next && angles != nullptr && lane < kDim / 32) PrefetchLine(angles + lane * 32);
    const int kv_head = head_idx % num_kv_heads;
    const StepHead& head = p.step.heads[rows.first_head + p.layer_idx * num_kv_heads + kv_head];
    const VisitParts parts = PartsOfHead<Shape>(plan, head, rows.first_pos);
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
    bool has_sink_queries = VisitsOfPiece(plan, first_piece).x < plan.visits.num_sink && p.q_sink != nullptr;
    reader.LoadQueries((has_sink_queries ? p.q_sink : p.q) + first_pair * kDim, angles);
    // The next part that is the warp's.
    const int first_part = parts.FirstOf(VisitsOfPiece(plan, first_piece).x);
    int part = first_part - NumFilling<Shape>(turn, first_part) + (warp_group - turn + Shape::kGroups) % Shape::kGroups;
    int end_part = first_part;
    for (int piece = first_piece; piece < end_piece; ++piece) {
      reader.Begin();
      end_part = parts.FirstOf(VisitsOfPiece(plan, piece).y);
      for (; part < end_part; part += Shape::kGroups) {
        WaitFor(tail.full + stage, parity);
        const StageVisit visit = tail.visits[stage];
        const TokenSpan span = {first_slot, visit.begin, visit.end, visit.distance};
        char* const page = ring + stage * Shape::kStageBytes;
        if (span.ReadsAny(Shape::kTokensOfWarp) && (!Shape::kHalvesNew || visit.HasHalf(warp_of_page))) {
          if (has_sink_queries && !visit.Is(StageVisit::kIsSink)) {
            has_sink_queries = false;
            reader.LoadQueries(p.q + first_pair * kDim, nullptr);  // where there are two, both are rotated
          }
          reader.Attend(page, Shape::kAges && visit.Is(StageVisit::kIsAged), span, slope0, slope1);
        }
        __syncwarp();  // all have read the visit and the page
        if (lane == 0) Arrive(tail.empty + stage);
        stage += Shape::kGroups;
        if (stage >= p.num_stages) {
          stage = warp_group;
          parity ^= 1;
        }
      }
      reader.Store(buffer);
      SyncConsumers<Shape>();
      FinishPiece<Shape>(p, plan, piece, first_pair, first_q_head, buffer);
      if (p.num_buffers == 1) {
        SyncConsumers<Shape>();
        continue;
      }
      // Who is behind by more than a piece is waited for above.
      const bool is_first = buffer.outputs == tail.outputs;
      buffer.outputs = tail.outputs + (is_first ? OutputFloats<Shape>(p.group) : 0);
      buffer.softmax = tail.softmax + (is_first ? Shape::kSoftmaxPairs : 0);
    }
    turn = end_part % Shape::kGroups;
  });
  // In a layer whose heads are all of the other kind nobody has: who waits for this kernel waits for those ahead too.
  if (!has_waited && blockIdx.x == 0) WaitForEarlier();
}

// body.template operator()<kDim, kPageTokens>()
template <typename Body>
auto ForPages(const FastPages& pages, const Body& body) {
  const auto of_dim = [&]<int kDim>() {
    return pages.page_tokens == 64 ? body.template operator()<kDim, 64>() : body.template operator()<kDim, 32>();
  };
  switch (pages.head_dim) {
    case 64:
      return of_dim.template operator()<64>();
    case 128:
      return of_dim.template operator()<128>();
    default:
      return of_dim.template operator()<256>();
  }
}

// Whether a block has room for one round of stages.
template <typename Shape>
bool HasRoom(int64_t group, const CudaDevice& device) {
  return PlanShared<Shape>(static_cast<int>(group), static_cast<int>(device.facts().shared_bytes_of_block)).num_stages >
         0;
}

// Fills in how shared memory is used. Requires: HasRoom.
template <typename Shape>
LaunchShape ShapeOfLaunch(DecodeParams& params, const CudaDevice& device) {
  const SharedPlan plan = PlanShared<Shape>(params.group, static_cast<int>(device.facts().shared_bytes_of_block));
  params.num_stages = plan.num_stages;
  params.num_buffers = plan.num_buffers;
  const int bytes = SharedBytes<Shape>(plan, params.group);
  return Overlapping(device.facts().num_multiprocessors, Shape::kThreads, static_cast<size_t>(bytes));
}

}  // namespace headwise::cuda::decode

#endif  // HEADWISE_BACKEND_CUDA_DECODE_RING_CUH_
