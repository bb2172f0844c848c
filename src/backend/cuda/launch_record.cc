#include "backend/cuda/launch_record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace headwise::cuda {
namespace {

constexpr size_t kMaxArgs = 16;
// Of a graph for each number of sequences, say.
constexpr size_t kMaxGraphs = 16;
constexpr size_t kSharedOfEveryKernel = size_t{48} << 10;
constexpr size_t kAlign = 16;

constexpr size_t Padded(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Once for each kernel, before its first launch: shared memory beyond what every kernel may have.
cudaError_t PrepareKernel(const void* kernel, size_t shared_bytes) {
  // Kernels are of the process, and so is what is known about them.
  static std::mutex mutex;
  static std::map<const void*, size_t> prepared;
  const std::lock_guard lock(mutex);
  const auto [it, is_new] = prepared.try_emplace(kernel, kSharedOfEveryKernel);
  if (is_new) {
    // All alike: a multiprocessor must be empty to divide its memory anew, so kernels could not follow on each other.
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess) return error;
  }
  if (shared_bytes <= it->second) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error == cudaSuccess) it->second = shared_bytes;
  return error;
}

cudaError_t LaunchOne(const LaunchRecord::Launch& launch, void** args, cudaStream_t stream, bool overlaps) {
  const cudaError_t prepared = PrepareKernel(launch.kernel, launch.shape.shared_bytes);
  if (prepared != cudaSuccess) return prepared;
  cudaLaunchAttribute attributes[2] = {};
  unsigned num_attributes = 0;
  if (overlaps && launch.shape.waits_by_itself) {
    cudaLaunchAttribute& overlap = attributes[num_attributes++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.shape.cluster_blocks > 1) {
    cudaLaunchAttribute& cluster = attributes[num_attributes++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = launch.shape.cluster_blocks;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  const cudaLaunchConfig_t config{.gridDim = launch.shape.grid,
                                  .blockDim = dim3(launch.shape.threads),
                                  .dynamicSmemBytes = launch.shape.shared_bytes,
                                  .stream = stream,
                                  .attrs = attributes,
                                  .numAttrs = num_attributes};
  return cudaLaunchKernelExC(&config, launch.kernel, args);
}

}  // namespace

LaunchRecord::Launch& LaunchRecord::Append(size_t bytes) {
  bytes += Padded(sizeof(Launch));
  last_ = bytes_.size();
  bytes_.resize(last_ + bytes);  // zeros in between
  auto* const header = new (&bytes_[last_]) Launch;
  std::memset(static_cast<void*>(header), 0, sizeof(Launch));
  header->bytes = static_cast<uint32_t>(bytes);
  return *header;
}

void LaunchRecord::Add(const Launch& launch, std::span<void* const> args, std::span<const uint32_t> arg_bytes) {
  HW_CHECK(args.size() == arg_bytes.size() && args.size() <= kMaxArgs, "{} arguments", args.size());
  size_t bytes = Padded(arg_bytes.size_bytes());
  for (const uint32_t each : arg_bytes) bytes += Padded(each);
  // Member by member: padding stays zero.
  Launch& header = Append(bytes);
  header.kernel = launch.kernel;
  header.call = launch.call;
  header.operation = launch.operation;
  header.shape.grid = launch.shape.grid;
  header.shape.threads = launch.shape.threads;
  header.shape.shared_bytes = launch.shape.shared_bytes;
  header.shape.waits_by_itself = launch.shape.waits_by_itself;
  header.shape.lets_begin_late = launch.shape.lets_begin_late;
  header.shape.cluster_blocks = launch.shape.cluster_blocks;
  header.num_args = static_cast<uint32_t>(args.size());
  size_t at = last_ + Padded(sizeof(Launch));
  std::memcpy(&bytes_[at], arg_bytes.data(), arg_bytes.size_bytes());
  at += Padded(arg_bytes.size_bytes());
  for (size_t i = 0; i < args.size(); ++i) {
    std::memcpy(&bytes_[at], args[i], arg_bytes[i]);
    at += Padded(arg_bytes[i]);
  }
}

void LaunchRecord::DropLast() {
  HW_CHECK(last_ < bytes_.size(), "no launch to drop");
  bytes_.resize(last_);
}

void LaunchRecord::Clear() {
  bytes_.clear();
  parts_.clear();
}

LaunchRecord LaunchRecord::CutFrom(size_t begin) {
  HW_CHECK(begin <= bytes_.size(), "{} of {} bytes", begin, bytes_.size());
  LaunchRecord cut;
  cut.bytes_.assign(bytes_.begin() + static_cast<std::ptrdiff_t>(begin), bytes_.end());
  bytes_.resize(begin);
  last_ = cut.last_ = std::numeric_limits<size_t>::max();
  return cut;
}

void LaunchRecord::AddPart(std::shared_ptr<const LaunchRecord> part) {
  Append(0).part = part.get();
  parts_.push_back(std::move(part));
}

cudaError_t LaunchRecord::LaunchAll(cudaStream_t stream, bool overlapping, std::string_view& operation) const {
  // Nothing of the record is ahead of the first.
  bool can_overlap = false;
  return LaunchFrom(stream, overlapping, can_overlap, operation);
}

// `can_overlap`: what is right ahead is a kernel. What a call puts on the stream may be none.
cudaError_t LaunchRecord::LaunchFrom(cudaStream_t stream, bool overlapping, bool& can_overlap,
                                     std::string_view& operation) const {
  std::array<void*, kMaxArgs> args{};
  for (size_t begin = 0; begin < bytes_.size();) {
    const auto& launch = *reinterpret_cast<const Launch*>(&bytes_[begin]);
    size_t at = begin + Padded(sizeof(Launch));
    begin += launch.bytes;
    if (launch.part != nullptr) {
      const cudaError_t error = launch.part->LaunchFrom(stream, overlapping, can_overlap, operation);
      if (error != cudaSuccess) return error;
      continue;
    }
    const auto* arg_bytes = reinterpret_cast<const uint32_t*>(&bytes_[at]);
    at += Padded(launch.num_args * sizeof(uint32_t));
    for (uint32_t i = 0; i < launch.num_args; ++i) {
      args[i] = const_cast<std::byte*>(&bytes_[at]);
      at += Padded(arg_bytes[i]);
    }
    const bool is_call = launch.call != nullptr;
    const cudaError_t error =
        is_call ? launch.call(args.data(), stream) : LaunchOne(launch, args.data(), stream, overlapping && can_overlap);
    can_overlap = !is_call;
    if (error != cudaSuccess) {
      operation = launch.operation;
      return error;
    }
  }
  return cudaSuccess;
}

namespace {

// Null where it cannot be made: launching goes without.
cudaGraphExec_t MakeGraph(const LaunchRecord& record, cudaStream_t stream, bool can_overlap) {
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return nullptr;
  std::string_view operation;
  const cudaError_t launched = record.LaunchAll(stream, can_overlap, operation);
  cudaGraph_t graph = nullptr;
  const cudaError_t captured = cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t executable = nullptr;
  if (launched == cudaSuccess && captured == cudaSuccess) {
    if (cudaGraphInstantiate(&executable, graph, 0) != cudaSuccess) executable = nullptr;
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
  return executable;
}

}  // namespace

LaunchGraphs::~LaunchGraphs() {
  for (const Known& known : known_) cudaGraphExecDestroy(known.graph);
}

cudaError_t LaunchGraphs::Run(LaunchRecord& record, cudaStream_t stream, bool can_overlap,
                              std::string_view& operation) {
  auto it = std::find_if(known_.rbegin(), known_.rend(), [&](const Known& known) { return known.record == record; });
  if (it == known_.rend() && record == last_) {
    const cudaGraphExec_t graph = MakeGraph(record, stream, can_overlap);
    if (graph != nullptr) {
      if (known_.size() >= kMaxGraphs) {
        // It may be under way: then it is destroyed when it is done.
        cudaGraphExecDestroy(known_.front().graph);
        known_.erase(known_.begin());
      }
      known_.push_back({std::exchange(last_, {}), graph});
      it = known_.rbegin();
    }
  }
  if (it != known_.rend()) {
    std::rotate(it.base() - 1, it.base(), known_.end());
    record.Clear();
    operation = "step";
    ++num_replays_;
    return cudaGraphLaunch(known_.back().graph, stream);
  }
  const cudaError_t error = record.LaunchAll(stream, false, operation);
  std::swap(last_, record);
  record.Clear();
  return error;
}

}  // namespace headwise::cuda
