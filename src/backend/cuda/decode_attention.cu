// Decode attention over 16-bit pages: one new token a sequence, D 64, 128 or 256, pages of 32 or 64 tokens, up to 8
// query heads a KV head. One launch a layer over all heads with such pages, of all sequences, whatever their rules.
//
// Bound by reading every page once, 4 P D bytes. One block a multiprocessor: a producer warp brings pages by bulk
// copies into a ring of shared memory, as many as fit; eight consumer warps take 16 tokens each and
// multiply by mma.m16n8k16 with tokens as its 16 rows and queries as its 8 columns, so that a small group wastes half
// and not three quarters. Queries and weights are split in two numbers of 16 bits where products in f32 are asked for.
// Every piece leaves a state; a second kernel merges them where there are several. Behind a product, queries and keys
// are rotated and the newest token is written on the way (decode_append.cuh).
#include <algorithm>
#include <type_traits>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/decode_ring.cuh"

namespace headwise::cuda {
namespace decode {
namespace {

constexpr int kTokens = 16;  // of a page for a warp
constexpr int kNumConsumers = 8;

template <int kDim, int kPageTokens>
struct Shape16 : RingShape<kDim, kPageTokens, 4 * kPageTokens * kDim, kTokens, kNumConsumers> {
  static constexpr bool kAges = false;
  static constexpr bool kHalvesNew = false;
  // At the ends of a head's ranges, and of the newest page, not all is read: rows of 64 numbers lie together.
  static __device__ void Copy(char* stage, const std::byte* page, const StageVisit& visit, uint64_t* barrier) {
    constexpr int kRowBytes = 128;
    const int num_slots = visit.end - visit.begin;
    if (num_slots == kPageTokens) {
      ExpectBytes(barrier, Shape16::kStageBytes);
      BulkCopyOnce(stage, page, Shape16::kStageBytes, barrier);
      return;
    }
    ExpectBytes(barrier, num_slots * kDim * 4);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {  // of keys, of values
      const int at = (i * kPageTokens + visit.begin) * kRowBytes;
      BulkCopyOnce(stage + at, page + at, num_slots * kRowBytes, barrier);
    }
  }
};

// Two numbers of 16 bits that make one of f32, nearly.
template <typename T>
__device__ void Split(float x, float& high, float& low) {
  high = Round<T>(x);
  low = x - high;
}

// A lane's queries as the second operand of kDim / 16 products: numbers 2 (lane % 4), + 1, + 8 and + 9 of each 16, of
// query lane / 4. `low` holds what rounding left.
template <typename T, int kDim>
class Queries {
 public:
  __device__ void Load(const float* q, int group, const float* angles) {
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      float2 low = At(q, group, i);
      float2 high = At(q, group, i + kDim / 16);
      if (angles != nullptr) {
        const float4 of_pairs = *reinterpret_cast<const float4*>(angles + 2 * (i * 8 + FirstOfLane()));
        const float2 first = Rotated(low.x, high.x, {of_pairs.x, of_pairs.y});
        const float2 second = Rotated(low.y, high.y, {of_pairs.z, of_pairs.w});
        low = {first.x, second.x};
        high = {first.y, second.y};
      }
      Set(i, low);
      Set(i + kDim / 16, high);
    }
  }
  __device__ uint32_t high(int i) const {
    return high_[i];
  }
  __device__ uint32_t low(int i) const {
    return low_[i];
  }

 private:
  static __device__ float2 At(const float* q, int group, int i) {
    const int query = static_cast<int>(threadIdx.x % kWarp / 4);
    return query < group ? *reinterpret_cast<const float2*>(q + query * kDim + i * 8 + FirstOfLane()) : float2{0, 0};
  }
  static __device__ int FirstOfLane() {
    return 2 * static_cast<int>(threadIdx.x % 4);
  }
  __device__ void Set(int i, const float2& x) {
    float2 high, low;
    Split<T>(x.x, high.x, low.x);
    Split<T>(x.y, high.y, low.y);
    high_[i] = Pack<T>(high.x, high.y);
    low_[i] = Pack<T>(low.x, low.y);
  }

  uint32_t high_[kDim / 8], low_[kDim / 8];
};

template <typename T, typename Shape, bool kExact>
class Reader16 {
 public:
  static constexpr int kDim = Shape::kDim;

  __device__ explicit Reader16(const DecodeParams& params) : p_(params) {}
  __device__ void LoadQueries(const float* q, const float* angles) { queries_.Load(q, p_.group, angles); }
  __device__ void Begin() { state_ = {}; }
  __device__ void Store(const SharedTail& tail) { StoreWarpState(state_, p_.group, tail); }

  __device__ void Attend(char* page, bool /*is_aged*/, const TokenSpan& span, float slope0, float slope1) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    constexpr int kRowBytes = 128;  // of 64 numbers
    const uint32_t keys = SharedAddress(page);
    const uint32_t values = keys + Shape::kPageTokens * kDim * 2;

