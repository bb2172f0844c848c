#include "backend/cpu/ceilings.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cpu/isa.h"
#include "base/check.h"
#include "base/cpu_info.h"
#include "base/huge_pages.h"
#include "base/thread_pool.h"

namespace headwise::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMinReadBytes = int64_t{512} << 20;
// A virtual machine may report its host's whole cache: more than this is not worth the memory.
constexpr int64_t kMaxReadBytes = int64_t{2} << 30;
constexpr int kReadRounds = 6;
constexpr int kComputeRounds = 6;
// A round of compute is made at least this long, so that waking the threads does not count.
constexpr double kMinComputeSeconds = 0.03;

// Zero pages of our own, unmapped at the end.
class Mapping {
 public:
  explicit Mapping(size_t bytes)
      : bytes_(bytes), data_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    // Pages of 4 KiB would measure the TLB as well.
    if (ok()) AskForHugePages(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (ok()) ::munmap(data_, bytes_);
  }
  bool ok() const { return data_ != MAP_FAILED; }
  float* floats() const { return static_cast<float*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

int NumThreads(const CeilingOptions& options) {
  return options.num_threads > 0 ? options.num_threads : NumUsableCores();
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t ReadBytes() {
  int64_t cache_bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  cache_bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  return std::clamp(4 * cache_bytes, kMinReadBytes, kMaxReadBytes);
}

// Every thread reads its own contiguous share; best of several rounds.
Result<double> MeasureRead(const PeakKernels& kernels, ThreadPool& pool) {
  const int64_t num_threads = pool.num_threads();
  const int64_t share = ReadBytes() / static_cast<int64_t>(sizeof(float)) / num_threads;
  const auto bytes = static_cast<size_t>(share * num_threads) * sizeof(float);
  const Mapping memory(bytes);
  if (!memory.ok()) {
    return Status::OutOfMemory(fmt::format("measuring the read bandwidth: no memory for {} bytes", bytes));
  }
  // Small numbers: a lane adds up millions of them exactly.
  pool.ParallelFor(num_threads,
                   [&](int64_t task, int) { std::fill_n(memory.floats() + task * share, share, 0.0078125f); });
  std::vector<float> sums(static_cast<size_t>(num_threads));
  double best = 0;
  for (int round = 0; round < kReadRounds; ++round) {
    const Clock::time_point start = Clock::now();
    pool.ParallelFor(num_threads, [&](int64_t task, int) {
      sums[static_cast<size_t>(task)] = kernels.read_sum(memory.floats() + task * share, share);
    });
    best = std::max(best, static_cast<double>(bytes) / SecondsSince(start));
  }
  for (const float sum : sums) HW_CHECK(sum > 0, "sum {}", sum);
  return best;
}

double MeasureCompute(double (*loop)(int64_t, float*), ThreadPool& pool) {
  const int64_t num_threads = pool.num_threads();
  std::vector<float> sinks(static_cast<size_t>(num_threads));
  std::vector<double> operations(static_cast<size_t>(num_threads));
  const auto seconds_of = [&](int64_t num_iterations) {
    const Clock::time_point start = Clock::now();
    pool.ParallelFor(num_threads, [&](int64_t task, int) {
      operations[static_cast<size_t>(task)] = loop(num_iterations, &sinks[static_cast<size_t>(task)]);
    });
    return SecondsSince(start);
  };
  int64_t num_iterations = 1 << 16;
  while (seconds_of(num_iterations) < kMinComputeSeconds) num_iterations *= 2;
  double best = 0;
  for (int round = 0; round < kComputeRounds; ++round) {
    const double seconds = seconds_of(num_iterations);
    double total = 0;
    for (const double count : operations) total += count;
    best = std::max(best, total / seconds);
  }
  for (const float sink : sinks) HW_CHECK(sink > 0, "sum {}", sink);
  return best;
}

}  // namespace

Result<double> MeasureReadBandwidth(const CeilingOptions& options) {
  HW_ASSIGN_OR_RETURN(const KernelTable* kernels, FindKernels(options.isa));
  ThreadPool pool(NumThreads(options));
  return MeasureRead(kernels->peak, pool);
}

Result<Ceilings> MeasureCeilings(const CeilingOptions& options) {
  HW_ASSIGN_OR_RETURN(const KernelTable* kernels, FindKernels(options.isa));
  ThreadPool pool(NumThreads(options));
  Ceilings ceilings;
  ceilings.processor = CpuModelName();
  ceilings.isa = kernels->isa;
  ceilings.num_threads = pool.num_threads();
  ceilings.has_bf16_dot = kernels->matmul.has_bf16_dot;
  HW_ASSIGN_OR_RETURN(ceilings.read_bytes_per_second, MeasureRead(kernels->peak, pool));
  ceilings.f32_flops = MeasureCompute(kernels->peak.f32_multiply_add, pool);
  ceilings.bf16_dot_flops = ceilings.has_bf16_dot ? MeasureCompute(kernels->peak.bf16_dot, pool) : ceilings.f32_flops;
  ceilings.has_int8_dot = kernels->matmul.has_int8_dot;
  ceilings.int8_dot_flops = ceilings.has_int8_dot ? MeasureCompute(kernels->peak.int8_dot, pool) : ceilings.f32_flops;
  if (kernels->matmul.has_tiles) ceilings.int8_tile_flops = MeasureCompute(kernels->peak.int8_tiles, pool);
  return ceilings;
}

}  // namespace headwise::cpu
