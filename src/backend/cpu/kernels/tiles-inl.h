// The eight tile registers of Intel's AMX and the few operations on them: a tile is 16 rows of 64 bytes, and a product
// of tiles adds 16 x 16 sums of 64 bytes each in one instruction. There are two implementations: the instructions, and
// plain loops that do the same, step by step as the instructions are defined, so that kernels over tiles are tested on
// machines without them (instruction set "amx_emulated"). Included by kernel sources only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_TILES_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_TILES_INL_H_

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/native-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

constexpr int64_t kRegisterRows = 16;
constexpr int64_t kRegisterBytes = 64;                  // of a row
constexpr int64_t kRegisterSteps = kRegisterBytes / 4;  // 32-bit steps of a row

#if defined(HW_NATIVE_TILES)

#define HW_TILES 1
constexpr bool kHasTiles = true;

// Configures all tiles as 16 rows of 64 bytes while it lives, and gives the registers back: what a thread does not hold
// is not saved when it is interrupted. Every product below is between constructor and destructor of one of these. For
// shorter sums rows of tiles 4 and 5, left operands, may have fewer bytes, and tiles 6 and 7, right ones, as many fewer
// rows.
//
// Instructions are written out: in the intrinsics of GCC 12 a tile's memory and the configuration are an operand of 8
// bytes, or none, and stores to the rest of it are left out as dead.
class Tiles {
 public:
  HWY_INLINE explicit Tiles(int64_t left_bytes = kRegisterBytes) {
    Configuration configuration = {};
    configuration.palette = 1;
    for (int i = 0; i < 8; ++i) {
      const bool is_left = i == 4 || i == 5;
      configuration.row_bytes[i] = static_cast<uint16_t>(is_left ? left_bytes : kRegisterBytes);
      configuration.rows[i] = static_cast<uint8_t>(i >= 6 ? left_bytes / 4 : kRegisterRows);
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
  HWY_INLINE ~Tiles() { asm volatile("tilerelease"); }

  template <int kTile>
  HWY_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  // Rows are `stride` bytes apart.
  template <int kTile>
  HWY_INLINE void Load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  // The same, of memory that is read once and shall not push other out of the first-level cache.
  template <int kTile>
  HWY_INLINE void LoadPassing(const void* rows, int64_t stride) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  template <int kTile>
  HWY_INLINE void Store(void* rows, int64_t stride) const {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  // sum[m][n] += a[m][2k] b[k][2n] + a[m][2k+1] b[k][2n+1] over k < 16: a and b hold bf16, sum f32.
  template <int kSum, int kA, int kB>
  HWY_INLINE void DotBF16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
  // sum[m][n] += a[m][4k] b[k][4n] + ... + a[m][4k+3] b[k][4n+3] over k < 16: a holds signed bytes, b unsigned ones.
  template <int kSum, int kA, int kB>
  HWY_INLINE void DotInt8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }
  // The same where b holds signed bytes too.
  template <int kSum, int kA, int kB>
  HWY_INLINE void DotSignedInt8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
  }

 private:
  struct alignas(64) Configuration {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Configuration) == 64);
};

#elif defined(HW_EMULATED_TILES)

#define HW_TILES 1
constexpr bool kHasTiles = true;

// Not inlined: instantiations are many.
class Tiles {
 public:
  explicit Tiles(int64_t left_bytes = kRegisterBytes) : left_bytes_(left_bytes) {}
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  HWY_NOINLINE void Zero() {
    for (Row& row : rows_[kTile]) row = {};
  }
  // What a tile does not have of a whole one stays zero, and adds nothing.
  template <int kTile>
  HWY_NOINLINE void Load(const void* rows, int64_t stride) {
    const int64_t num_rows = kTile >= 6 ? left_bytes_ / 4 : kRegisterRows;
    const auto num_bytes = static_cast<size_t>(kTile == 4 || kTile == 5 ? left_bytes_ : kRegisterBytes);
    for (int64_t i = 0; i < num_rows; ++i) {
      __builtin_memcpy(&rows_[kTile][i], static_cast<const uint8_t*>(rows) + i * stride, num_bytes);
    }
  }
  template <int kTile>
  void LoadPassing(const void* rows, int64_t stride) {
    Load<kTile>(rows, stride);
  }
  template <int kTile>
  HWY_NOINLINE void Store(void* rows, int64_t stride) const {
    for (int64_t i = 0; i < kRegisterRows; ++i) {
      __builtin_memcpy(static_cast<uint8_t*>(rows) + i * stride, &rows_[kTile][i], kRegisterBytes);
    }
  }
  // The instruction sums even and odd elements apart, rounds to nearest, and takes and makes no subnormal numbers. A
  // product of two bf16 is exact in f32.
  template <int kSum, int kA, int kB>
  HWY_NOINLINE void DotBF16() {
    for (int64_t m = 0; m < kRegisterRows; ++m) {
      float even[kRegisterSteps] = {};
      float odd[kRegisterSteps] = {};
      for (int64_t k = 0; k < kRegisterSteps; ++k) {
        const uint32_t a = rows_[kA][m].bits[k];
        const float low = NoSubnormal(a << 16);
        const float high = NoSubnormal(a & 0xFFFF0000u);
        for (int64_t n = 0; n < kRegisterSteps; ++n) {
          const uint32_t b = rows_[kB][k].bits[n];
          even[n] = NoSubnormal(even[n] + low * NoSubnormal(b << 16));
          odd[n] = NoSubnormal(odd[n] + high * NoSubnormal(b & 0xFFFF0000u));
        }
      }
      for (int64_t n = 0; n < kRegisterSteps; ++n) {
        const float pair = NoSubnormal(even[n] + odd[n]);
        const float sum = NoSubnormal(NoSubnormal(rows_[kSum][m].bits[n]) + pair);
        rows_[kSum][m].bits[n] = __builtin_bit_cast(uint32_t, sum);
      }
    }
  }
  template <int kSum, int kA, int kB>
  void DotInt8() {
    DotBytes<kSum, kA, kB, uint8_t>();
  }
  template <int kSum, int kA, int kB>
  void DotSignedInt8() {
    DotBytes<kSum, kA, kB, int8_t>();
  }

 private:
  struct alignas(64) Row {
    uint32_t bits[kRegisterSteps];
  };
  template <int kSum, int kA, int kB, typename Right>
  HWY_NOINLINE void DotBytes() {
    for (int64_t m = 0; m < kRegisterRows; ++m) {
      for (int64_t k = 0; k < kRegisterSteps; ++k) {
        for (int64_t n = 0; n < kRegisterSteps; ++n) {
          for (int shift = 0; shift < 32; shift += 8) {
            const auto a = static_cast<int8_t>(rows_[kA][m].bits[k] >> shift);
            const auto b = static_cast<Right>(rows_[kB][k].bits[n] >> shift);
            rows_[kSum][m].bits[n] += static_cast<uint32_t>(int32_t{a} * int32_t{b});
          }
        }
      }
    }
  }
  static float NoSubnormal(uint32_t bits) {
    return __builtin_bit_cast(float, (bits & 0x7F800000u) != 0 ? bits : bits & 0x80000000u);
  }
  static float NoSubnormal(float x) { return NoSubnormal(__builtin_bit_cast(uint32_t, x)); }

  Row rows_[8][kRegisterRows] = {};
  int64_t left_bytes_;
};

#else

#define HW_TILES 0
constexpr bool kHasTiles = false;

#endif

// Products of bf16 pairs are a way of their own, and not f32 ones that were rounded in vain.
constexpr bool kMultipliesBF16 = kHasBF16Dot || kHasTiles;

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_TILES_INL_H_
