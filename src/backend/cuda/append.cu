// New tokens: queries and keys are rotated, keys and values written into their pages, all in one launch. Of few tokens
// a warp has a row of D numbers, and the launch is small beside what is around it. Of many a block has a token, four
// numbers of each half of a row a thread: bound by memory.
#include <algorithm>
#include <span>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"
#include "backend/cuda/rotation.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / static_cast<int>(kWarp);
constexpr int kMaxDim = 256;
constexpr size_t kMaxRopes = 3;  // queries, queries of sink reads, keys

struct Rotation {
  const float* x;
  float* out;
  const float* angles;
  const int32_t* rows;  // of angles
  int rows_per_token, num_heads, half;
  // The next one is of the same rows, maybe in place: who did this one does it.
  bool joins_next;
  int end_unit;  // of its rows: (token, head), those of all rotations one behind the other
};

struct AppendParams {
  StepView step;
  int layer_idx, num_rows, dim;
  const float* k;  // as it is written; not read where a rotation writes keys
  const float* v;
  int num_rotations;
  int key_rotation;  // -1: keys come as they are
  Rotation rotations[kMaxRopes];
};

// One row of a page by one warp.
__device__ void StoreRow(const SpaceView& space, std::byte* page, int row, const float* x) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int dim = space.head_dim;
  if (space.format == KvFormat::kQ8) {
    float largest = 0;
    for (int d = lane; d < dim; d += kWarp) largest = MaxOrNan(largest, fabsf(x[d]));
    largest = MaxOrNanOfLanes<kWarp>(largest);
    auto* scales = reinterpret_cast<__half*>(page + CodeBytes(space.format, dim, space.page_tokens));
    const __half stored = Q8Scale(largest);
    if (lane == 0) scales[row] = stored;
    const float scale = __half2float(stored);
    for (int d = lane; d < dim; d += kWarp) {
      reinterpret_cast<int8_t*>(page)[Q8Byte(dim, space.page_tokens, row, d)] = Q8Code(x[d], scale);
    }
    return;
  }
  for (int d = lane; d < dim; d += kWarp) {
    const int i = PlainIndex(space.format, dim, space.page_tokens, row, d);
    if (space.format == KvFormat::kF32) reinterpret_cast<float*>(page)[i] = x[d];
    if (space.format == KvFormat::kF16) reinterpret_cast<__half*>(page)[i] = __float2half_rn(x[d]);
    if (space.format == KvFormat::kBF16) reinterpret_cast<__nv_bfloat16*>(page)[i] = __float2bfloat16_rn(x[d]);
  }
}

// Where row `row` of the step's tokens goes, of keys or of values of one KV head.
struct Place {
  const SpaceView* space = nullptr;  // null: nowhere
  std::byte* page = nullptr;
  int row = 0;
};
__device__ Place PlaceOf(const AppendParams& p, int row, int kv_head, bool is_value) {
  int begin = 0;
  int end = p.step.num_sequences;
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (p.step.sequences[middle].first_row <= row ? begin : end) = middle;
  }
  const DeviceHead head(p.step, p.layer_idx, begin * p.step.num_kv_heads + kv_head);
  const int64_t pos = head.rows.first_pos + row - head.rows.first_row;
  const int page_tokens = head.newest.page_tokens;
  KvFormat format;
  std::byte* page = head.Page(pos / page_tokens, format);
  return {&head.newest, page, (is_value ? page_tokens : 0) + static_cast<int>(pos % page_tokens)};
}

// A lane's cosines and sines of one row.
struct Angles {
  float2 values[kMaxDim / 2 / static_cast<int>(kWarp)];
};
__device__ Angles AnglesOf(const Rotation& rotation, int unit) {
  const int token = unit / rotation.num_heads;
  const int head = unit % rotation.num_heads;
  const int heads_per_row = rotation.num_heads / rotation.rows_per_token;
  const float* angles =
      rotation.angles +
      static_cast<int64_t>(rotation.rows[token * rotation.rows_per_token + head / heads_per_row]) * rotation.half * 2;
  Angles of_lane;
  for (int j = 0; j < kMaxDim / 2 / static_cast<int>(kWarp); ++j) {
    const int i = j * static_cast<int>(kWarp) + static_cast<int>(threadIdx.x % kWarp);
    of_lane.values[j] = i < rotation.half ? reinterpret_cast<const float2*>(angles)[i] : float2{1, 0};
  }
  return of_lane;
}

