// Decode attention over pages of codes, q8 and q4 mixed: one new token a sequence, D 64, 128 or 256, pages of 32 or 64
// tokens, up to 8 query heads a KV head. One launch a layer over all heads with such pages, of all sequences.
//
// Bound by reading every page once: 2 P D bytes and scales of q8, half of that of q4. What a warp does for 32 tokens
// must fit beside: codes are multiplied as they are and never become what they stand for.
//   q8  integer products. Queries are rounded to 8 bits, and weights, once they carry their value's scale, to 7 with a
//       scale for 32 tokens.
//   q4  one and makes two codes 16-bit numbers: 1024 + code, or 1024 + 16 code, of keys, 16 + code of values. The
//       scales of key dimensions join the query for every page, in f16, which holds those up to 16,376: of larger ones
//       scores become infinite. Their lows, and the 1024, add one number to all its scores. Weights carry the scale of
//       a value's 32 dimensions, in bf16; the lows, and the 16, are summed up by themselves.
// The newest page is q8 in caches of q4 too. Behind a product queries are rotated and its last token is added on the
// way (decode_append.cuh).
#include <type_traits>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/decode_ring.cuh"

namespace headwise::cuda {
namespace decode {
namespace {

constexpr int kTokens = kOperandTokens;  // of a page for a warp
// In pairs, on a page of 64 tokens each; stages of 256 dimensions and states of eight queries leave shared memory for
// no more than four.
constexpr int NumConsumers(int dim) {
  return dim <= 128 ? 10 : 8;
}

constexpr int PageBytesOf(int code_bytes, int scale_bytes) {
  return (code_bytes + scale_bytes + 63) / 64 * 64;
}

constexpr int BytesOfCodes(int dim, int num_tokens) {
  return PageBytesOf(2 * num_tokens * dim, 4 * num_tokens);
}
constexpr int BytesOfAged(int dim, int num_tokens) {
  return PageBytesOf(num_tokens * dim, 4 * (dim + num_tokens * NumGroups(dim)));
}

// Where some pages have aged, stages are of their size, so that as many of them as possible are on their way; the
// others, few, come in halves: keys, values, scales of keys, scales of values.
template <int kDim, int kPageTokens, bool kHasAged>
struct CodeShape
    : RingShape<kDim, kPageTokens,
                (kHasAged && kPageTokens > kTokens) ? BytesOfAged(kDim, kPageTokens) : BytesOfCodes(kDim, kPageTokens),
                kTokens, NumConsumers(kDim)> {
  static constexpr bool kAges = kHasAged;
  static constexpr bool kHalvesNew = kHasAged && kPageTokens > kTokens;
  static constexpr int kGroupsOfValue = NumGroups(kDim);
  // Of a stage with new tokens.
  static constexpr int kTokensOfStage = kHalvesNew ? kTokens : kPageTokens;
  static_assert(!kHalvesNew || (kPageTokens == 2 * kTokens && BytesOfCodes(kDim, kTokens) <= CodeShape::kStageBytes));

  static __device__ void Copy(char* stage, const std::byte* page, const StageVisit& visit, uint64_t* barrier) {
    const bool is_aged = visit.Is(StageVisit::kIsAged);
    if (!kHalvesNew || is_aged) {
      const int bytes = is_aged ? BytesOfAged(kDim, kPageTokens) : BytesOfCodes(kDim, kPageTokens);
      ExpectBytes(barrier, bytes);
      BulkCopyOnce(stage, page, bytes, barrier);
      return;
    }
    const int half = visit.HasHalf(0) ? 0 : 1;
    constexpr int kCodeBytes = kTokens * kDim;
    constexpr int kScaleBytes = kTokens * 2;
    ExpectBytes(barrier, 2 * (kCodeBytes + kScaleBytes));
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // of keys, of values
      BulkCopyOnce(stage + i * kCodeBytes, page + i * kPageTokens * kDim + half * kCodeBytes, kCodeBytes, barrier);
      BulkCopyOnce(stage + 2 * kCodeBytes + i * kScaleBytes,
                   page + 2 * kPageTokens * kDim + i * kPageTokens * 2 + half * kScaleBytes, kScaleBytes, barrier);
    }
  }
};

// (x & kMask) | ones: by itself the compiler takes two instructions for two constants.
template <uint32_t kMask>
__device__ inline uint32_t Masked(uint32_t x, uint32_t ones) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "n"(kMask), "r"(ones));
  return y;
}

