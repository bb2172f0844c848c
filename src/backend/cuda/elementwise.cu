// Operations on rows of activations, f32: embedding, norms, rotation, activations, clamping, gathering, maxima. Bound
// by memory where they are bound at all; at one row each is a launch of a microsecond or two.
#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/rotation.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;

// `chosen`: null, or what `ids` are places in (EmbedArgs).
template <typename T>
__global__ void EmbedKernel(const T* table, int64_t num_ids, const int32_t* ids, const int32_t* chosen, int64_t dim,
                            float scale, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  int64_t id = ids[blockIdx.x];
  if (chosen != nullptr) {
    id = chosen[id];
    if (id < 0 || id >= num_ids) id = 0;
  }
  const T* row = table + id * dim;
  for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) out[blockIdx.x * dim + d] = scale * ToFloat(row[d]);
}

template <typename T>
__global__ void AddPositionsKernel(const T* table, const int32_t* ids, int64_t dim, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  const T* row = table + ids[blockIdx.x] * dim;
  for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) out[blockIdx.x * dim + d] += ToFloat(row[d]);
}

__device__ inline uint2 Rounded(const float4& x) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
  return {reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
}

// A block a row. `rounded`: null, or where the row goes as bf16 instead.
__global__ void __launch_bounds__(kNormThreads) NormKernel(NormParams all, uint2* rounded) {
  LetLaterBegin();
  WaitForEarlier();
  const NormParams p = all.OfRow();
  float4 row[kNormQuads];
  NormRow(p, row);
#pragma unroll
  for (int i = 0; i < kNormQuads; ++i) {
    const int64_t at = NormPlace(i);
    if (at >= p.dim) continue;
    if (rounded != nullptr) {
      rounded[(blockIdx.x * p.dim + at) / 4] = Rounded(row[i]);
      continue;
    }
    auto& to = *reinterpret_cast<float4*>(p.out + at);
    to = p.adds ? Sum(to, row[i]) : row[i];
  }
}

// The same for rows of any length.
__global__ void __launch_bounds__(kNormThreads) AnyNormKernel(NormParams all) {
  LetLaterBegin();
  WaitForEarlier();
  const auto [x, weight, bias, num_weights, dim, eps, subtracts_mean, adds, out] = all.OfRow();
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
    float y = (x[d] - mean) * inverse * weight[d];
    if (bias != nullptr) y += bias[d];
    out[d] = adds ? out[d] + y : y;
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
    const float2 rotated = Rotated(x[i], x[i + p.half], reinterpret_cast<const float2*>(angles)[i]);
    out[i] = rotated.x;
    out[i + p.half] = rotated.y;
  }
  for (int64_t d = 2 * p.half + threadIdx.x; d < p.head_dim; d += blockDim.x) out[d] = x[d];
}

template <ActivateArgs::Kind kKind>
__global__ void ActivateKernel(const float* gate, float* x, int64_t count) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) x[i] = Activated<kKind>(gate, x, i);
}

// Four numbers of a thread, as bf16. Buffers go on to a multiple of 64 bytes.
template <ActivateArgs::Kind kKind>
__global__ void ActivateRoundedKernel(const float* gate, const float* x, int64_t num_quads, uint2* rounded) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t quad = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (quad < num_quads) rounded[quad] = Rounded(ActivatedQuad<kKind>(gate, x, quad));
}

__global__ void ClampKernel(float* x, int64_t count, float limit) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];  // NaN stays NaN
}

__global__ void SoftCapKernel(float* x, int64_t count, float cap) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) x[i] = SoftCapped(x[i], cap);
}

__global__ void GatherKernel(const float* x, const int32_t* rows, int64_t dim, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  for (int64_t d = threadIdx.x; d < dim; d += blockDim.x) out[blockIdx.x * dim + d] = x[rows[blockIdx.x] * dim + d];
}

__device__ float4 QuadAt(const float* x, int64_t i) {
  return reinterpret_cast<const float4*>(x)[i];
}
__device__ float4 QuadAt(const __half* x, int64_t i) {
  const uint2 halves = reinterpret_cast<const uint2*>(x)[i];
  const float2 low = __half22float2(reinterpret_cast<const __half2&>(halves.x));
  const float2 high = __half22float2(reinterpret_cast<const __half2&>(halves.y));
  return {low.x, low.y, high.x, high.y};
}
// Quads of numbers.
template <typename T>
__global__ void RoundKernel(const T* x, int64_t count, uint2* rounded) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i < count) rounded[i] = Rounded(QuadAt(x, i));
}

}  // namespace

void RoundToBf16(const ConstTensorView& x, void* rounded, CudaDevice& device) {
  // Rows begin on 64 bytes and buffers end there: what is behind the last number may be rounded too.
  const int64_t count = (x.shape.num_elements() + 3) / 4;
  if (!device.ok() || count == 0) return;
  const LaunchShape shape = Overlapping(Blocks(count, kThreads), kThreads);
  auto* const to = static_cast<uint2*>(rounded);
  if (x.dtype == DType::kF16) {
    Launch(device, "RoundToBf16", shape, RoundKernel<__half>, static_cast<const __half*>(x.data), count, to);
  } else {
    Launch(device, "RoundToBf16", shape, RoundKernel<float>, F32(x), count, to);
  }
}

