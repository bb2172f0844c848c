// Which experts rows go through: chosen, weighted and sorted where their logits are, so that a decoding step never
// waits for the host, and what is launched does not depend on who is chosen.
//
// A warp takes a row: it looks for the highest score, the next one and so on, in double, as ChooseExperts does. Where
// two of them are equal one lane goes through that function's own steps (rank_experts.h). Of up to 32 rows one block
// sorts what its warps have chosen; of more, each expert's block counts those of the experts before it and then finds
// its own, in the order of rows: no block waits for another, and nothing depends on which is first.
#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/experts.cuh"
#include "backend/cuda/rank_experts.h"

namespace headwise::cuda {
namespace {

constexpr int kWarpThreads = static_cast<int>(kWarp);
constexpr int kRowsOfBlock = 8;  // of many
constexpr size_t kRankedBytes = size_t{64} << 10;
constexpr int kSortThreads = 1024;

struct RouteParams {
  const float* logits;  // [T, X]
  const float* bias;    // [X], or null
  RoutedRows routed;
  int64_t is_softmax, is_normalised;  // 0 or 1
  int64_t rows_of_block;
  double scale;
};

__device__ double SumOfWarp(double x) {
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}

// A row's scores, of which every lane sees all.
struct RowScores {
  const float* logits;
  int num_experts;
  bool is_softmax;
  double highest;

  __device__ RowScores(const RouteParams& p, int row)
      : logits(p.logits + static_cast<int64_t>(row) * p.routed.num_experts),
        num_experts(p.routed.num_experts),
        is_softmax(p.is_softmax != 0) {
    float most = -INFINITY;
    for (int i = static_cast<int>(threadIdx.x % kWarp); i < num_experts; i += kWarpThreads) {
      most = fmaxf(most, logits[i]);
    }
    highest = MaxOfWarp(most);
  }
  // Of softmax the numerator.
  __device__ double Of(int expert) const {
    const double logit = logits[expert];
    return is_softmax ? exp(logit - highest) : 1.0 / (1.0 + exp(-logit));
  }
  __device__ double Sum() const {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x % kWarp); i < num_experts; i += kWarpThreads) sum += Of(i);
    return SumOfWarp(sum);
  }
};

// The highest that is not taken, or none: -1. Of equal ones any.
__device__ int FindHighest(const RankedExpert* ranked, int size) {
  int best = -1;
  for (int i = static_cast<int>(threadIdx.x % kWarp); i < size; i += kWarpThreads) {
    if (ranked[i].is_taken != 0) continue;
    if (best < 0 || IsAbove(ranked[i], ranked[best])) best = i;
  }
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    const int other = __shfl_xor_sync(kAllLanes, best, distance);
    if (other < 0) continue;
    if (best < 0 || IsAbove(ranked[other], ranked[best]) || (!IsAbove(ranked[best], ranked[other]) && other < best)) {
      best = other;
    }
  }
  return best;
}

// By a whole warp, into `chosen`. `ranked` has the row's scores in the order of experts.
__device__ void Choose(RankedExpert* ranked, int size, int num_chosen, int32_t* chosen) {
  const bool is_first_lane = threadIdx.x % kWarp == 0;
  bool has_equal = false;
  int before = -1;
  // One more than are chosen: it may be equal to the last of them.
  for (int i = 0; i < min(num_chosen + 1, size); ++i) {
    const int found = FindHighest(ranked, size);
    if (before >= 0 && !IsAbove(ranked[before], ranked[found])) has_equal = true;
    before = found;
    __syncwarp();
    if (is_first_lane) {
      ranked[found].is_taken = 1;
      if (i < num_chosen) chosen[i] = found;
    }
    __syncwarp();
  }
  if (has_equal && is_first_lane) {
    RankHighest(ranked, size, num_chosen);
    for (int i = 0; i < num_chosen; ++i) chosen[i] = ranked[i].expert;
  }
  __syncwarp();
}

