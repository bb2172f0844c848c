// The launches of a step, put down before they are made. A decoding step's are the same from step to step, arguments
// and all: then they are replayed as one CUDA graph, at a fifth of what launching them one by one costs the host, and
// each kernel may begin while the one before it ends.
#ifndef HEADWISE_BACKEND_CUDA_LAUNCH_RECORD_H_
#define HEADWISE_BACKEND_CUDA_LAUNCH_RECORD_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace headwise::cuda {

// How a kernel is launched.
struct LaunchShape {
  dim3 grid;
  unsigned threads = 0;
  size_t shared_bytes = 0;
  // It calls WaitForEarlier (launch.cuh) before it touches what kernels before it write or read.
  bool waits_by_itself = false;
  // It calls LetLaterBegin behind WaitForEarlier alone, and the next kernel relies on that: what is older is there.
  bool lets_begin_late = false;
  unsigned cluster_blocks = 1;  // of the grid, which run at once and reach each other's shared memory; from sm_90 on
};

// Launches in order, as bytes: two that are equal do the same.
class LaunchRecord {
 public:
  struct Launch {
    const void* kernel = nullptr;
    // In place of a kernel: what puts a library's work on the stream, the same for the same arguments.
    cudaError_t (*call)(void* const* args, cudaStream_t stream) = nullptr;
    const char* operation = nullptr;  // for errors
    // In place of a kernel: these launches, which AddPart put here.
    const LaunchRecord* part = nullptr;
    LaunchShape shape;
    uint32_t num_args = 0;
    uint32_t bytes = 0;  // of this and its arguments: the next one begins behind them
  };

  // Arguments without padding, or with zeros there.
  void Add(const Launch& launch, std::span<void* const> args, std::span<const uint32_t> arg_bytes);
  // As if the last launch had not been added. Requires: it was added behind the last Clear or DropLast.
  void DropLast();
  void Clear();
  bool empty() const { return bytes_.empty(); }
  size_t size_bytes() const { return bytes_.size(); }
  // Takes out what was added since the record had so many bytes. Requires: no part is among it.
  LaunchRecord CutFrom(size_t begin);
  // Launches that many records have in them, as one: compared by which they are, not by what is in them.
  void AddPart(std::shared_ptr<const LaunchRecord> part);
  // In order. `overlapping`: kernels that wait by themselves may begin before the ones ahead of them are done. The
  // first error, and the operation that it happened in.
  cudaError_t LaunchAll(cudaStream_t stream, bool overlapping, std::string_view& operation) const;

  friend bool operator==(const LaunchRecord& a, const LaunchRecord& b) {
    return a.bytes_.size() == b.bytes_.size() && std::memcmp(a.bytes_.data(), b.bytes_.data(), a.bytes_.size()) == 0;
  }

 private:
  // Room for a launch and `bytes` of arguments, all zeros: where it begins.
  Launch& Append(size_t bytes);
  cudaError_t LaunchFrom(cudaStream_t stream, bool overlapping, bool& can_overlap, std::string_view& operation) const;

  std::vector<std::byte> bytes_;
  size_t last_ = 0;  // where the last launch begins
  std::vector<std::shared_ptr<const LaunchRecord>> parts_;
};

// Replays what it knows. What comes twice in a row becomes a graph; what comes once is launched kernel by kernel.
class LaunchGraphs {
 public:
  LaunchGraphs() = default;
  LaunchGraphs(const LaunchGraphs&) = delete;
  LaunchGraphs& operator=(const LaunchGraphs&) = delete;
  ~LaunchGraphs();

  // Takes the record's content. `can_overlap`: the device lets a kernel begin before the one ahead of it is done.
  cudaError_t Run(LaunchRecord& record, cudaStream_t stream, bool can_overlap, std::string_view& operation);
  int64_t num_replays() const { return num_replays_; }

 private:
  struct Known {
    LaunchRecord record;
    cudaGraphExec_t graph = nullptr;
  };

  std::vector<Known> known_;  // the newest used last
  LaunchRecord last_;         // launched kernel by kernel
  int64_t num_replays_ = 0;
};

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_LAUNCH_RECORD_H_