    float scores[2][4] = {};
    {
      const int row = span.first_slot + (lane & 7) + ((lane >> 3) & 1) * 8;
      const uint32_t at = keys + row * kRowBytes;
#pragma unroll
      for (int k = 0; k < Shape::kSplits; ++k) {
        const int chunk = (k % 4) * 2 + (lane >> 4);
        uint32_t tile[4];
        LoadMatrix(tile, at + (k / 4) * Shape::kPageTokens * kRowBytes + ((chunk ^ (row & 7)) << 4));
        MultiplyAdd<T>(scores[kExact ? 0 : k % 2], tile, queries_.high(2 * k), queries_.high(2 * k + 1));
        if constexpr (kExact) MultiplyAdd<T>(scores[1], tile, queries_.low(2 * k), queries_.low(2 * k + 1));
      }
    }
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = (scores[0][i] + scores[1][i]) * p_.scale;
    if (p_.score_cap != 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = SoftCapped(x[i], p_.score_cap);
    }
    const bool is_whole = span.IsWhole(kTokens);
    if (!is_whole) ClearUnread(page, span);
    if (!is_whole || p_.alibi_slopes != nullptr) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = ScoreOf(x[i], lane / 4 + (i / 2) * 8, is_whole, span, i % 2 == 0 ? slope0 : slope1);
      }
    }
    RaiseMaxima(fmaxf(x[0], x[2]), fmaxf(x[1], x[3]), state_);
    float high[4], low[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = Exp2(x[i] - (i % 2 == 0 ? state_.max0 : state_.max1));
      (i % 2 == 0 ? state_.sum0 : state_.sum1) += weight;
      Split<T>(weight, high[i], low[i]);
    }
    const uint32_t high0 = Transpose(Pack<T>(high[0], high[1]));
    const uint32_t high1 = Transpose(Pack<T>(high[2], high[3]));
    uint32_t low0 = 0, low1 = 0;
    if constexpr (kExact) {
      low0 = Transpose(Pack<T>(low[0], low[1]));
      low1 = Transpose(Pack<T>(low[2], low[3]));
    }
    const int row = span.first_slot + (lane & 7) + (lane >> 4) * 8;
    const uint32_t at = values + row * kRowBytes;
#pragma unroll
    for (int i = 0; i < Shape::kSplits; ++i) {
      const int chunk = (i % 4) * 2 + ((lane >> 3) & 1);
      uint32_t tile[4];
      LoadMatrixTransposed(tile, at + (i / 4) * Shape::kPageTokens * kRowBytes + ((chunk ^ (row & 7)) << 4));
      MultiplyAdd<T>(state_.outputs[i], tile, high0, high1);
      if constexpr (kExact) MultiplyAdd<T>(state_.outputs[i], tile, low0, low1);
    }
  }

 private:
  // Values that are not read become zeros, where a score of minus infinity alone would not help against whatever memory
  // holds there. A lane half of a row.
  __device__ void ClearUnread(char* page, const TokenSpan& span) const {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    if (!span.Reads(lane / 2)) {
      char* const values = page + Shape::kPageTokens * kDim * 2 + (span.first_slot + lane / 2) * 128 + lane % 2 * 64;
#pragma unroll
      for (int i = 0; i < kDim / 64 * 4; ++i) {
        *reinterpret_cast<uint4*>(values + i / 4 * Shape::kPageTokens * 128 + i % 4 * 16) = {0, 0, 0, 0};
      }
      FenceSharedWrites();
    }
    __syncwarp();
  }

  const DecodeParams& p_;
  Queries<T, kDim> queries_;
  WarpState<Shape::kSplits> state_;
};

template <typename T, int kDim, int kPageTokens, bool kExact>
__global__ void __launch_bounds__(Shape16<kDim, kPageTokens>::kThreads, 1) DecodeKernel(DecodeParams p) {
  using Shape = Shape16<kDim, kPageTokens>;
  using Appender = std::conditional_t<Appends(kDim), Appender16<T, kDim, kPageTokens>, NoAppender>;
  RunDecode<Shape, Reader16<T, Shape, kExact>, Appender>(p);
}

template <typename T, bool kExact>
void LaunchFor(const DecodeParams& params, const FastPages& pages, CudaDevice& device) {
  ForPages(pages, [&]<int kDim, int kPageTokens>() {
    DecodeParams own = params;
    const LaunchShape shape = ShapeOfLaunch<Shape16<kDim, kPageTokens>>(own, device);
    Launch(device, "Attention", shape, DecodeKernel<T, kDim, kPageTokens, kExact>, own);
  });
}

}  // namespace

bool HasRoomForHalves(const FastPages& pages, int64_t group, const CudaDevice& device) {
  return ForPages(pages,
                  [&]<int kDim, int kPageTokens>() { return HasRoom<Shape16<kDim, kPageTokens>>(group, device); });
}

void DecodeHalves(const DecodeParams& params, const FastPages& pages, Compute compute, CudaDevice& device) {
  const bool is_exact = compute == Compute::kF32;
  if (pages.halves == KvFormat::kF16) {
    return is_exact ? LaunchFor<__half, true>(params, pages, device) : LaunchFor<__half, false>(params, pages, device);
  }
  return is_exact ? LaunchFor<__nv_bfloat16, true>(params, pages, device)
                  : LaunchFor<__nv_bfloat16, false>(params, pages, device);
}

}  // namespace decode

