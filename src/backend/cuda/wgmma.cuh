// Hopper's products of a warpgroup: 64 rows of a first operand, in registers or shared memory, with 64, 96 or 128
// columns of a second one in shared memory, both of 16-bit numbers, sums in f32 registers. They run beside the threads
// that issue them. [PTX ISA: wgmma]
#ifndef HEADWISE_BACKEND_CUDA_WGMMA_CUH_
#define HEADWISE_BACKEND_CUDA_WGMMA_CUH_

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.cuh"

// Compiled for sm_90a alone: elsewhere kernels with them are empty, and never launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HW_HAS_WGMMA 1
#else
#define HW_HAS_WGMMA 0
#endif

namespace headwise::cuda {

inline constexpr int kWarpgroup = 128;  // threads

// What is the same for all lanes of a warp anyway: so that the compiler knows it, and keeps descriptors that are made
// of it in the warp's registers, where products want them.
__device__ inline uint32_t OfWarp(uint32_t x) {
  return __shfl_sync(kAllLanes, x, 0);
}

// Rows of 128 bytes in shared memory, groups of eight at 1,024, chunk c of row r where c xor (r mod 8) would lie: what
// such a matrix is to the instruction. Adding n / 16 moves it n bytes on: by multiples of 32, 16 numbers, along the
// row, by multiples of 1,024 to other rows.
__device__ inline uint64_t DescribeRows(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupStride | uint64_t{1} << 16 | (address & 0x3ffff) >> 4;
}
// The same memory, where the numbers of a row are columns of the second operand and rows are what is summed over.
// Columns from 64 on lie `half_bytes` behind. 16 rows further on by adding 128.
__device__ inline uint64_t DescribeColumns(uint32_t address, int half_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupStride | static_cast<uint64_t>(half_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Ahead of the first product after its registers were touched.
__device__ inline void BeginProducts() {
#if HW_HAS_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
// Ends a group.
__device__ inline void CommitProducts() {
#if HW_HAS_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until all groups but the newest kPending are done.
template <int kPending>
__device__ inline void WaitForProducts() {
#if HW_HAS_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
// Registers that products under way read or write: nothing is moved past here.
template <typename T, int kCount>
__device__ inline void KeepInPlace(T (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      asm volatile("" : "+f"(registers[i])::"memory");
    } else {
      asm volatile("" : "+r"(registers[i])::"memory");
    }
  }
}
// Until x, at least 0, is known. The assembler moves what does not need it behind the next WaitForProducts: what should
// run beside products is made to end here.
__device__ inline void Await(float x) {
  asm volatile("{\n.reg .pred never;\nsetp.lt.f32 never, %0, 0f00000000;\n@never nanosleep.u32 1;\n}\n" ::"f"(x)
               : "memory");
}
// Barrier `id`, 1 to 15, of `threads` threads.
__device__ inline void SyncThreads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Registers of each of the warpgroup's threads from here on; the block's together as many as at launch.
template <int kCount>
__device__ inline void TakeRegisters() {
#if HW_HAS_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
__device__ inline void GiveRegisters() {
#if HW_HAS_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

#if HW_HAS_WGMMA

#define HW_8(d, i)                                                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define HW_32(d) HW_8(d, 0), HW_8(d, 8), HW_8(d, 16), HW_8(d, 24)
#define HW_48(d) HW_32(d), HW_8(d, 32), HW_8(d, 40)
#define HW_64(d) HW_32(d), HW_8(d, 32), HW_8(d, 40), HW_8(d, 48), HW_8(d, 56)
#define HW_NAMES_32                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HW_NAMES_48 HW_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HW_NAMES_64                                                                                        \
  HW_NAMES_32                                                                                              \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// The first operand in registers, as MultiplyAdd takes it, of each warp for its 16 rows. `d` is set for keeps == 0,
// else added to. `transposed`: "1" for a second operand by columns.
#define HW_WGMMA(type, columns, names, outputs, a0, a1, a2, a3, bd, keep, transposed)                            \
  asm volatile("{\n.reg .pred keeps;\nsetp.ne.b32 keeps, " keep                                                  \
               ", 0;\n"                                                                                          \
               "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" names "}, {" a0 ", " a1 \
               ", " a2 ", " a3 "}, " bd ", keeps, 1, 1, " transposed ";\n}\n"                                    \
               : outputs                                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keeps))
#define HW_WGMMA_128(type, transposed) \
  HW_WGMMA(type, "128", HW_NAMES_64, HW_64(d), "%64", "%65", "%66", "%67", "%68", "%69", transposed)
#define HW_WGMMA_96(type, transposed) \
  HW_WGMMA(type, "96", HW_NAMES_48, HW_48(d), "%48", "%49", "%50", "%51", "%52", "%53", transposed)
#define HW_WGMMA_64(type, transposed) \
  HW_WGMMA(type, "64", HW_NAMES_32, HW_32(d), "%32", "%33", "%34", "%35", "%36", "%37", transposed)

// d [64, 128] (+)= a [64, 16] b^T, b [128, 16] by rows.
template <typename T>
__device__ inline void MultiplyRows(float (&d)[64], const uint32_t* a, uint64_t b, int keeps) {
  if constexpr (std::is_same_v<T, __half>) {
    HW_WGMMA_128("f16", "0");
  } else {
    HW_WGMMA_128("bf16", "0");
  }
}
// d [64, 96] (+)= a [64, 16] b^T, b [96, 16] by rows.
template <typename T>
__device__ inline void MultiplyRows(float (&d)[48], const uint32_t* a, uint64_t b, int keeps) {
  if constexpr (std::is_same_v<T, __half>) {
    HW_WGMMA_96("f16", "0");
  } else {
    HW_WGMMA_96("bf16", "0");
  }
}
// d [64, 64] (+)= a [64, 16] b^T, b [64, 16] by rows.
template <typename T>
__device__ inline void MultiplyRows(float (&d)[32], const uint32_t* a, uint64_t b, int keeps) {
  if constexpr (std::is_same_v<T, __half>) {
    HW_WGMMA_64("f16", "0");
  } else {
    HW_WGMMA_64("bf16", "0");
  }
}
// d [64, 128] += a [64, 16] b, b [16, 128] by columns.
template <typename T>
__device__ inline void MultiplyColumns(float (&d)[64], const uint32_t* a, uint64_t b) {
  constexpr int keeps = 1;
  if constexpr (std::is_same_v<T, __half>) {
    HW_WGMMA_128("f16", "1");
  } else {
    HW_WGMMA_128("bf16", "1");
  }
}
// d [64, 64] += a [64, 16] b, b [16, 64] by columns.
template <typename T>
__device__ inline void MultiplyColumns(float (&d)[32], const uint32_t* a, uint64_t b) {
  constexpr int keeps = 1;
  if constexpr (std::is_same_v<T, __half>) {
    HW_WGMMA_64("f16", "1");
  } else {
    HW_WGMMA_64("bf16", "1");
  }
}

// d [64, 64] += a [64, 16] b^T, both in shared memory by rows, in bf16.
__device__ inline void MultiplyShared(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" HW_NAMES_32 "}, %32, %33, 1, 1, 1, 0, 0;"
               : HW_32(d)
               : "l"(a), "l"(b));
}

#endif  // HW_HAS_WGMMA

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_WGMMA_CUH_
