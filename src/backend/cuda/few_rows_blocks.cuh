// What products of few rows with block formats are made of (matmul_few_rows_blocks.cu): x as bytes, slices of weights
// on their way through shared memory, and their products.
#ifndef HEADWISE_BACKEND_CUDA_FEW_ROWS_BLOCKS_CUH_
#define HEADWISE_BACKEND_CUDA_FEW_ROWS_BLOCKS_CUH_

#include "backend/cuda/block_operands.h"
#include "backend/cuda/few_rows.cuh"

namespace headwise::cuda::few_rows {

// ---- x --------------------------------------------------------------------------------------------------------------

// All rows, or with a norm, whose weights are in `norm`, their products with those; then the squares of x too, [T, K /
// 16]. By a block's first kThreads.
__device__ inline void StageBytes(const FewRowsParams& p, const XBytes& layout, const RowQuads& norm, char* staged,
                                  float* squares) {
  const int padded_depth = layout.num_turns * kTurnElements;
  for (int row = 0; row < p.num_rows; ++row) {
    for (int first = 0; 4 * first < padded_depth; first += RowQuads::kNumbers / 4) {
      RowQuads x;
      x.Load(p.x + static_cast<int64_t>(row) * p.depth, first, p.depth);
#pragma unroll
      for (int i = 0; i < kNormQuads; ++i) {
        const int quad = RowQuads::QuadOf(first, i);
        if (4 * quad >= padded_depth) continue;
        if (p.norm_weight != nullptr) {
          x.quads[i] = TakeSquares(p, row, quad, x.quads[i], norm.quads[i], squares);
        }
        PutRounded(layout, staged, row, quad, x.quads[i]);
      }
    }
  }
}
static_assert(kPadElements % (4 * kWarp) == 0);  // whole warps are there or not

// ---- weights --------------------------------------------------------------------------------------------------------

// A warp's ring of slices, each copied kStages - 1 before it is used. Addresses are carried along.
template <int kSlice, int kStages>
struct BlockRing {
  static constexpr int kSliceBytes = kSlice;
  static constexpr int kAtOnce = 16 * static_cast<int>(kWarp);
  static constexpr int kLast = kSliceBytes / kAtOnce * kAtOnce;
  static constexpr int kBytes = kStages * kSliceBytes;
  const char* const memory;  // [kStages][kSliceBytes]
  const uint32_t end;        // of the lane's chunks there
  uint32_t written;
  int read = 0;
  const bool has_last;  // the lane copies of what is left of a slice behind whole warps' chunks

  __device__ explicit BlockRing(char* begin)
      : memory(begin),
        end(SharedAddress(begin) + LaneAt() + kBytes),
        written(end - kBytes),
        has_last(LaneAt() < kSliceBytes - kLast) {}
  // The lane's first chunk of a slice.
  static __device__ int LaneAt() { return static_cast<int>(threadIdx.x % kWarp) * 16; }
  // `from`: the lane's part of a slice.
  __device__ void Copy(const char* from) {
#pragma unroll
    for (int i = 0; i < kLast; i += kAtOnce) CopyChunkOnce(written + i, from + i);
    if (has_last) CopyChunkOnce(written + kLast, from + kLast);
  }
  // Behind each Copy, or in place of it where nothing is left.
  __device__ void Commit() {
    written += kSliceBytes;
    if (written == end) written -= kBytes;
    CommitCopies();
  }
  // The oldest slice, once it is there.
  __device__ const char* Wait() {
    WaitForCopies<kStages - 2>();
    __syncwarp();  // and every lane is done with the slice before
    return memory + read;
  }
  __device__ void Release() {
    read += kSliceBytes;
    if (read == kBytes) read = 0;
  }
};

// A share's slices on their way into its ring: of every tile each kNumShares-th.
template <typename Ring>
struct ShareCopies {
  Ring& ring;
  const int of_tile;  // slices of the share
  int left = 0;       // of the tile that is being copied
  int next_idx = 0;   // the tile behind it
  const char* next = nullptr;