void Embed(const EmbedArgs& args, CudaDevice& device) {
  const int32_t* ids = device.Upload(args.ids);
  if (ids == nullptr || args.ids.empty()) return;
  const auto* chosen = static_cast<const int32_t*>(args.chosen.data);
  const auto num_rows = static_cast<int64_t>(args.ids.size());
  if (IsBlockFormat(args.table.dtype)) {
    EmbedBlocks({.tiles = args.table.planes[0],
                 .dtype = args.table.dtype,
                 .adds = false,
                 .scale = args.scale,
                 .num_ids = args.table.shape[0],
                 .dim = args.table.shape[1],
                 .ids = ids,
                 .chosen = chosen,
                 .out = F32(args.out)},
                num_rows, device);
  } else {
    const ConstTensorView table = args.table.rows();
    WithType(table.dtype, [&](auto type) {
      Launch(device, "Embed", Overlapping(num_rows, kThreads), EmbedKernel<decltype(type)>,
             static_cast<const decltype(type)*>(table.data), table.shape[0], ids, chosen, table.shape[1], args.scale,
             F32(args.out));
    });
  }
  if (!args.positions.present()) return;
  const int32_t* position_ids = device.Upload(args.position_ids);
  if (position_ids == nullptr) return;
  if (IsBlockFormat(args.positions.dtype)) {
    return EmbedBlocks({.tiles = args.positions.planes[0],
                        .dtype = args.positions.dtype,
                        .adds = true,
                        .scale = 1,
                        .num_ids = args.positions.shape[0],
                        .dim = args.positions.shape[1],
                        .ids = position_ids,
                        .chosen = nullptr,
                        .out = F32(args.out)},
                       num_rows, device);
  }
  const ConstTensorView positions = args.positions.rows();
  WithType(positions.dtype, [&](auto type) {
    Launch(device, "Embed", Overlapping(args.ids.size(), kThreads), AddPositionsKernel<decltype(type)>,
           static_cast<const decltype(type)*>(positions.data), position_ids, positions.shape[1], F32(args.out));
  });
}

void Norm(const NormArgs& args, CudaDevice& device) {
  if (!device.ok() || args.x.shape[0] == 0) return;
  const LaunchShape shape = Overlapping(args.x.shape[0], kNormThreads);
  if (HasNormQuads(args)) return Launch(device, "Norm", shape, NormKernel, NormParamsOf(args), nullptr);
  Launch(device, "Norm", shape, AnyNormKernel, NormParamsOf(args));
}

void NormRounded(const NormArgs& args, void* rounded, CudaDevice& device) {
  if (!device.ok() || args.x.shape[0] == 0) return;
  if (HasNormQuads(args) && args.write == NormArgs::Write::kStore) {
    return Launch(device, "Norm", Overlapping(args.x.shape[0], kNormThreads), NormKernel, NormParamsOf(args),
                  static_cast<uint2*>(rounded));
  }
  Norm(args, device);
  RoundToBf16(args.out, rounded, device);
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
  WithKind(args.kind, [&](auto kind) {
    Launch(device, "Activate", Overlapping(Blocks(count, kThreads), kThreads), ActivateKernel<decltype(kind)::value>,
           F32(args.gate), F32(args.x), count);
  });
}

void ActivateRounded(const ActivateArgs& args, void* rounded, CudaDevice& device) {
  const int64_t num_quads = (args.x.shape.num_elements() + 3) / 4;
  if (!device.ok() || num_quads == 0) return;
  WithKind(args.kind, [&](auto kind) {
    Launch(device, "Activate", Overlapping(Blocks(num_quads, kThreads), kThreads),
           ActivateRoundedKernel<decltype(kind)::value>, F32(args.gate), F32(args.x), num_quads,
           static_cast<uint2*>(rounded));
  });
}

void Clamp(const ClampArgs& args, CudaDevice& device) {
  const int64_t count = args.x.shape.num_elements();
  if (!device.ok() || count == 0) return;
  Launch(device, "Clamp", Overlapping(Blocks(count, kThreads), kThreads), ClampKernel, F32(args.x), count, args.limit);
}

void SoftCap(const SoftCapArgs& args, CudaDevice& device) {
  const int64_t count = args.x.shape.num_elements();
  if (!device.ok() || count == 0) return;
  Launch(device, "SoftCap", Overlapping(Blocks(count, kThreads), kThreads), SoftCapKernel, F32(args.x), count,
         args.cap);
}

void GatherRows(const GatherRowsArgs& args, CudaDevice& device) {
  const int32_t* rows = device.Upload(args.rows);
  if (rows == nullptr || args.rows.empty()) return;
  Launch(device, "GatherRows", Overlapping(args.rows.size(), kThreads), GatherKernel, F32(args.x), rows,
         args.x.shape[1], F32(args.out));
}

}  // namespace headwise::cuda