// Codes i and i + 4 of a word in f16, where they lie: as 1024 + code of even i, 1024 + 16 code of odd ones.
inline constexpr uint32_t kTwo1024 = 0x64006400u;
__device__ inline uint32_t TwoKeyCodes(uint32_t word, int i) {
  const uint32_t placed = i < 2 ? word : word >> 8;
  return i % 2 == 0 ? Masked<0x000f000fu>(placed, kTwo1024) : Masked<0x00f000f0u>(placed, kTwo1024);
}
// Queries of odd ones are 16 times smaller therefore; both have room for scales of up to 16,376.
inline constexpr float kEvenFactor = 2;
inline constexpr float kOddFactor = kEvenFactor / 16;
// As 16 + code in bf16, which has no room for 1024.
__device__ inline uint32_t TwoValueCodes(uint32_t word, int i) {
  return Masked<0x00780078u>(i == 0 ? word << 3 : word >> (4 * i - 3), 0x41804180u);
}

template <int kSplits, bool kAges>
struct CodeState : WarpState<kSplits> {
  // [0, 1] weights times lows, [2, 3] weights times scales, for queries 2 (lane % 4) and the next, of group lane / 4 of
  // 32 dimensions.
  float lows[4] = {};

  __device__ void Scale(float factor0, float factor1) {
    WarpState<kSplits>::Scale(factor0, factor1);
    if constexpr (kAges) {
      lows[0] *= factor0;
      lows[1] *= factor1;
      lows[2] *= factor0;
      lows[3] *= factor1;
    }
  }
};

// A lane's weights of the span, [tile][2 half + i]: of token lane / 4 + 16 tile + 8 half and query 2 (lane % 4) + i.
using Weights = float[2][4];

template <typename Shape>
class CodeReader {
 public:
  static constexpr int kDim = Shape::kDim;
  static constexpr int kNumGroups = Shape::kGroupsOfValue;

  __device__ explicit CodeReader(const DecodeParams& params)
      : p_(params), lane_(static_cast<int>(threadIdx.x % kWarp)), row_(lane_ / 4), quarter_(lane_ % 4) {}