  __device__ ShareCopies(Ring& into, int share, int num_slices)
      : ring(into), of_tile((num_slices - share + kNumShares - 1) / kNumShares) {}
  // The next one, or nothing behind the last. `find`: where the share's first slice of tile i of the block is, or null.
  template <typename Find>
  __device__ void CopyNext(const Find& find) {
    if (left == 0 && of_tile > 0) {
      const char* const first = find(next_idx);
      if (first != nullptr) {
        next = first + Ring::LaneAt();
        left = of_tile;
        ++next_idx;
      }
    }
    if (left > 0) {
      ring.Copy(next);
      next += kNumShares * Ring::kSliceBytes;
      --left;
    }
    ring.Commit();
  }
};

// Where a share's first slice of tile i is; null where there is no such tile.
template <int kSliceBytes>
__device__ inline const char* FirstSliceOf(const Tiles& tiles, int i, int share, int num_slices) {
  if (!tiles.IsThere(i)) return nullptr;
  const Tile tile = tiles.Get(i);
  return static_cast<const char*>(tile.part.weight) +
         (static_cast<int64_t>(tile.first_output / kTileOutputs) * num_slices + share) * kSliceBytes;
}

// An integer of up to 22 bits beside this one, taken for a float, is that float and the integer.
inline constexpr float kIntegerBase = 12582912.0f;  // 1.5 * 2^23
inline constexpr uint32_t kIntegerBaseBits = 0x4B400000u;
// The same of a byte.
inline constexpr float kByteBase = 8388608.0f;
inline constexpr uint32_t kByteBaseBits = 0x4B000000u;

// kIntegerBase + a [16, 32] b [32, 8].
template <bool kSigned>
__device__ inline void MultiplyBytes(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  uint32_t d[4];
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
        "%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kIntegerBaseBits));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
        "%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kIntegerBaseBits));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = __uint_as_float(d[i]);
}
// kIntegerBase + a [16, 16] b [16, 8], of signed bytes.
__device__ inline void MultiplyHalfRun(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  uint32_t d[4];
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(kIntegerBaseBits));
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = __uint_as_float(d[i]);
}

__device__ inline float2 HalvesOf(uint32_t bits) {
  return __half22float2(reinterpret_cast<const __half2&>(bits));
}
// Two scales of a format, as they lie in the order.
template <DType kType>
__device__ inline float2 ScalesOf(uint32_t bits) {
  if constexpr (OrderOf(kType).has_powers) return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xFFFF0000u)};
  return HalvesOf(bits);
}
__device__ inline uint32_t Word(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}
__device__ inline uint4 LoadChunk(const char* from) {
  return *reinterpret_cast<const uint4*>(from);
}

// A number d * (kIntegerBase + i) is brought back to d * i with one rounding: d times the base is exact.
struct Factor {
  float d = 0;
  float base = 0;  // -d * kIntegerBase
  __device__ void Set(float value) {
    d = value;
    base = -value * kIntegerBase;
  }
  __device__ float Times(float c) const { return fmaf(c, d, base); }
};

// What a lane's two outputs have beside codes: of every run (or half of one), d as a Factor, and the minimum.
struct RunScales {
  Factor d[2][2];  // [half of a run, where they differ][output g, output g + 8]
  float min[2];
};

template <DType kType>
struct SliceScales {
  static constexpr BlockOrder kOrder = OrderOf(kType);
  const char* const of_lane;  // scales of the lane's outputs
  float2 d, min;              // of the slice's blocks, with scales of scales
  uint4 scales, mins;         // of several runs

  __device__ explicit SliceScales(const char* slice)
      : of_lane(slice + kOrder.scales_at() + static_cast<int>(threadIdx.x % kWarp) / 4 * LaneBytes()) {
    const int g = static_cast<int>(threadIdx.x % kWarp) / 4;
    if constexpr (kOrder.has_super && kOrder.has_min) {
      const auto halves = *reinterpret_cast<const uint2*>(slice + kOrder.halves_at() + g * 8);
      d = HalvesOf(halves.x);
      min = MinimaOf(halves.y);
    } else if constexpr (kOrder.has_super) {
      d = HalvesOf(*reinterpret_cast<const uint32_t*>(slice + kOrder.halves_at() + g * 4));
    }
  }
  static constexpr int LaneBytes() { return kOrder.runs * (kOrder.has_super && !kOrder.has_half_runs ? 2 : 4); }
  static constexpr int RunsOfChunk() { return kOrder.has_super && !kOrder.has_half_runs ? 8 : 4; }

