// The newest token of a head, which decode attention rotates and appends on its way (append.cu does it elsewhere, with
// the same bits): a launch less in every layer, and the pages of the tokens before are on their way beside the product
// that makes this one.
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

// A warp's way to it in pages of 16-bit numbers: numbers d and d + 1 of each half of a row a lane.
template <typename T, int kDim, int kPageTokens>
class Appender16 {
 public:
  __device__ explicit Appender16(const DecodeParams& params) : p_(params) {}
  // Else pages hold all tokens, and queries are rotated.
  __device__ bool is_on() const { return p_.new_rows.angles != nullptr; }

  // Ahead of WaitForEarlier: what the step began with. `stores`: the block's pieces have the newest token.
  __device__ void BeginHead(int head_idx, const StepRows& rows, bool stores) {
    page_ = nullptr;
    if (!is_on()) return;
    angles_ = p_.new_rows.angles + static_cast<int64_t>(p_.new_rows.angle_rows[rows.first_row]) * kDim;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    if (lane < kDim / 32) PrefetchLine(angles_ + lane * 32);  // held, they would cost registers
    if (!stores) return;
    slot_ = static_cast<int>(rows.first_pos % kPageTokens);
    KvFormat format;
    page_ = DeviceHead(p_.step, p_.layer_idx, head_idx).Page(rows.first_pos / kPageTokens, format);
  }
  // Behind it: row `row` of [B Hkv, D].
  __device__ void Load(int64_t row) {
    if (page_ == nullptr || DimOfLane() >= kHalf) return;
    const int64_t at = row * kDim + DimOfLane();
    const Pairs key = Rotated(PairsAt(p_.new_rows.k + at), AnglesOf(DimOfLane()));
    const Pairs value = PairsAt(p_.new_rows.v + at);
    key_ = {Pack<T>(key.low.x, key.low.y), Pack<T>(key.high.x, key.high.y)};
    value_ = {Pack<T>(value.low.x, value.low.y), Pack<T>(value.high.x, value.high.y)};
  }
  // Into the page, and into its copy in shared memory, where tokens [first_slot, first_slot + num_tokens) of it are the
  // warp's.
  __device__ void Store(char* copy, int first_slot, int num_tokens) const {
    if (slot_ < first_slot || slot_ >= first_slot + num_tokens) return;
    if (DimOfLane() < kHalf) {
      Put(copy, slot_, key_);
      Put(copy, kPageTokens + slot_, value_);
    }
    FenceSharedWrites();
    __syncwarp();
  }
  __device__ bool stores() const { return page_ != nullptr; }

  // Two pairs of a row: numbers d and d + 1 of its first half and of its second.
  struct Pairs {
    float2 low, high;
  };
  static __device__ Pairs PairsAt(const float* x) {
    return {*reinterpret_cast<const float2*>(x), *reinterpret_cast<const float2*>(x + kHalf)};
  }
  static __device__ Pairs Rotated(const Pairs& x, const float4& angles) {
    const float2 first = cuda::Rotated(x.low.x, x.high.x, {angles.x, angles.y});
    const float2 second = cuda::Rotated(x.low.y, x.high.y, {angles.z, angles.w});
    return {{first.x, second.x}, {first.y, second.y}};
  }
  // Of numbers d and d + 1 of the first half.
  __device__ float4 AnglesOf(int d) const { return *reinterpret_cast<const float4*>(angles_ + 2 * d); }

 private:
  static constexpr int kHalf = kDim / 2;
  static __device__ int DimOfLane() { return 2 * static_cast<int>(threadIdx.x % kWarp); }
  __device__ void Put(char* copy, int row, const uint2& numbers) const {
    const int low = PlainIndex(KvFormat::kF16, kDim, kPageTokens, row, DimOfLane()) * 2;
    const int high = PlainIndex(KvFormat::kF16, kDim, kPageTokens, row, DimOfLane() + kHalf) * 2;
    *reinterpret_cast<uint32_t*>(copy + low) = numbers.x;
    *reinterpret_cast<uint32_t*>(copy + high) = numbers.y;
    *reinterpret_cast<uint32_t*>(page_ + low) = numbers.x;
    *reinterpret_cast<uint32_t*>(page_ + high) = numbers.y;
  }

  const DecodeParams& p_;
  const float* angles_ = nullptr;  // of the head's row
  uint2 key_, value_;
  std::byte* page_ = nullptr;
  int slot_ = 0;  // of the newest token in it
};

// Where pages hold all tokens.
struct NoAppender {
  __device__ NoAppender() {}
  __device__ explicit NoAppender(const DecodeParams& /*params*/) {}
  static constexpr bool is_on() { return false; }
  static constexpr bool stores() { return false; }
  __device__ void BeginHead(int, const StepRows&, bool) {}
  __device__ void Load(int64_t) {}
  __device__ void Store(char*, int, int) const {}
};

}  // namespace headwise::cuda::decode

#endif  // HEADWISE_BACKEND_CUDA_DECODE_APPEND_CUH_
