// What products of few rows are made of (matmul_few_rows.cu, matmul_few_rows_blocks.cu): which tiles a block does,
// weights on their way through shared memory, x as operands in it, and where sums meet.
#ifndef HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
#define HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_

#include "backend/cuda/activation.cuh"
#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/rounded_columns.cuh"
#include "backend/ops.h"

namespace headwise::cuda::few_rows {

using Bf16 = __nv_bfloat16;

inline constexpr int kTileOutputs = 16;
inline constexpr int kRowsOfGroup = 8;  // of x
inline constexpr int kMaxGroups = 4;
inline constexpr int kMaxColumns = kMaxGroups * kRowsOfGroup;  // that a kernel multiplies
inline constexpr int kMaxParts = 4;
inline constexpr int kDepthOfTurn = 32;  // 16 bytes of a weight row for a lane, operands of two products
inline constexpr int kTurns = 4;
inline constexpr int kDepthOfSlice = kTurns * kDepthOfTurn;
inline constexpr int kChunksOfSlice = kDepthOfSlice / 8;  // 16 bytes in bf16
inline constexpr int kNumShares = 8;                      // of K, slice by slice: a warp's work on a tile
inline constexpr int kThreads = kNumShares * static_cast<int>(kWarp);
static_assert(kThreads == kNormThreads);
inline constexpr int kRowBytes = kDepthOfSlice * 2;
inline constexpr int kStageBytes = kTileOutputs * kRowBytes;
inline constexpr int kSliceAlign = 128;

struct FewRowsParams {
  const float* x;  // [T, K]
  int num_rows, depth;
  // x / rms(x) * weight in place of x, where there is a weight.
  const float* norm_weight;  // [K]
  float norm_eps;
  bool adds;
  bool is_gated;  // out of the second part = act(first) * second; both have as many tiles
  bool has_gelu;  // act: else silu
  // With a norm x * weight is multiplied in place of the normed x, and sums by 1 / rms(x), so that nobody waits for
  // that. `squares` of x [T, K / 16] where x comes rounded, null where the kernel rounds it.
  const float* squares;
  int num_parts;  // numbers in bf16 that stand for one of x, each what rounding left of the one before
  // Outputs of the last part as the product behind wants its x, in place of `out`; beside it where there is a norm in
  // between, of whose weight they are multiples, and whose squares are left too. With weights in block formats in
  // bytes.
  RoundedColumns rounded_out;
  const float* next_norm;  // [N], or null
  float* next_squares;     // [T, N / 16]
  // Buffers for sums, each of `tiles_at_once` tiles: 2 where there is memory, so that who reads one does not hold up
  // who writes the other.
  int num_buffers;
  int tiles_at_once = 1;  // whose sums meet at one barrier
  int num_tiles;
  __host__ __device__ bool divides_sums() const { return norm_weight != nullptr; }
  // Rows that are multiplied: those of x as rounded, then those of what rounding left.
  __host__ __device__ int num_columns() const { return num_parts * num_rows; }
  // What blocks share out: tiles, or pairs of them where gated.
  __host__ __device__ int num_units() const { return is_gated ? num_tiles >> 1 : num_tiles; }
  struct Part {
    const void* weight;  // [N, K] bf16 or f16, or tiles of a block format (block_order.h)
    const float* bias;   // or null
    float* out;          // [T, N]
    int num_outputs;
    int end_tile;
  } parts[kMaxParts];
};

// All of a call but the rows that a launch takes, and what follows from their number. Rows as in bf16.
inline FewRowsParams FewRowsParamsOf(const LinearArgs& linear) {
  const MatMulArgs& args = linear.product;
  FewRowsParams params{.x = F32(linear.norm ? linear.norm->x : args.x),
                       .num_rows = 0,
                       .depth = static_cast<int>(args.x.shape[1]),
                       .norm_weight = linear.norm ? F32(linear.norm->weight) : nullptr,
                       .norm_eps = linear.norm ? linear.norm->eps : 0.0f,
                       .adds = args.write == MatMulArgs::Write::kAdd,
                       .is_gated = linear.activation.has_value(),
                       .has_gelu = linear.activation && linear.activation->kind == ActivateArgs::Kind::kGatedGeluTanh,
                       .squares = nullptr,
                       .num_parts = 1,
                       .rounded_out = {},
                       .next_norm = nullptr,
                       .next_squares = nullptr,
                       .num_buffers = 1,
                       .num_tiles = 0,
                       .parts = {}};
  for (size_t i = 0; i < args.parts.size(); ++i) {
    const MatMulPart& part = args.parts[i];
    params.num_tiles += static_cast<int>(Blocks(part.weight.shape[0], kTileOutputs));
    params.parts[i] = {.weight = part.weight.planes[0],
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

// Tiles `first`, `first + stride`, ..., so that blocks read beside each other, or pairs of them where gated, of the
// gate and the same of what it gates.
struct Tiles {
  const FewRowsParams& p;
  const int first, stride;

  __device__ Tiles(const FewRowsParams& params, int first_unit, int apart)
      : p(params), first(first_unit), stride(apart) {}
  // A block's.
  __device__ explicit Tiles(const FewRowsParams& params)
      : Tiles(params, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)) {}
  // Those of a team of a block: teams take turns, or (`are_neighbours`) have neighbours. Without divisions, which would
  // stand between the kernel's beginning and its first copy.
  static __device__ Tiles OfTeam(const FewRowsParams& params, int team, int num_teams, bool are_neighbours) {
    const auto block = static_cast<int>(blockIdx.x);
    const auto num_blocks = static_cast<int>(gridDim.x);
    return {params, are_neighbours ? num_teams * block + team : block + team * num_blocks, num_teams * num_blocks};
  }
  __device__ int UnitOf(int i) const { return first + IndexOfUnit(i) * stride; }
  // Of these here.
  __device__ int IndexOfUnit(int i) const { return p.is_gated ? i >> 1 : i; }
  __device__ bool IsThere(int i) const { return UnitOf(i) < p.num_units(); }
  __device__ bool IsGate(int i) const { return p.is_gated && (i & 1) == 0; }
  __device__ Tile Get(int i) const { return TileOf(p, UnitOf(i) + (p.is_gated && (i & 1) == 1 ? p.num_units() : 0)); }
};

// An f32 number is the sum of so many in bf16.
inline constexpr int kExactParts = 3;

// A thread's numbers of a row, by fours: quads first, first + kThreads, ... All loads are on their way at once, and a
// row is read once: the next product waits for it.
struct RowQuads {
  static constexpr int kNumbers = 4 * kNormQuads * kThreads;  // of all threads
  float4 quads[kNormQuads];

  static __device__ int QuadOf(int first, int i) { return first + i * kThreads + static_cast<int>(threadIdx.x); }
  // Zeros from number `end` on.
  __device__ void Load(const float* row, int first, int end) {
#pragma unroll
    for (int i = 0; i < kNormQuads; ++i) {
      quads[i] = {0, 0, 0, 0};
      if (4 * QuadOf(first, i) < end) quads[i] = reinterpret_cast<const float4*>(row)[QuadOf(first, i)];
    }
  }
};
static_assert(RowQuads::kNumbers == kMaxNormDim);

// ---- squares of a row by sixteens, added up in one order wherever its numbers are at hand ---------------------------

inline constexpr int kSquared = kTileOutputs;  // neighbouring numbers
inline constexpr int kQuadsOfSquares = 4;      // squares by fours of a row, for a lane
inline constexpr int kMaxSquares = static_cast<int>(kMaxNormDim) / kSquared;
static_assert(kMaxSquares <= 4 * kQuadsOfSquares * static_cast<int>(kWarp));

// Whether a norm of rows of K numbers can go into a product as FewRowsParams says.
inline bool DividesSums(const NormArgs& norm, int64_t depth) {
  const bool is_rms = norm.kind == NormArgs::Kind::kRms && !norm.bias.present();
  const bool is_aligned = reinterpret_cast<uintptr_t>(norm.weight.data) % sizeof(float4) == 0;
  return is_rms && is_aligned && depth <= kMaxNormDim && depth % (4 * kSquared) == 0;
}

__device__ inline float SquaresOfQuad(const float4& x) {
  return __fadd_rn(__fadd_rn(__fmul_rn(x.x, x.x), __fmul_rn(x.y, x.y)),
                   __fadd_rn(__fmul_rn(x.z, x.z), __fmul_rn(x.w, x.w)));
}
// Over lanes that are `first`, 2 first, ... below `end` apart.
template <int kFirst, int kEnd>
__device__ float AddOverLanes(float x) {
#pragma unroll
  for (int distance = kFirst; distance < kEnd; distance *= 2) {
    x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}
// Quad `quad` of a row of x times the norm's; x's squares go to `squares` [T, K / 16]. By lanes of whole sixteens.
__device__ inline float4 TakeSquares(const FewRowsParams& p, int row, int quad, const float4& x, const float4& weight,
                                     float* squares) {
  const float of_sixteen = AddOverLanes<1, 4>(SquaresOfQuad(x));
  if (quad % 4 == 0 && 4 * quad < p.depth) {
    squares[static_cast<int64_t>(row) * (p.depth / kSquared) + quad / 4] = of_sixteen;
  }
  return Scaled(x, 1.0f, weight);
}
// 1 / rms of rows warp, warp + 8, ... by its warp of eight, into shared memory, in two steps: what is loaded is on its
// way while x is. K is a multiple of 64.
template <int kGroups>
struct RootsOfRows {
  float4 loaded[kGroups][kQuadsOfSquares];

  static __device__ int RowOf(int i) { return static_cast<int>(threadIdx.x / kWarp) % kNumShares + i * kNumShares; }
  __device__ void Load(const FewRowsParams& p, const float* squares) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int num_quads = p.depth / kSquared / 4;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int row = RowOf(i);
      const auto* quads = reinterpret_cast<const float4*>(squares + static_cast<int64_t>(row) * (p.depth / kSquared));
#pragma unroll
      for (int j = 0; j < kQuadsOfSquares; ++j) {
        const int quad = lane + j * static_cast<int>(kWarp);
        loaded[i][j] = {0, 0, 0, 0};
        if (row < p.num_rows && quad < num_quads) loaded[i][j] = quads[quad];
      }
    }
  }
  __device__ void Invert(const FewRowsParams& p, float* inverses) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kQuadsOfSquares; ++j) {
        sum += (loaded[i][j].x + loaded[i][j].y) + (loaded[i][j].z + loaded[i][j].w);
      }
      sum = SumOfWarp(sum);
      const int row = RowOf(i);
      if (threadIdx.x % kWarp == 0 && row < p.num_rows) inverses[row] = InverseRoot(sum, p.depth, p.norm_eps);
    }
  }
};