// As RopeArgs says; the row stays in shared memory too.
__device__ void Rotate(const Rotation& rotation, const Angles& angles, int unit, int dim, float* row) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int half = rotation.half;
  const int64_t offset = static_cast<int64_t>(unit) * dim;
#pragma unroll
  for (int j = 0; j < kMaxDim / 2 / static_cast<int>(kWarp); ++j) {
    const int i = j * static_cast<int>(kWarp) + lane;
    if (i >= half) break;
    const float2 rotated = Rotated(rotation.x[offset + i], rotation.x[offset + i + half], angles.values[j]);
    row[i] = rotated.x;
    row[i + half] = rotated.y;
  }
  for (int d = 2 * half + lane; d < dim; d += kWarp) row[d] = rotation.x[offset + d];
  __syncwarp();
  for (int d = lane; d < dim; d += kWarp) rotation.out[offset + d] = row[d];
}

__global__ void __launch_bounds__(kThreads) AppendKernel(const __grid_constant__ AppendParams p) {
  // No more than there is of: some products' blocks leave three kilobytes, and beside those this one can begin.
  extern __shared__ float rows[];  // [kWarps, D]
  float* const row = rows + threadIdx.x / kWarp * p.dim;
  const int num_kv_heads = p.step.num_kv_heads;
  // Which unit of what the warp has: of a rotation, of keys as they come, or of values.
  int unit = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  int rotation_idx = 0;
  int begin = 0;
  while (rotation_idx < p.num_rotations && unit >= p.rotations[rotation_idx].end_unit) {
    begin = p.rotations[rotation_idx++].end_unit;
  }
  unit -= begin;
  const bool rotates = rotation_idx < p.num_rotations;
  const int num_units = p.num_rows * num_kv_heads;
  const bool comes_key = !rotates && p.key_rotation < 0 && unit < num_units;
  if (!rotates && p.key_rotation < 0 && !comes_key) unit -= num_units;
  const bool is_value = !rotates && !comes_key;
  if (is_value && unit >= num_units) return;

  // Tables and angles are there since the step began: looked up while the kernel before this one runs.
  Place place;
  if (!rotates || rotation_idx == p.key_rotation) {
    place = PlaceOf(p, unit / num_kv_heads, unit % num_kv_heads, is_value);
  }
  const Rotation& rotation = p.rotations[rotates ? rotation_idx : 0];
  Angles angles;
  if (rotates) angles = AnglesOf(rotation, unit);
  WaitForEarlier();
  LetLaterBegin();  // attention reads tables and older pages at once
  const float* x = (is_value ? p.v : p.k) + static_cast<int64_t>(unit) * p.dim;
  if (rotates) {
    x = row;
    Rotate(rotation, angles, unit, p.dim, row);
    if (rotation.joins_next) {
      __syncwarp();
      const Rotation& next = p.rotations[rotation_idx + 1];
      Rotate(next, AnglesOf(next, unit), unit, p.dim, row);
    }
  }
  if (place.space != nullptr) StoreRow(*place.space, place.page, place.row, x);
}

// ---- many tokens ----------------------------------------------------------------------------------------------------

constexpr int kManyThreads = 256;
constexpr int64_t kManyTokens = 64;

// Numbers [d, d + 4) of a row of a page in plain numbers. Requires: d and the dimension are multiples of four.
__device__ void StoreQuad(const Place& place, int row, int d, const float4& x) {
  const SpaceView& space = *place.space;
  const int i = PlainIndex(space.format, space.head_dim, space.page_tokens, row, d);
  if (space.format == KvFormat::kF32) {
    *reinterpret_cast<float4*>(reinterpret_cast<float*>(place.page) + i) = x;
    return;
  }
  uint2& to = *reinterpret_cast<uint2*>(reinterpret_cast<uint16_t*>(place.page) + i);
  to = space.format == KvFormat::kF16 ? uint2{Pack<__half>(x.x, x.y), Pack<__half>(x.z, x.w)}
                                      : uint2{Pack<__nv_bfloat16>(x.x, x.y), Pack<__nv_bfloat16>(x.z, x.w)};
}

__device__ inline float4& QuadAt(float* x, int64_t i) {
  return *reinterpret_cast<float4*>(x + i);
}
__device__ inline const float4& QuadAt(const float* x, int64_t i) {
  return *reinterpret_cast<const float4*>(x + i);
}

