// The product with experts that takes everything: f32 and f16 weights, rows of any length, block formats in f32. By
// multiply-adds, a warp for the gate and what it gates of one output, or for two outputs. An expert that nobody chose
// costs blocks that end at once. As in matmul.cu a row's sum has one order whatever the number of rows. Block formats
// are read number by number, which is slow: what `--compute f32` asks for.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/block_formats.cuh"
#include "backend/cuda/block_order.h"
#include "backend/cuda/experts.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsOfBlock = kThreads / static_cast<int>(kWarp);
constexpr int kStep = 8;  // numbers of K that a lane takes at once
constexpr int kWeightRows = 2;

__device__ float RoundToBf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

template <typename T>
__device__ void LoadPlain(const void* matrix, int64_t row, int k, int depth, float (&values)[kStep]) {
  const T* const from = static_cast<const T*>(matrix) + row * depth + k;
  if (depth % kStep == 0) {
    alignas(16) T raw[kStep];
    constexpr int kLoads = kStep * sizeof(T) / sizeof(uint4);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) reinterpret_cast<uint4*>(raw)[i] = reinterpret_cast<const uint4*>(from)[i];
#pragma unroll
    for (int i = 0; i < kStep; ++i) values[i] = ToFloat(raw[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kStep; ++i) values[i] = k + i < depth ? ToFloat(from[i]) : 0.0f;
}

// Of a matrix in a block format's order. K is whole blocks.
__device__ void LoadBlocks(const void* matrix, DType dtype, int row, int k, int depth, float (&values)[kStep]) {
  const BlockOrder order = OrderOf(dtype);
  const int num_slices = (depth + order.slice_elements() - 1) / order.slice_elements();
  const int slice_idx = row / kOrderOutputs * num_slices + k / order.slice_elements();
  const auto* const slice = static_cast<const uint8_t*>(matrix) + static_cast<int64_t>(slice_idx) * order.slice_bytes();
#pragma unroll 1
  for (int i = 0; i < kStep; ++i) {
    const BlockTerms terms = TermsOf(order, slice, row % kOrderOutputs, k % order.slice_elements() + i);
    values[i] = terms.Value(order.has_min, ScaleToFloat(order, terms.d), ScaleToFloat(order, terms.min));
  }
}

// Of a matrix of T, or of any format.
struct AnyFormat {};
template <typename T>
__device__ void LoadWeights(const void* matrix, int64_t dtype, int row, int k, int depth, float (&values)[kStep]) {
  if constexpr (!std::is_same_v<T, AnyFormat>) {
    LoadPlain<T>(matrix, row, k, depth, values);
  } else {
    switch (static_cast<DType>(dtype)) {
      case DType::kF32:
        return LoadPlain<float>(matrix, row, k, depth, values);
      case DType::kF16:
        return LoadPlain<__half>(matrix, row, k, depth, values);
      case DType::kBF16:
        return LoadPlain<__nv_bfloat16>(matrix, row, k, depth, values);
      default:
        return LoadBlocks(matrix, static_cast<DType>(dtype), row, k, depth, values);
    }
  }
}

// Which two rows of weights a warp multiplies: the same of gate and up, or two neighbours of down.
struct WeightRows {
  int matrix[kWeightRows];
  int output[kWeightRows];

  __device__ WeightRows(const ExpertsProduct& p, int first_output) {
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      matrix[i] = p.is_gated ? i : 2;
      output[i] = p.is_gated ? first_output : min(first_output + i, p.num_outputs - 1);
    }
  }
};

// Of kRows slots of one expert.
template <typename T, int kRows>
__device__ void MultiplyRows(const ExpertsProduct& p, const ExpertRow& expert, const int32_t* slots, int first_output) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const WeightRows rows(p, first_output);
  float sums[kRows][kWeightRows] = {};
#pragma unroll 1
  for (int k = lane * kStep; k < p.depth; k += static_cast<int>(kWarp) * kStep) {
    float weights[kWeightRows][kStep];
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      LoadWeights<T>(expert.weights[rows.matrix[i]], expert.dtypes[rows.matrix[i]], rows.output[i], k, p.depth,
                     weights[i]);
      if (p.rounds_bf16) {
        for (float& weight : weights[i]) weight = RoundToBf16(weight);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float x[kStep];
      LoadPlain<float>(p.x, p.RowOfX(slots[r]), k, p.depth, x);
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const float factor = p.rounds_bf16 ? RoundToBf16(x[j]) : x[j];
#pragma unroll
        for (int i = 0; i < kWeightRows; ++i) sums[r][i] = fmaf(factor, weights[i][j], sums[r][i]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float values[kWeightRows];
#pragma unroll
    for (int i = 0; i < kWeightRows; ++i) {
      values[i] = SumOfWarp(sums[r][i]);
      const float* const bias = expert.biases[rows.matrix[i]];
      if (bias != nullptr) values[i] += bias[rows.output[i]];
    }
    if (lane > 0) continue;
    float* const out = static_cast<float*>(p.out) + static_cast<int64_t>(slots[r]) * p.num_outputs + first_output;
    if (p.is_gated) {
      out[0] = ActivatedAs(p.activation, values[0], values[1]);
    } else {
      out[0] = values[0];
      if (first_output + 1 < p.num_outputs) out[1] = values[1];
    }
  }
}

// Blocks of a row of the grid have an expert's outputs.
template <typename T>
__global__ void __launch_bounds__(kThreads) AnyProductKernel(const __grid_constant__ ExpertsProduct p) {
  // In this order: the next product may read what routing has left before this one is done.
  WaitForEarlier();
  LetLaterBegin();
  const auto expert_idx = static_cast<int>(blockIdx.y);
  const int begin = p.routed.first[expert_idx];
  const int end = p.routed.first[expert_idx + 1];
  const int outputs_of_warp = p.is_gated ? 1 : kWeightRows;
  const int warp = static_cast<int>(blockIdx.x) * kWarpsOfBlock + static_cast<int>(threadIdx.x / kWarp);
  const int first_output = warp * outputs_of_warp;
  if (begin == end || first_output >= p.num_outputs) return;
  const ExpertRow& expert = p.experts[expert_idx];
  const int32_t* slots = p.routed.slots + begin;
  int count = end - begin;
  if constexpr (!std::is_same_v<T, AnyFormat>) {
    for (; count >= 4; count -= 4, slots += 4) MultiplyRows<T, 4>(p, expert, slots, first_output);
  }
  for (; count > 0; --count, ++slots) MultiplyRows<T, 1>(p, expert, slots, first_output);
}

}  // namespace

void AnyExpertsProduct(const ExpertsProduct& product, std::optional<DType> dtype, CudaDevice& device) {
  const int outputs_of_block = kWarpsOfBlock * (product.is_gated ? 1 : kWeightRows);
  LaunchShape shape = Overlapping(Blocks(product.num_outputs, outputs_of_block), kThreads);
  shape.grid.y = static_cast<unsigned>(product.routed.num_experts);
  if (!dtype || !IsPlainFloat(*dtype)) {
    return Launch(device, "Experts: product", shape, AnyProductKernel<AnyFormat>, product);
  }
  WithType(*dtype,
           [&](auto type) { Launch(device, "Experts: product", shape, AnyProductKernel<decltype(type)>, product); });
}

}  // namespace headwise::cuda