// How x lies in a block's shared memory: its slices, of each its chunks of 16 bytes, of each the columns: so those of
// eight columns are in different banks.
struct StagedX {
  int num_columns;
  __host__ __device__ explicit StagedX(int columns) : num_columns(columns) {}
  static __host__ __device__ int NumSlices(int depth) { return (depth + kDepthOfSlice - 1) / kDepthOfSlice; }
  __host__ __device__ int num_chunks(int depth) const { return NumSlices(depth) * kChunksOfSlice * num_columns; }
  // Of a chunk of the column, counted over all slices.
  __device__ int IndexOf(int chunk, int column) const { return chunk * num_columns + column; }
};
// Of x, or of x times the norm's weight, in `norm`; then its squares [T, K / 16] go to shared memory too.
__device__ inline void StageX(const FewRowsParams& p, const RowQuads& norm, uint4* staged, float* squares) {
  const StagedX to(p.num_columns());
  const int padded_depth = StagedX::NumSlices(p.depth) * kDepthOfSlice;
  for (int row = 0; row < p.num_rows; ++row) {
    for (int first = 0; 4 * first < padded_depth; first += RowQuads::kNumbers / 4) {
      RowQuads x;
      x.Load(p.x + static_cast<int64_t>(row) * p.depth, first, p.depth);
#pragma unroll
      for (int i = 0; i < kNormQuads; ++i) {
        const int quad = RowQuads::QuadOf(first, i);
        if (p.norm_weight != nullptr) x.quads[i] = TakeSquares(p, row, quad, x.quads[i], norm.quads[i], squares);
        if (4 * quad >= padded_depth) continue;
        const int chunk = quad / 2;
        for (int part = 0; part < p.num_parts; ++part) {
          const int column = part * p.num_rows + row;
          const int at = to.IndexOf(chunk, column);
          reinterpret_cast<uint2*>(staged)[2 * at + quad % 2] = TakeRounded(x.quads[i]);
        }
      }
    }
  }
  __syncthreads();
}

