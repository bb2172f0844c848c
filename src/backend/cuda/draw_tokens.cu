// Tokens drawn from rows of logits (tensor/token_draw.h), a block a row. A row is read again for every question about
// it: 128,000 logits lie in the second-level cache, from where one multiprocessor has them in some five microseconds.
//
//   drawn greedily                  1 pass: the highest
//   from all                        2: and the weights of parts of the row, one of which has the id
//   from the first by top_k, top_p  3 more each: bins of distances, then those of one bin, until one is left
//
// Bound by what a multiprocessor computes for a weight. Weights are whole numbers, so that neither the order of sums
// nor that of atomic additions shows.
#include <cmath>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/launch.cuh"
#include "tensor/draw_weight.h"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kBins = kThreads;  // one a thread
constexpr int kBinBits = 10;

struct DrawRow {
  DrawLimits limits;
  uint64_t word;
  int32_t first_edit, num_edits;
  int64_t num_top;
  int32_t* arriving_id;  // differs from step to step, of which no launch knows; null: nobody waits for it
};

// The last id of the order of weights that is kept.
struct Cut {
  uint32_t distance;
  int id;

  __device__ bool Keeps(uint32_t other, int other_id) const {
    return other < distance || (other == distance && other_id <= id);
  }
};
__device__ Cut KeepsAll() {
  return {kNotDrawn - 1, INT32_MAX};
}

struct Best {
  float value;
  int idx;
};
__device__ Best BetterOf(const Best& a, const Best& b) {
  return b.value > a.value || (b.value == a.value && b.idx < a.idx) ? b : a;
}

struct Shared {
  uint32_t counts[kBins];
  uint32_t weights_low[kBins], weights_high[kBins];
  uint64_t of_warp[kWarps], count_of_warp[kWarps];
  Best best_of_warp[kWarps];
  float lowest_of_warp[kWarps];
  uint64_t num_before, weight_before;
  int bin;
  int num_top;
  Best top[kMaxDrawnTop];
  float chosen;
};

// A row's logits as all threads of the block see them.
struct Row {
  float* x;
  int num_ids;
  float highest = 0;
  float scale = 0;

  __device__ uint32_t Distance(int id) const { return DrawDistance(x[id], highest, scale); }
};

__device__ uint64_t SumOfWarp(uint64_t x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
__device__ int WarpIdx() {
  return static_cast<int>(threadIdx.x / kWarp);
}
__device__ int LaneIdx() {
  return static_cast<int>(threadIdx.x % kWarp);
}

// Of the whole block, for every thread.
__device__ uint64_t SumOfBlock(uint64_t x, Shared& shared) {
  x = SumOfWarp(x);
  __syncthreads();
  if (LaneIdx() == 0) shared.of_warp[WarpIdx()] = x;
  __syncthreads();
  return SumOfWarp(shared.of_warp[LaneIdx()]);
}

// The first of the highest, and the lowest.
__device__ Best FindBest(const Row& row, float& lowest, bool& are_finite, Shared& shared) {
  Best best{-INFINITY, 0};
  lowest = INFINITY;
  bool is_finite = true;
#pragma unroll 8
  for (int id = static_cast<int>(threadIdx.x); id < row.num_ids; id += kThreads) {
    const float value = row.x[id];
    is_finite = is_finite && isfinite(value);
    lowest = fminf(lowest, value);
    if (value > best.value) best = {value, id};
  }
  const auto over_warp = [&] {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      best = BetterOf(
          best, {__shfl_xor_sync(kAllLanes, best.value, distance), __shfl_xor_sync(kAllLanes, best.idx, distance)});
      lowest = fminf(lowest, __shfl_xor_sync(kAllLanes, lowest, distance));
    }
  };
  over_warp();
  if (LaneIdx() == 0) {
    shared.best_of_warp[WarpIdx()] = best;
    shared.lowest_of_warp[WarpIdx()] = lowest;
  }
  are_finite = __syncthreads_and(is_finite ? 1 : 0) != 0;
  best = shared.best_of_warp[LaneIdx()];
  lowest = shared.lowest_of_warp[LaneIdx()];
  over_warp();
  __syncthreads();
  return best;
}

