// What the two kernels for products of few rows with bf16 weights share: how their work is described, and x as
// operands.
#ifndef HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
#define HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/ops.h"

namespace headwise::cuda {

using Bf16 = __nv_bfloat16;

inline constexpr int kTileOutputs = 16;  // the rows of an mma
inline constexpr int kRowsOfGroup = 8;   // of x, its columns
inline constexpr int kMaxGroups = 4;
inline constexpr int kMaxParts = 4;
inline constexpr int kDepthOfTurn = 32;  // 16 bytes of a weight row for a lane, operands of two products

struct FewRowsParams {
  const float* x;  // [T, K]
  int num_rows, depth;
  bool adds;
  int num_tiles;
  struct Part {
    const Bf16* weight;  // [N, K]
    const float* bias;   // or null
    float* out;          // [T, N]
    int num_outputs;
    int end_tile;
  } parts[kMaxParts];
};
inline FewRowsParams FewRowsParamsOf(const MatMulArgs& args) {
  FewRowsParams params{.x = F32(args.x),
                       .num_rows = static_cast<int>(args.x.shape[0]),
                       .depth = static_cast<int>(args.x.shape[1]),
                       .adds = args.write == MatMulArgs::Write::kAdd,
                       .num_tiles = 0,
                       .parts = {}};
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const MatMulPart& part = args.parts[i];
    params.num_tiles += static_cast<int>(Blocks(part.weight.shape[0], kTileOutputs));
    params.parts[i] = {.weight = static_cast<const Bf16*>(part.weight.rows().data),
                       .bias = F32(part.bias),
                       .out = F32(part.out),
                       .num_outputs = static_cast<int>(part.weight.shape[0]),
                       .end_tile = params.num_tiles};
  }
  return params;
}

struct Tile {
  FewRowsParams::Part part;
  int first_output;
};
__device__ inline Tile TileOf(const FewRowsParams& p, int tile) {
  int i = 0;
  while (tile >= p.parts[i].end_tile) ++i;
  return {p.parts[i], (tile - (i == 0 ? 0 : p.parts[i - 1].end_tile)) * kTileOutputs};
}

// Eight numbers of a row of x in pairs and, where they are wanted exactly, what rounding left.
template <bool kExact>
__device__ inline void SplitX(const float4 (&x)[2], uint32_t (&high)[4], uint32_t (&low)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float values[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float first = Round<Bf16>(values[2 * j]);
      const float second = Round<Bf16>(values[2 * j + 1]);
      high[2 * i + j] = Pack<Bf16>(first, second);
      if constexpr (kExact) low[2 * i + j] = Pack<Bf16>(values[2 * j] - first, values[2 * j + 1] - second);
    }
  }
}

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
