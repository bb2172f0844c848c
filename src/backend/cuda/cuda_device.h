// One NVIDIA GPU: its memory, and the stream that copies and operations are put on.
#ifndef HEADWISE_BACKEND_CUDA_CUDA_DEVICE_H_
#define HEADWISE_BACKEND_CUDA_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/launch_record.h"
#include "device/device.h"

namespace headwise::cuda {

struct DeviceFacts {
  std::string name;  // "NVIDIA H200"
  int major = 0;     // compute capability
  int minor = 0;
  int num_multiprocessors = 0;
  size_t memory_bytes = 0;           // all of it
  size_t shared_bytes_of_block = 0;  // that a kernel may ask for
  int64_t cache_bytes = 0;           // of the second level
  // Whether blocks of a grid can be made to run at once (LaunchShape::cluster_blocks).
  bool has_clusters() const { return major >= 9; }
};

// An error stays until Wait returns it; what is put on the stream meanwhile is not done. Nothing aborts the process.
class CudaDevice final : public Device {
 public:
  // The first that this process may see (CUDA_VISIBLE_DEVICES). kUnsupported where there is none, or its driver is
  // older than what this was built for.
  static Result<std::unique_ptr<CudaDevice>> Make();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice() override;

  Result<std::byte*> Allocate(size_t bytes) override;
  void Free(std::byte* memory, size_t bytes) override;
  void CopyFromHost(void* to, const void* host, size_t bytes) override;
  void CopyToHost(void* host, const void* from, size_t bytes) override;
  void Copy(void* to, const void* from, size_t bytes) override;
  const void* Lend(const void* host, size_t bytes) override { return Upload(host, bytes); }
  void* Arriving(void* host, size_t bytes) override;
  Status Wait() override;
  void Mark() override;
  Status WaitForMark() override;
  Result<double> TimeOf(const std::function<void()>& put) override;
  bool Replays() const override { return true; }
  double SecondsWaited() const override { return std::chrono::duration<double>(waited_).count(); }
  int64_t CacheBytes() const override { return facts_.cache_bytes; }
  int64_t MemoryBytes() const override { return static_cast<int64_t>(facts_.memory_bytes); }

  const DeviceFacts& facts() const { return facts_; }
  // For what is put on it by others: behind everything that was launched.
  cudaStream_t stream() {
    Flush();
    return stream_;
  }
  // Steps that were replayed as a graph.
  int64_t num_replays() const { return graphs_.num_replays(); }
  // False once something has failed: operations then put nothing on the stream.
  bool ok() const { return error_ == cudaSuccess; }
  // Keeps the first error, and what it happened in.
  bool Note(cudaError_t error, std::string_view operation);

  // Grows with every kernel and copy, and with one that is taken back.
  int64_t num_put() const { return num_put_; }
  // Puts a kernel on the stream (Launch in launch.cuh). Arguments without padding, or with zeros there.
  void Put(const LaunchRecord::Launch& launch, std::span<void* const> args, std::span<const uint32_t> arg_bytes);
  // Takes the last of them back, where it is not on the stream yet: whether it was. `num_put`: what it was behind it.
  bool TakeBack(int64_t num_put);
  // Whether what is put next, a kernel that waits by itself, may read at once what is older than the kernel ahead.
  bool lets_begin_late() const { return lets_begin_late_; }
  // From now on launches are kept back until something else needs the stream, and replayed as a graph where they are
  // those of the step before. Uploads go ahead of them.
  void RecordLaunches() { is_recording_ = true; }

  // ---- what is the same from step to step need not be put again, where launches are kept back ----
  // What is put between the two is a part of its own. `goes_on`: it is meant to be what the last one was.
  void BeginPart(bool goes_on);
  void EndPart();
  // In place of putting the last part once more. False, and nothing is done: it was not put twice alike, or would not
  // come to the same here. Requires: whoever puts it would put the same, uploads and all.
  bool RepeatPart();

  // A copy of host data for kernels that are put on the stream before Wait and Mark. Null after an error. Behind those
  // the same uploads get the same addresses, and what was uploaded a moment ago is not uploaded again.
  const void* Upload(const void* host, size_t bytes);
  template <typename T>
  const T* Upload(std::span<const T> values) {
    return static_cast<const T*>(Upload(values.data(), values.size_bytes()));
  }
  // What is uploaded next gets the same address whatever was before it since Wait or Mark, but for much.
  void AlignUploads();
  // Memory for one operation; the next one's is the same. Null after an error.
  std::byte* Scratch(size_t bytes);

 private:
  static constexpr size_t kNumQuarters = 4;
  static constexpr size_t kQuarterBytes = size_t{2} << 20;
  static constexpr size_t kRingBytes = kNumQuarters * kQuarterBytes;
  static constexpr size_t kMaxMarks = 2;

