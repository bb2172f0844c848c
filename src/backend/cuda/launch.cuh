// Small things that every kernel's launch needs.
#ifndef HEADWISE_BACKEND_CUDA_LAUNCH_CUH_
#define HEADWISE_BACKEND_CUDA_LAUNCH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/cuda_device.h"
#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace headwise::cuda {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
// Softmax in powers of two.
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;
inline constexpr float kNoScore = -1e30f;  // a maximum of nothing so far

// Blocks of `threads` for `count` items.
inline unsigned Blocks(int64_t count, int64_t threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

// Puts kernel(args...) on the device's stream. Nothing after an error.
template <typename... Params>
void Launch(CudaDevice& device, const char* operation, const LaunchShape& shape, void (*kernel)(Params...),
            std::type_identity_t<Params>... args) {
  // Launches are compared byte by byte. GCC 12 gets the place of padding behind an array member wrong, and clears bytes
  // of other members: in what kernels are given, arrays come last.
  (__builtin_clear_padding(&args), ...);
  void* const pointers[] = {&args...};
  constexpr uint32_t kBytes[] = {sizeof(Params)...};
  device.Put({.kernel = reinterpret_cast<const void*>(kernel),
              .operation = operation,
              .shape = shape,
              .num_args = sizeof...(Params)},
             pointers, kBytes);
}

// Of a kernel that waits by itself.
template <typename Count>
LaunchShape Overlapping(Count num_blocks, unsigned threads, size_t shared_bytes = 0) {
  return {.grid = dim3(static_cast<unsigned>(num_blocks)),
          .threads = threads,
          .shared_bytes = shared_bytes,
          .waits_by_itself = true};
}

// In kernels that wait by themselves (LaunchShape), by every thread that reads or writes what others do, and by one of
// every grid, even without work: until all kernels before this one are done. Before it, only what is known to be older
// may be read (weights, tables, uploads), and what LetLaterBegin says.
__device__ inline void WaitForEarlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel's blocks may begin where there is room for them, up to their own WaitForEarlier. A kernel that says
// so behind its own WaitForEarlier lets the next one read at once all that is older than the two of them.
__device__ inline void LetLaterBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

inline float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}
inline const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}

__device__ inline float ToFloat(float x) {
  return x;
}
__device__ inline float ToFloat(__half x) {
  return __half2float(x);
}
__device__ inline float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

__device__ inline float SumOfWarp(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kAllLanes, x, distance);
  return x;
}
__device__ inline float MaxOfWarp(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

// The first of `count` rising ends that is larger than `i`.
__device__ inline int FirstEndAbove(const int32_t* ends, int count, int i) {
  int begin = 0;
  while (begin < count) {
    const int middle = (begin + count) / 2;
    if (ends[middle] > i) {
      count = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// body(T{}) with the type of a plain format's numbers. Requires: f32, f16 or bf16.
template <typename Body>
void WithType(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF16:
      return body(__half{});
    case DType::kBF16:
      return body(__nv_bfloat16{});
    default:
      HW_CHECK(dtype == DType::kF32, "{} on the device", NameOf(dtype));
      return body(float{});
  }
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_LAUNCH_CUH_