  __device__ void LoadQueries(const float* q, const float* angles) {
    float4 x[2 * kWords];  // the lane's numbers of query lane / 4
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) {
      x[i] = {0, 0, 0, 0};
      if (row_ < p_.group) x[i] = *reinterpret_cast<const float4*>(q + row_ * kDim + DimOfQuad(i));
    }
    if (angles != nullptr) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {  // with those of the other half
        const auto* const of_quad = reinterpret_cast<const float4*>(angles + 2 * DimOfQuad(i));
        RotateQuads(x[i], x[i + kWords], of_quad[0], of_quad[1]);
      }
    }
    float largest = 0;  // or NaN where there is one
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) largest = MaxOrNan(largest, LargestOf(x[i]));
    largest = MaxOrNanOfLanes<4>(largest);
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) {
      bytes_[i] = PackBytes(NearestByte(x[i].x * inverse), NearestByte(x[i].y * inverse), NearestByte(x[i].z * inverse),
                            NearestByte(x[i].w * inverse));
    }
    scale8_ = OfQueries(largest / 127.0f * p_.scale);
    if constexpr (Shape::kAges) {
      // A power of two, so that f16 has room; by what codes lie at.
      const float power = __uint_as_float(__float_as_uint(largest) & 0x7f800000u);
      const float unit = power > 0 ? power : 1.0f;
      const float even = kEvenFactor / unit;
      const float odd = kOddFactor / unit;
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        halves_[2 * i] = Pack<__half>(x[i].x * even, x[i].y * even);
        halves_[2 * i + 1] = Pack<__half>(x[i].z * odd, x[i].w * odd);
      }
      scale4_ = OfQueries(unit / kEvenFactor * p_.scale);
    }
  }
  __device__ void Begin() {
    state_ = {};
  }

  __device__ void Attend(char* page, bool is_aged, const TokenSpan& span, float slope0, float slope1) {
    Weights x;
    if (Shape::kAges && is_aged) {
      ScoreAged(page, span.first_slot, x);
    } else {
      Score(page, span.first_slot, x);
    }
    const bool is_whole = span.IsWhole(kTokens);
    if (!is_whole) ClearUnread(page, is_aged, span);
    if (p_.score_cap != 0 || p_.alibi_slopes != nullptr || !is_whole) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (p_.score_cap != 0) x[tile][i] = SoftCapped(x[tile][i], p_.score_cap);
          const int slot = row_ + tile * 16 + i / 2 * 8;
          x[tile][i] = ScoreOf(x[tile][i], slot, is_whole, span, i % 2 == 0 ? slope0 : slope1);
        }
      }
    }
    RaiseMaxima(fmaxf(fmaxf(x[0][0], x[0][2]), fmaxf(x[1][0], x[1][2])),
                fmaxf(fmaxf(x[0][1], x[0][3]), fmaxf(x[1][1], x[1][3])), state_);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[tile][i] = Exp2(x[tile][i] - (i % 2 == 0 ? state_.max0 : state_.max1));
        (i % 2 == 0 ? state_.sum0 : state_.sum1) += x[tile][i];
      }
    }
    if (Shape::kAges && is_aged) {
      AddAged(page, span.first_slot, x);
    } else {
      Add(page, span.first_slot, x);
    }
  }

  __device__ void Store(const SharedTail& tail) {
    if constexpr (Shape::kAges) {
#pragma unroll
      for (int group = 0; group < kNumGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float of_group = fmaf(-16.0f, state_.lows[i + 2], state_.lows[i]);
          const float low = __shfl_sync(kAllLanes, of_group, 4 * group + quarter_);
#pragma unroll
          for (int tile = 2 * group; tile < 2 * group + 2; ++tile) {
            state_.outputs[tile][i] += low;
            state_.outputs[tile][i + 2] += low;
          }
        }
      }
    }
    StoreWarpState(state_, p_.group, tail);
  }

 private:
  static constexpr int kWords = kDim / 32;  // eight numbers each of a row's quarter
  // Of the lane's words the first dimension.
  __device__ int DimOfWord(int word) const {
    return word * 32 + quarter_ * 8;
  }
  // And of half of a word.
  __device__ int DimOfQuad(int quad) const {
    return DimOfWord(quad / 2) + quad % 2 * 4;
  }

  // What query lane / 4 has, for the lane's two columns of scores.
  __device__ float2 OfQueries(float x) const {
    return {__shfl_sync(kAllLanes, x, 8 * quarter_), __shfl_sync(kAllLanes, x, 8 * quarter_ + 4)};
  }

  // The scales of values that are not read become zeros, where a score of minus infinity alone would not help against
  // whatever memory holds there.
  __device__ void ClearUnread(char* page, bool is_aged, const TokenSpan& span) const {
    if (!span.Reads(lane_)) {
      if (Shape::kAges && is_aged) {
        const int slot = span.first_slot + lane_;
#pragma unroll
        for (int group = 0; group < kNumGroups; ++group) ValuePairs(page)[slot * kNumGroups + group] = __half2{};
      } else {
        Scales(page)[Shape::kTokensOfStage + FirstOfWarp(span.first_slot) + lane_] = __half{};
      }
      FenceSharedWrites();
    }
    __syncwarp();
  }

  // ---- q8 -----------------------------------------------------------------------------------------------------------

  // Of the first of the warp's tokens, where a stage holds more than those.
  static __device__ int FirstOfWarp(int first_slot) {
    return Shape::kHalvesNew ? 0 : first_slot;
  }
  static __device__ __half* Scales(char* stage) {
    return reinterpret_cast<__half*>(stage + 2 * Shape::kTokensOfStage * kDim);
  }

  __device__ void Score(char* page, int first_slot, Weights& x) const {
    first_slot = FirstOfWarp(first_slot);
    const auto* const keys = reinterpret_cast<const uint4*>(page + first_slot * kDim) + lane_;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      int sums[4] = {};
#pragma unroll
      for (int step = 0; step < kDim / 32; ++step) {
        const uint4 codes = keys[tile * kDim + step * kWarp];
        MultiplyAddBytes(sums, {codes.x, codes.y, codes.z, codes.w}, bytes_[2 * step], bytes_[2 * step + 1]);
      }
      const __half* const scales = Scales(page) + first_slot + tile * 16 + row_;
      const float scale[2] = {__half2float(scales[0]), __half2float(scales[8])};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[tile][i] = static_cast<float>(sums[i]) * (scale[i / 2] * (i % 2 == 0 ? scale8_.x : scale8_.y));
      }
    }
  }

  __device__ void Add(char* page, int first_slot, Weights& x) {
    first_slot = FirstOfWarp(first_slot);
    const __half* const scales = Scales(page) + Shape::kTokensOfStage + first_slot + row_;
    float largest0 = 0, largest1 = 0;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = __half2float(scales[tile * 16 + half * 8]);
        x[tile][2 * half] *= scale;
        x[tile][2 * half + 1] *= scale;
        largest0 = MaxOrNan(largest0, x[tile][2 * half]);
        largest1 = MaxOrNan(largest1, x[tile][2 * half + 1]);
      }
    }
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      largest0 = MaxOrNan(largest0, __shfl_xor_sync(kAllLanes, largest0, distance));
      largest1 = MaxOrNan(largest1, __shfl_xor_sync(kAllLanes, largest1, distance));
    }
    const float inverse0 = __fdividef(127.0f, fmaxf(largest0, 1e-30f));
    const float inverse1 = __fdividef(127.0f, fmaxf(largest1, 1e-30f));
    const float unit0 = largest0 <= kLargest ? largest0 * (1.0f / 127) : NAN;
    const float unit1 = largest1 <= kLargest ? largest1 * (1.0f / 127) : NAN;
    uint32_t b[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      b[half] =
          Transpose(PackBytes(NearestByte(x[0][2 * half] * inverse0), NearestByte(x[1][2 * half] * inverse0),
                              NearestByte(x[0][2 * half + 1] * inverse1), NearestByte(x[1][2 * half + 1] * inverse1)));
    }
    const auto* const values =
        reinterpret_cast<const uint4*>(page + (Shape::kTokensOfStage + first_slot) * kDim) + lane_;
