// Operations on rows of activations, f32: embedding, norms, rotation, activations, clamping, gathering, maxima. Bound
// by memory where they are bound at all; at one row each is a launch of a microsecond or two.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/norm.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void EmbedKernel(const T* table, const int32_t* ids, int64_t dim, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  const T* row = table + ids[blockIdx.x] * dim;
  for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) out[blockIdx.x * dim + d] = ToFloat(row[d]);
}

// A block a row, of which a thread holds kNormQuads times four numbers at most.
__global__ void __launch_bounds__(kNormThreads) NormKernel(const float* x, const float* weight, const float* bias,
                                                           int64_t dim, float eps, bool subtracts_mean, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  const auto at = [&](int i) { return (static_cast<int64_t>(i) * kNormThreads + threadIdx.x) * 4; };
  x += blockIdx.x * dim;
  out += blockIdx.x * dim;
  float4 row[kNormQuads];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    row[i] = at(i) < dim ? *reinterpret_cast<const float4*>(x + at(i)) : float4{0, 0, 0, 0};
    sum += row[i].x + row[i].y + row[i].z + row[i].w;
  }
  const float mean = subtracts_mean ? SumOfBlock(sum) / static_cast<float>(dim) : 0.0f;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    if (at(i) >= dim) continue;
    row[i] = {row[i].x - mean, row[i].y - mean, row[i].z - mean, row[i].w - mean};
    squares = AddSquares(squares, row[i]);
  }
  const float inverse = InverseRoot(SumOfBlock(squares), dim, eps);
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    if (at(i) >= dim) continue;
    float4 y = Scaled(row[i], inverse, *reinterpret_cast<const float4*>(weight + at(i)));
    if (bias != nullptr) {
      const float4 b = *reinterpret_cast<const float4*>(bias + at(i));
      y = {y.x + b.x, y.y + b.y, y.z + b.z, y.w + b.w};
    }
    *reinterpret_cast<float4*>(out + at(i)) = y;
  }
}

// The same for rows of any length.
__global__ void __launch_bounds__(kNormThreads) AnyNormKernel(const float* x, const float* weight, const float* bias,
                                                              int64_t dim, float eps, bool subtracts_mean, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  x += blockIdx.x * dim;
  out += blockIdx.x * dim;
  float mean = 0;
  if (subtracts_mean) {
    float sum = 0;
    for (int64_t d = threadIdx.x; d < dim; d += kNormThreads) sum += x[d];
    mean = SumOfBlock(sum) / static_cast<float>(dim);
  }
  float squares = 0;
  for (int64_t d = threadIdx.x; d < dim; d += kNormThreads) squares += (x[d] - mean) * (x[d] - mean);
  const float inverse = InverseRoot(SumOfBlock(squares), dim, eps);
  for (int64_t d = threadIdx.x; d < dim; d += kNormThreads) {
    const float y = (x[d] - mean) * inverse * weight[d];
    out[d] = bias == nullptr ? y : y + bias[d];
  }
}

struct RopeParams {
  const float* x;
  float* out;
  const float* angles;
  int64_t rows_per_token, num_heads, head_dim, half;
};

// A block a (token, head); every pair of elements is read before it is written, so x may be out.
__global__ void RopeKernel(RopeParams p, const int32_t* rows) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t head = blockIdx.x % p.num_heads;
  const int64_t token = blockIdx.x / p.num_heads;
  const int64_t heads_per_row = p.num_heads / p.rows_per_token;
  const float* angles = p.angles + rows[token * p.rows_per_token + head / heads_per_row] * p.half * 2;
  const float* x = p.x + blockIdx.x * p.head_dim;
  float* out = p.out + blockIdx.x * p.head_dim;
  for (int64_t i = threadIdx.x; i < p.half; i += blockDim.x) {
    const float cosine = angles[2 * i];
    const float sine = angles[2 * i + 1];
    const float low = x[i];
    const float high = x[i + p.half];
    out[i] = low * cosine - high * sine;
    out[i + p.half] = high * cosine + low * sine;
  }
  for (int64_t d = 2 * p.half + threadIdx.x; d < p.head_dim; d += blockDim.x) out[d] = x[d];
}

template <ActivateArgs::Kind kKind>
__global__ void ActivateKernel(const float* gate, float* x, int64_t count) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const float v = x[i];
  if constexpr (kKind == ActivateArgs::Kind::kGatedSilu) {
    x[i] = gate[i] / (1.0f + expf(-gate[i])) * v;
  } else if constexpr (kKind == ActivateArgs::Kind::kGelu) {
    x[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
  } else {
    x[i] = 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
  }
}

__global__ void ClampKernel(float* x, int64_t count, float limit) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];  // NaN stays NaN
}

__global__ void GatherKernel(const float* x, const int32_t* rows, int64_t dim, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) out[blockIdx.x * dim + d] = x[rows[blockIdx.x] * dim + d];
}

__global__ void RoundKernel(const float4* x, int64_t count, uint2* rounded) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  const __nv_bfloat162 low = __floats2bfloat162_rn(x[i].x, x[i].y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x[i].z, x[i].w);
  rounded[i] = {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
}