  // In order of runs, from the first on.
  __device__ RunScales Of(int run) {
    if (run % RunsOfChunk() == 0) {
      scales = LoadChunk(of_lane + run / RunsOfChunk() * 16);
      if constexpr (kOrder.has_min) {
        mins = LoadChunk(of_lane + (kOrder.mins_at() - kOrder.scales_at()) + run / RunsOfChunk() * 16);
      }
    }
    RunScales found;
    if constexpr (!kOrder.has_super) {
      const float2 value = ScalesOf<kType>(Word(scales, run % 4));
      found.d[0][0].Set(value.x);
      found.d[0][1].Set(value.y);
      if constexpr (kOrder.has_min) {
        const float2 its_min = MinimaOf(Word(mins, run % 4));
        found.min[0] = its_min.x;
        found.min[1] = its_min.y;
      }
    } else if constexpr (kOrder.has_half_runs) {
      const uint32_t bytes = Word(scales, run % 4) ^ 0x80808080u;  // from 0 on
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        found.d[half][0].Set(d.x * (Byte(bytes, 2 * half) - (kByteBase + 128)));
        found.d[half][1].Set(d.y * (Byte(bytes, 2 * half + 1) - (kByteBase + 128)));
      }
    } else {
      const int byte = run % 2 * 2;
      found.d[0][0].Set(fmaf(Byte(Word(scales, run / 2), byte), d.x, -d.x * kByteBase));
      found.d[0][1].Set(fmaf(Byte(Word(scales, run / 2), byte + 1), d.y, -d.y * kByteBase));
      found.min[0] = fmaf(Byte(Word(mins, run / 2), byte), -min.x, min.x * kByteBase);
      found.min[1] = fmaf(Byte(Word(mins, run / 2), byte + 1), -min.y, min.y * kByteBase);
    }
    return found;
  }
  // As large beside products of operands as they are beside those of codes.
  static __device__ float2 MinimaOf(uint32_t bits) {
    const float2 minima = HalvesOf(bits);
    return {minima.x / OperandFactor(kOrder), minima.y / OperandFactor(kOrder)};
  }
  // kByteBase and byte i.
  static __device__ float Byte(uint32_t bytes, int i) {
    return __uint_as_float(__byte_perm(bytes, kByteBaseBits, 0x7650 + i));
  }
};

// A lane's registers of runs of a slice.
template <DType kType>
struct SliceOperands {
  static constexpr BlockOrder kOrder = OrderOf(kType);
  const char* const of_lane;
  uint4 words, high_words = {};  // of several runs

  __device__ explicit SliceOperands(const char* slice) : of_lane(slice + static_cast<int>(threadIdx.x % kWarp) * 16) {
    if constexpr (kOrder.bits == 5) high_words = LoadChunk(of_lane + kOrder.high_at());
  }
  // Both in order of runs, from the first on.
  __device__ void Words(int run, uint32_t (&low)[LowWords(kOrder)]) {
    if constexpr (LowWords(kOrder) == 4) {
      words = LoadChunk(of_lane + run * 512);
      low[0] = words.x, low[1] = words.y, low[2] = words.z, low[3] = words.w;
    } else {
      if (run % 2 == 0) words = LoadChunk(of_lane + run / 2 * 512);
      low[0] = run % 2 == 0 ? words.x : words.z, low[1] = run % 2 == 0 ? words.y : words.w;
    }
  }
  __device__ void Of(int run, uint32_t (&a)[4]) {
    if constexpr (kOrder.bits == 6) {
      if (run % 4 == 0) high_words = LoadChunk(of_lane + kOrder.high_at() + run / 4 * 512);
    }
    uint32_t low[LowWords(kOrder)];
    Words(run, low);
    OperandsOf<kType>(low, Word(high_words, kOrder.bits == 5 ? run / 2 : run % 4), run, a);
  }
};

