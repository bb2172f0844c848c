// New tokens: queries and keys are rotated, keys and values written into their pages. A warp a row of D numbers, all
// rows of all of these in one launch, which is small beside what is around it.
#include <span>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"

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
    bool has_nan = false;
    for (int d = lane; d < dim; d += kWarp) {
      largest = fmaxf(largest, fabsf(x[d]));
      has_nan = has_nan || isnan(x[d]);
    }
    largest = __any_sync(kAllLanes, has_nan) ? NAN : MaxOfWarp(largest);
    auto* scales = reinterpret_cast<__half*>(page + CodeBytes(space.format, dim, space.page_tokens));
    const __half stored = __float2half_rn(__fdiv_rn(largest, 127.0f));
    if (lane == 0) scales[row] = stored;
    const float scale = __half2float(stored);
    for (int d = lane; d < dim; d += kWarp) {
      const float code = HasCodes(scale) ? fminf(fmaxf(rintf(__fdiv_rn(x[d], scale)), -127.0f), 127.0f) : 0.0f;
      reinterpret_cast<int8_t*>(page)[row * dim + d] = static_cast<int8_t>(code);
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
    const float2 angle = angles.values[j];
    const float low = rotation.x[offset + i];
    const float high = rotation.x[offset + i + half];
    row[i] = low * angle.x - high * angle.y;
    row[i + half] = high * angle.x + low * angle.y;
  }
  for (int d = 2 * half + lane; d < dim; d += kWarp) row[d] = rotation.x[offset + d];
  __syncwarp();
  for (int d = lane; d < dim; d += kWarp) rotation.out[offset + d] = row[d];
}

__global__ void __launch_bounds__(kThreads) AppendKernel(const __grid_constant__ AppendParams p) {
  // No more than there is of: beside a block of the product ahead, which leaves three kilobytes, this one can begin.
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

// Of the same rows: then one warp does both, in their order.
bool AreJoined(const RopeArgs& a, const RopeArgs& b) {
  return a.x.data == b.x.data && a.num_heads == b.num_heads;
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

void RopeThenAppendKv(std::span<const RopeArgs> ropes, const AppendKvArgs& append, const StepTables& tables,
                      CudaDevice& device) {
  const int64_t num_rows = append.step->num_rows();
  if (!device.ok() || num_rows == 0) return;
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
  const size_t rows_bytes = sizeof(float) * kWarps * static_cast<size_t>(params.dim);
  Launch(device, "AppendKv", Overlapping(Blocks(num_units, kWarps), kThreads, rows_bytes), AppendKernel, params);
}

void AppendKv(const AppendKvArgs& args, const StepTables& tables, CudaDevice& device) {
  RopeThenAppendKv({}, args, tables, device);
}

}  // namespace headwise::cuda
