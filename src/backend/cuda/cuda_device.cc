#include "backend/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace headwise::cuda {
namespace {

// Of uploads at the beginning of a step, whose number differs: changes of tables.
constexpr size_t kUploadAlign = size_t{64} << 10;
// What is looked for among recent uploads: indices of rows, which all layers share.
constexpr size_t kMaxRecentBytes = size_t{64} << 10;
constexpr size_t kMaxRecent = 16;

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
      Note(cudaMallocHost(reinterpret_cast<void**>(&arrivals_memory_), kArrivalBytes), "pin host memory") &&
      Note(cudaMalloc(reinterpret_cast<void**>(&ring_), kNumQuarters * kQuarterBytes), "take memory");
  for (cudaEvent_t& event : quarter_done_) {
    if (is_open) Note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
  }
  HW_RETURN_IF_ERROR(Wait());
  facts_ = {.name = properties.name,
            .major = properties.major,
            .minor = properties.minor,
            .num_multiprocessors = properties.multiProcessorCount,
            .memory_bytes = properties.totalGlobalMem,
            .shared_bytes_of_block = properties.sharedMemPerBlockOptin,
            .cache_bytes = properties.l2CacheSize};
  return Status::Ok();
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  for (const cudaEvent_t event : quarter_done_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (const cudaEvent_t event : {begins_, ends_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFree(scratch_);
  cudaFree(ring_);
  cudaFreeHost(pinned_);
  cudaFreeHost(arrivals_memory_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

bool CudaDevice::Note(cudaError_t error, std::string_view operation) {
  if (error != cudaSuccess && error_ == cudaSuccess) {
    error_ = error;
    failed_ = operation;
  }
  return error_ == cudaSuccess;
}

void CudaDevice::Put(const LaunchRecord::Launch& launch, std::span<void* const> args,
                     std::span<const uint32_t> arg_bytes) {
  if (!ok()) return;
  record_.Add(launch, args, arg_bytes);
  if (is_recording_) return;
  SendUploads();
  std::string_view operation;
  const cudaError_t error = record_.LaunchAll(stream_, false, operation);
  record_.Clear();
  Note(error, operation);
}

void CudaDevice::Flush() {
  is_recording_ = false;
  SendUploads();
  if (std::exchange(is_timing_, false)) Note(cudaEventRecord(begins_, stream_), "time");
  if (record_.empty()) return;
  std::string_view operation;
  const cudaError_t error = ok() ? graphs_.Run(record_, stream_, facts_.major >= 9, operation) : cudaSuccess;
  record_.Clear();
  Note(error, operation);
}

Status CudaDevice::Wait() {
  Flush();
  for (std::byte* memory : std::exchange(large_, {})) Free(memory, 0);
  if (stream_ != nullptr) Note(cudaStreamSynchronize(stream_), "run");
  ring_at_ = 0;
  recent_.clear();
  for (const Arrival& arrival : arrivals_) {
    if (ok()) std::memcpy(arrival.host, arrivals_memory_ + arrival.offset, arrival.bytes);
  }
  arrivals_.clear();
  arrivals_end_ = 0;
  if (error_ == cudaSuccess) return Status::Ok();
  const cudaError_t error = std::exchange(error_, cudaSuccess);
  cudaGetLastError();  // forgets what can be forgotten; a broken device says so again
  const std::string message = fmt::format("{}: {}", failed_, InWords(error));
  return error == cudaErrorMemoryAllocation ? Status::OutOfMemory(message) : Status::Io(message);
}

Result<double> CudaDevice::TimeOf(const std::function<void()>& put) {
  for (cudaEvent_t* event : {&begins_, &ends_}) {
    if (*event == nullptr) Note(cudaEventCreate(event), "make an event");
  }
  // What is put twice is a graph by the third time.
  for (int i = 0; i < 2; ++i) {
    HW_RETURN_IF_ERROR(Wait());
    RecordLaunches();
    put();
  }
  HW_RETURN_IF_ERROR(Wait());
  is_timing_ = ok();
  RecordLaunches();
  put();
  Flush();
  Note(cudaEventRecord(ends_, stream_), "time");
  HW_RETURN_IF_ERROR(Wait());
  float milliseconds = 0;
  Note(cudaEventElapsedTime(&milliseconds, begins_, ends_), "time");
  HW_RETURN_IF_ERROR(Wait());
  return static_cast<double>(milliseconds) / 1e3;
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
  if (memory == nullptr) return;
  Flush();
  Note(cudaFreeAsync(memory, stream_), "free memory");
}

bool CudaDevice::Take(size_t bytes, size_t& offset) {
  constexpr size_t kAlign = 256;
  const size_t end = (ring_at_ + kQuarterBytes) / kQuarterBytes * kQuarterBytes;  // of the quarter under way
  if (ring_at_ + bytes > end || ring_at_ % kQuarterBytes == 0) {
    Flush();  // who uses the quarters before
    SendUploads();
    recent_.clear();
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
  Flush();
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
  if (!ok()) return nullptr;
  for (const Piece& piece : recent_) {
    if (piece.bytes == bytes && std::memcmp(pinned_ + piece.offset, host, bytes) == 0) return ring_ + piece.offset;
  }
  size_t offset = 0;
  if (!Take(std::max<size_t>(bytes, 1), offset)) return nullptr;
  std::memcpy(pinned_ + offset, host, bytes);
  if (unsent_end_ == 0) unsent_begin_ = offset;
  unsent_end_ = offset + bytes;
  if (bytes <= kMaxRecentBytes && recent_.size() < kMaxRecent) recent_.push_back({offset, bytes});
  return ring_ + offset;
}

void CudaDevice::SendUploads() {
  if (unsent_end_ == 0) return;
  const size_t begin = std::exchange(unsent_begin_, 0);
  const size_t end = std::exchange(unsent_end_, 0);
  if (!ok() || end == begin) return;
  Note(cudaMemcpyAsync(ring_ + begin, pinned_ + begin, end - begin, cudaMemcpyHostToDevice, stream_),
       "copy to the device");
}

void CudaDevice::AlignUploads() {
  SendUploads();  // not the gap
  const size_t aligned = (ring_at_ / kUploadAlign + 1) * kUploadAlign;
  if (aligned / kQuarterBytes == ring_at_ / kQuarterBytes) ring_at_ = aligned;
}

void CudaDevice::CopyToHost(void* host, const void* from, size_t bytes) {
  Flush();
  if (bytes == 0 || !ok()) return;
  void* to = host;
  if (bytes <= kArrivalBytes - arrivals_end_) {
    to = arrivals_memory_ + arrivals_end_;
    arrivals_.push_back({host, arrivals_end_, bytes});
    arrivals_end_ += (bytes + 63) / 64 * 64;
  }
  Note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copy to the host");
}

void CudaDevice::Copy(void* to, const void* from, size_t bytes) {
  Flush();
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
