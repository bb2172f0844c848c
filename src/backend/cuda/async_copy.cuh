// Hopper's bulk copies with their barriers, and the matrix instructions that every architecture from sm_80 on has.
// [PTX ISA: mbarrier, cp.async.bulk, ldmatrix, mma.m16n8k16, mma.m16n8k32, movmatrix]
#ifndef HEADWISE_BACKEND_CUDA_ASYNC_COPY_CUH_
#define HEADWISE_BACKEND_CUDA_ASYNC_COPY_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

// Kernels that use them are launched from sm_90 on alone; elsewhere they compile to nothing that could run.
#define HW_HAS_BULK_COPIES (__CUDA_ARCH__ >= 900)

namespace headwise::cuda {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// ---- barriers in shared memory: complete once `count` have arrived and the expected bytes are there -----------------

__device__ inline void InitBarrier(uint64_t* barrier, int count) {
#if HW_HAS_BULK_COPIES
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(count));
#endif
}
// Behind InitBarrier of all: bulk copies see them.
__device__ inline void FenceBarrierInit() {
#if HW_HAS_BULK_COPIES
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ inline void ExpectBytes(uint64_t* barrier, int bytes) {
#if HW_HAS_BULK_COPIES
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(bytes)
               : "memory");
#endif
}
__device__ inline void Arrive(uint64_t* barrier) {
#if HW_HAS_BULK_COPIES
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
#endif
}
// Until the phase of that parity is complete.
__device__ inline void WaitFor(uint64_t* barrier, int parity) {
#if HW_HAS_BULK_COPIES
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
#endif
}

// For what a step reads once, weights and pages: from the second-level cache it goes first, and what is small and read
// again and again (rows on their way from product to product, tables, angles) stays there.
__device__ inline uint64_t ReadOncePolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Multiples of 16 bytes from device memory into shared memory; `barrier` counts them.
__device__ inline void BulkCopyOnce(void* to, const void* from, int bytes, uint64_t* barrier) {
#if HW_HAS_BULK_COPIES
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier)), "l"(ReadOncePolicy())
      : "memory");
#endif
}
// The same of what is read again.
__device__ inline void BulkCopy(void* to, const void* from, int bytes, uint64_t* barrier) {
#if HW_HAS_BULK_COPIES
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   SharedAddress(to)),
               "l"(from), "r"(bytes), "r"(SharedAddress(barrier))
               : "memory");
#endif
}

// What this thread has written to shared memory is seen by products and bulk copies that come behind a barrier.
__device__ inline void FenceSharedWrites() {
#if HW_HAS_BULK_COPIES
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// ---- copies of single threads, of every architecture from sm_80 on --------------------------------------------------

// 16 bytes from device memory.
__device__ inline void CopyChunk(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same of what is read once.
__device__ inline void CopyChunkOnce(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(ReadOncePolicy())
               : "memory");
}
// 16 bytes that are read again; zeros for null.
__device__ inline void CopyChunkOrZeros(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(from == nullptr ? 0 : 16)
               : "memory");
}
__device__ inline void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// 128 bytes into the second-level cache.
__device__ inline void PrefetchLine(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
// Until the thread's own are done, but for the newest kPending groups.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- matrices of 16-bit numbers -------------------------------------------------------------------------------------

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void LoadMatrix(uint32_t (&tile)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(address));
}
__device__ inline void LoadMatrixTransposed(uint32_t (&tile)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(address));
}
// An 8 x 8 matrix over the warp, transposed.
__device__ inline uint32_t Transpose(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <typename T>
__device__ inline float Round(float x) {
  if constexpr (std::is_same_v<T, __half>) return __half2float(__float2half_rn(x));
  return __bfloat162float(__float2bfloat16_rn(x));
}
template <typename T>
__device__ inline uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// c [16, 8] f32 += a [16, 16] b [16, 8].
template <typename T>
__device__ inline void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// c [16, 8] i32 += a [16, 32] b [32, 8] of signed bytes.
__device__ inline void MultiplyAddBytes(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The integer nearest to x, |x| < 2^22, in the low byte.
__device__ inline uint32_t NearestByte(float x) {
  return __float_as_uint(x + 12582912.0f);
}
// The low bytes of four, the first lowest.
__device__ inline uint32_t PackBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ASYNC_COPY_CUH_
