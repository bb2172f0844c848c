// Writing pages: new tokens, copies for forks, and pages made smaller. Each token and page is written once, so these
// are small beside attention.
#include <limits>
#include <span>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 128;

__device__ bool HasCodes(float scale) {
  return scale > 0 && isfinite(scale);
}

// One row of a page by one warp.
__device__ void StoreRow(const SpaceView& space, std::byte* page, int row, const float* x) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int dim = space.head_dim;
  if (space.format == KvFormat::kQ8) {
    float largest = 0;
    bool has_nan = false;
    for (int d = lane; d < dim; d += kWarp) {
      largest = fmaxf(largest, fabsf(x[d]));
      has_nan = has_nan || isnan(x[d]);
    }
    largest = __any_sync(kAllLanes, has_nan) ? NAN : MaxOfWarp(largest);
    auto* scales = reinterpret_cast<__half*>(page + CodeBytes(space.format, dim, space.page_tokens));
    const __half stored = __float2half_rn(__fdiv_rn(largest, 127.0f));
    if (lane == 0) scales[row] = stored;
    const float scale = __half2float(stored);
    for (int d = lane; d < dim; d += kWarp) {
      const float code = HasCodes(scale) ? fminf(fmaxf(rintf(__fdiv_rn(x[d], scale)), -127.0f), 127.0f) : 0.0f;
      reinterpret_cast<int8_t*>(page)[row * dim + d] = static_cast<int8_t>(code);
    }
    return;
  }
  for (int d = lane; d < dim; d += kWarp) {
    const int i = PlainIndex(space.format, dim, space.page_tokens, row, d);
    if (space.format == KvFormat::kF32) reinterpret_cast<float*>(page)[i] = x[d];
    if (space.format == KvFormat::kF16) reinterpret_cast<__half*>(page)[i] = __float2half_rn(x[d]);
    if (space.format == KvFormat::kBF16) reinterpret_cast<__nv_bfloat16*>(page)[i] = __float2bfloat16_rn(x[d]);
  }
}

// A warp a (row, KV head). Rows of one sequence follow each other.
__global__ void AppendKernel(StepView step, int layer_idx, int num_rows, const float* k, const float* v) {
  const int idx = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  const int row = idx / step.num_kv_heads;
  if (row >= num_rows) return;
  int begin = 0;
  int end = step.num_sequences;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (step.sequences[middle].first_row <= row ? begin : end) = middle;
  }
  const DeviceHead head(step, layer_idx, begin * step.num_kv_heads + idx % step.num_kv_heads);
  const int64_t pos = head.rows.first_pos + row - head.rows.first_row;
  const int page_tokens = head.newest.page_tokens;
  KvFormat format;
  std::byte* page = head.Page(pos / page_tokens, format);
  const auto slot = static_cast<int>(pos % page_tokens);
  const int64_t offset = static_cast<int64_t>(idx) * head.newest.head_dim;
  StoreRow(head.newest, page, slot, k + offset);
  StoreRow(head.newest, page, page_tokens + slot, v + offset);
}

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

void AppendKv(const AppendKvArgs& args, const StepTables& tables, CudaDevice& device) {
  const int64_t num_rows = args.step->num_rows();
  if (!device.ok() || num_rows == 0) return;
  AppendKernel<<<Blocks(num_rows * args.step->num_kv_heads * kWarp, kThreads), kThreads, 0, device.stream()>>>(
      tables.view(), static_cast<int>(args.layer_idx), static_cast<int>(num_rows), F32(args.k), F32(args.v));
  device.NoteLaunch("AppendKv");
}

void CopyPages(const CopyPagesArgs& args, const StepTables& tables, CudaDevice& device) {
  const PageMove* moves = device.Upload(args.step->copies);
  if (moves == nullptr || args.step->copies.empty()) return;
  CopyPagesKernel<<<static_cast<unsigned>(args.step->copies.size()), kThreads, 0, device.stream()>>>(tables.view(),
                                                                                                     moves);
  device.NoteLaunch("CopyPages");
}

void AgeKv(const AgeKvArgs& args, const StepTables& tables, CudaDevice& device) {
  const std::span<const PageMove> ages = args.step->AgesOf(args.layer_idx);
  const PageMove* moves = device.Upload(ages);
  if (moves == nullptr || ages.empty()) return;
  AgeKernel<<<static_cast<unsigned>(ages.size()), kThreads, 0, device.stream()>>>(tables.view(), moves);
  device.NoteLaunch("AgeKv");
}

}  // namespace headwise::cuda