bool DecodesFast(const AttentionArgs& args, const StepTables& tables, const CudaDevice& device) {
  const auto is_made = [&](PageKind kind) { return tables.decode(kind).heads != nullptr; };
  if (!std::ranges::any_of(kPageKinds, is_made) || args.group() > decode::kMaxGroup) return false;
  const FastPages pages = FastPagesOf(*args.step);
  return (!pages.has_halves || decode::HasRoomForHalves(pages, args.group(), device)) &&
         (!pages.has_codes || decode::HasRoomForCodes(pages, args.group(), device));
}

Prepared DecodeAttention(const AttentionArgs& args, const Appended& appended, bool leaves_bytes,
                         const StepTables& tables, CudaDevice& device) {
  const KvStep step = tables.Decoding(*args.step);
  const FastPages pages = FastPagesOf(step);
  const int num_blocks = device.facts().num_multiprocessors;
  const int64_t num_heads = step.num_heads();
  const auto [max_states, has_pieces] = tables.decode_states();
  const int64_t state_floats = args.group() * pages.head_dim;
  const int64_t scratch_floats = max_states * (state_floats + 2 * args.group());
  // Outputs of few rows are wanted as the product behind multiplies them, behind the states.
  const int64_t num_rows = args.out.shape[0];
  const int num_parts = PartsOfRows(args.compute);
  const bool are_all = step.sequences.size() == args.step->sequences.size();  // nobody reads several rows
  const bool prepares = are_all && step.num_rows() == num_rows &&
                        num_rows * num_parts <= (num_parts > 1                    ? kMaxFewColumns
                                                 : args.compute == Compute::kInt8 ? kMaxSomeRowsInBlocks
                                                                                  : kMaxSomeRows);
  const bool are_bytes = leaves_bytes && args.compute == Compute::kInt8 && num_rows <= kMaxFewColumns &&
                         args.out.shape[1] % kPadElements == 0;
  const int64_t out_numbers = prepares ? args.out.shape.num_elements() : 0;
  const size_t state_bytes = (static_cast<size_t>(scratch_floats) * sizeof(float) + 255) / 256 * 256;
  std::byte* const scratch =
      device.Scratch(state_bytes + static_cast<size_t>(out_numbers * num_parts) * sizeof(__nv_bfloat16));
  if (!device.ok()) return {};
  auto* const states = reinterpret_cast<float*>(scratch);
  RoundedColumns rounded;
  std::byte* const columns = prepares ? scratch + state_bytes : nullptr;
  if (prepares && are_bytes) {
    // As many bytes as in bf16 are enough.
    rounded.bytes = reinterpret_cast<char*>(columns);
    rounded.layout = BytesOfRows(static_cast<int>(num_rows), args.out.shape[1], true);
  } else if (prepares) {
    rounded = {.data = reinterpret_cast<__nv_bfloat16*>(columns), .num_parts = num_parts, .part_numbers = out_numbers};
  }
  // What rotates and appends has not begun: done on the way, where nobody else reads rotated queries.
  const bool appends = appended.q != nullptr && appended.layer_idx == args.layer_idx &&
                       appended.rotated_q == args.q.data && !args.q_sink.present() && !args.lse.present() && are_all &&
                       decode::Appends(pages.head_dim) && device.TakeBack(appended.num_put);
  for (const PageKind kind : kPageKinds) {
    const DecodeTables& plan = tables.decode(kind);
    if (plan.heads == nullptr) continue;
    const DecodeParams params{
        .step = tables.decoding_view(),
        .heads = plan.heads + args.layer_idx * num_heads,
        .runs = plan.runs + args.layer_idx * (num_blocks + 1),
        .layer_idx = static_cast<int>(args.layer_idx),
        .group = static_cast<int>(args.group()),
        .scale = args.scale * kLog2E,
        .score_cap = args.score_cap * kLog2E,
        .q = appends ? appended.q : F32(args.q),
        .q_sink = F32(args.q_sink),
        .new_rows = appends ? NewRows{appended.k, appended.v, appended.angles, appended.angle_rows} : NewRows{},
        .alibi_slopes = F32(args.alibi_slopes),
        .sink_logits = F32(args.sink_logits),
        .out = F32(args.out),
        .rounded_out = rounded,
        .lse = F32(args.lse),
        .state_outputs = states,
        .state_softmax = reinterpret_cast<float2*>(states + max_states * state_floats),
        .num_stages = 0,
        .num_buffers = 0,
    };
    if (kind == PageKind::kHalves) {
      decode::DecodeHalves(params, pages, args.compute, device);
    } else {
      decode::DecodeCodes(params, pages, device);
    }
    if (has_pieces) MergeStates(params, static_cast<int>(num_heads), static_cast<int>(pages.head_dim), device);
  }
  if (!prepares) return {};
  return {.x = args.out.data,
          .num_rows = num_rows,
          .num_parts = num_parts,
          .are_bytes = are_bytes,
          .columns = columns,
          .squares = nullptr,
          .num_put = device.num_put()};
}

}  // namespace headwise::cuda
