// The two matrix products of attention over a tile of query rows: by a micro-kernel of vectors, or on tile registers.
// Included by attention_prefill.cc only, once per instruction set.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_PRODUCTS_INL_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_PRODUCTS_INL_H_

#include "backend/cpu/kernels/attention_kernels.h"
#include "backend/cpu/kernels/kv_page-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// Register tile of the micro-kernel: rows x vectors accumulators. 32 registers take 6 x 4 and the operands; 16 take 4
// x 2.
constexpr int64_t kBlockRows = kSub == 1 ? 6 : 4;
constexpr int64_t kBlockVecs = kSub == 1 ? 4 : 2;

struct F32Steps {
  static constexpr int64_t kPerStep = 1;
  static constexpr bool kInTiles = false;
  static constexpr bool kAsDecode = false;
  static HWY_INLINE VF Dot(VF a, VF b, VF sum) { return hn::MulAdd(a, b, sum); }
  static HWY_INLINE VF Probability(VF x) { return Exp2(x); }
};
struct DecodeSteps : F32Steps {
  static constexpr bool kAsDecode = true;
};
struct BF16Steps {
  [[maybe_unused]] static constexpr int64_t kPerStep = 2;  // the baseline has no products of bf16
  static constexpr bool kInTiles = kHasTiles;
  [[maybe_unused]] static constexpr bool kAsDecode = false;
  static HWY_INLINE VF Dot(VF a, VF b, VF sum) { return BF16Dot(sum, a, b); }
  static HWY_INLINE VF Probability(VF x) { return CoarseExp2(x); }
};

struct Matrix {
  float* data;
  int64_t stride;
};

enum class Start { kZero, kLoad };

// c[r][v] (+)= sum over steps of a[r][step] b[step][v] for kRows rows and kVecs vectors.
template <typename Steps, int64_t kRows, int64_t kVecs, Start kStart>
HWY_INLINE void MicroKernel(const Matrix& a, const Matrix& b, const Matrix& c, int64_t num_steps) {
  VF sum[kRows][kVecs];
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) {
      sum[r][v] = kStart == Start::kZero ? hn::Zero(kDF) : hn::Load(kDF, c.data + r * c.stride + v * kLanes);
    }
  }
  for (int64_t step = 0; step < num_steps; ++step) {
    VF row[kVecs];
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) row[v] = hn::Load(kDF, b.data + step * b.stride + v * kLanes);
    HW_UNROLL
    for (int64_t r = 0; r < kRows; ++r) {
      const VF x = hn::Set(kDF, a.data[r * a.stride + step]);
      HW_UNROLL
      for (int64_t v = 0; v < kVecs; ++v) sum[r][v] = Steps::Dot(x, row[v], sum[r][v]);
    }
  }
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) hn::Store(sum[r][v], kDF, c.data + r * c.stride + v * kLanes);
  }
}

// c[r][v] = the sum over even steps of a[r][step] b[step][v], and that over odd ones, added in the end. As many sums at
// once as MicroKernel has: half the rows.
template <int64_t kRows, int64_t kVecs>
HWY_INLINE void EvenOddKernel(const Matrix& a, const Matrix& b, const Matrix& c, int64_t num_steps) {
  VF sum[kRows][kVecs][2];
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) sum[r][v][0] = sum[r][v][1] = hn::Zero(kDF);
  }
  for (int64_t pair = 0; pair < num_steps; pair += 2) {
    HW_UNROLL
    for (int64_t odd = 0; odd < 2; ++odd) {
      VF row[kVecs];
      HW_UNROLL
      for (int64_t v = 0; v < kVecs; ++v) row[v] = hn::Load(kDF, b.data + (pair + odd) * b.stride + v * kLanes);
      HW_UNROLL
      for (int64_t r = 0; r < kRows; ++r) {
        const VF x = hn::Set(kDF, a.data[r * a.stride + pair + odd]);
        HW_UNROLL
        for (int64_t v = 0; v < kVecs; ++v) sum[r][v][odd] = hn::MulAdd(row[v], x, sum[r][v][odd]);
      }
    }
  }
  HW_UNROLL
  for (int64_t r = 0; r < kRows; ++r) {
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) {
      hn::Store(hn::Add(sum[r][v][0], sum[r][v][1]), kDF, c.data + r * c.stride + v * kLanes);
    }
  }
}

