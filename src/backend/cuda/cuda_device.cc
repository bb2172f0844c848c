#include "backend/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace headwise::cuda {
namespace {

std::string InWords(cudaError_t error) {
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::Make() {
  std::unique_ptr<CudaDevice> device(new CudaDevice());
  Status opened = device->Open();
  if (!opened.ok()) return std::move(opened).Annotate("backend cuda");
  return device;
}

Status CudaDevice::Open() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found == cudaErrorInsufficientDriver) {
    int driver = 0;
    int runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (driver == 0) return Status::Unsupported("no NVIDIA driver is here");
    return Status::Unsupported(fmt::format("the driver is for CUDA {}.{}, expected {}.{} or newer", driver / 1000,
                                           driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10));
  }
  if (found == cudaErrorNoDevice || (found == cudaSuccess && count == 0)) {
    return Status::Unsupported("no NVIDIA GPU is here, or CUDA_VISIBLE_DEVICES hides it");
  }
  if (found != cudaSuccess) return Status::Unsupported(InWords(found));
  cudaDeviceProp properties{};
  const bool is_open =
      Note(cudaSetDevice(0), "open the device") &&
      Note(cudaGetDeviceProperties(&properties, 0), "read its properties") &&
      Note(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream") &&
      Note(cudaMallocHost(reinterpret_cast<void**>(&pinned_), kNumQuarters * kQuarterBytes), "pin host memory") &&
      Note(cudaMalloc(reinterpret_cast<void**>(&ring_), kNumQuarters * kQuarterBytes), "take memory");
  for (cudaEvent_t& event : quarter_done_) {
    if (is_open) Note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
  }
  HW_RETURN_IF_ERROR(Wait());
  facts_ = {.name = properties.name,
            .major = properties.major,
            .minor = properties.minor,
            .num_multiprocessors = properties.multiProcessorCount,
            .memory_bytes = properties.totalGlobalMem};
  return Status::Ok();
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (const cudaEvent_t event : quarter_done_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFree(scratch_);
  cudaFree(ring_);
  cudaFreeHost(pinned_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

bool CudaDevice::Note(cudaError_t error, std::string_view operation) {
  if (error != cudaSuccess && error_ == cudaSuccess) {
    error_ = error;
    failed_ = operation;
  }
  return error_ == cudaSuccess;
}

Status CudaDevice::Wait() {
  for (std::byte* memory : std::exchange(large_, {})) Free(memory, 0);
  if (stream_ != nullptr) Note(cudaStreamSynchronize(stream_), "run");
  if (error_ == cudaSuccess) return Status::Ok();
  const cudaError_t error = std::exchange(error_, cudaSuccess);
  cudaGetLastError();  // forgets what can be forgotten; a broken device says so again
  const std::string message = fmt::format("{}: {}", failed_, InWords(error));
  return error == cudaErrorMemoryAllocation ? Status::OutOfMemory(message) : Status::Io(message);
}

Result<std::byte*> CudaDevice::Allocate(size_t bytes) {
  if (bytes == 0) return static_cast<std::byte*>(nullptr);
  void* memory = nullptr;
  cudaError_t error = cudaMallocAsync(&memory, bytes, stream_);
  if (error == cudaSuccess) error = cudaMemsetAsync(memory, 0, bytes, stream_);
  if (error == cudaSuccess) return static_cast<std::byte*>(memory);
  cudaGetLastError();
  if (error != cudaErrorMemoryAllocation) return Status::Io(fmt::format("memory of the device: {}", InWords(error)));
  size_t free_bytes = 0;
  size_t all_bytes = 0;
  cudaMemGetInfo(&free_bytes, &all_bytes);
  return Status::OutOfMemory(
      fmt::format("the device has no memory for {} bytes: {} of {} are free", bytes, free_bytes, all_bytes));
}

void CudaDevice::Free(std::byte* memory, size_t /*bytes*/) {
  if (memory != nullptr) Note(cudaFreeAsync(memory, stream_), "free memory");
}

bool CudaDevice::Take(size_t bytes, size_t& offset) {
  constexpr size_t kAlign = 256;
  const size_t end = (ring_at_ + kQuarterBytes) / kQuarterBytes * kQuarterBytes;  // of the quarter under way
  if (ring_at_ + bytes > end || ring_at_ % kQuarterBytes == 0) {
    const size_t next = ring_at_ % kQuarterBytes == 0 ? ring_at_ / kQuarterBytes : end / kQuarterBytes;
    const size_t quarter = next % kNumQuarters;
    // Entering quarter i, all users of quarter i - 2 are on the stream.
    if (!Note(cudaEventRecord(quarter_done_[(quarter + 2) % kNumQuarters], stream_), "upload")) return false;
    if (!Note(cudaEventSynchronize(quarter_done_[quarter]), "upload")) return false;
    ring_at_ = quarter * kQuarterBytes;
  }
  offset = ring_at_;
  ring_at_ = (ring_at_ + bytes + kAlign - 1) / kAlign * kAlign % (kNumQuarters * kQuarterBytes);
  return true;
}

void CudaDevice::CopyFromHost(void* to, const void* host, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(host);
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0 && ok()) {
    const size_t count = std::min(bytes, kQuarterBytes);
    size_t offset = 0;
    if (!Take(count, offset)) return;
    std::memcpy(pinned_ + offset, from, count);
    Note(cudaMemcpyAsync(next, pinned_ + offset, count, cudaMemcpyHostToDevice, stream_), "copy to the device");
    from += count;
    next += count;
    bytes -= count;
  }
}

const void* CudaDevice::Upload(const void* host, size_t bytes) {
  if (bytes > kQuarterBytes) {
    void* memory = nullptr;
    if (!ok() || !Note(cudaMallocAsync(&memory, bytes, stream_), "take memory for an upload")) return nullptr;
    large_.push_back(static_cast<std::byte*>(memory));
    CopyFromHost(memory, host, bytes);
    return ok() ? memory : nullptr;
  }
  size_t offset = 0;
  if (!ok() || !Take(std::max<size_t>(bytes, 1), offset)) return nullptr;
  std::memcpy(pinned_ + offset, host, bytes);
  const bool is_put = Note(cudaMemcpyAsync(ring_ + offset, pinned_ + offset, bytes, cudaMemcpyHostToDevice, stream_),
                           "copy to the device");
  return is_put ? ring_ + offset : nullptr;
}

void CudaDevice::CopyToHost(void* host, const void* from, size_t bytes) {
  if (bytes == 0 || !ok()) return;
  Note(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_), "copy to the host");
}

void CudaDevice::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0 || !ok()) return;
  Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy");
}

std::byte* CudaDevice::Scratch(size_t bytes) {
  if (!ok()) return nullptr;
  if (bytes > scratch_bytes_) {
    Free(std::exchange(scratch_, nullptr), std::exchange(scratch_bytes_, 0));
    void* memory = nullptr;
    if (!Note(cudaMallocAsync(&memory, bytes, stream_), "take scratch memory")) return nullptr;
    scratch_ = static_cast<std::byte*>(memory);
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

}  // namespace headwise::cuda
