// Pages from pages: copies for forks, and pages made smaller. Each is written once, so these are small beside
// attention.
#include <limits>
#include <span>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void CopyPagesKernel(StepView step, const PageMove* moves) {
  const PageMove move = moves[blockIdx.x];
  const SpaceView& space = step.spaces[move.from_space];
  const auto* from = reinterpret_cast<const uint4*>(PageAt(space, move.from));
  auto* to = reinterpret_cast<uint4*>(PageAt(step.spaces[move.to_space], move.to));
  const int64_t count = space.page_bytes / static_cast<int64_t>(sizeof(uint4));
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

// Rows [first_row, first_row + num_rows), dimensions [first_dim, first_dim + num_dims): numbers with one scale and low.
struct Group {
  int first_row, num_rows, first_dim, num_dims;
};

// One group by one thread. Neighbouring groups of keys share bytes of codes: the caller takes two.
__device__ void AgeGroup(const std::byte* from, std::byte* to, int dim, int page_tokens, const Group& group) {
  const auto load = [&](int row, int d) { return LoadKv(KvFormat::kQ8, from, dim, page_tokens, row, d); };
  float low = INFINITY;
  float high = -INFINITY;
  bool has_nan = false;
  for (int row = group.first_row; row < group.first_row + group.num_rows; ++row) {
    for (int d = group.first_dim; d < group.first_dim + group.num_dims; ++d) {
      const float x = load(row, d);
      low = fminf(low, x);
      high = fmaxf(high, x);
      has_nan = has_nan || isnan(x);
    }
  }
  if (has_nan) low = high = NAN;
  auto* pairs = reinterpret_cast<__half2*>(to + CodeBytes(KvFormat::kQ4, dim, page_tokens));
  const __half2 pair = {__float2half_rn(__fdiv_rn(high - low, 15.0f)), __float2half_rn(low)};
  pairs[GroupOf(group.first_row, group.first_dim, dim, page_tokens)] = pair;
  // Codes are the nearest under scale and low as they will be read.
  const float scale = __half2float(pair.x);
  const float stored_low = __half2float(pair.y);
  const bool has_codes = HasCodes(scale) && isfinite(stored_low);
  for (int row = group.first_row; row < group.first_row + group.num_rows; ++row) {
    for (int d = group.first_dim; d < group.first_dim + group.num_dims; ++d) {
      const float code =
          has_codes ? fminf(fmaxf(rintf(__fdiv_rn(load(row, d) - stored_low, scale)), 0.0f), 15.0f) : 0.0f;
      const int i = row * dim + d;
      auto* byte = reinterpret_cast<uint8_t*>(to) + i / 2;
      const int shift = i % 2 * 4;
      *byte = static_cast<uint8_t>((*byte & (0xF0 >> shift)) | (static_cast<int>(code) << shift));
    }
  }
}

__device__ void AgeValue(const std::byte* from, std::byte* to, int dim, int page_tokens, int row) {
  for (int d = 0; d < dim; d += kGroupDims) {
    AgeGroup(from, to, dim, page_tokens, {row, 1, d, min(kGroupDims, dim - d)});
  }
}

__global__ void AgeKernel(StepView step, const PageMove* moves) {
  const PageMove move = moves[blockIdx.x];
  const SpaceView& space = step.spaces[move.from_space];
  const std::byte* from = PageAt(space, move.from);
  std::byte* to = PageAt(step.spaces[move.to_space], move.to);
  const int dim = space.head_dim;
  const int num_tokens = space.page_tokens;
  if (dim % 2 != 0) {  // rows share bytes with their neighbours: one thread for all
    if (threadIdx.x > 0) return;
    for (int d = 0; d < dim; ++d) AgeGroup(from, to, dim, num_tokens, {0, num_tokens, d, 1});
    for (int row = num_tokens; row < 2 * num_tokens; ++row) AgeValue(from, to, dim, num_tokens, row);
    return;
  }
  // Two neighbouring dimensions of keys share their bytes with no third.
  for (int d = 2 * static_cast<int>(threadIdx.x); d < dim; d += 2 * kThreads) {
    AgeGroup(from, to, dim, num_tokens, {0, num_tokens, d, 1});
    AgeGroup(from, to, dim, num_tokens, {0, num_tokens, d + 1, 1});
  }
  for (int row = num_tokens + static_cast<int>(threadIdx.x); row < 2 * num_tokens; row += kThreads) {
    AgeValue(from, to, dim, num_tokens, row);
  }
}

}  // namespace

void CopyPages(const CopyPagesArgs& args, const StepTables& tables, CudaDevice& device) {
  const PageMove* moves = device.Upload(args.step->copies);
  if (moves == nullptr || args.step->copies.empty()) return;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(args.step->copies.size())), .threads = kThreads};
  Launch(device, "CopyPages", shape, CopyPagesKernel, tables.view(), moves);
}

void AgeKv(const AgeKvArgs& args, const StepTables& tables, CudaDevice& device) {
  const std::span<const PageMove> ages = args.step->AgesOf(args.layer_idx);
  const PageMove* moves = device.Upload(ages);
  if (moves == nullptr || ages.empty()) return;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ages.size())), .threads = kThreads};
  Launch(device, "AgeKv", shape, AgeKernel, tables.view(), moves);
}

}  // namespace headwise::cuda