#pragma unroll
    for (int tile = 0; tile < Shape::kSplits; ++tile) {
      const uint4 codes = values[tile * kWarp];
      int sums[4] = {};
      MultiplyAddBytes(sums, {codes.x, codes.y, codes.z, codes.w}, b[0], b[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        state_.outputs[tile][i] =
            fmaf(static_cast<float>(sums[i]), i % 2 == 0 ? unit0 : unit1, state_.outputs[tile][i]);
      }
    }
  }

  // ---- q4 -----------------------------------------------------------------------------------------------------------

  // A token's words of the lane's quarter.
  __device__ void LoadWords(const char* page, int slot, uint32_t (&words)[kWords]) const {
    const char* const row = page + slot * (kDim / 2);
    if constexpr (kDim == 64) {
      const uint2 chunk = *reinterpret_cast<const uint2*>(row + quarter_ * 8);
      words[0] = chunk.x, words[1] = chunk.y;
    } else {
#pragma unroll
      for (int i = 0; i < kDim / 128; ++i) {
        const int turned = kDim == 256 ? row_ % 2 * 4 : 0;
        const uint4 chunk = *reinterpret_cast<const uint4*>(row + ((i * 4 + quarter_) ^ turned) * 16);
        words[4 * i] = chunk.x, words[4 * i + 1] = chunk.y, words[4 * i + 2] = chunk.z, words[4 * i + 3] = chunk.w;
      }
    }
  }

  __device__ void ScoreAged(const char* page, int first_slot, Weights& x) const {
    const auto* const scales = reinterpret_cast<const __half*>(page + Shape::kPageTokens * kDim);
    uint32_t codes[2][2][kWords];  // of tiles, of tokens lane / 4 and 8 further on
#pragma unroll
    for (int row = 0; row < 4; ++row) LoadWords(page, first_slot + row * 8 + row_, codes[row / 2][row % 2]);
    // Products wait long for the one before that adds to the same sums: five sums take turns. Beside the tiles' they
    // are of all tokens: what 1024 adds, and lows. Four words of lows are rows of two products, each of which has only
    // half of its rows right: the first half of even codes', the second of odd ones'.
    float sums[2][4] = {};
    float thousands[4] = {}, even_lows[4] = {}, odd_lows[4] = {};
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      const uint4 scale = *reinterpret_cast<const uint4*>(scales + Q4KeyScale(DimOfWord(word)));
      const uint4 low = *reinterpret_cast<const uint4*>(scales + Q4KeyLow(kDim, DimOfWord(word)));
      const uint32_t scale_of[4] = {scale.x, scale.y, scale.z, scale.w};
      const uint32_t low_of[4] = {low.x, low.y, low.z, low.w};
      const uint32_t* const halves = halves_ + 4 * word;
      uint32_t queries[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) queries[i] = AsWord(__hmul2(AsHalves(halves[i]), AsHalves(scale_of[i])));
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          const uint32_t upper = codes[tile][0][word];
          const uint32_t lower = codes[tile][1][word];
          MultiplyAdd<__half>(
              sums[tile],
              {TwoKeyCodes(upper, i), TwoKeyCodes(lower, i), TwoKeyCodes(upper, i + 1), TwoKeyCodes(lower, i + 1)},
              queries[i], queries[i + 1]);
        }
        MultiplyAdd<__half>(thousands, {kTwo1024, kTwo1024, kTwo1024, kTwo1024}, queries[i], queries[i + 1]);
        MultiplyAdd<__half>(i == 0 ? even_lows : odd_lows, low_of, halves[i / 2], halves[i / 2 + 2]);
      }
    }
    const float same[2] = {even_lows[0] + kEvenFactor / kOddFactor * odd_lows[2] - thousands[0],
                           even_lows[1] + kEvenFactor / kOddFactor * odd_lows[3] - thousands[1]};
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[tile][i] = (sums[tile][i] + same[i % 2]) * (i % 2 == 0 ? scale4_.x : scale4_.y);
      }
    }
  }

  static __device__ __half2* ValuePairs(char* page) {
    return reinterpret_cast<__half2*>(page + Shape::kPageTokens * kDim) + kDim;
  }

  // Weights times lows and times scales: products whose rows are the groups, first of lows, then of scales.
  __device__ void AddLows(const __half2* pairs, const Weights& x) {
    const auto* const words = reinterpret_cast<const uint32_t*>(pairs) + row_ % kNumGroups;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      uint32_t rows[4], b[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = tile * 16 + half * 8 + 2 * quarter_;
        const uint32_t first = words[token * kNumGroups];
        const uint32_t second = words[(token + 1) * kNumGroups];
        rows[2 * half] = __byte_perm(first, second, 0x7632);
        rows[2 * half + 1] = __byte_perm(first, second, 0x5410);
        b[half] = Transpose(Pack<__half>(x[tile][2 * half], x[tile][2 * half + 1]));
      }
      MultiplyAdd<__half>(state_.lows, rows, b[0], b[1]);
    }
  }

  // Weights times scales of a group's values, as operands of its products: of tiles, of their halves.
  struct GroupWeights {
    uint32_t b[2][2];
  };
  __device__ GroupWeights WeightsOf(const __half2* pairs, int group, const Weights& x) const {
    GroupWeights weights;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale = __low2float(pairs[(tile * 16 + half * 8 + row_) * kNumGroups + group]);
        weights.b[tile][half] =
            Transpose(Pack<__nv_bfloat16>(x[tile][2 * half] * scale, x[tile][2 * half + 1] * scale));
      }
    }
    return weights;
  }

  __device__ void AddAged(char* page, int first_slot, const Weights& x) {
    const __half2* const pairs = ValuePairs(page) + first_slot * kNumGroups;
    const auto* const values =
        reinterpret_cast<const uint4*>(page + (Shape::kPageTokens + first_slot) * (kDim / 2)) + lane_;
    GroupWeights next = WeightsOf(pairs, 0, x);
    AddLows(pairs, x);
#pragma unroll
    for (int group = 0; group < kNumGroups; ++group) {
      const GroupWeights weights = next;  // operands are ready ahead of their products
      if (group + 1 < kNumGroups) next = WeightsOf(pairs, group + 1, x);
      const uint4 codes = values[group * kWarp];
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t upper = words[2 * i];
          const uint32_t lower = words[2 * i + 1];
          MultiplyAdd<__nv_bfloat16>(state_.outputs[2 * group + i],
                                     {TwoValueCodes(upper, 2 * tile), TwoValueCodes(lower, 2 * tile),
                                      TwoValueCodes(upper, 2 * tile + 1), TwoValueCodes(lower, 2 * tile + 1)},
                                     weights.b[tile][0], weights.b[tile][1]);
        }
      }
    }
  }

  static __device__ __half2 AsHalves(uint32_t x) {
    return reinterpret_cast<const __half2&>(x);
  }
  static __device__ uint32_t AsWord(__half2 x) {
    return reinterpret_cast<const uint32_t&>(x);
  }

  static constexpr float kLargest = 3.4e38f;

  const DecodeParams& p_;
  const int lane_, row_, quarter_;
  uint32_t bytes_[2 * kWords];
  uint32_t halves_[Shape::kAges ? 4 * kWords : 1];
  float2 scale8_, scale4_;  // of the lane's two queries' scores
  CodeState<Shape::kSplits, Shape::kAges> state_;
};

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1) DecodeCodesKernel(DecodeParams p) {
  using Appender = std::conditional_t<Appends(Shape::kDim),
                                      Appender8<Shape::kDim, Shape::kPageTokens, Shape::kTokensOfStage>, NoAppender>;
  RunDecode<Shape, CodeReader<Shape>, Appender>(p);
}

// body.template operator()<Shape>()
template <typename Body>
auto ForShape(const FastPages& pages, const Body& body) {
  return ForPages(pages, [&]<int kDim, int kPageTokens>() {
    return pages.has_aged ? body.template operator()<CodeShape<kDim, kPageTokens, true>>()
                          : body.template operator()<CodeShape<kDim, kPageTokens, false>>();
  });
}

}  // namespace

bool HasRoomForCodes(const FastPages& pages, int64_t group, const CudaDevice& device) {
  return ForShape(pages, [&]<typename Shape>() { return HasRoom<Shape>(group, device); });
}

void DecodeCodes(const DecodeParams& params, const FastPages& pages, CudaDevice& device) {
  ForShape(pages, [&]<typename Shape>() {
    DecodeParams own = params;
    const LaunchShape shape = ShapeOfLaunch<Shape>(own, device);
    Launch(device, "Attention", shape, DecodeCodesKernel<Shape>, own);
  });
}

}  // namespace decode
}  // namespace headwise::cuda
