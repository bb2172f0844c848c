// x of a product of few rows as it is multiplied, in bf16 (matmul_few_rows.cu) or in bytes (matmul_few_rows_blocks.cu),
// left by whoever makes x: so the product has no kernel between it and that one.
#ifndef HEADWISE_BACKEND_CUDA_ROUNDED_COLUMNS_CUH_
#define HEADWISE_BACKEND_CUDA_ROUNDED_COLUMNS_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/block_order.h"
#include "backend/cuda/launch.cuh"

namespace headwise::cuda {

// ---- bytes ----------------------------------------------------------------------------------------------------------

inline constexpr int kTurnElements = 2 * kRunElements;
inline constexpr int kPadElements = 256;  // K is rounded up to whole slices of every format, with zeros

// Rows of x as bytes with a scale for a run of 32, as products with block formats read them: codes of all turns, then
// their scales, then (for formats with minima) their scales times the sums of their codes.
//   codes of a turn, two runs: of each column four lanes' 16 bytes, two registers' of the one run and two of the other:
//                              right operands of mma.m16n8k32, elements in the order of the left ones' (block_order.h)
//   scales, or sums, of a turn: f32 of each two columns, two of the one run and two of the other
struct XBytes {
  int num_columns;
  int num_turns;
  bool has_sums;

  __host__ __device__ int num_pairs() const { return (num_columns + 1) / 2; }
  __host__ __device__ int scales_at() const { return num_turns * num_columns * 64; }
  __host__ __device__ int scales_bytes() const { return num_turns * num_pairs() * 16; }
  __host__ __device__ int bytes() const { return scales_at() + (has_sums ? 2 : 1) * scales_bytes(); }
};
// Of rows of K numbers.
inline XBytes BytesOfRows(int num_rows, int64_t depth, bool has_sums) {
  return {.num_columns = num_rows,
          .num_turns = static_cast<int>((depth + kPadElements - 1) / kPadElements) * (kPadElements / kTurnElements),
          .has_sums = has_sums};
}

inline constexpr int kLanesOfRun = kRunElements / 4;

// Four numbers of a column, of which eight neighbouring lanes have a run, rounded and put where they belong. By all
// lanes of `lanes`, whole eights. As the CPU rounds them; what is no number makes the scale none.
__device__ inline void PutRounded(const XBytes& layout, char* to, int column, int quad, const float4& x,
                                  uint32_t lanes = kAllLanes) {
  uint32_t largest_bits = max(max(__float_as_uint(fabsf(x.x)), __float_as_uint(fabsf(x.y))),
                              max(__float_as_uint(fabsf(x.z)), __float_as_uint(fabsf(x.w))));
#pragma unroll
  for (int distance = 1; distance < kLanesOfRun; distance *= 2) {
    largest_bits = max(largest_bits, __shfl_xor_sync(lanes, largest_bits, distance));
  }
  const float largest = __uint_as_float(largest_bits);
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const int codes[4] = {__float2int_rn(x.x * inverse), __float2int_rn(x.y * inverse), __float2int_rn(x.z * inverse),
                        __float2int_rn(x.w * inverse)};
  const uint32_t low = __byte_perm(static_cast<uint32_t>(codes[0]), static_cast<uint32_t>(codes[1]), 0x0040);
  const uint32_t high = __byte_perm(static_cast<uint32_t>(codes[2]), static_cast<uint32_t>(codes[3]), 0x0040);
  const int run = quad / kLanesOfRun;
  const int lane = quad % kLanesOfRun;
  const int turn = run / 2;
  // Of 16 elements two quads have a half of each operand; who has the first ones takes two operands' whole.
  const bool is_second = lane / 2 % 2 == 1;
  const uint32_t other = __shfl_xor_sync(lanes, is_second ? low : high, 2);
  const uint32_t bytes = is_second ? __byte_perm(other, high, 0x5140) : __byte_perm(low, other, 0x5140);
  const int operand = lane % 2 * 2 + (is_second ? 1 : 0);
  const int word = ((turn * layout.num_columns + column) * 4 + operand) * 4 + run % 2 * 2 + lane / 4;
  reinterpret_cast<uint32_t*>(to)[word] = bytes;
  int sum = codes[0] + codes[1] + codes[2] + codes[3];
  if (layout.has_sums) {
#pragma unroll
    for (int distance = 1; distance < kLanesOfRun; distance *= 2) sum += __shfl_xor_sync(lanes, sum, distance);
  }
  if (lane != 0) return;
  const float scale = largest / 127.0f;
  const int at = (turn * layout.num_pairs() + column / 2) * 4 + run % 2 * 2 + column % 2;
  auto* const scales = reinterpret_cast<float*>(to + layout.scales_at());
  scales[at] = scale;
  if (layout.has_sums) scales[layout.scales_bytes() / 4 + at] = scale * static_cast<float>(sum);
}

// ---- what is left for the product behind ----------------------------------------------------------------------------

// Four numbers rounded to bf16; what is left of them stays in x.
__device__ inline uint2 TakeRounded(float4& x) {
  using Bf16 = __nv_bfloat16;
  const float4 rounded = {Round<Bf16>(x.x), Round<Bf16>(x.y), Round<Bf16>(x.z), Round<Bf16>(x.w)};
  x = {x.x - rounded.x, x.y - rounded.y, x.z - rounded.z, x.w - rounded.w};
  return {Pack<Bf16>(rounded.x, rounded.y), Pack<Bf16>(rounded.z, rounded.w)};
}

// Rows as rounded to bf16, then what rounding left of them, rounded, and so on; or in bytes.
struct RoundedColumns {
  __nv_bfloat16* data = nullptr;  // [num_parts, T, K], or null: nobody wants them
  int num_parts = 0;
  int64_t part_numbers = 0;  // T K
  char* bytes = nullptr;     // the same, of T columns; K is a multiple of kPadElements
  XBytes layout = {};

  __device__ bool are_wanted() const { return data != nullptr || bytes != nullptr; }
  // Number `at` of [T, K], in bf16.
  __device__ void Store(int64_t at, float x) const {
    __nv_bfloat16* to = data + at;
#pragma unroll 1
    for (int part = 0; part < num_parts; ++part, to += part_numbers) {
      *to = __float2bfloat16_rn(x);
      x -= Round<__nv_bfloat16>(x);
    }
  }
  // Numbers 4 quad to 4 quad + 3. By eight neighbouring lanes, whose quads are a run.
  __device__ void StoreQuad(int64_t quad, float4 x) const {
    if (bytes != nullptr) {
      const int quads_of_row = layout.num_turns * (kTurnElements / 4);
      const auto row = static_cast<int>(quad / quads_of_row);
      const uint32_t lanes = 0xffu << (threadIdx.x % kWarp / kLanesOfRun * kLanesOfRun);
      PutRounded(layout, bytes, row, static_cast<int>(quad) - row * quads_of_row, x, lanes);
      return;
    }
#pragma unroll 1
    for (int part = 0; part < num_parts; ++part) {
      reinterpret_cast<uint2*>(data + part * part_numbers)[quad] = TakeRounded(x);
    }
  }
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_ROUNDED_COLUMNS_CUH_
