// The newest token of a head, which decode attention rotates and appends on its way (append.cu does it elsewhere, with
// the same bits): a launch less in every layer, and the pages of the tokens before are on their way beside the product
// that makes this one. A warp of its own does it (AppendNewest in decode_ring.cuh).
#ifndef HEADWISE_BACKEND_CUDA_DECODE_APPEND_CUH_
#define HEADWISE_BACKEND_CUDA_DECODE_APPEND_CUH_

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/decode_states.cuh"
#include "backend/cuda/rotation.cuh"

namespace headwise::cuda::decode {

// Heads of 256 dimensions leave no registers for rotating queries.
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

// What is looked up for a sequence, once for all of its heads that a block does one behind the other.
template <int kDim>
struct SequenceAtHand {
  int idx = -1;
  StepRows rows = {};
  const float* angles = nullptr;  // as AnglesOf says

  // Returns whether it is another one than before.
  __device__ bool MoveTo(const DecodeParams& p, int sequence_idx) {
    if (sequence_idx == idx) return false;
    idx = sequence_idx;
    rows = p.step.sequences[idx];
    angles = AnglesOf<kDim>(p, rows);
    return true;
  }
};

// The key and the value of one KV head, by one warp. An appender is one of these that knows what pages hold:
//   Appender(angles)         of the row
//   Load(rows, row)          behind WaitForEarlier
//   Store(page, copy, slot)  into that slot of the page, and of the page's copy in shared memory
// Numbers d to d + 3 of each half of a row a lane: of the key the first 16 lanes', of the value the others'.
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

// In pages of q8, copies of which have kCopyTokens tokens. In few instructions: between two layers others have pushed
// them out of the instruction cache, and the warp waits for each line of them.
template <int kDim, int kPageTokens, int kCopyTokens>
class Appender8 : public NewestToken<kDim> {
 public:
  using Base = NewestToken<kDim>;
  using Base::Base;
  __device__ void Store(std::byte* page, char* copy, int slot) const {
    const float largest = MaxOrNan(LargestOf(Base::low()), LargestOf(Base::high()));
    const __half scale = Q8Scale(MaxOrNanOfLanes<Base::kLanes>(largest));
    if (Base::LaneOfRow() == 0) {
      PutScale<kPageTokens>(reinterpret_cast<char*>(page), slot, scale);
      PutScale<kCopyTokens>(copy, slot % kCopyTokens, scale);
    }
    if (!Base::HasNumbers()) return;
    float4 x = Base::low();
    char* to_page = reinterpret_cast<char*>(page) + FirstByte<kPageTokens>(slot);
    char* to_copy = copy + FirstByte<kCopyTokens>(slot % kCopyTokens);
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const uint32_t codes = CodesOf(x, __half2float(scale));
      PutQuad(to_page, codes);
      PutQuad(to_copy, codes);
      x = Base::high();
      to_page += Base::IsOfValue() ? kValueHalf : kKeyHalf;
      to_copy += Base::IsOfValue() ? kValueHalf : kKeyHalf;
    }
  }

 private:
  // From the byte of a number to that of another one of the row: of a key as far into the row's second half, of a value
  // that far and to the next one of four.
  static constexpr int kKeyHalf = Q8Byte(kDim, kPageTokens, 0, Base::kHalf);
  static constexpr int kValueAt = Q8Byte(kDim, kPageTokens, kPageTokens, 0);
  static constexpr int kValueHalf = Q8Byte(kDim, kPageTokens, kPageTokens, Base::kHalf) - kValueAt;
  static constexpr int kValueNext = Q8Byte(kDim, kPageTokens, kPageTokens, 1) - kValueAt;
  static_assert(Q8Byte(kDim, kPageTokens, kPageTokens, 7) == kValueAt + 7 * kValueNext);

  template <int kTokens>
  static __device__ int FirstByte(int slot) {
    return Q8Byte(kDim, kTokens, Base::RowOf(slot, kTokens), Base::dim());
  }
  template <int kTokens>
  static __device__ void PutScale(char* page, int slot, __half scale) {
    reinterpret_cast<__half*>(page + 2 * kTokens * kDim)[Base::RowOf(slot, kTokens)] = scale;
  }
  static __device__ uint32_t CodesOf(const float4& x, float scale) {
    return PackBytes(static_cast<uint32_t>(Q8Code(x.x, scale)), static_cast<uint32_t>(Q8Code(x.y, scale)),
                     static_cast<uint32_t>(Q8Code(x.z, scale)), static_cast<uint32_t>(Q8Code(x.w, scale)));
  }
  // Four numbers of a key lie together, those of a value each in another lane's chunk.
  static __device__ void PutQuad(char* to, uint32_t codes) {
    if (Base::IsOfValue()) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i * kValueNext] = static_cast<char>(codes >> (8 * i));
    } else {
      *reinterpret_cast<uint32_t*>(to) = codes;
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