  CudaDevice() = default;
  Status Open();
  // `bytes` of the ring, at most a quarter: their offset, on the host and on the device.
  bool Take(size_t bytes, size_t& offset);
  // Whether so much can be uploaded at once without writing over what was since the ring began anew.
  bool HasRoom(size_t bytes) const {
    const bool stays_ahead = quarter_ + 1 < kNumQuarters || ring_at_ + bytes <= kRingBytes;
    return bytes <= kQuarterBytes && !has_come_round_ && stays_ahead;
  }
  // What the host writes at that offset, between the two marks around it.
  std::byte* Pinned(size_t offset) const { return pinned_ + next_mark_ % kMaxMarks * kRingBytes + offset; }
  // Uploads begin anew. Requires: nothing that is still to be done reads the host's half for what comes.
  void RestartRing();
  // Copies to the host that came ahead of that mark are where they are wanted.
  void Deliver(size_t mark);
  Status TakeError();
  // wait() of the runtime, timed.
  template <typename Function>
  void WaitBy(const Function& wait) {
    const auto begin = std::chrono::steady_clock::now();
    Note(wait(), "run");
    waited_ += std::chrono::steady_clock::now() - begin;
  }
  // Launches what was kept back.
  void Flush();
  // Whether what is put now goes to where it went behind the last BeginPart.
  bool IsAtPart() const {
    return ok() && is_recording_ && ring_at_ == part_.ring_begin && lets_begin_late_ == part_.begins_late &&
           num_frees_ == part_.num_frees;
  }
  // Puts uploads on the stream, so many at once.
  void SendUploads();

  DeviceFacts facts_;
  cudaStream_t stream_ = nullptr;
  cudaError_t error_ = cudaSuccess;
  std::string failed_;
  // What goes up passes through a ring: pinned host memory, a quarter of which is used again once what was put on the
  // stream two quarters later is done, and for what kernels read there the same on the device, but once around. On the
  // host there are two, in turns from mark to mark: the device reads one while the other is written. Its own it follows
  // in order.
  std::byte* pinned_ = nullptr;
  std::byte* ring_ = nullptr;
  cudaEvent_t quarter_done_[kNumQuarters] = {};
  size_t quarter_ = 0;  // under way
  size_t ring_at_ = 0;  // at most its end
  bool has_come_round_ = false;
  size_t unsent_begin_ = 0, unsent_end_ = 0;
  struct Piece {
    size_t offset = 0;
    size_t bytes = 0;
  };
  std::vector<Piece> recent_;      // in the quarter under way, small ones
  std::vector<std::byte*> large_;  // what there was no room for, until the next Wait or Mark
  // Marks that nobody has waited for are those from first_mark_ on.
  size_t first_mark_ = 0;
  size_t next_mark_ = 0;
  cudaEvent_t marks_[kMaxMarks] = {};
  // What comes down passes through pinned memory too, and goes where it is wanted once it was waited for.
  struct Arrival {
    void* host = nullptr;
    size_t offset = 0;
    size_t bytes = 0;
  };
  static constexpr size_t kArrivalBytes = size_t{8} << 20;
  struct Arrivals {
    std::byte* memory = nullptr;  // of kArrivalBytes
    std::vector<Arrival> pieces;
    size_t end = 0;
  };
  Arrivals arrivals_[kMaxMarks];  // of the mark to come and of the one before it
  std::byte* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  cudaEvent_t begins_ = nullptr;  // of TimeOf
  cudaEvent_t ends_ = nullptr;
  bool is_timing_ = false;  // the next launch is the first that counts
  std::chrono::steady_clock::duration waited_ = {};
  int64_t num_put_ = 0;
  bool is_recording_ = false;
  bool lets_begin_late_ = false;  // of the last launch
  LaunchRecord record_;
  LaunchGraphs graphs_;
  int64_t num_frees_ = 0;  // what was there before may be something else now
  // As many as graphs are kept, the newest used last. Parts are compared by address: what is put once more must be the
  // one that it was, or its record would be a new one.
  static constexpr size_t kMaxParts = 16;
  std::vector<std::shared_ptr<const LaunchRecord>> parts_;
  // The last part, as it was put or repeated.
  struct Part {
    std::shared_ptr<const LaunchRecord> launches;  // null: none is known
    bool is_settled = false;                       // it was put twice, and the same came of it
    // Where it begins.
    size_t record_begin = 0;
    size_t ring_begin = 0;
    bool begins_late = false;
    int64_t num_frees = 0;
    // And how it leaves things.
    std::vector<std::byte> uploads;  // the ring from ring_begin on
    size_t ring_end = 0;
    std::vector<Piece> recent;
    bool lets_begin_late = false;
  };
  Part part_;
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_CUDA_DEVICE_H_