// A block a row: with 1,024 threads one multiprocessor reads 128,000 logits in some five microseconds.
constexpr int kArgMaxThreads = 1024;
struct Best {
  float value;
  int idx;
};
__device__ Best BetterOf(const Best& a, const Best& b) {
  return b.value > a.value || (b.value == a.value && b.idx < a.idx) ? b : a;
}
__global__ void __launch_bounds__(kArgMaxThreads) ArgMaxKernel(const float* x, int64_t dim, int32_t* out) {
  constexpr int kWarps = kArgMaxThreads / static_cast<int>(kWarp);
  __shared__ Best of_warp[kWarps];
  LetLaterBegin();
  WaitForEarlier();
  x += blockIdx.x * dim;
  Best best{-INFINITY, 0};
  bool is_finite = true;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kArgMaxThreads) {
    const float value = x[i];
    is_finite = is_finite && isfinite(value);
    if (value > best.value) best = {value, i};
  }
  const auto over_warp = [](Best of_lane) {
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      const Best other{__shfl_xor_sync(kAllLanes, of_lane.value, distance),
                       __shfl_xor_sync(kAllLanes, of_lane.idx, distance)};
      of_lane = BetterOf(of_lane, other);
    }
    return of_lane;
  };
  best = over_warp(best);
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = best;
  if (__syncthreads_or(is_finite ? 0 : 1) != 0) best = {0, -1};
  if (threadIdx.x >= kWarp) return;
  if (best.idx >= 0) best = over_warp(of_warp[threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = best.idx;
}

}  // namespace

void RoundToBf16(const ConstTensorView& x, void* rounded, CudaDevice& device) {
  // Rows begin on 64 bytes and buffers end there: what is behind the last number may be rounded too.
  const int64_t count = (x.shape.num_elements() + 3) / 4;
  if (!device.ok() || count == 0) return;
  Launch(device, "RoundToBf16", {.grid = dim3(Blocks(count, kThreads)), .threads = kThreads}, RoundKernel,
         static_cast<const float4*>(x.data), count, static_cast<uint2*>(rounded));
}

void Embed(const EmbedArgs& args, CudaDevice& device) {
  const int32_t* ids = device.Upload(args.ids);
  if (ids == nullptr || args.ids.empty()) return;
  const ConstTensorView table = args.table.rows();
  WithType(table.dtype, [&](auto type) {
    Launch(device, "Embed", Overlapping(args.ids.size(), kThreads), EmbedKernel<decltype(type)>,
           static_cast<const decltype(type)*>(table.data), ids, table.shape[1], F32(args.out));
  });
}

void Norm(const NormArgs& args, CudaDevice& device) {
  if (!device.ok() || args.x.shape[0] == 0) return;
  const int64_t dim = args.x.shape[1];
  // Weights may lie anywhere in memory that a device reads where it is.
  const auto is_aligned = [](const ConstTensorView& view) { return reinterpret_cast<uintptr_t>(view.data) % 16 == 0; };
  const bool has_quads = dim % 4 == 0 && dim <= kMaxNormDim && is_aligned(args.weight) && is_aligned(args.bias);
  const auto kernel = has_quads ? NormKernel : AnyNormKernel;
  Launch(device, "Norm", Overlapping(args.x.shape[0], kNormThreads), kernel, F32(args.x), F32(args.weight),
         F32(args.bias), dim, args.eps, args.kind == NormArgs::Kind::kLayer, F32(args.out));
}

void Rope(const RopeArgs& args, CudaDevice& device) {
  const int32_t* rows = device.Upload(args.rows);
  if (rows == nullptr || args.rows.empty()) return;
  const RopeParams params{.x = F32(args.x),
                          .out = F32(args.out),
                          .angles = F32(args.angles),
                          .rows_per_token = args.rows_per_token,
                          .num_heads = args.num_heads,
                          .head_dim = args.head_dim,
                          .half = args.angles.shape[1]};
  Launch(device, "Rope", Overlapping(args.x.shape[0] * args.num_heads, 64), RopeKernel, params, rows);
}

void Activate(const ActivateArgs& args, CudaDevice& device) {
  const int64_t count = args.x.shape.num_elements();
  if (!device.ok() || count == 0) return;
  const auto kernel = args.kind == ActivateArgs::Kind::kGatedSilu ? ActivateKernel<ActivateArgs::Kind::kGatedSilu>
                      : args.kind == ActivateArgs::Kind::kGelu    ? ActivateKernel<ActivateArgs::Kind::kGelu>
                                                                  : ActivateKernel<ActivateArgs::Kind::kGeluTanh>;
  Launch(device, "Activate", Overlapping(Blocks(count, kThreads), kThreads), kernel, F32(args.gate), F32(args.x),
         count);
}

void Clamp(const ClampArgs& args, CudaDevice& device) {
  const int64_t count = args.x.shape.num_elements();
  if (!device.ok() || count == 0) return;
  Launch(device, "Clamp", Overlapping(Blocks(count, kThreads), kThreads), ClampKernel, F32(args.x), count, args.limit);
}

void GatherRows(const GatherRowsArgs& args, CudaDevice& device) {
  const int32_t* rows = device.Upload(args.rows);
  if (rows == nullptr || args.rows.empty()) return;
  Launch(device, "GatherRows", Overlapping(args.rows.size(), kThreads), GatherKernel, F32(args.x), rows,
         args.x.shape[1], F32(args.out));
}

void ArgMax(const ArgMaxArgs& args, CudaDevice& device) {
  if (!device.ok() || args.x.shape[0] == 0) return;
  Launch(device, "ArgMax", Overlapping(args.x.shape[0], kArgMaxThreads), ArgMaxKernel, F32(args.x), args.x.shape[1],
         static_cast<int32_t*>(args.out.data));
}

}  // namespace headwise::cuda
