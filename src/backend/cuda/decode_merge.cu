// The states that decode attention left, merged into outputs: exp2 of their maxima weigh them, in the order of pieces.
// A block a query head (D 256: half of one), in eight shares of the pieces, so that a whole head is one round of loads:
// the states of a long context have left the second-level cache by then, and the next product waits for this.
#include "backend/cuda/decode_states.cuh"
#include "backend/cuda/launch.cuh"

namespace headwise::cuda {
namespace {

constexpr int kShares = 8;
static_assert(kMaxPieces % kShares == 0);
constexpr int kThreads = kShares * static_cast<int>(kWarp);
constexpr int kAtOnce = static_cast<int>(kMaxPieces) / kShares;

constexpr int kMaxBlockDims = 4 * static_cast<int>(kWarp);
constexpr int BlocksOfHead(int dim) {
  return dim > kMaxBlockDims ? dim / kMaxBlockDims : 1;
}

// A warp takes every eighth piece, each lane four numbers (D 64: half of the lanes).
template <int kDim>
__global__ void __launch_bounds__(kThreads) MergeKernel(DecodeParams p) {
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
  if (plan.num_pieces <= 1) return;  // its output is there, or not ours
  const auto* outputs = reinterpret_cast<const float4*>(p.state_outputs);
  const bool has_numbers = lane < kQuads;
  const int quad = block_of_head * kQuads + lane;
  float4 output[kAtOnce];
  float2 softmax[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int piece = share + i * kShares;
    output[i] = {0, 0, 0, 0};
    softmax[i] = {kNoScore, 0};
    if (piece >= plan.num_pieces) continue;
    const int64_t state = (static_cast<int64_t>(plan.first_state) + piece) * p.group + query;
    softmax[i] = __ldcg(p.state_softmax + state);
    if (has_numbers) output[i] = __ldcg(outputs + state * (kDim / 4) + quad);
  }
  float larger = kNoScore;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) larger = fmaxf(larger, softmax[i].x);
  float4 acc = {0, 0, 0, 0};
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const float factor = exp2f(softmax[i].x - larger);
    sum += factor * softmax[i].y;
    acc.x += factor * output[i].x;
    acc.y += factor * output[i].y;
    acc.z += factor * output[i].z;
    acc.w += factor * output[i].w;
  }
  if (has_numbers) sums[share][lane] = acc;
  if (lane == 0) softmaxes[share] = {larger, sum};
  __syncthreads();
  if (share > 0 || !has_numbers) return;
  larger = kNoScore;
  for (int i = 0; i < kShares; ++i) larger = fmaxf(larger, softmaxes[i].x);
  acc = {0, 0, 0, 0};
  sum = 0;
  for (int i = 0; i < kShares; ++i) {
    const float factor = exp2f(softmaxes[i].x - larger);
    const float4 part = sums[i][lane];
    sum += factor * softmaxes[i].y;
    acc.x += factor * part.x;
    acc.y += factor * part.y;
    acc.z += factor * part.z;
    acc.w += factor * part.w;
  }
  const int kv_head = head_idx % p.step.num_kv_heads;
  const int64_t row = p.step.sequences[head_idx / p.step.num_kv_heads].first_row;
  const int q_head = kv_head * p.group + query;
  const int64_t pair = row * p.step.num_kv_heads * p.group + q_head;
  const float factor = FactorOf(p, pair, q_head, larger, sum, quad == 0);
  acc = {acc.x * factor, acc.y * factor, acc.z * factor, acc.w * factor};
  reinterpret_cast<float4*>(p.out)[pair * (kDim / 4) + quad] = acc;
  if (p.rounded_out.data != nullptr) p.rounded_out.StoreQuad(pair * (kDim / 4) + quad, acc);
}

}  // namespace

void MergeStates(const DecodeParams& params, int num_heads, int dim, CudaDevice& device) {
  Launch(device, "Attention: merge", Overlapping(num_heads * params.group * BlocksOfHead(dim), kThreads),
         dim == 64    ? MergeKernel<64>
         : dim == 128 ? MergeKernel<128>
                      : MergeKernel<256>,
         params);
}

}  // namespace headwise::cuda