// Scores of kBlockRows rows as the decode kernel adds them up.
void EvenOddProduct(const Matrix& a, const Matrix& b, const Matrix& c, int64_t num_steps, int64_t num_columns) {
  constexpr int64_t kRows = kBlockRows / 2;
  for (int64_t row = 0; row < kBlockRows; row += kRows) {
    const Matrix a_rows = {a.data + row * a.stride, a.stride};
    const Matrix c_rows = {c.data + row * c.stride, c.stride};
    int64_t column = 0;
    for (; column + kBlockVecs * kLanes <= num_columns; column += kBlockVecs * kLanes) {
      EvenOddKernel<kRows, kBlockVecs>(a_rows, {b.data + column, b.stride}, {c_rows.data + column, c.stride},
                                       num_steps);
    }
    for (; column < num_columns; column += kLanes) {
      EvenOddKernel<kRows, 1>(a_rows, {b.data + column, b.stride}, {c_rows.data + column, c.stride}, num_steps);
    }
  }
}

// kBlockRows rows of c over all its columns.
template <typename Steps, Start kStart>
void BlockProduct(const Matrix& a, const Matrix& b, const Matrix& c, int64_t num_steps, int64_t num_columns) {
  int64_t column = 0;
  for (; column + kBlockVecs * kLanes <= num_columns; column += kBlockVecs * kLanes) {
    MicroKernel<Steps, kBlockRows, kBlockVecs, kStart>(a, {b.data + column, b.stride}, {c.data + column, c.stride},
                                                       num_steps);
  }
  for (; column < num_columns; column += kLanes) {
    MicroKernel<Steps, kBlockRows, 1, kStart>(a, {b.data + column, b.stride}, {c.data + column, c.stride}, num_steps);
  }
}

// How one kind of steps is multiplied: c [rows, columns] = a [rows, steps] . b [steps][columns], or += where c is to be
// loaded; columns in groups of 16; of a and c there is memory to the next multiple of kRows rows.
template <typename Steps>
class VectorProducts {
 public:
  static constexpr int64_t kRows = kBlockRows;        // of one call, at most
  static constexpr int64_t kTileKeys = kPrefillKeys;  // that are converted together
  static constexpr bool kBesideVectors = false;       // products run while vectors do something else, part by part
  // What steps are padded to, with zeros.
  static constexpr int64_t WholeSteps(int64_t num_steps) { return num_steps; }

  template <Start kStart>
  void Multiply(const Matrix& a, const Matrix& b, const Matrix& c, int64_t /*num_rows*/, int64_t num_steps,
                int64_t num_columns) {
    if constexpr (Steps::kAsDecode && kStart == Start::kZero) {
      EvenOddProduct(a, b, c, num_steps, num_columns);
    } else {
      BlockProduct<Steps, kStart>(a, b, c, num_steps, num_columns);
    }
  }
};

#if HW_TILES

class TileProducts {
 public:
  static constexpr int64_t kRows = 2 * kRegisterRows;
  // The outputs of kRows rows stay in the first-level cache while these go by.
  static constexpr int64_t kTileKeys = kPrefillTileKeys;
  static constexpr bool kBesideVectors = true;
  static constexpr int64_t WholeSteps(int64_t num_steps) {
    return (num_steps + kRegisterSteps - 1) / kRegisterSteps * kRegisterSteps;
  }

  // Either product comes in parts, of kPartColumns columns each. The sums of a part stay in their registers until the
  // next part, or Finish: stored at once, they would be waited for, and what vectors do meanwhile would wait behind.
  // Requires: steps.
  static constexpr int64_t kPartColumns = 2 * kRegisterSteps;
  template <Start kStart>
  void Multiply(const Matrix& a, const Matrix& b, const Matrix& c, int64_t num_rows, int64_t num_steps,
                int64_t num_columns, int64_t column) {
    const bool two_rows = num_rows > kRegisterRows;
    const Matrix columns_b = {b.data + column, b.stride};
    const Matrix columns_c = {c.data + column, c.stride};
    if (column + kRegisterSteps < num_columns) {
      two_rows ? Registers<kStart, 2, 2>(a, columns_b, columns_c, num_steps)
               : Registers<kStart, 1, 2>(a, columns_b, columns_c, num_steps);
    } else {
      two_rows ? Registers<kStart, 2, 1>(a, columns_b, columns_c, num_steps)
               : Registers<kStart, 1, 1>(a, columns_b, columns_c, num_steps);
    }
  }
  void Finish() {
    Put<0>();
    Put<1>();
    Put<2>();
    Put<3>();
    pending_rows_ = 0;
  }