// The same of columns that are rounded already, [columns, K].
__device__ inline void StageRounded(const Bf16* rounded, int num_columns, int depth, uint4* staged) {
  constexpr int kAtOnce = 8;  // loads on their way
  const StagedX to(num_columns);
  const int chunks_of_column = StagedX::NumSlices(depth) * kChunksOfSlice;
  for (int column = 0; column < num_columns; ++column) {
    const auto* const from = reinterpret_cast<const uint4*>(rounded + static_cast<int64_t>(column) * depth);
    for (int first = static_cast<int>(threadIdx.x); first < chunks_of_column; first += kAtOnce * kThreads) {
      uint4 chunks[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        chunks[i] = {0, 0, 0, 0};
        if ((first + i * kThreads) * 8 < depth) chunks[i] = from[first + i * kThreads];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int chunk = first + i * kThreads;
        if (chunk >= chunks_of_column) continue;
        staged[to.IndexOf(chunk, column)] = chunks[i];
      }
    }
  }
  __syncthreads();
}

// A warp's ring of slices, each copied kStages - 1 before it is used: 16 rows of a matrix of K columns, of 128 of them.
template <int kStages>
struct SliceRing {
  char* const memory;  // [kStages][kStageBytes]
  int written = 0, read = 0;

  __device__ explicit SliceRing(char* begin) : memory(begin) {}
  // Chunks change places, so that the same one of eight rows is in different banks, and so are four of two rows. The
  // memory is aligned to kSliceAlign: then changes of place are of single bits of an address.
  static __device__ int OffsetOf(int row, int chunk) {
    return row * kRowBytes + (chunk ^ (row % 2 * 4) ^ (row / 2 % 4)) * 16;
  }

