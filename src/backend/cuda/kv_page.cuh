// Pages: keys, then values, P rows of D numbers each.
//   f32, f16, bf16  the numbers themselves, [P, D]. Of 16 bits, where D is a multiple of 64, [D / 64, P, 64]: rows of
//   128
//                   bytes, in which chunk c of 16 bytes lies where chunk c xor (row mod 8) would. A bulk copy brings
//                   such a page into shared memory as ldmatrix reads it without bank conflicts, and wgmma takes it too
//                   (its 128-byte swizzle)
//   q8              int8 codes, then the scales of the 2 P rows, f16
//   q4              codes of 4 bits, then scales and lows, f16: of the D dimensions of keys, of the [P, ceil(D / 32)]
//                   groups of values
// kv_codes.h says where codes lie.
#ifndef HEADWISE_BACKEND_CUDA_KV_PAGE_CUH_
#define HEADWISE_BACKEND_CUDA_KV_PAGE_CUH_

#include "backend/cuda/kv_codes.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/step_tables.h"

namespace headwise::cuda {

__device__ inline std::byte* PageAt(const SpaceView& space, uint32_t page) {
  const uint32_t in_extent = page & ((1u << space.extent_shift) - 1);
  return space.extents[page >> space.extent_shift] + static_cast<int64_t>(in_extent) * space.page_bytes;
}

// Bytes of codes, behind which scales begin.
__device__ inline int64_t CodeBytes(KvFormat format, int dim, int page_tokens) {
  const int64_t num_codes = 2 * static_cast<int64_t>(page_tokens) * dim;
  return format == KvFormat::kQ8 ? num_codes : num_codes / 2;
}

// The scale and the low of number d of a row of a q4 page, from where scales begin.
template <typename Half>
struct Q4Scale {
  Half &scale, &low;

  __device__ Q4Scale(Half* scales, int dim, int page_tokens, int row, int d)
      : scale(scales[row < page_tokens ? Q4KeyScale(d) : Q4ValuePair(dim, row - page_tokens, d)]),
        low(scales[row < page_tokens ? Q4KeyLow(dim, d) : Q4ValuePair(dim, row - page_tokens, d) + 1]) {}
};

// Numbers as they are, without scales.
constexpr bool IsPlain(KvFormat format) {
  return format == KvFormat::kF32 || format == KvFormat::kF16 || format == KvFormat::kBF16;
}

// Where number d of a row of a plain format lies: rows 0 .. P-1 are keys, P .. 2 P - 1 values.
__device__ inline int PlainIndex(KvFormat format, int dim, int page_tokens, int row, int d) {
  if (format == KvFormat::kF32 || dim % 64 != 0) return row * dim + d;
  const int slot = row % page_tokens;
  const int chunk = (d % 64 / 8) ^ (slot % 8);
  return row / page_tokens * page_tokens * dim + (d / 64 * page_tokens + slot) * 64 + chunk * 8 + d % 8;
}

// Element d of a row, as above.
__device__ inline float LoadKv(KvFormat format, const std::byte* page, int dim, int page_tokens, int row, int d) {
  const int i = IsPlain(format) ? PlainIndex(format, dim, page_tokens, row, d) : 0;
  switch (format) {
    case KvFormat::kF32:
      return reinterpret_cast<const float*>(page)[i];
    case KvFormat::kF16:
      return __half2float(reinterpret_cast<const __half*>(page)[i]);
    case KvFormat::kBF16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(page)[i]);
    case KvFormat::kQ8: {
      const auto* scales = reinterpret_cast<const __half*>(page + CodeBytes(format, dim, page_tokens));
      const auto code = reinterpret_cast<const int8_t*>(page)[Q8Byte(dim, page_tokens, row, d)];
      return __half2float(scales[row]) * static_cast<float>(code);
    }
    case KvFormat::kQ4: {
      const auto* scales = reinterpret_cast<const __half*>(page + CodeBytes(format, dim, page_tokens));
      const Q4Scale<const __half> of_group(scales, dim, page_tokens, row, d);
      const int nibble = Q4Nibble(dim, page_tokens, row, d);
      const int code = static_cast<int>(page[nibble / 2]) >> (nibble % 2 * 4) & 15;
      return __fadd_rn(__fmul_rn(__half2float(of_group.scale), static_cast<float>(code)), __half2float(of_group.low));
    }
  }
  return 0;
}

// Whether numbers with this scale are stored as codes: else all codes are 0.
__device__ inline bool HasCodes(float scale) {
  return scale > 0 && isfinite(scale);
}

// Of two numbers the larger, or NaN where one is.
__device__ inline float MaxOrNan(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}
// The largest magnitude, likewise.
__device__ inline float LargestOf(const float4& x) {
  return MaxOrNan(MaxOrNan(fabsf(x.x), fabsf(x.y)), MaxOrNan(fabsf(x.z), fabsf(x.w)));
}

// Over groups of kLanes lanes.
template <int kLanes>
__device__ float MaxOrNanOfLanes(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = MaxOrNan(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

// A row as codes of q8: its scale, from the largest magnitude or NaN if any number is NaN, and a number's code under
// the scale as it is stored.
__device__ inline __half Q8Scale(float largest) {
  return __float2half_rn(__fdiv_rn(largest, 127.0f));
}
__device__ inline int8_t Q8Code(float x, float scale) {
  return static_cast<int8_t>(HasCodes(scale) ? fminf(fmaxf(rintf(__fdiv_rn(x, scale)), -127.0f), 127.0f) : 0.0f);
}

// One head in this step, as HeadWork (kv_step.h) is on the host.
struct DeviceHead {
  const StepView& step;
  const StepHead& head;
  const StepRows& rows;
  const SpaceView& newest;
  int kv_head;
  int64_t aged_end;

  __device__ DeviceHead(const StepView& view, int layer_idx, int idx)
      : step(view),
        head(view.heads[view.sequences[idx / view.num_kv_heads].first_head + layer_idx * view.num_kv_heads +
                        idx % view.num_kv_heads]),
        rows(view.sequences[idx / view.num_kv_heads]),
        newest(view.spaces[head.newest]),
        kv_head(idx % view.num_kv_heads),
        aged_end(head.AgedEnd(rows.first_pos, newest.page_tokens)) {}

  __device__ std::byte* Page(int64_t page_idx, KvFormat& format) const {
    const bool is_aged = page_idx >= head.aged_begin && page_idx < aged_end;
    const SpaceView& space = is_aged ? step.spaces[head.aged] : newest;
    format = space.format;
    return PageAt(space, step.pages[head.EntryOf(page_idx)]);
  }
  __device__ float* State() const { return reinterpret_cast<float*>(PageAt(step.spaces[step.states], head.state)); }
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_KV_PAGE_CUH_
