// Pages from pages: copies for forks, and pages made smaller. Each is written once, so these are small beside
// attention.
#include <limits>
#include <span>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 128;
// Of a page in q4 with 64 tokens of 256 dimensions.
constexpr int kAgeWords = 4096;

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

// One group by one thread. Codes are or-ed into words that were zeros: neighbours share them.
__device__ void AgeGroup(const std::byte* from, std::byte* to, uint32_t* words, int dim, int page_tokens,
                         const Group& group) {
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
  auto* scales = reinterpret_cast<__half*>(to + CodeBytes(KvFormat::kQ4, dim, page_tokens));
  const Q4Scale<__half> stored(scales, dim, page_tokens, group.first_row, group.first_dim);
  stored.scale = __float2half_rn(__fdiv_rn(high - low, 15.0f));
  stored.low = __float2half_rn(low);
  // Codes are the nearest under scale and low as they will be read.
  const float scale = __half2float(stored.scale);
  const float stored_low = __half2float(stored.low);
  if (!HasCodes(scale) || !isfinite(stored_low)) return;
  for (int row = group.first_row; row < group.first_row + group.num_rows; ++row) {
    for (int d = group.first_dim; d < group.first_dim + group.num_dims; ++d) {
      const float code = fminf(fmaxf(rintf(__fdiv_rn(load(row, d) - stored_low, scale)), 0.0f), 15.0f);
      const int nibble = Q4Nibble(dim, page_tokens, row, d);
      atomicOr(words + nibble / 8, static_cast<uint32_t>(code) << (nibble % 8 * 4));
    }
  }
}

// A block a page, whose codes come together in shared memory where they fit.
__global__ void __launch_bounds__(kThreads) AgeKernel(StepView step, const PageMove* moves, int shared_words) {
  extern __shared__ uint32_t shared[];
  const PageMove move = moves[blockIdx.x];
  const SpaceView& space = step.spaces[move.from_space];
  const std::byte* const from = PageAt(space, move.from);
  std::byte* const to = PageAt(step.spaces[move.to_space], move.to);
  const int dim = space.head_dim;
  const int num_tokens = space.page_tokens;
  const int num_words = 2 * num_tokens * dim / 8;  // a multiple: pages have multiples of 16 tokens
  auto* const of_page = reinterpret_cast<uint32_t*>(to);
  const bool is_shared = num_words <= shared_words;
  uint32_t* const words = is_shared ? shared : of_page;
  for (int i = static_cast<int>(threadIdx.x); i < num_words; i += kThreads) words[i] = 0;
  __syncthreads();
  const int num_groups = NumGroups(dim);
  for (int i = static_cast<int>(threadIdx.x); i < dim + num_tokens * num_groups; i += kThreads) {
    const int of_values = i - dim;
    const int first_dim = of_values % num_groups * kGroupDims;
    const Group group =
        i < dim ? Group{0, num_tokens, i, 1}
                : Group{num_tokens + of_values / num_groups, 1, first_dim, min(kGroupDims, dim - first_dim)};
    AgeGroup(from, to, words, dim, num_tokens, group);
  }
  if (!is_shared) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_words; i += kThreads) of_page[i] = words[i];
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
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ages.size())),
                          .threads = kThreads,
                          .shared_bytes = kAgeWords * sizeof(uint32_t)};
  Launch(device, "AgeKv", shape, AgeKernel, tables.view(), moves, kAgeWords);
}

}  // namespace headwise::cuda