// By a whole warp; `chosen` is of the block, and the row's.
__device__ void RouteRow(const RouteParams& p, int row, RankedExpert* ranked, int32_t* chosen) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int num_experts = p.routed.num_experts;
  const int num_chosen = p.routed.num_chosen;
  const RowScores scores(p, row);
  const bool needs_sum = scores.is_softmax && (p.bias != nullptr || p.is_normalised == 0);
  const double sum = needs_sum ? scores.Sum() : 1.0;
  for (int i = lane; i < num_experts; i += kWarpThreads) {
    const double score = p.bias == nullptr ? scores.logits[i] : scores.Of(i) / sum + static_cast<double>(p.bias[i]);
    ranked[i] = {score, i, 0};
  }
  __syncwarp();
  Choose(ranked, num_experts, num_chosen, chosen);
  double divisor = sum;
  if (p.is_normalised != 0) {
    double of_lane = 0;
    for (int i = lane; i < num_chosen; i += kWarpThreads) of_lane += scores.Of(chosen[i]);
    divisor = SumOfWarp(of_lane);
  }
  for (int i = lane; i < num_chosen; i += kWarpThreads) {
    const int64_t slot = static_cast<int64_t>(row) * num_chosen + i;
    p.routed.chosen[slot] = chosen[i];
    p.routed.weights[slot] = static_cast<float>(scores.Of(chosen[i]) / divisor * p.scale);
  }
}

// By the block that has routed all rows; `chosen` holds what they chose, `counts` has room for a number an expert.
__device__ void SortFew(const RoutedRows& routed, const int32_t* chosen, int32_t* counts) {
  const int num_slots = routed.num_rows * routed.num_chosen;
  const auto num_threads = static_cast<int>(blockDim.x);
  for (int expert = static_cast<int>(threadIdx.x); expert < routed.num_experts; expert += num_threads) {
    int first = 0;
    int count = 0;
    for (int slot = 0; slot < num_slots; ++slot) {
      first += chosen[slot] < expert ? 1 : 0;
      count += chosen[slot] == expert ? 1 : 0;
    }
    routed.first[expert] = first;
    counts[expert] = count;
    if (count == 0) continue;
    for (int slot = 0; slot < num_slots; ++slot) {
      if (chosen[slot] == expert) routed.slots[first++] = slot;
    }
  }
  if (threadIdx.x == 0) routed.first[routed.num_experts] = num_slots;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  int num_used = 0;
  for (int begin = 0; begin < routed.num_experts; begin += kWarpThreads) {
    const int expert = begin + static_cast<int>(threadIdx.x);
    const bool is_used = expert < routed.num_experts && counts[expert] > 0;
    const unsigned used = __ballot_sync(kAllLanes, is_used);
    if (is_used) routed.used[num_used + __popc(used & ((1u << threadIdx.x) - 1))] = expert;
    num_used += __popc(used);
  }
  if (threadIdx.x == 0) *routed.num_used = num_used;
}

// A warp a row; what is chosen lies behind what all warps rank.
template <bool kSorts>
__global__ void __launch_bounds__(kMaxRoutedAtOnce* kWarp) RouteKernel(const __grid_constant__ RouteParams p) {
  extern __shared__ __align__(16) char memory[];
  LetLaterBegin();
  WaitForEarlier();
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int num_warps = static_cast<int>(blockDim.x / kWarp);
  auto* const ranked = reinterpret_cast<RankedExpert*>(memory);
  auto* const chosen = reinterpret_cast<int32_t*>(ranked + num_warps * p.routed.num_experts);
  const int first_row = static_cast<int>(blockIdx.x) * static_cast<int>(p.rows_of_block);
  for (int i = warp; i < p.rows_of_block; i += num_warps) {
    const int row = first_row + i;
    if (row < p.routed.num_rows) {
      RouteRow(p, row, ranked + warp * p.routed.num_experts, chosen + i * p.routed.num_chosen);
    }
  }
  if constexpr (kSorts) {
    __syncthreads();
    SortFew(p.routed, chosen, reinterpret_cast<int32_t*>(ranked));
  }
}

// Numbers of the whole block, added.
__device__ int SumOfBlock(int x, int* of_warp) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  x = __reduce_add_sync(kAllLanes, x);
  __syncthreads();  // those of the call before are read
  if (lane == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, of_warp[lane]);
}

