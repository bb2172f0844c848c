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
      Note(cudaMallocHost(reinterpret_cast<void**>(&pinned_), kMaxMarks * kRingBytes), "pin host memory") &&
      Note(cudaMalloc(reinterpret_cast<void**>(&ring_), kRingBytes), "take memory");
  for (Arrivals& arrivals : arrivals_) {
    if (is_open) Note(cudaMallocHost(reinterpret_cast<void**>(&arrivals.memory), kArrivalBytes), "pin host memory");
  }
  for (const std::span<cudaEvent_t> events : {std::span<cudaEvent_t>(quarter_done_), std::span<cudaEvent_t>(marks_)}) {
    for (cudaEvent_t& event : events) {
      if (is_open) Note(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "make an event");
    }
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
  for (const std::span<const cudaEvent_t> events :
       {std::span<const cudaEvent_t>(quarter_done_), std::span<const cudaEvent_t>(marks_)}) {
    for (const cudaEvent_t event : events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  for (const cudaEvent_t event : {begins_, ends_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFree(scratch_);
  cudaFree(ring_);
  cudaFreeHost(pinned_);
  for (const Arrivals& arrivals : arrivals_) cudaFreeHost(arrivals.memory);
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
  ++num_put_;
  record_.Add(launch, args, arg_bytes);
  // What is behind a call begins when it is done.
  lets_begin_late_ = launch.shape.lets_begin_late || launch.call != nullptr;
  if (is_recording_) return;
  SendUploads();
  std::string_view operation;
  const cudaError_t error = record_.LaunchAll(stream_, false, operation);
  record_.Clear();
  Note(error, operation);
}

bool CudaDevice::TakeBack(int64_t num_put) {
  if (!ok() || !is_recording_ || num_put_ != num_put || record_.empty()) return false;
  record_.DropLast();
  ++num_put_;
  return true;
}

void CudaDevice::Flush() {
  ++num_put_;  // by whoever needs the stream
  is_recording_ = false;
  SendUploads();
  if (std::exchange(is_timing_, false)) Note(cudaEventRecord(begins_, stream_), "time");
  if (record_.empty()) return;
  std::string_view operation;
  const cudaError_t error = ok() ? graphs_.Run(record_, stream_, facts_.major >= 9, operation) : cudaSuccess;
  record_.Clear();
  Note(error, operation);
}

// Nothing in a part may rest on what was uploaded ahead of it.
void CudaDevice::BeginPart(bool goes_on) {
  if (!goes_on || !IsAtPart()) {
    part_.launches = nullptr;
    part_.is_settled = false;
  }
  part_.record_begin = record_.size_bytes();
  part_.ring_begin = ring_at_;
  part_.begins_late = lets_begin_late_;
  part_.num_frees = num_frees_;
  recent_.clear();
}

void CudaDevice::EndPart() {
  // Recording ends where something of it was launched, or memory of it was given back.
  if (!ok() || !is_recording_ || ring_at_ < part_.ring_begin) {
    part_.launches = nullptr;
    part_.is_settled = false;
    return;
  }
  LaunchRecord launches = record_.CutFrom(part_.record_begin);
  auto known = std::ranges::find_if(parts_, [&](const auto& part) { return *part == launches; });
  if (known == parts_.end()) {
    if (parts_.size() == kMaxParts) parts_.erase(parts_.begin());
    parts_.push_back(std::make_shared<const LaunchRecord>(std::move(launches)));
  } else {
    std::rotate(known, known + 1, parts_.end());
  }
  part_.is_settled = part_.launches == parts_.back() && part_.ring_end == ring_at_;
  part_.launches = parts_.back();
  part_.uploads.assign(Pinned(part_.ring_begin), Pinned(ring_at_));
  part_.ring_end = ring_at_;
  part_.recent = recent_;
  part_.lets_begin_late = lets_begin_late_;
  record_.AddPart(part_.launches);
  ++num_put_;
}

bool CudaDevice::RepeatPart() {
  if (!part_.is_settled || !IsAtPart()) return false;
  if (!part_.uploads.empty()) {
    std::memcpy(Pinned(part_.ring_begin), part_.uploads.data(), part_.uploads.size());
    if (unsent_end_ == 0) unsent_begin_ = part_.ring_begin;
    unsent_end_ = part_.ring_end;
  }
  ring_at_ = part_.ring_end;
  recent_ = part_.recent;
  lets_begin_late_ = part_.lets_begin_late;
  record_.AddPart(part_.launches);
  ++num_put_;
  return true;
}

void CudaDevice::RestartRing() {
  for (std::byte* memory : std::exchange(large_, {})) Free(memory, 0);
  quarter_ = 0;
  ring_at_ = 0;
  has_come_round_ = false;
  recent_.clear();
}

void CudaDevice::Deliver(size_t mark) {
  Arrivals& arrivals = arrivals_[mark % kMaxMarks];
  for (const Arrival& arrival : arrivals.pieces) {
    if (ok()) std::memcpy(arrival.host, arrivals.memory + arrival.offset, arrival.bytes);
  }
  arrivals.pieces.clear();
  arrivals.end = 0;
}

void CudaDevice::Mark() {
  Flush();
  Note(cudaEventRecord(marks_[next_mark_ % kMaxMarks], stream_), "run");
  RestartRing();
  ++next_mark_;
  // What is uploaded next is written where that of the mark before last lies.
  if (next_mark_ - first_mark_ < kMaxMarks) return;
  first_mark_ = next_mark_ - kMaxMarks;
  WaitBy([&] { return cudaEventSynchronize(marks_[first_mark_ % kMaxMarks]); });
  Deliver(first_mark_);
}

Status CudaDevice::WaitForMark() {
  if (first_mark_ == next_mark_) return Wait();
  WaitBy([&] { return cudaEventSynchronize(marks_[first_mark_ % kMaxMarks]); });
  Deliver(first_mark_++);
  return TakeError();
}

Status CudaDevice::Wait() {
  Flush();
  RestartRing();
  if (stream_ != nullptr) WaitBy([&] { return cudaStreamSynchronize(stream_); });
  while (first_mark_ < next_mark_) Deliver(first_mark_++);
  Deliver(next_mark_);
  return TakeError();
}

Status CudaDevice::TakeError() {
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
  ++num_frees_;
  Note(cudaFreeAsync(memory, stream_), "free memory");
}

bool CudaDevice::Take(size_t bytes, size_t& offset) {
  constexpr size_t kAlign = 256;
  if (ring_at_ + bytes > (quarter_ + 1) * kQuarterBytes) {
    Flush();  // who uses the quarters before
    SendUploads();
    recent_.clear();
    quarter_ = (quarter_ + 1) % kNumQuarters;
    if (quarter_ == 0) has_come_round_ = true;
    ring_at_ = quarter_ * kQuarterBytes;
    // Entering quarter i, all users of quarter i - 2 are on the stream.
    if (!Note(cudaEventRecord(quarter_done_[(quarter_ + 2) % kNumQuarters], stream_), "upload")) return false;
    if (!Note(cudaEventSynchronize(quarter_done_[quarter_]), "upload")) return false;
  }
  offset = ring_at_;
  ring_at_ += (bytes + kAlign - 1) / kAlign * kAlign;
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
    std::memcpy(Pinned(offset), from, count);
    Note(cudaMemcpyAsync(next, Pinned(offset), count, cudaMemcpyHostToDevice, stream_), "copy to the device");
    from += count;
    next += count;
    bytes -= count;
  }
}

const void* CudaDevice::Upload(const void* host, size_t bytes) {
  if (!ok()) return nullptr;
  for (const Piece& piece : recent_) {
    if (piece.bytes == bytes && std::memcmp(Pinned(piece.offset), host, bytes) == 0) return ring_ + piece.offset;
  }
  if (!HasRoom(bytes)) {
    void* memory = nullptr;
    if (!Note(cudaMallocAsync(&memory, bytes, stream_), "take memory for an upload")) return nullptr;
    large_.push_back(static_cast<std::byte*>(memory));
    CopyFromHost(memory, host, bytes);
    return ok() ? memory : nullptr;
  }
  size_t offset = 0;
  if (!Take(std::max<size_t>(bytes, 1), offset)) return nullptr;
  std::memcpy(Pinned(offset), host, bytes);
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
  Note(cudaMemcpyAsync(ring_ + begin, Pinned(begin), end - begin, cudaMemcpyHostToDevice, stream_),
       "copy to the device");
}

void CudaDevice::AlignUploads() {
  SendUploads();  // not the gap
  const size_t aligned = (ring_at_ / kUploadAlign + 1) * kUploadAlign;
  if (aligned < (quarter_ + 1) * kQuarterBytes) ring_at_ = aligned;
}

void* CudaDevice::Arriving(void* host, size_t bytes) {
  Arrivals& arrivals = arrivals_[next_mark_ % kMaxMarks];
  if (!ok() || bytes > kArrivalBytes - arrivals.end) return nullptr;
  std::byte* const memory = arrivals.memory + arrivals.end;
  arrivals.pieces.push_back({host, arrivals.end, bytes});
  arrivals.end += (bytes + 63) / 64 * 64;
  return memory;
}

void CudaDevice::CopyToHost(void* host, const void* from, size_t bytes) {
  Flush();
  if (bytes == 0 || !ok()) return;
  void* const arriving = Arriving(host, bytes);
  Note(cudaMemcpyAsync(arriving != nullptr ? arriving : host, from, bytes, cudaMemcpyDeviceToHost, stream_),
       "copy to the host");
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