  // Rows [first_row, first_row + 16) of [num_rows, K], those beyond the last and columns beyond K as zeros. Nearly all
  // are whole, and go without a question for each row.
  __device__ void Copy(const Bf16* matrix, int num_rows, int first_row, int num_columns, int column) {
    constexpr int kRowsAtOnce = static_cast<int>(kWarp) / kChunksOfSlice;
    static_assert(kRowsAtOnce == 2);  // a lane's rows are all odd or all even: their chunks lie one below the other
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int lane_row = lane / kChunksOfSlice;
    const int chunk = lane % kChunksOfSlice;
    const uint32_t to = SharedAddress(memory + written * kStageBytes) + OffsetOf(lane_row, chunk);
    const Bf16* from = matrix + static_cast<int64_t>(first_row + lane_row) * num_columns + column + chunk * 8;
    if (first_row + kTileOutputs <= num_rows && column + kDepthOfSlice <= num_columns) {
#pragma unroll
      for (int i = 0; i < kTileOutputs / kRowsAtOnce; ++i, from += kRowsAtOnce * num_columns) {
        CopyChunkOnce((to ^ (i % 4 * 16)) + i * kRowsAtOnce * kRowBytes, from);
      }
      return;
    }
#pragma unroll 1
    for (int i = 0; i < kTileOutputs / kRowsAtOnce; ++i, from += kRowsAtOnce * num_columns) {
      const bool is_there = first_row + lane_row + i * kRowsAtOnce < num_rows && column + chunk * 8 < num_columns;
      CopyChunkOrZeros((to ^ (i % 4 * 16)) + i * kRowsAtOnce * kRowBytes, is_there ? from : nullptr);
    }
  }
  // Behind each Copy, or in place of it where nothing is left.
  __device__ void Commit() {
    written = written + 1 < kStages ? written + 1 : 0;
    CommitCopies();
  }
  // The oldest slice, once it is there.
  __device__ const char* Wait() {
    WaitForCopies<kStages - 2>();
    __syncwarp();  // and every lane is done with the slice before
    return memory + read * kStageBytes;
  }
  __device__ void Release() {
    read = read + 1 < kStages ? read + 1 : 0;
  }
};