// x of a lane, of one group of columns. Lanes of columns that are not there read the last one: sums that nobody reads.
struct GroupOfX {
  const char* codes;  // [turns][its chunk of 16 bytes]
  const char* scales;
  GroupOfX() = default;
  __device__ GroupOfX(const XBytes& layout, const char* x, int group) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int column = min(group * kRowsOfGroup + lane / 4, layout.num_columns - 1);
    const int pair = min(group * (kRowsOfGroup / 2) + lane % 4, layout.num_pairs() - 1);
    codes = x + (column * 4 + lane % 4) * 16;
    scales = x + layout.scales_at() + pair * 16;
  }
};

template <int kGroups>
struct Groups {
  GroupOfX of[kGroups];
  __device__ Groups(const XBytes& layout, const char* x) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) of[i] = GroupOfX(layout, x, i);
  }
  __device__ void Move(int bytes) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      of[i].codes += bytes;
      of[i].scales += bytes;
    }
  }
};

// acc += a slice of weights times x, as many times as large as operands are as codes (TakeFactorBack). A slice's runs
// are added in their order. kOneRow: of sums the first column's alone.
template <DType kType, int kGroups, bool kOneRow = false>
__device__ inline void MultiplySlice(const char* slice, const XBytes& layout, const GroupOfX (&x)[kGroups],
                                     int first_turn, float (&acc)[kGroups][4]) {
  constexpr BlockOrder kOrder = OrderOf(kType);
  constexpr int kStep = kOneRow ? 2 : 1;  // from one of a lane's sums to the next that somebody reads
  const int codes_stride = layout.num_columns * 64;
  const int scales_stride = layout.num_pairs() * 16;
  const int sums_at = layout.scales_bytes();
  SliceScales<kType> scales(slice);
  SliceOperands<kType> operands(slice);
#pragma unroll
  for (int turn = 0; turn < kOrder.runs / 2; ++turn) {
    uint4 codes_of_x[kGroups];
    float4 scales_of_x[kGroups], sums_of_x[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      codes_of_x[group] = LoadChunk(x[group].codes + (first_turn + turn) * codes_stride);
      const char* const its_scales = x[group].scales + (first_turn + turn) * scales_stride;
      scales_of_x[group] = *reinterpret_cast<const float4*>(its_scales);
      if constexpr (kOrder.has_min) sums_of_x[group] = *reinterpret_cast<const float4*>(its_scales + sums_at);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int run = 2 * turn + i;
      uint32_t a[4];
      operands.Of(run, a);
      const RunScales of_run = scales.Of(run);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const uint4& bytes = codes_of_x[group];
        const uint32_t b0 = i == 0 ? bytes.x : bytes.z;
        const uint32_t b1 = i == 0 ? bytes.y : bytes.w;
        const float4& both = scales_of_x[group];
        const float of_x[2] = {i == 0 ? both.x : both.z, i == 0 ? both.y : both.w};
        float c[4];
        if constexpr (kOrder.has_half_runs) {
          float second[4];
          MultiplyHalfRun(c, a[0], a[1], b0);
          MultiplyHalfRun(second, a[2], a[3], b1);
#pragma unroll
          for (int j = 0; j < 4; j += kStep) {
            const float sum = of_run.d[0][j / 2].Times(c[j]) + of_run.d[1][j / 2].Times(second[j]);
            acc[group][j] = fmaf(sum, of_x[j % 2], acc[group][j]);
          }
        } else {
          MultiplyBytes<HasSignedOperands(kOrder)>(c, a, b0, b1);
#pragma unroll
          for (int j = 0; j < 4; j += kStep) {
            acc[group][j] = fmaf(of_run.d[0][j / 2].Times(c[j]), of_x[j % 2], acc[group][j]);
          }
        }
        if constexpr (kOrder.has_min) {
          const float4& sums = sums_of_x[group];
          const float of_sum[2] = {i == 0 ? sums.x : sums.z, i == 0 ? sums.y : sums.w};
#pragma unroll
          for (int j = 0; j < 4; j += kStep) acc[group][j] = fmaf(of_run.min[j / 2], of_sum[j % 2], acc[group][j]);
        }
      }
    }
  }
}

// Exact, as factors are powers of two.
template <DType kType, int kGroups>
__device__ inline void TakeFactorBack(float (&acc)[kGroups][4]) {
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[group][i] *= OperandFactor(OrderOf(kType));
  }
}

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_BLOCKS_CUH_
