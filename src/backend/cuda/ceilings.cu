// What this GPU can do at most: a plain read of more memory than caches hold, multiply-adds on registers alone, and
// cuBLASLt's product of two large matrices. Best of several rounds, as events on the stream tell.
#include <algorithm>
#include <functional>

#include "backend/cuda/cublas.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/launch.cuh"

namespace headwise {
namespace cuda {
namespace {

// Read at most, and at least: less where a cache has filled the memory, but many times what caches of the GPU hold.
constexpr size_t kMostReadBytes = size_t{4} << 30, kLeastReadBytes = size_t{512} << 20;
constexpr int64_t kMatrixDim = 8192;  // rows, outputs and depth of the product
constexpr int kRounds = 10;
constexpr int kThreads = 512;
constexpr int kLoadsAtOnce = 8;
// Of the read, per multiprocessor: which is best differs by device.
constexpr int kBlocksToTry[] = {1, 2, 4, 8};

// A block reads 64 KiB at a time, one such piece in so many as there are blocks.
__global__ void __launch_bounds__(kThreads) ReadKernel(const uint4* memory, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  constexpr int64_t kPiece = int64_t{kThreads} * kLoadsAtOnce;
  for (int64_t first = blockIdx.x * kPiece; first < count; first += gridDim.x * kPiece) {
    uint4 values[kLoadsAtOnce];
#pragma unroll
    for (int i = 0; i < kLoadsAtOnce; ++i) {
      const int64_t at = first + i * kThreads + threadIdx.x;
      values[i] = at < count ? __ldcs(memory + at) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int i = 0; i < kLoadsAtOnce; ++i) sum ^= values[i].x ^ values[i].y ^ values[i].z ^ values[i].w;
  }
  if (sum == 0x9e3779b9u) *sink = sum;  // never: the loads must not be left out
}

constexpr int kChains = 8;
constexpr int kIterations = 4096;
__global__ void __launch_bounds__(kThreads) MultiplyAddKernel(float factor, float* sink) {
  float acc[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) acc[i] = static_cast<float>(threadIdx.x + i);
  for (int n = 0; n < kIterations; ++n) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) acc[i] = fmaf(acc[i], factor, 1.0f);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += acc[i];
  if (sum == -1.0f) *sink = sum;
}

// Numbers in [-1, 1): of zeros products cost less power and are faster.
__global__ void FillKernel(__nv_bfloat16* to, int64_t count) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= count) return;
  uint32_t hash = static_cast<uint32_t>(i) * 0x9e3779b1u;
  hash = (hash ^ hash >> 15) * 0x85ebca77u;
  to[i] = __float2bfloat16(static_cast<float>(hash >> 16) / 32768.0f - 1.0f);
}

Result<double> BestSeconds(CudaDevice& device, const std::function<void()>& put) {
  double best = INFINITY;
  for (int round = 0; round < kRounds; ++round) {
    HW_ASSIGN_OR_RETURN(const double seconds, device.TimeOf(put));
    best = std::min(best, seconds);
  }
  return best;
}

// Of so many bytes, or of the half as often as there is no memory for them.
Result<DeviceBuffer> MemoryToRead(CudaDevice& device, size_t num_bytes) {
  Result<DeviceBuffer> made = DeviceBuffer::Make(device, num_bytes);
  const bool is_full = !made.ok() && made.status().code() == StatusCode::kOutOfMemory;
  if (!is_full || num_bytes <= kLeastReadBytes) return made;
  return MemoryToRead(device, num_bytes / 2);
}

Result<double> ReadBandwidth(CudaDevice& device) {
  HW_ASSIGN_OR_RETURN(const DeviceBuffer memory, MemoryToRead(device, kMostReadBytes));
  const auto count = static_cast<int64_t>(memory.size_bytes() / sizeof(uint4));
  double best = INFINITY;
  for (const int num_blocks : kBlocksToTry) {
    const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(device.facts().num_multiprocessors * num_blocks)),
                               .threads = kThreads};
    const auto put = [&] {
      Launch(device, "read", shape, ReadKernel, reinterpret_cast<const uint4*>(memory.data()), count,
             reinterpret_cast<uint32_t*>(memory.data()));
    };
    HW_ASSIGN_OR_RETURN(const double seconds, BestSeconds(device, put));
    best = std::min(best, seconds);
  }
  return static_cast<double>(memory.size_bytes()) / best;
}

Result<double> MultiplyAdds(CudaDevice& device) {
  HW_ASSIGN_OR_RETURN(const DeviceBuffer sink, DeviceBuffer::Make(device, sizeof(float)));
  const int num_blocks = device.facts().num_multiprocessors * 4;
  const auto put = [&] {
    Launch(device, "multiply-add", {.grid = dim3(static_cast<unsigned>(num_blocks)), .threads = kThreads},
           MultiplyAddKernel, 0.5f, reinterpret_cast<float*>(sink.data()));
  };
  HW_ASSIGN_OR_RETURN(const double seconds, BestSeconds(device, put));
  return 2.0 * num_blocks * kThreads * kChains * kIterations / seconds;
}