// Operands of a slice's turn where a lane has 16 bytes of its own row of x, as they lie in memory: weights are the 16
// rows of a product, x its 8 columns.
struct WeightOperands {
  uint32_t first_half[4], second_half[4];
  __device__ WeightOperands(const char* slice, int turn) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int chunk = turn * 4 + lane % 4;
    const uint4 upper = *reinterpret_cast<const uint4*>(slice + SliceRing<2>::OffsetOf(lane / 4, chunk));
    const uint4 lower = *reinterpret_cast<const uint4*>(slice + SliceRing<2>::OffsetOf(lane / 4 + 8, chunk));
    first_half[0] = upper.x, first_half[1] = lower.x, first_half[2] = upper.y, first_half[3] = lower.y;
    second_half[0] = upper.z, second_half[1] = lower.z, second_half[2] = upper.w, second_half[3] = lower.w;
  }
  __device__ void Multiply(const uint4& x, float (&acc)[4]) const {
    MultiplyAdd<Bf16>(acc, first_half, x.x, x.y);
    MultiplyAdd<Bf16>(acc, second_half, x.z, x.w);
  }
};

// Pairs of f16 numbers as pairs in bf16 and what rounding leaves of them, which is exact: of 11 bits the first has 8.
__device__ inline void SplitHalves(uint32_t (&pairs)[4], uint32_t (&rest)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = __half22float2(reinterpret_cast<const __half2&>(pairs[i]));
    pairs[i] = Pack<Bf16>(x.x, x.y);
    rest[i] = Pack<Bf16>(x.x - __uint_as_float(pairs[i] << 16), x.y - __uint_as_float(pairs[i] & 0xffff0000u));
  }
}
// Weights of a slice's turn, in the order of K, as matrices are loaded: then operands lie in registers as products want
// them, where loads of a row's 16 bytes have to be put in order for each product. Those of f16 are two numbers in bf16
// each, which no x can overflow.
template <typename Weight>
struct TurnWeights {
  static constexpr int kParts = std::is_same_v<Weight, Bf16> ? 1 : 2;
  uint32_t halves[2][kParts][4];

  static __device__ int LaneOffset() {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    return SliceRing<2>::OffsetOf(lane % kTileOutputs, lane / kTileOutputs);
  }
  // `slice`: its address in shared memory and LaneOffset.
  __device__ TurnWeights(uint32_t slice, int turn) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      LoadMatrix(halves[half][0], (slice ^ (turn % 2 * 64 + half * 32)) + turn / 2 * 128);
      if constexpr (kParts == 2) SplitHalves(halves[half][0], halves[half][1]);
    }
  }
  // Sums of several groups do not wait for each other.
  template <int kGroups>
  __device__ void Multiply(const uint32_t (&x)[kGroups][4], float (&acc)[kGroups][4]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          MultiplyAdd<Bf16>(acc[group], halves[half][part], x[group][2 * half], x[group][2 * half + 1]);
        }
      }
    }
  }
};