// A block an expert.
__global__ void __launch_bounds__(kSortThreads) SortKernel(const __grid_constant__ RoutedRows routed) {
  __shared__ int of_warp[kSortThreads / kWarpThreads];
  static_assert(kSortThreads == kWarpThreads * kWarpThreads);
  LetLaterBegin();
  WaitForEarlier();
  const auto expert = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpThreads;
  const int num_slots = routed.num_rows * routed.num_chosen;
  int num_before = 0;
  for (int slot = thread; slot < num_slots; slot += kSortThreads) num_before += routed.chosen[slot] < expert ? 1 : 0;
  int next = SumOfBlock(num_before, of_warp);
  if (thread == 0) {
    routed.first[expert] = next;
    if (expert == 0) routed.first[routed.num_experts] = num_slots;
  }
  for (int begin = 0; begin < num_slots; begin += kSortThreads) {
    const int slot = begin + thread;
    const bool is_mine = slot < num_slots && routed.chosen[slot] == expert;
    const unsigned mine = __ballot_sync(kAllLanes, is_mine);
    __syncthreads();  // counts of the turn before are read
    if (lane == 0) of_warp[thread / kWarpThreads] = __popc(mine);
    __syncthreads();
    const int of_lane = of_warp[lane];
    const int in_warps_before = __reduce_add_sync(kAllLanes, lane < thread / kWarpThreads ? of_lane : 0);
    if (is_mine) routed.slots[next + in_warps_before + __popc(mine & ((1u << lane) - 1))] = slot;
    next += __reduce_add_sync(kAllLanes, of_lane);
  }
}

__global__ void GateRowsKernel(const float* gate, float* x, int64_t dim, int64_t count) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) x[i] *= 1.0f / (1.0f + expf(-gate[i / dim]));
}

}  // namespace

void RouteRows(const ExpertsArgs& args, const RoutedRows& routed, CudaDevice& device) {
  const ExpertRouting& routing = args.routing;
  RouteParams params{.logits = F32(args.logits),
                     .bias = F32(routing.selection_bias),
                     .routed = routed,
                     .is_softmax = routing.scores == ExpertRouting::Scores::kSoftmax ? 1 : 0,
                     .is_normalised = routing.normalised ? 1 : 0,
                     .rows_of_block = kRowsOfBlock,
                     .scale = static_cast<double>(routing.scale)};
  const size_t ranked_bytes = static_cast<size_t>(routed.num_experts) * sizeof(RankedExpert);
  const bool sorts = routed.num_rows <= kMaxRoutedAtOnce;
  if (sorts) params.rows_of_block = routed.num_rows;
  const auto num_rows = static_cast<size_t>(params.rows_of_block);
  // Of very many experts fewer rows at a time.
  const size_t num_warps = std::clamp<size_t>(kRankedBytes / ranked_bytes, 1, num_rows);
  // In whole 16 bytes: the compiler reads what is left of a loop so.
  const size_t chosen_bytes = (num_rows * static_cast<size_t>(routed.num_chosen) * sizeof(int32_t) + 15) / 16 * 16;
  const LaunchShape shape =
      Overlapping(Blocks(routed.num_rows, params.rows_of_block), static_cast<unsigned>(num_warps) * kWarp,
                  num_warps * ranked_bytes + chosen_bytes);
  Launch(device, "Experts: route", shape, sorts ? RouteKernel<true> : RouteKernel<false>, params);
  if (!sorts) Launch(device, "Experts: sort", Overlapping(routed.num_experts, kSortThreads), SortKernel, routed);
}

void GateRows(const GateRowsArgs& args, CudaDevice& device) {
  const int64_t count = args.x.shape.num_elements();
  if (!device.ok() || count == 0) return;
  constexpr int kThreads = 256;
  Launch(device, "GateRows", Overlapping(Blocks(count, kThreads), kThreads), GateRowsKernel, F32(args.gate),
         F32(args.x), args.x.shape[1], count);
}

}  // namespace headwise::cuda