// The block's token. `places`: of its keys, where these are the ones of the cache; else null.
__device__ void RotateToken(const Rotation& rotation, int dim, const Place* places) {
  const int token = static_cast<int>(blockIdx.x);
  const int half = rotation.half;
  const int quads = half / 4;
  const int heads_per_row = rotation.num_heads / rotation.rows_per_token;
  const int64_t offset = static_cast<int64_t>(token) * rotation.num_heads * dim;
  for (int i = static_cast<int>(threadIdx.x); i < rotation.num_heads * quads; i += kManyThreads) {
    const int head = i / quads;
    const int d = i % quads * 4;
    const int64_t at = offset + head * dim + d;
    const float* angles =
        rotation.angles +
        static_cast<int64_t>(rotation.rows[token * rotation.rows_per_token + head / heads_per_row]) * half * 2 + 2 * d;
    const float4 first = QuadAt(angles, 0);  // cosine, sine, cosine, sine
    const float4 second = QuadAt(angles, 4);
    float4 low = QuadAt(rotation.x, at);
    float4 high = QuadAt(rotation.x, at + half);
    RotateQuads(low, high, first, second);
    QuadAt(rotation.out, at) = low;
    QuadAt(rotation.out, at + half) = high;
    if (places == nullptr) continue;
    StoreQuad(places[head], places[head].row, d, low);
    StoreQuad(places[head], places[head].row, d + half, high);
  }
  // What is not rotated.
  const int rest = dim / 4 - 2 * quads;
  for (int i = static_cast<int>(threadIdx.x); i < rotation.num_heads * rest; i += kManyThreads) {
    const int head = i / rest;
    const int d = 2 * half + i % rest * 4;
    const float4 x = QuadAt(rotation.x, offset + head * dim + d);
    QuadAt(rotation.out, offset + head * dim + d) = x;
    if (places != nullptr) StoreQuad(places[head], places[head].row, d, x);
  }
}

// Rows of the block's token as they come, `first_row` rows behind that of its key.
__device__ void StoreToken(const float* x, int num_heads, int dim, const Place* places, int first_row) {
  const int quads = dim / 4;
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * num_heads * dim;
  for (int i = static_cast<int>(threadIdx.x); i < num_heads * quads; i += kManyThreads) {
    const Place& place = places[i / quads];
    StoreQuad(place, place.row + first_row * place.space->page_tokens, i % quads * 4, QuadAt(x, offset + i * 4));
  }
}

__global__ void __launch_bounds__(kManyThreads) AppendTokenKernel(const __grid_constant__ AppendParams p) {
  extern __shared__ Place places[];  // of the token's keys, [Hkv]
  const int num_kv_heads = p.step.num_kv_heads;
  for (int head = static_cast<int>(threadIdx.x); head < num_kv_heads; head += kManyThreads) {
    places[head] = PlaceOf(p, static_cast<int>(blockIdx.x), head, false);
  }
  __syncthreads();
  // Rotations of the same rows follow on each other, and a thread has the same numbers in each.
  for (int i = 0; i < p.num_rotations; ++i) {
    RotateToken(p.rotations[i], p.dim, i == p.key_rotation ? places : nullptr);
  }
  if (p.key_rotation < 0) StoreToken(p.k, num_kv_heads, p.dim, places, 0);
  StoreToken(p.v, num_kv_heads, p.dim, places, 1);
}

bool TakesQuads(const PageSpace& space) {
  return space.layout.head_dim % 4 == 0 && IsPlain(space.layout.format);
}

// Nearly always: then nobody asks each head.
bool AllTakeQuads(const KvStep& step) {
  for (size_t i = 0; i < step.spaces.size(); ++i) {
    if (static_cast<int32_t>(i) != step.states && !TakesQuads(step.spaces[i])) return false;
  }
  return true;
}

// Whether rows come in fours and pages take them so.
bool IsInQuads(std::span<const RopeArgs> ropes, const AppendKvArgs& append) {
  const auto is_odd = [](const RopeArgs& rope) { return rope.angles.shape[1] % 4 != 0; };
  if (std::any_of(ropes.begin(), ropes.end(), is_odd)) return false;
  const KvStep& step = *append.step;
  if (AllTakeQuads(step)) return true;
  for (int64_t i = 0; i < step.num_heads(); ++i) {
    if (!TakesQuads(step.Head(append.layer_idx, i).newest())) return false;
  }
  return true;
}

// Of the same rows: then one warp does both, in their order.
bool AreJoined(const RopeArgs& a, const RopeArgs& b) {
  return a.x.data == b.x.data && a.num_heads == b.num_heads;
}