 private:
  // Registers 0 to 3 are sums, 4 and 5 rows of a, 6 and 7 columns of b.
  template <Start kStart, int kRowRegisters, int kColumnRegisters>
  HWY_INLINE void Registers(const Matrix& a, const Matrix& b, const Matrix& c, int64_t num_steps) {
    constexpr bool kTwoRows = kRowRegisters == 2;
    constexpr bool kTwoColumns = kColumnRegisters == 2;
    const auto a_stride = a.stride * static_cast<int64_t>(sizeof(float));
    const auto b_stride = b.stride * static_cast<int64_t>(sizeof(float));
    // Sums take each other's place where they are as many, one by one between products.
    const bool is_alike = pending_rows_ == kRowRegisters && pending_columns_ == kColumnRegisters;
    if (!is_alike) Finish();
    for (int64_t step = 0; step < num_steps; step += kRegisterSteps) {
      const auto begin = [&]<int kSum>() HW_INLINE_LAMBDA {
        if (step > 0) return;
        if (is_alike) Put<kSum>();
        Begin<kStart, kSum>(c);
      };
      const float* from_b = b.data + step * b.stride;
      tiles_.LoadPassing<6>(from_b, b_stride);
      tiles_.Load<4>(a.data + step, a_stride);
      begin.template operator()<0>();
      tiles_.DotBF16<0, 4, 6>();
      if constexpr (kTwoColumns) {
        tiles_.LoadPassing<7>(from_b + kRegisterSteps, b_stride);
        begin.template operator()<1>();
        tiles_.DotBF16<1, 4, 7>();
      }
      if constexpr (kTwoRows) {
        tiles_.Load<5>(a.data + kRegisterRows * a.stride + step, a_stride);
        begin.template operator()<2>();
        tiles_.DotBF16<2, 5, 6>();
      }
      if constexpr (kTwoRows && kTwoColumns) {
        begin.template operator()<3>();
        tiles_.DotBF16<3, 5, 7>();
      }
    }
    pending_ = c;
    pending_rows_ = kRowRegisters;
    pending_columns_ = kColumnRegisters;
  }

  template <int kSum>
  static float* At(const Matrix& c) {
    return c.data + kSum / 2 * kRegisterRows * c.stride + kSum % 2 * kRegisterSteps;
  }
  template <Start kStart, int kSum>
  HWY_INLINE void Begin(const Matrix& c) {
    if constexpr (kStart == Start::kZero) {
      tiles_.Zero<kSum>();
    } else {
      tiles_.Load<kSum>(At<kSum>(c), c.stride * static_cast<int64_t>(sizeof(float)));
    }
  }
  template <int kSum>
  HWY_INLINE void Put() {
    if (kSum / 2 >= pending_rows_ || kSum % 2 >= pending_columns_) return;
    tiles_.Store<kSum>(At<kSum>(pending_), pending_.stride * static_cast<int64_t>(sizeof(float)));
  }

  Tiles tiles_;
  // Where the sums that are in registers belong, and how many they are.
  Matrix pending_ = {};
  int pending_rows_ = 0;
  int pending_columns_ = 0;
};

template <typename Steps, bool kInTiles = Steps::kInTiles>
struct ProductsOfSteps {
  using Type = VectorProducts<Steps>;
};
template <typename Steps>
struct ProductsOfSteps<Steps, true> {
  using Type = TileProducts;
};
template <typename Steps>
using ProductsOf = typename ProductsOfSteps<Steps>::Type;

#else

template <typename Steps>
using ProductsOf = VectorProducts<Steps>;

#endif

}  // namespace
}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ATTENTION_PRODUCTS_INL_H_
