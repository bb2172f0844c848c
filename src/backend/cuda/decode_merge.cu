// The states that decode attention left, merged into outputs: exp2 of their maxima weigh them, in the order of pieces.
// A block a query head (D 256: half of one), in eight shares of the pieces. Where few heads wait, a whole head is one
// round of loads: the states of a long context have left the second-level cache by then, and the next product waits for
// this. Where many do, blocks hide each other's waits, and the fewer registers each has, the more are there. Both add
// up the same numbers in the same order, so that who shares a batch does not show in the bits.
#include "backend/cuda/decode_states.cuh"
#include "backend/cuda/launch.cuh"

namespace headwise::cuda {
namespace {

constexpr int kShares = 8;
static_assert(kMaxPieces % kShares == 0);
constexpr int kThreads = kShares * static_cast<int>(kWarp);
constexpr int kPiecesOfShare = static_cast<int>(kMaxPieces) / kShares;
static_assert(kPiecesOfShare <= static_cast<int>(kWarp));  // a lane has the softmax of one
constexpr int kFewAtOnce = 2;

constexpr int kMaxBlockDims = 4 * static_cast<int>(kWarp);
constexpr int BlocksOfHead(int dim) {
  return dim > kMaxBlockDims ? dim / kMaxBlockDims : 1;
}

// With the rounding written out: compilers may not choose it differently in two kernels.
__device__ void AddTimes(float weight, const float4& x, float4& acc) {
  acc.x = __fmaf_rn(weight, x.x, acc.x);
  acc.y = __fmaf_rn(weight, x.y, acc.y);
  acc.z = __fmaf_rn(weight, x.z, acc.z);
  acc.w = __fmaf_rn(weight, x.w, acc.w);
}

// A warp takes every eighth piece, each lane four numbers (D 64: half of the lanes), kAtOnce pieces in one round.
template <int kDim, int kAtOnce>
__global__ void __launch_bounds__(kThreads, kAtOnce == kFewAtOnce ? 6 : 1) MergeKernel(DecodeParams p) {
  static_assert(kPiecesOfShare % kAtOnce == 0);
  constexpr int kBlocksOfHead = BlocksOfHead(kDim);
  constexpr int kQuads = kDim / kBlocksOfHead / 4;
  __shared__ float4 sums[kShares][kQuads];
  __shared__ float2 softmaxes[kShares];
  LetLaterBegin();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int share = static_cast<int>(threadIdx.x / kWarp);
  const int block_of_head = static_cast<int>(blockIdx.x) % kBlocksOfHead;
  const int query = static_cast<int>(blockIdx.x) / kBlocksOfHead % p.group;
  const int head_idx = static_cast<int>(blockIdx.x) / kBlocksOfHead / p.group;
  const HeadPlan plan = p.heads[head_idx];
  WaitForEarlier();
  if (plan.num_pieces <= 1) return;                                          // its output is there, or not ours
  const int num_pieces = (plan.num_pieces - share + kShares - 1) / kShares;  // of the share
  const int64_t first_state = (static_cast<int64_t>(plan.first_state) + share) * p.group + query;
  const int stride = kShares * p.group;  // of states
  float2 softmax{kNoScore, 0};           // of the lane's piece
  if (lane < num_pieces) softmax = __ldcg(p.state_softmax + first_state + lane * stride);
  const bool has_numbers = lane < kQuads;
  const int quad = block_of_head * kQuads + lane;
  const float4* outputs = reinterpret_cast<const float4*>(p.state_outputs) + first_state * (kDim / 4) + quad;
  float larger = 0;
  float factor = 0;  // of the lane's piece
  float4 acc = {0, 0, 0, 0};
  float sum = 0;
  int first = 0;
  do {  // once at least, for the maximum
    float4 output[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      output[i] = {0, 0, 0, 0};
      if (has_numbers && first + i < num_pieces) output[i] = __ldcg(outputs + i * stride * (kDim / 4));
    }
    if (first == 0) {  // with the loads on their way
      larger = MaxOfWarp(softmax.x);
      factor = exp2f(softmax.x - larger);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float weight = __shfl_sync(kAllLanes, factor, first + i);
      sum = __fmaf_rn(weight, __shfl_sync(kAllLanes, softmax.y, first + i), sum);
      AddTimes(weight, output[i], acc);
    }
    first += kAtOnce;
    outputs += kAtOnce * stride * (kDim / 4);
  } while (first < num_pieces);
  if (has_numbers) sums[share][lane] = acc;
  if (lane == 0) softmaxes[share] = {larger, sum};
  __syncthreads();
  if (share > 0 || !has_numbers) return;
  larger = kNoScore;
  for (int i = 0; i < kShares; ++i) larger = fmaxf(larger, softmaxes[i].x);
  acc = {0, 0, 0, 0};
  sum = 0;
  for (int i = 0; i < kShares; ++i) {
    const float weight = exp2f(softmaxes[i].x - larger);
    sum = __fmaf_rn(weight, softmaxes[i].y, sum);
    AddTimes(weight, sums[i][lane], acc);
  }
  const int kv_head = head_idx % p.step.num_kv_heads;
  const int64_t row = p.step.sequences[head_idx / p.step.num_kv_heads].first_row;
  const int q_head = kv_head * p.group + query;
  const int64_t pair = row * p.step.num_kv_heads * p.group + q_head;
  const float scale = FactorOf(p, pair, q_head, larger, sum, quad == 0);
  acc = {acc.x * scale, acc.y * scale, acc.z * scale, acc.w * scale};
  reinterpret_cast<float4*>(p.out)[pair * (kDim / 4) + quad] = acc;
  if (p.rounded_out.are_wanted()) p.rounded_out.StoreQuad(pair * (kDim / 4) + quad, acc);
}

template <int kDim>
void LaunchFor(const DecodeParams& params, int num_heads, CudaDevice& device) {
  const int num_blocks = num_heads * params.group * BlocksOfHead(kDim);
  const bool are_few = num_blocks <= 2 * device.facts().num_multiprocessors;  // all there at once
  Launch(device, "Attention: merge", Overlapping(num_blocks, kThreads),
         are_few ? MergeKernel<kDim, kPiecesOfShare> : MergeKernel<kDim, kFewAtOnce>, params);
}

}  // namespace

void MergeStates(const DecodeParams& params, int num_heads, int dim, CudaDevice& device) {
  switch (dim) {
    case 64:
      return LaunchFor<64>(params, num_heads, device);
    case 128:
      return LaunchFor<128>(params, num_heads, device);
    default:
      return LaunchFor<256>(params, num_heads, device);
  }
}

}  // namespace headwise::cuda
