#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/attention.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/packed_weights.h"
#include "base/cpu_info.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

using cpu::KernelTable;

// From here on memory is mapped on its own: zero pages that cost nothing until touched, and gone at once when freed.
constexpr size_t kMapBytes = size_t{64} << 10;

// Whole multiples of this lie on huge pages where the system has them: a stream of 4 KiB pages costs a page walk every
// few hundred nanoseconds, which under virtualisation is a third of the time of reading a long cache.
constexpr size_t kHugePageBytes = size_t{2} << 20;

// Packed weights share buffers of this size, or a matrix has one of its own: rounded up to huge pages one by one, those
// of a 1B model would take 60 MB more. Memory that is never written is not resident.
constexpr size_t kPackedBufferBytes = size_t{64} << 20;

// A mapping aligned to huge pages: mapped with room to spare, and the spare given back.
std::byte* AllocateHuge(size_t bytes) {
  const size_t mapped = bytes + kHugePageBytes;
  void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(memory);
  const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) ::munmap(begin, before);
  std::byte* aligned = begin + before;
  ::munmap(aligned + bytes, mapped - before - bytes);
  ::madvise(aligned, bytes, MADV_HUGEPAGE);  // a wish; without it everything works, slower
  return aligned;
}

// Rows of elementwise work that are worth a thread, in elements.
constexpr int64_t kMinTaskElements = 16 << 10;