// 0 without the library.
Result<double> Bf16Products(CudaDevice& device) {
  const std::unique_ptr<Cublas> cublas = Cublas::Load(device);
  if (cublas == nullptr) return 0.0;
  constexpr int64_t kCount = kMatrixDim * kMatrixDim;
  HW_ASSIGN_OR_RETURN(const DeviceBuffer x, DeviceBuffer::Make(device, kCount * sizeof(__nv_bfloat16)));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer weight, DeviceBuffer::Make(device, kCount * sizeof(__nv_bfloat16)));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer out, DeviceBuffer::Make(device, kCount * sizeof(float)));
  for (const DeviceBuffer* matrix : {&x, &weight}) {
    Launch(device, "fill", {.grid = dim3(Blocks(kCount, kThreads)), .threads = kThreads}, FillKernel,
           reinterpret_cast<__nv_bfloat16*>(matrix->data()), kCount);
  }
  const Shape shape{kMatrixDim, kMatrixDim};
  const MatMulPart part = {.weight = ConstTensorView(weight.data(), DType::kBF16, shape),
                           .bias = {},
                           .out = {.data = out.data(), .dtype = DType::kF32, .shape = shape}};
  const auto put = [&] {
    cublas->MatMul(ConstTensorView(x.data(), DType::kBF16, shape), part, MatMulArgs::Write::kStore);
  };
  HW_ASSIGN_OR_RETURN(const double seconds, BestSeconds(device, put));
  return 2.0 * kMatrixDim * kMatrixDim * kMatrixDim / seconds;
}

// The same of the matrices as e4m3; 0 where there is no such product.
Result<double> Fp8Products(CudaDevice& device) {
  const std::unique_ptr<Cublas> cublas = Cublas::Load(device);
  if (cublas == nullptr || !cublas->HasFp8()) return 0.0;
  constexpr int64_t kCount = kMatrixDim * kMatrixDim;
  const Shape shape{kMatrixDim, kMatrixDim};
  HW_ASSIGN_OR_RETURN(const DeviceBuffer numbers, DeviceBuffer::Make(device, kCount * sizeof(__nv_bfloat16)));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer codes, DeviceBuffer::Make(device, kCount));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer scales, DeviceBuffer::Make(device, kMatrixDim * sizeof(float)));
  HW_ASSIGN_OR_RETURN(const DeviceBuffer out, DeviceBuffer::Make(device, kCount * sizeof(float)));
  Launch(device, "fill", {.grid = dim3(Blocks(kCount, kThreads)), .threads = kThreads}, FillKernel,
         reinterpret_cast<__nv_bfloat16*>(numbers.data()), kCount);
  const Fp8Rows rows{.codes = codes.data(), .scales = reinterpret_cast<float*>(scales.data())};
  RowsToFp8(ConstTensorView(numbers.data(), DType::kBF16, shape), rows, device);
  const auto put = [&] {
    cublas->MatMulFp8(rows, shape, rows, {out.data(), DType::kF32, shape}, MatMulArgs::Write::kStore);
  };
  HW_ASSIGN_OR_RETURN(const double seconds, BestSeconds(device, put));
  return 2.0 * kMatrixDim * kMatrixDim * kMatrixDim / seconds;
}

}  // namespace
}  // namespace cuda

Result<double> MeasureCudaReadBandwidth(Backend& backend) {
  return cuda::ReadBandwidth(static_cast<cuda::CudaDevice&>(backend.device()));
}

Result<Ceilings> MeasureCudaCeilings(Backend& backend) {
  auto& device = static_cast<cuda::CudaDevice&>(backend.device());
  Ceilings ceilings = {.processor = device.facts().name,
                       .isa = std::string(backend.isa()),
                       .num_multiprocessors = device.facts().num_multiprocessors};
  HW_ASSIGN_OR_RETURN(ceilings.read_bytes_per_second, cuda::ReadBandwidth(device));
  HW_ASSIGN_OR_RETURN(ceilings.f32_flops, cuda::MultiplyAdds(device));
  HW_ASSIGN_OR_RETURN(ceilings.bf16_dot_flops, cuda::Bf16Products(device));
  ceilings.has_bf16_dot = ceilings.bf16_dot_flops > 0;
  if (!ceilings.has_bf16_dot) ceilings.bf16_dot_flops = ceilings.f32_flops;
  HW_ASSIGN_OR_RETURN(ceilings.fp8_flops, cuda::Fp8Products(device));
  // Few rows are bound by memory; many are multiplied as bf16.
  ceilings.int8_dot_flops = ceilings.bf16_dot_flops;
  return ceilings;
}

}  // namespace headwise