// The id at which the sum of weight(id) over the ids before it and its own is first above target(sum of all).
template <typename Weight, typename Target>
__device__ int FindInOrder(int num_ids, const Weight& weight, const Target& target, Shared& shared) {
  int begin = 0, end = num_ids;
  uint64_t left = 0;
  for (bool is_first = true; is_first || end - begin > 1; is_first = false) {
    const int chunk = (end - begin + kWarps - 1) / kWarps;
    const int my_begin = begin + WarpIdx() * chunk;
    const int my_end = min(my_begin + chunk, end);
    uint64_t sum = 0;
#pragma unroll 4
    for (int id = my_begin + LaneIdx(); id < my_end; id += kWarp) sum += weight(id);
    sum = SumOfWarp(sum);
    if (LaneIdx() == 0) shared.of_warp[WarpIdx()] = sum;
    __syncthreads();
    if (is_first) left = target(SumOfWarp(shared.of_warp[LaneIdx()]));
    int part = 0;
    while (part < kWarps - 1 && left >= shared.of_warp[part]) left -= shared.of_warp[part++];
    __syncthreads();
    begin = min(begin + part * chunk, end - 1);
    end = min(begin + chunk, end);
  }
  return begin;
}

// Of ids with distances in [begin, begin + kBins << shift) that `cut` keeps: into bins of 2^shift. Given back: what
// those beyond weigh, of the thread's ids.
template <bool kWeighs>
__device__ uint64_t FillBins(const Row& row, const Cut& cut, uint32_t begin, int shift, Shared& shared) {
  uint64_t beyond = 0;
  shared.counts[threadIdx.x] = 0;
  shared.weights_low[threadIdx.x] = 0;
  shared.weights_high[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll 4
  for (int id = static_cast<int>(threadIdx.x); id < row.num_ids; id += kThreads) {
    const uint32_t distance = row.Distance(id);
    if (distance < begin || !cut.Keeps(distance, id)) continue;
    const uint32_t bin = (distance - begin) >> shift;
    // Once it is known what all of them weigh, nobody asks what is beyond.
    const uint64_t weight = kWeighs && (bin < kBins || begin == 0) ? DrawWeight(distance) : 0;
    if (bin >= kBins) {
      beyond += weight;
      continue;
    }
    atomicAdd(&shared.counts[bin], 1u);
    if constexpr (kWeighs) {
      // Additions of 32 bits are made where the memory is, those of 64 are tried until nobody came between.
      const auto low = static_cast<uint32_t>(weight);
      const uint32_t before = atomicAdd(&shared.weights_low[bin], low);
      atomicAdd(&shared.weights_high[bin], static_cast<uint32_t>(weight >> 32) + (before + low < low ? 1u : 0u));
    }
  }
  __syncthreads();
  return beyond;
}

__device__ uint64_t WeightOfBin(const Shared& shared) {
  return shared.weights_low[threadIdx.x] + (uint64_t{shared.weights_high[threadIdx.x]} << 32);
}

// The first bin with which there are `count` ids or a weight of `enough`, those before all bins included, and what is
// before that bin: -1 where there is none, and what is before the end.
__device__ int FindBin(uint64_t count, uint64_t enough, uint64_t& num_before, uint64_t& weight_before, Shared& shared) {
  const uint64_t own_count = shared.counts[threadIdx.x];
  const uint64_t own_weight = WeightOfBin(shared);
  uint64_t num = own_count, weight = own_weight;
  for (int distance = 1; distance < static_cast<int>(kWarp); distance *= 2) {
    const uint64_t other_num = __shfl_up_sync(kAllLanes, num, distance);
    const uint64_t other_weight = __shfl_up_sync(kAllLanes, weight, distance);
    if (LaneIdx() >= distance) num += other_num, weight += other_weight;
  }
  if (LaneIdx() == static_cast<int>(kWarp) - 1) {
    shared.count_of_warp[WarpIdx()] = num;
    shared.of_warp[WarpIdx()] = weight;
  }
  if (threadIdx.x == 0) shared.bin = -1;
  __syncthreads();
  num += num_before, weight += weight_before;
  for (int warp = 0; warp < WarpIdx(); ++warp) num += shared.count_of_warp[warp], weight += shared.of_warp[warp];
  const bool reaches = num >= count || weight >= enough;
  const bool reached_before = num - own_count >= count || weight - own_weight >= enough;
  const bool is_last = threadIdx.x == kThreads - 1;
  if (reaches && !reached_before) {
    shared.bin = static_cast<int>(threadIdx.x);
    shared.num_before = num - own_count;
    shared.weight_before = weight - own_weight;
  } else if (is_last && !reaches) {
    shared.num_before = num;
    shared.weight_before = weight;
  }
  __syncthreads();
  const int bin = shared.bin;
  num_before = shared.num_before;
  weight_before = shared.weight_before;
  __syncthreads();
  return bin;
}

// The last id, among those that `cut` keeps, that is kept: of the first `count`, or where kWeighs of as few as weigh
// `share`, in 2^-64, of all. `cut` itself where all are kept. Requires: count, or share, is above 0.
template <bool kWeighs>
__device__ Cut LastKept(const Row& row, const Cut& cut, uint64_t count, uint64_t share, Shared& shared) {
  uint64_t enough = UINT64_MAX;
  uint64_t num_before = 0, weight_before = 0;
  // Few ids are within the first 16 halvings, and what is looked for mostly is: those first, and what is beyond them
  // only where it is not.
  constexpr uint32_t kNear = uint32_t{16} << kDrawDistanceBits;
  static_assert(kNear == uint32_t{kBins} << 20 && kNotDrawn <= kNear + (uint32_t{kBins} << 21));
  uint32_t begin = 0;
  int shift = 20;
  int bin = -1;
  while (true) {
    const uint64_t beyond = FillBins<kWeighs>(row, cut, begin, shift, shared);
    if (kWeighs && enough == UINT64_MAX) {
      const uint64_t all = SumOfBlock(beyond + WeightOfBin(shared), shared);
      enough = max(DrawShare(all, share), uint64_t{1});
    }
    bin = FindBin(count, enough, num_before, weight_before, shared);
    if (bin < 0) {
      if (begin > 0) return cut;
      begin = kNear;
      shift = 21;
      continue;
    }
    begin += static_cast<uint32_t>(bin) << shift;
    if (shift == 0) break;
    shift = max(shift - kBinBits, 0);  // bins of the next round end where this one does
  }
  const uint32_t num_equal = shared.counts[bin];
  const uint64_t weight = DrawWeight(begin);
  const uint64_t by_weight = (enough - weight_before + weight - 1) / weight;
  const uint64_t wanted = kWeighs ? min(count - num_before, by_weight) : count - num_before;
  __syncthreads();
  if (wanted >= num_equal) return {begin, cut.distance == begin ? cut.id : INT32_MAX};
  const auto is_equal = [&](int id) -> uint64_t {
    const uint32_t distance = row.Distance(id);
    return distance == begin && cut.Keeps(distance, id) ? 1 : 0;
  };
  const int id = FindInOrder(
      row.num_ids, is_equal, [&](uint64_t) { return wanted - 1; }, shared);
  return {begin, id};
}

// Ids of the highest logits and their log-probabilities but for `log_sum`, in order.
__device__ void FindTop(Row row, float lowest, int num_top, double log_sum, float* logprobs, int32_t* top_ids,
                        Shared& shared) {
  // Where so many are not within the reach of weights, at a scale at which all are.
  Cut cut = KeepsAll();
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) shared.num_top = 0;
    __syncthreads();
    cut = LastKept<false>(row, KeepsAll(), static_cast<uint64_t>(num_top), 0, shared);
    for (int id = static_cast<int>(threadIdx.x); id < row.num_ids; id += kThreads) {
      const uint32_t distance = row.Distance(id);
      if (distance >= kNotDrawn || !cut.Keeps(distance, id)) continue;
      const int place = atomicAdd(&shared.num_top, 1);
      if (place < num_top) shared.top[place] = {row.x[id], id};
    }
    __syncthreads();
    if (shared.num_top >= num_top) break;
    row.scale = static_cast<float>(kDrawWeightBits - 1) / (row.highest - lowest);
    __syncthreads();
  }
  const int mine = static_cast<int>(threadIdx.x);
  if (mine >= num_top) return;
  const Best own = shared.top[mine];
  int rank = 0;
  for (int other = 0; other < num_top; ++other) {
    const Best each = shared.top[other];
    rank += each.value > own.value || (each.value == own.value && each.idx < own.idx) ? 1 : 0;
  }
  logprobs[rank] = static_cast<float>(static_cast<double>(own.value) - row.highest - log_sum);
  top_ids[rank] = own.idx;
}