float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}
const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, int num_threads) : kernels_(kernels), pool_(num_threads) {}

  std::string_view name() const override { return "cpu"; }
  std::string Description() const override {
    return fmt::format("cpu: {}, {} thread{}", kernels_.isa, pool_.num_threads(), pool_.num_threads() == 1 ? "" : "s");
  }
  bool IsFast(Compute compute) const override {
    return compute == Compute::kBF16 ? kernels_.matmul.has_bf16_dot
                                     : compute == Compute::kInt8 && kernels_.matmul.has_int8_dot;
  }

  std::byte* Allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    if (bytes % kHugePageBytes == 0) return AllocateHuge(bytes);
    if (bytes >= kMapBytes) {
      void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
    }
    void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory != nullptr) std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory, size_t bytes) override {
    if (bytes >= kMapBytes) {
      ::munmap(memory, bytes);
    } else {
      std::free(memory);
    }
  }
  void CopyFromHost(void* to, const void* host, size_t bytes) override { Copy(to, host, bytes); }
  void CopyToHost(void* host, const void* from, size_t bytes) override { Copy(host, from, bytes); }
  void Copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  // Plain formats are read where they lie; block formats are packed.
  Result<ConstTensorView> AdoptWeights(const ConstTensorView& host) override {
    if (!IsBlockFormat(host.dtype)) return host;
    std::byte* packed = TakePacked(cpu::PackedBytes(host.dtype, host.shape));
    cpu::PackWeights(host, packed, pool_);
    return ConstTensorView(packed, host.dtype, host.shape);
  }

  void Embed(const EmbedArgs& args) override {
    Validate(args);
    const int64_t dim = args.table.shape[1];
    ForRows(static_cast<int64_t>(args.ids.size()), dim, [&](int64_t row) {
      const int64_t id = args.ids[static_cast<size_t>(row)];
      float* out = F32(args.out) + row * dim;
      if (IsBlockFormat(args.table.dtype)) {
        cpu::UnpackRow(args.table.dtype, args.table.shape, args.table.data, id, out);
      } else {
        ToF32(args.table.dtype, args.table.Rows(id, 1).data, dim, out);
      }
    });
  }

  void Norm(const NormArgs& args) override {
    Validate(args);
    const int64_t dim = args.x.shape[1];
    ForRows(args.x.shape[0], dim, [&](int64_t row) {
      kernels_.elementwise.norm_row({.x = F32(args.x) + row * dim,
                                     .weight = F32(args.weight),
                                     .bias = args.bias.present() ? F32(args.bias) : nullptr,
                                     .out = F32(args.out) + row * dim,
                                     .n = dim,
                                     .eps = args.eps,
                                     .subtract_mean = args.kind == NormArgs::Kind::kLayer});
    });
  }

  void MatMul(const MatMulArgs& args) override {
    Validate(args);
    cpu::RunMatMul(args, kernels_.matmul, pool_, matmul_scratch_);
  }

  void Rope(const RopeArgs& args) override {
    Validate(args);
    const int64_t half = args.angles.shape[1];
    const int64_t heads_per_row = args.num_heads / args.rows_per_token;
    ForRows(args.x.shape[0], args.x.shape[1], [&](int64_t row) {
      for (int64_t head = 0; head < args.num_heads; ++head) {
        const int64_t offset = (row * args.num_heads + head) * args.head_dim;
        const int32_t angle_row = args.rows[static_cast<size_t>(row * args.rows_per_token + head / heads_per_row)];
        kernels_.elementwise.rope_row({.x = F32(args.x) + offset,
                                       .out = F32(args.out) + offset,
                                       .angles = F32(args.angles) + angle_row * half * 2,
                                       .half = half,
                                       .dim = args.head_dim});
      }
    });
  }

  void Activate(const ActivateArgs& args) override {
    Validate(args);
    const int64_t dim = args.x.shape[1];
    ForRows(args.x.shape[0], dim, [&](int64_t row) {
      float* x = F32(args.x) + row * dim;
      switch (args.kind) {
        case ActivateArgs::Kind::kGatedSilu:
          return kernels_.elementwise.gated_silu(F32(args.gate) + row * dim, x, dim);
        case ActivateArgs::Kind::kGelu:
          return kernels_.elementwise.gelu(x, dim);
        case ActivateArgs::Kind::kGeluTanh:
          return kernels_.elementwise.gelu_tanh(x, dim);
      }
    });
  }

  void Clamp(const ClampArgs& args) override {
    Validate(args);
    kernels_.elementwise.clamp(F32(args.x), args.x.shape.num_elements(), args.limit);
  }

  void GatherRows(const GatherRowsArgs& args) override {
    Validate(args);
    const auto dim = static_cast<size_t>(args.x.shape[1]);
    for (size_t i = 0; i < args.rows.size(); ++i) {
      std::memcpy(F32(args.out) + i * dim, F32(args.x) + static_cast<size_t>(args.rows[i]) * dim, dim * sizeof(float));
    }
  }

  size_t PageBytes(const KvLayout& layout) const override { return cpu::PageBytes(layout); }
  void AppendKv(const AppendKvArgs& args) override {
    Validate(args);
    cpu::AppendKv(args, kernels_, pool_);
  }
  void AgeKv(const AgeKvArgs& args) override {
    Validate(args);
    cpu::AgeKv(args, kernels_, pool_);
  }
  void Attention(const AttentionArgs& args) override {
    Validate(args);
    cpu::Attention(args, kernels_, pool_, attention_scratch_);
  }
  void Compensate(const CompensateArgs& args) override {
    Validate(args);
    cpu::Compensate(args, kernels_, pool_);
  }

 private:
  std::byte* TakePacked(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > packed_left_) {
      packed_left_ = std::max(kPackedBufferBytes, (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
      packed_.emplace_back(*this, packed_left_);
      packed_end_ = packed_.back().data();
    }
    packed_left_ -= bytes;
    return std::exchange(packed_end_, packed_end_ + bytes);
  }

  // body(row) for every row, several to a task where rows are short.
  template <typename Body>
  void ForRows(int64_t num_rows, int64_t row_elements, const Body& body) {
    const int64_t rows_per_task = std::max<int64_t>(1, kMinTaskElements / std::max<int64_t>(1, row_elements));
    const int64_t num_tasks = (num_rows + rows_per_task - 1) / rows_per_task;
    pool_.ParallelFor(num_tasks, [&](int64_t task_idx, int) {
      const int64_t end = std::min(num_rows, (task_idx + 1) * rows_per_task);
      for (int64_t row = task_idx * rows_per_task; row < end; ++row) body(row);
    });
  }

  const KernelTable& kernels_;
  ThreadPool pool_;
  cpu::MatMulScratch matmul_scratch_;
  cpu::AttentionScratch attention_scratch_;
  std::vector<DeviceBuffer> packed_;  // adopted weights of block formats, one behind the other
  std::byte* packed_end_ = nullptr;   // of what the last buffer holds
  size_t packed_left_ = 0;            // bytes behind it
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options) {
  HW_ASSIGN_OR_RETURN(const KernelTable* kernels, cpu::FindKernels(options.isa));
  const int num_threads = options.num_threads > 0 ? options.num_threads : NumUsableCores();
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(*kernels, num_threads));
}

}  // namespace headwise
