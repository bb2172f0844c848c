// A block format that is known when a program runs, as one that is known when kernels are compiled.
#ifndef HEADWISE_BACKEND_CUDA_BLOCK_FORMATS_CUH_
#define HEADWISE_BACKEND_CUDA_BLOCK_FORMATS_CUH_

#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/block_order.h"
#include "tensor/dtype.h"

namespace headwise::cuda {

// A scale, or a minimum, as it lies in the order.
__device__ inline float ScaleToFloat(const BlockOrder& order, uint16_t bits) {
  return order.has_powers ? __uint_as_float(uint32_t{bits} << 16) : __half2float(__ushort_as_half(bits));
}

// body(std::integral_constant<DType, dtype>). Requires: a block format.
template <typename Body>
void WithBlockFormat(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kQ8_0:
      return body(std::integral_constant<DType, DType::kQ8_0>());
    case DType::kQ4_0:
      return body(std::integral_constant<DType, DType::kQ4_0>());
    case DType::kQ4_1:
      return body(std::integral_constant<DType, DType::kQ4_1>());
    case DType::kQ5_0:
      return body(std::integral_constant<DType, DType::kQ5_0>());
    case DType::kQ5_1:
      return body(std::integral_constant<DType, DType::kQ5_1>());
    case DType::kQ4_K:
      return body(std::integral_constant<DType, DType::kQ4_K>());
    case DType::kQ5_K:
      return body(std::integral_constant<DType, DType::kQ5_K>());
    case DType::kQ6_K:
      return body(std::integral_constant<DType, DType::kQ6_K>());
    case DType::kIQ4_NL:
      return body(std::integral_constant<DType, DType::kIQ4_NL>());
    default:
      return body(std::integral_constant<DType, DType::kMXFP4>());
  }
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_BLOCK_FORMATS_CUH_