// Three groups' sums lie as four's: so they are in different banks.
__host__ __device__ constexpr int PaddedGroups(int groups) {
  return groups == 3 ? 4 : groups;
}
// Sums of a tile's shares, [kNumShares][kTileOutputs][rows], rows in an order that keeps both who writes pairs of them
// and who reads one row of all outputs in different banks. kOneRow: of a group's columns there is the first alone.
template <int kGroups, bool kOneRow = false>
struct Sums {
  static_assert(!kOneRow || kGroups == 1);
  static constexpr int kPadded = PaddedGroups(kGroups);
  static constexpr int kRows = kOneRow ? 1 : kPadded * kRowsOfGroup;
  static constexpr int kFloats = kNumShares * kTileOutputs * kRows;
  // Changes the places of an output's rows: in eights by its bits from kRowsOfGroup on, within them by those below.
  static __device__ int TurnOf(int output) {
    return kOneRow ? 0 : (output % 4 / (kMaxGroups / kPadded) * kRowsOfGroup) ^ (output / 4 * 2);
  }
  static __device__ int IndexOf(int share, int output, int row) {
    return (share * kTileOutputs + output) * kRows + (row ^ TurnOf(output));
  }
};

// What the warp has of a tile.
template <int kGroups, bool kOneRow = false>
__device__ void StoreShare(int share, const float (&acc)[kGroups][4], float* sums) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if constexpr (kOneRow) {
    if (lane % 4 != 0) return;
    float* const to = sums + Sums<1, true>::IndexOf(share, lane / 4, 0);
    to[0] = acc[0][0];
    to[kTileOutputs / 2] = acc[0][2];
  } else {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int to = Sums<kGroups>::IndexOf(share, lane / 4 + half * 8, group * kRowsOfGroup + 2 * (lane % 4));
        *reinterpret_cast<float2*>(sums + to) = {acc[group][2 * half], acc[group][2 * half + 1]};
      }
    }
  }
}

// Warps that have rows of a tile to write. Requires: those are no more than there are, kNumShares.
__host__ __device__ constexpr int WarpsOfTile(int num_rows) {
  return (num_rows * kTileOutputs + static_cast<int>(kWarp) - 1) / static_cast<int>(kWarp);
}

// What a thread writes of one tile after the other. Questions that are the same for all threads are asked once for all
// of its sums: while each sum had its own, a tile's end took two thirds of a microsecond, in which nothing streams.
template <int kGroups, bool kOneRow = false>
struct TileWriter {
  using SumsOfTile = Sums<kGroups, kOneRow>;
  static constexpr int kSumsOfThread = (kTileOutputs * SumsOfTile::kRows + kThreads - 1) / kThreads;
  const FewRowsParams& p;
  int thread = static_cast<int>(threadIdx.x) & (kThreads - 1);  // as which this one writes
  float gates[kSumsOfThread];  // of the tile of the gate, kept until that of what it gates is there
  float old[kSumsOfThread];    // what is added to
  float next_weight;           // of the norm behind

  __device__ explicit TileWriter(const FewRowsParams& params) : p(params) {}

  // Of tiles that are written at once the next one's rows are the next warps'.
  __device__ void TakeTurn(int idx_of_tile) {
    const int unit = p.is_gated ? idx_of_tile >> 1 : idx_of_tile;
    thread =
        (static_cast<int>(threadIdx.x) - unit * WarpsOfTile(p.num_rows) * static_cast<int>(kWarp)) & (kThreads - 1);
  }
  // Whether the warp has rows of the tile.
  __device__ bool HasRows() const { return thread / static_cast<int>(kWarp) < WarpsOfTile(p.num_rows); }