__global__ void __launch_bounds__(kThreads)
    DrawTokensKernel(float* x, int num_ids, const DrawRow* draws, const LogitEdit* edits, float* unedited, int32_t* ids,
                     float* logprobs, int32_t* top_ids, int64_t most_top) {
  __shared__ Shared shared;
  LetLaterBegin();
  const DrawRow draw = draws[blockIdx.x];
  WaitForEarlier();
  const auto leave = [&](int id) {
    if (threadIdx.x != 0) return;
    ids[blockIdx.x] = id;
    if (draw.arriving_id != nullptr) *draw.arriving_id = id;
  };
  Row row{.x = x + static_cast<int64_t>(blockIdx.x) * num_ids, .num_ids = num_ids};
  float lowest;
  bool are_finite;
  Best best = FindBest(row, lowest, are_finite, shared);
  if (!are_finite) {
    leave(-1);
    return;
  }
  const float highest = best.value;
  double log_sum = 0;
  if (draw.num_top >= 0) {
    row.highest = highest;
    row.scale = DrawScale(1);
    logprobs += blockIdx.x * (1 + most_top);
    uint64_t sum = 0;
#pragma unroll 4
    for (int id = static_cast<int>(threadIdx.x); id < num_ids; id += kThreads) sum += DrawWeight(row.Distance(id));
    sum = SumOfBlock(sum, shared);
    log_sum = log(static_cast<double>(sum)) - kDrawWeightBits * 0.69314718055994531;
    if (draw.num_top > 0) {
      FindTop(row, lowest, static_cast<int>(draw.num_top), log_sum, logprobs + 1, top_ids + blockIdx.x * most_top,
              shared);
    }
  }
  if (draw.num_edits > 0) {
    edits += draw.first_edit;
    unedited += draw.first_edit;
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < draw.num_edits; i += kThreads) {
      const LogitEdit edit = edits[i];
      unedited[i] = row.x[edit.id];
      if (unedited[i] == -INFINITY) continue;
      // As on a host: nothing is contracted.
      float logit = __fadd_rn(unedited[i], edit.bias);
      logit = logit > 0 ? __fdiv_rn(logit, edit.penalty) : __fmul_rn(logit, edit.penalty);
      row.x[edit.id] = __fsub_rn(logit, edit.minus);
    }
    __syncthreads();
    best = FindBest(row, lowest, are_finite, shared);
  }
  int id = best.idx;
  if (draw.limits.scale != 0 && isfinite(best.value)) {
    row.highest = best.value;
    row.scale = draw.limits.scale;
    Cut cut = KeepsAll();
    if (draw.limits.count < num_ids) {
      cut = LastKept<false>(row, cut, static_cast<uint64_t>(draw.limits.count), 0, shared);
    }
    if (draw.limits.share > 0) cut = LastKept<true>(row, cut, UINT64_MAX, draw.limits.share, shared);
    const auto weight_of = [&](int other) -> uint64_t {
      const uint32_t distance = row.Distance(other);
      if (!cut.Keeps(distance, other)) return 0;
      const uint64_t weight = DrawWeight(distance);
      return weight < draw.limits.least ? 0 : weight;
    };
    id = FindInOrder(
        num_ids, weight_of, [&](uint64_t sum) { return DrawShare(sum, draw.word); }, shared);
  }
  if (draw.num_top >= 0) {
    if (threadIdx.x == 0) shared.chosen = row.x[id];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < draw.num_edits; i += kThreads) {
      if (edits[i].id == id) shared.chosen = unedited[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) logprobs[0] = static_cast<float>(static_cast<double>(shared.chosen) - highest - log_sum);
  }
  leave(id);
}

}  // namespace

