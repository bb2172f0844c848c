// The newest token of a head, which decode attention rotates and appends on its way (append.cu does it elsewhere, with
// the same bits): a launch less in every layer, and the pages of the tokens before are on their way beside the product
// that makes this one. A warp of its own does it (AppendNewest in decode_ring.cuh).
#ifndef HEADWISE_BACKEND_CUDA_DECODE_APPEND_CUH_
#define HEADWISE_BACKEND_CUDA_DECODE_APPEND_CUH_

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/decode_states.cuh"
#include "backend/cuda/rotation.cuh"

namespace headwise::cuda::decode {

// Heads of 256 dimensions leave no registers for it.
constexpr bool Appends(int64_t dim) {
  return dim <= 128;
}
template <int kDim>
__device__ bool Appends(const DecodeParams& p) {
  return Appends(kDim) && p.new_rows.angles != nullptr;
}

// What a row of the step is rotated by, [D / 2] cosines with sines; null where queries and pages come as they are read.
template <int kDim>
__device__ const float* AnglesOf(const DecodeParams& p, const StepRows& rows) {
  if (!Appends<kDim>(p)) return nullptr;
  return p.new_rows.angles + static_cast<int64_t>(p.new_rows.angle_rows[rows.first_row]) * kDim;
}

// The key and the value of one KV head by one warp, numbers d to d + 3 of each half of a row a lane: of the key the
// first 16 lanes', of the value the others'.
template <int kDim>
class NewestToken {
 public:
  __device__ explicit NewestToken(const float* angles) {
    if (!HasNumbers()) return;
    first_angles_ = *reinterpret_cast<const float4*>(angles + 2 * dim());
    last_angles_ = *reinterpret_cast<const float4*>(angles + 2 * dim() + 4);
  }
  // Behind WaitForEarlier: of row `row` of [B Hkv, D].
  __device__ void Load(const NewRows& rows, int64_t row) {
    if (!HasNumbers()) return;
    const float* const at = (IsOfValue() ? rows.v : rows.k) + row * kDim + dim();
    low_ = *reinterpret_cast<const float4*>(at);
    high_ = *reinterpret_cast<const float4*>(at + kHalf);
    if (!IsOfValue()) RotateQuads(low_, high_, first_angles_, last_angles_);
  }

 protected:
  static constexpr int kHalf = kDim / 2;
  static constexpr int kLanes = kWarp / 2;  // of a row
  static __device__ int LaneOfRow() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int dim() { return 4 * LaneOfRow(); }
  static __device__ bool HasNumbers() { return dim() < kHalf; }
  static __device__ bool IsOfValue() { return (threadIdx.x & kLanes) != 0; }
  // In a page, whose keys come first.
  static __device__ int RowOf(int slot, int page_tokens) { return IsOfValue() ? page_tokens + slot : slot; }

  __device__ const float4& low() const { return low_; }
  __device__ const float4& high() const { return high_; }

 private:
  float4 low_ = {}, high_ = {};
  float4 first_angles_, last_angles_;
};

// In pages of 16-bit numbers.
template <typename T, int kDim, int kPageTokens>
class Appender16 : public NewestToken<kDim> {
 public:
  using Base = NewestToken<kDim>;
  using Base::Base;
  // Into slot `slot` of the page, and into its copy in shared memory.
  __device__ void Store(std::byte* page, char* copy, int slot) const {
    if (!Base::HasNumbers()) return;
    const int row = Base::RowOf(slot, kPageTokens);
    Put(page, copy, row, Base::dim(), Base::low());
    Put(page, copy, row, Base::dim() + Base::kHalf, Base::high());
  }

 private:
  static __device__ void Put(std::byte* page, char* copy, int row, int d, const float4& x) {
    const int at = PlainIndex(KvFormat::kF16, kDim, kPageTokens, row, d) * 2;
    const uint2 numbers = {Pack<T>(x.x, x.y), Pack<T>(x.z, x.w)};
    *reinterpret_cast<uint2*>(page + at) = numbers;
    *reinterpret_cast<uint2*>(copy + at) = numbers;
  }
};

// In pages of q8, copies of which have kCopyTokens tokens.
template <int kDim, int kPageTokens, int kCopyTokens>
class Appender8 : public NewestToken<kDim> {
 public:
  using Base = NewestToken<kDim>;
  using Base::Base;
  __device__ void Store(std::byte* page, char* copy, int slot) const {
    float largest = MaxOrNan(LargestOf(Base::low()), LargestOf(Base::high()));
#pragma unroll
    for (int distance = Base::kLanes / 2; distance > 0; distance /= 2) {
      largest = MaxOrNan(largest, __shfl_xor_sync(kAllLanes, largest, distance));
    }
    const __half scale = Q8Scale(largest);
    const uint32_t codes[] = {CodesOf(Base::low(), __half2float(scale)), CodesOf(Base::high(), __half2float(scale))};
    Put<kPageTokens>(reinterpret_cast<char*>(page), slot, codes, scale);
    Put<kCopyTokens>(copy, slot % kCopyTokens, codes, scale);
  }

 private:
  static __device__ uint32_t CodesOf(const float4& x, float scale) {
    return PackBytes(static_cast<uint32_t>(Q8Code(x.x, scale)), static_cast<uint32_t>(Q8Code(x.y, scale)),
                     static_cast<uint32_t>(Q8Code(x.z, scale)), static_cast<uint32_t>(Q8Code(x.w, scale)));
  }
  template <int kTokens>
  static __device__ void Put(char* page, int slot, const uint32_t (&codes)[2], __half scale) {
    const int row = Base::RowOf(slot, kTokens);
    if (Base::LaneOfRow() == 0) reinterpret_cast<__half*>(page + 2 * kTokens * kDim)[row] = scale;
    if (!Base::HasNumbers()) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int d = Base::dim() + half * Base::kHalf;
      if (Base::IsOfValue()) {  // each in another lane's chunk
#pragma unroll
        for (int i = 0; i < 4; ++i) page[Q8Byte(kDim, kTokens, row, d + i)] = static_cast<char>(codes[half] >> (8 * i));
      } else {
        *reinterpret_cast<uint32_t*>(page + Q8Byte(kDim, kTokens, row, d)) = codes[half];
      }
    }
  }
};

// Where pages hold all tokens.
struct NoAppender {
  __device__ explicit NoAppender(const float*) {}
  __device__ void Load(const NewRows&, int64_t) {}
  __device__ void Store(std::byte*, char*, int) const {}
};

}  // namespace headwise::cuda::decode

#endif  // HEADWISE_BACKEND_CUDA_DECODE_APPEND_CUH_