  // Ahead of Write, and of the barrier that sums wait for.
  __device__ void LoadOld(const Tile& tile) {
    if (!p.adds) return;
    if (p.next_norm != nullptr) next_weight = p.next_norm[min(tile.first_output + Column(), tile.part.num_outputs - 1)];
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      if (IsThere(tile, j)) old[j] = tile.part.out[At(tile, j)];
    }
  }
  // Shares are added in their order, and divided by the row's root mean square where that is left to here. `left`:
  // where what is left in bytes waits for the other half of a run, [T, 32], or null.
  __device__ void Write(const Tile& tile, bool is_gate, const float* sums, const float* inverses = nullptr,
                        float* left = nullptr) {
    float x[kSumsOfThread];
    AddShares(sums, x);
    if (inverses != nullptr) {
#pragma unroll
      for (int j = 0; j < kSumsOfThread; ++j) x[j] = __fmul_rn(x[j], inverses[RowThere(j)]);
    }
    if (tile.part.bias != nullptr) {
      const float bias = tile.part.bias[min(tile.first_output + Column(), tile.part.num_outputs - 1)];
#pragma unroll
      for (int j = 0; j < kSumsOfThread; ++j) x[j] += bias;
    }
    if (is_gate) {
#pragma unroll
      for (int j = 0; j < kSumsOfThread; ++j) gates[j] = x[j];
      return;
    }
    if (p.is_gated) {
#pragma unroll
      for (int j = 0; j < kSumsOfThread; ++j) x[j] *= p.has_gelu ? GeluTanh(gates[j]) : Silu(gates[j]);
    }
    if ((p.rounded_out.data == nullptr && left == nullptr) || p.next_norm != nullptr) {
#pragma unroll
      for (int j = 0; j < kSumsOfThread; ++j) {
        if (p.adds) x[j] = old[j] + x[j];
        if (IsThere(tile, j)) tile.part.out[At(tile, j)] = x[j];
      }
    }
    if (left != nullptr) {
      Leave(tile, x, [&](int j, float value) { left[Row(j) * kRunElements + Column()] = value; });
    } else if (p.rounded_out.data != nullptr) {
      Leave(tile, x, [&](int j, float value) { p.rounded_out.Store(At(tile, j), value); });
    }
  }

 private:
  static __device__ int Column() {
    return static_cast<int>(threadIdx.x) % kTileOutputs;
  }
  __device__ int Row(int j) const {
    return (thread + j * kThreads) / kTileOutputs;
  }
  // Some row where there is none.
  __device__ int RowThere(int j) const {
    return min(Row(j), p.num_rows - 1);
  }
  __device__ bool IsThere(const Tile& tile, int j) const {
    return Row(j) < p.num_rows && tile.first_output + Column() < tile.part.num_outputs;
  }
  __device__ int64_t At(const Tile& tile, int j) const {
    return static_cast<int64_t>(Row(j)) * tile.part.num_outputs + tile.first_output + Column();
  }

  __device__ void AddShares(const float* sums, float (&x)[kSumsOfThread]) const {
    float of_share[kSumsOfThread][kNumShares];  // one round of loads, for which all warps wait
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
#pragma unroll
      for (int share = 0; share < kNumShares; ++share) {
        of_share[j][share] = sums[SumsOfTile::IndexOf(share, Column(), RowThere(j))];
      }
    }
#pragma unroll 1
    for (int part = 1; part < p.num_parts; ++part) {
#pragma unroll
      for (int j = 0; j < kSumsOfThread; ++j) {
        const int row = RowThere(j) + part * p.num_rows;
#pragma unroll
        for (int share = 0; share < kNumShares; ++share) {
          of_share[j][share] += sums[SumsOfTile::IndexOf(share, Column(), row)];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      x[j] = 0;
#pragma unroll
      for (int share = 0; share < kNumShares; ++share) x[j] += of_share[j][share];
    }
  }
  // For the product behind.
  template <typename Store>
  __device__ void Leave(const Tile& tile, const float (&x)[kSumsOfThread], const Store& store) const {
#pragma unroll
    for (int j = 0; j < kSumsOfThread; ++j) {
      const bool is_there = IsThere(tile, j);
      if (p.next_norm == nullptr) {
        if (is_there) store(j, x[j]);
        continue;
      }
      if (is_there) store(j, __fmul_rn(x[j], next_weight));
      const float squares = AddOverLanes<1, kSquared>(is_there ? __fmul_rn(x[j], x[j]) : 0.0f);
      if (is_there && Column() == 0) {
        p.next_squares[static_cast<int64_t>(Row(j)) * (tile.part.num_outputs / kSquared) +
                       tile.first_output / kSquared] = squares;
      }
    }
  }
};

}  // namespace headwise::cuda::few_rows

#endif  // HEADWISE_BACKEND_CUDA_FEW_ROWS_CUH_