void DrawTokens(const DrawTokensArgs& args, CudaDevice& device) {
  if (!device.ok() || args.draws.empty()) return;
  std::vector<DrawRow> rows;
  std::vector<LogitEdit> edits;
  auto* const arriving_ids = static_cast<int32_t*>(args.arriving_ids.data);
  for (const TokenDraw& draw : args.draws) {
    DrawRow row{};  // padding and all, as uploads are compared
    row.limits = LimitsOf(draw);
    row.word = draw.word;
    row.first_edit = static_cast<int32_t>(edits.size());
    row.num_edits = static_cast<int32_t>(draw.edits.size());
    row.num_top = draw.num_top;
    row.arriving_id = arriving_ids != nullptr ? arriving_ids + rows.size() : nullptr;
    rows.push_back(row);
    edits.insert(edits.end(), draw.edits.begin(), draw.edits.end());
  }
  // In growing steps, so that a launch stays that of the step before while a text grows.
  size_t room = edits.empty() ? 0 : 64;
  while (room < edits.size()) room *= 2;
  edits.resize(room);
  const DrawRow* const uploaded = device.Upload(std::span<const DrawRow>(rows));
  const LogitEdit* const uploaded_edits = room > 0 ? device.Upload(std::span<const LogitEdit>(edits)) : nullptr;
  std::byte* const unedited = room > 0 ? device.Scratch(room * sizeof(float)) : nullptr;
  if (!device.ok()) return;
  Launch(device, "DrawTokens", Overlapping(rows.size(), kThreads), DrawTokensKernel, F32(args.logits),
         static_cast<int>(args.logits.shape[1]), uploaded, uploaded_edits, reinterpret_cast<float*>(unedited),
         static_cast<int32_t*>(args.ids.data), F32(args.logprobs), static_cast<int32_t*>(args.top_ids.data),
         args.top_ids.present() ? args.top_ids.shape[1] : 0);
}

}  // namespace headwise::cuda
