// Pages: keys, then values, P rows of D numbers each.
//   f32, f16, bf16  the numbers themselves, [P, D]. Of 16 bits, where D is a multiple of 64, [D / 64, P, 64]: rows of
//   128
//                   bytes, in which chunk c of 16 bytes lies where chunk c xor (row mod 8) would. A bulk copy brings
//                   such a page into shared memory as ldmatrix reads it without bank conflicts, and wgmma takes it too
//                   (its 128-byte swizzle)
//   q8              int8 codes, then the scales of the 2 P rows, f16
//   q4              codes of 4 bits, two to a byte, the first in the low half; then pairs of scale and low, f16: of the
//                   D dimensions of keys, of the [P, ceil(D / 32)] groups of values
#ifndef HEADWISE_BACKEND_CUDA_KV_PAGE_CUH_
#define HEADWISE_BACKEND_CUDA_KV_PAGE_CUH_

#include "backend/cuda/launch.cuh"
#include "backend/cuda/step_tables.h"

namespace headwise::cuda {

inline constexpr int kGroupDims = 32;  // of a value in q4

__device__ inline std::byte* PageAt(const SpaceView& space, uint32_t page) {
  const uint32_t in_extent = page & ((1u << space.extent_shift) - 1);
  return space.extents[page >> space.extent_shift] + static_cast<int64_t>(in_extent) * space.page_bytes;
}

// Bytes of codes, behind which scales begin.
__device__ inline int64_t CodeBytes(KvFormat format, int dim, int page_tokens) {
  const int64_t num_codes = 2 * static_cast<int64_t>(page_tokens) * dim;
  return format == KvFormat::kQ8 ? num_codes : num_codes / 2;
}

__device__ inline int GroupOf(int row, int d, int dim, int page_tokens) {
  return row < page_tokens ? d : dim + (row - page_tokens) * ((dim + kGroupDims - 1) / kGroupDims) + d / kGroupDims;
}

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
  const int i = IsPlain(format) ? PlainIndex(format, dim, page_tokens, row, d) : row * dim + d;
  switch (format) {
    case KvFormat::kF32:
      return reinterpret_cast<const float*>(page)[i];
    case KvFormat::kF16:
      return __half2float(reinterpret_cast<const __half*>(page)[i]);
    case KvFormat::kBF16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(page)[i]);
    case KvFormat::kQ8: {
      const auto* scales = reinterpret_cast<const __half*>(page + CodeBytes(format, dim, page_tokens));
      return __half2float(scales[row]) * static_cast<float>(reinterpret_cast<const int8_t*>(page)[i]);
    }
    case KvFormat::kQ4: {
      const auto* pairs = reinterpret_cast<const __half2*>(page + CodeBytes(format, dim, page_tokens));
      const float2 scale_low = __half22float2(pairs[GroupOf(row, d, dim, page_tokens)]);
      const int code = static_cast<int>(page[i / 2]) >> (i % 2 * 4) & 15;
      return __fadd_rn(__fmul_rn(scale_low.x, static_cast<float>(code)), scale_low.y);
    }
  }
  return 0;
}

// Whether numbers with this scale are stored as codes: else all codes are 0.
__device__ inline bool HasCodes(float scale) {
  return scale > 0 && isfinite(scale);
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