// Queries and keys are rotated whole, by the same angles.
bool AreRotatedAlike(const AppendParams& params) {
  if (params.num_rotations != 2 || params.key_rotation != 1) return false;
  const Rotation& q = params.rotations[0];
  const Rotation& k = params.rotations[1];
  return !q.joins_next && q.rows_per_token == 1 && k.rows_per_token == 1 && 2 * q.half == params.dim &&
         q.angles == k.angles && q.half == k.half && q.rows == k.rows;
}

}  // namespace

bool FusesRopes(std::span<const RopeArgs> ropes, const AppendKvArgs& append) {
  if (ropes.size() > kMaxRopes || append.step->num_heads() == 0) return false;
  const int64_t dim = append.step->Head(append.layer_idx, 0).layout().head_dim;
  if (dim > kMaxDim) return false;
  for (size_t i = 0; i < ropes.size(); ++i) {
    const RopeArgs& rope = ropes[i];
    const bool writes_keys = rope.out.data == append.k.data;
    if (rope.head_dim != dim || rope.out.data == append.v.data || (writes_keys && i + 1 < ropes.size())) return false;
    if (i >= 2 && AreJoined(ropes[i - 2], ropes[i - 1]) && AreJoined(ropes[i - 1], rope)) return false;
    for (size_t j = i + 1; j < ropes.size(); ++j) {
      if (j == i + 1 && AreJoined(rope, ropes[j])) continue;
      if (rope.out.data == ropes[j].x.data || rope.x.data == ropes[j].out.data) return false;
    }
  }
  return true;
}

bool AppendsByHeads(const KvStep& step) {
  return step.num_rows() >= kManyTokens && !AllTakeQuads(step);
}

Appended RopeThenAppendKv(std::span<const RopeArgs> ropes, const AppendKvArgs& append, const StepTables& tables,
                          CudaDevice& device) {
  const int64_t num_rows = append.step->num_rows();
  if (!device.ok() || num_rows == 0) return {};
  AppendParams params{.step = tables.view(),
                      .layer_idx = static_cast<int>(append.layer_idx),
                      .num_rows = static_cast<int>(num_rows),
                      .dim = static_cast<int>(append.step->Head(append.layer_idx, 0).layout().head_dim),
                      .k = F32(append.k),
                      .v = F32(append.v),
                      .num_rotations = static_cast<int>(ropes.size()),
                      .key_rotation = -1,
                      .rotations = {}};
  int64_t num_units = 0;
  for (size_t i = 0; i < ropes.size(); ++i) {
    const RopeArgs& rope = ropes[i];
    if (i == 0 || !AreJoined(ropes[i - 1], rope)) num_units += rope.x.shape[0] * rope.num_heads;
    params.rotations[i] = {.x = F32(rope.x),
                           .out = F32(rope.out),
                           .angles = F32(rope.angles),
                           .rows = device.Upload(rope.rows),
                           .rows_per_token = static_cast<int>(rope.rows_per_token),
                           .num_heads = static_cast<int>(rope.num_heads),
                           .half = static_cast<int>(rope.angles.shape[1]),
                           .joins_next = i + 1 < ropes.size() && AreJoined(rope, ropes[i + 1]),
                           .end_unit = static_cast<int>(num_units)};
    if (rope.out.data == append.k.data) params.key_rotation = static_cast<int>(i);
  }
  num_units += num_rows * append.step->num_kv_heads * (params.key_rotation < 0 ? 2 : 1);
  // Attention in its place reads pages before the kernel ahead is done.
  const bool lets_begin_late = device.lets_begin_late();
  if (num_rows >= kManyTokens && IsInQuads(ropes, append)) {
    const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_rows)),
                            .threads = kManyThreads,
                            .shared_bytes = sizeof(Place) * static_cast<size_t>(params.step.num_kv_heads)};
    Launch(device, "AppendKv", shape, AppendTokenKernel, params);
  } else {
    const size_t rows_bytes = sizeof(float) * kWarps * static_cast<size_t>(params.dim);
    Launch(device, "AppendKv", Overlapping(Blocks(num_units, kWarps), kThreads, rows_bytes), AppendKernel, params);
  }
  if (!lets_begin_late || !AreRotatedAlike(params)) return {};
  const Rotation& of_q = params.rotations[0];
  return {.q = of_q.x,
          .k = params.rotations[1].x,
          .v = params.v,
          .angles = of_q.angles,
          .angle_rows = of_q.rows,
          .rotated_q = of_q.out,
          .layer_idx = append.layer_idx,
          .num_put = device.num_put()};
}

void AppendKv(const AppendKvArgs& args, const StepTables& tables, CudaDevice& device) {
  RopeThenAppendKv({}, args, tables, device);
}

}  // namespace headwise::cuda
