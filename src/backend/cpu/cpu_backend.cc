#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "backend/cpu/activation.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/compute_rates.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/for_rows.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/packed_weights.h"
#include "backend/cpu/row_norm.h"
#include "base/cpu_info.h"
#include "base/huge_pages.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

using cpu::KernelTable;

// Packed weights share buffers of this size, or a matrix has one of its own: rounded up to huge pages one by one, those
// of a 1B model would take 60 MB more. Memory that is never written is not resident.
constexpr size_t kPackedBufferBytes = size_t{64} << 20;

float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}
const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, int num_threads, cpu::RowSums sums, int64_t expert_bytes)
      : kernels_(kernels), sums_(sums), pool_(num_threads), expert_store_(expert_bytes) {}

  std::string_view name() const override { return "cpu"; }
  std::string Description() const override {
    const std::string why = cpu::WhyNotBest(kernels_);
    return fmt::format("cpu: {}{}, {} thread{}", kernels_.isa, why.empty() ? "" : " (" + why + ")", pool_.num_threads(),
                       pool_.num_threads() == 1 ? "" : "s");
  }
  std::string_view isa() const override { return kernels_.isa; }
  bool is_batch_invariant() const override { return sums_ == cpu::RowSums::kAlike; }
  // Where all rows take the same sums, a decoding step pays more for bf16 than prompts gain by it.
  bool IsFast(Compute compute) const override {
    if (compute == Compute::kBF16) return !is_batch_invariant() && cpu::HasFastBf16(kernels_);
    return compute == Compute::kInt8 && kernels_.matmul.has_int8_dot;
  }

  Device& device() override { return device_; }

  // Plain formats are read where they lie; block formats are packed.
  Result<WeightMatrix> AdoptWeights(const WeightMatrix& host) override {
    if (!IsBlockFormat(host.dtype)) return host;
    HW_ASSIGN_OR_RETURN(std::byte * packed, TakePacked(cpu::PackedBytes(host.dtype, host.shape)));
    cpu::PackWeights(host.rows(), packed, pool_);
    return cpu::PackedMatrix(host.dtype, host.shape, packed, &packed_states_.emplace_back());
  }

  Status PrepareProducts(const WeightMatrix& adopted, Compute compute) override {
    if (compute != Compute::kW8A8 || !kernels_.matmul.has_tiles) return Backend::PrepareProducts(adopted, compute);
    // Where all rows take the same sums, products are those of int8.
    if (adopted.order == WeightMatrix::Order::kBackend && !is_batch_invariant()) {
      cpu::RoundToGroupScales(adopted, pool_);
    }
    return Status::Ok();
  }

  bool DeferExpert(ExpertWeights& expert, std::function<void()> release) override {
    return expert_store_.Add(expert, std::move(release));
  }
  Status ReserveExperts() override { return expert_store_.Reserve(device_); }
  ExpertMemory expert_memory() const override { return expert_store_.memory(); }

  void Embed(const EmbedArgs& args) override {
    Validate(args);
    const int64_t dim = args.table.shape[1];
    ForRows(static_cast<int64_t>(args.ids.size()), dim, [&](int64_t row) {
      const int64_t id = EmbeddedId(args, static_cast<size_t>(row));
      float* out = F32(args.out) + row * dim;
      if (cpu::IsPacked(args.table)) {
        cpu::UnpackRow(args.table, id, out);
      } else {
        ToF32(args.table.dtype, args.table.rows().Rows(id, 1).data, dim, out);
      }
      if (args.scale != 1.0f) {
        for (int64_t i = 0; i < dim; ++i) out[i] *= args.scale;
      }
      if (args.positions.present()) AddPosition(args, row, out);
    });
  }

  void Norm(const NormArgs& args) override {
    Validate(args);
    const int64_t dim = args.x.shape[1];
    const cpu::RowNorm norm{kernels_.elementwise, args};
    ForRows(args.x.shape[0], dim, [&](int64_t row) { norm.Row(row, F32(args.out) + row * dim); });
  }

  void MatMul(const MatMulArgs& args) override {
    Validate(args);
    cpu::RunMatMul(args, kernels_.matmul, pool_, matmul_scratch_, sums_);
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
    const cpu::Activation activation{kernels_.elementwise, args.kind};
    ForRows(args.x.shape[0], dim, [&](int64_t row) {
      activation.Row(activation.is_gated() ? F32(args.gate) + row * dim : nullptr, F32(args.x) + row * dim, dim);
    });
  }

  void Experts(const ExpertsArgs& args) override {
    Validate(args);
    cpu::RunExperts(args, kernels_, pool_, matmul_scratch_, experts_scratch_, expert_store_, sums_);
  }

  void GateRows(const GateRowsArgs& args) override {
    Validate(args);
    const int64_t dim = args.x.shape[1];
    ForRows(args.x.shape[0], dim, [&](int64_t row) {
      kernels_.elementwise.scale_by_sigmoid(F32(args.gate)[row], F32(args.x) + row * dim, dim);
    });
  }

  void Clamp(const ClampArgs& args) override {
    Validate(args);
    kernels_.elementwise.clamp(F32(args.x), args.x.shape.num_elements(), args.limit);
  }

  void SoftCap(const SoftCapArgs& args) override {
    Validate(args);
    constexpr int64_t kRun = 4096;
    const int64_t size = args.x.shape.num_elements();
    ForRows((size + kRun - 1) / kRun, kRun, [&](int64_t run) {
      kernels_.elementwise.soft_cap(F32(args.x) + run * kRun, std::min(kRun, size - run * kRun), args.cap);
    });
  }

  void GatherRows(const GatherRowsArgs& args) override {
    Validate(args);
    const auto dim = static_cast<size_t>(args.x.shape[1]);
    for (size_t i = 0; i < args.rows.size(); ++i) {
      std::memcpy(F32(args.out) + i * dim, F32(args.x) + static_cast<size_t>(args.rows[i]) * dim, dim * sizeof(float));
    }
  }

  void DrawTokens(const DrawTokensArgs& args) override { DrawTokensOnHost(args); }

  // What lies between the products is done as rows of x are read, and as outputs are made.
  void Linear(const LinearArgs& args) override {
    Validate(args.product);
    std::optional<cpu::RowNorm> norm;
    if (args.norm) {
      Validate(*args.norm);
      HW_CHECK(args.norm->write == NormArgs::Write::kStore && AreSame(args.norm->out, args.product.x));
      norm.emplace(cpu::RowNorm{kernels_.elementwise, *args.norm});
    }
    std::optional<cpu::Activation> activation;
    if (args.activation) {
      CheckActivation(args);
      activation.emplace(cpu::Activation{kernels_.elementwise, args.activation->kind});
    }
    const cpu::MatMulJob job = {
        .args = args.product, .norm = norm ? &*norm : nullptr, .activation = activation ? &*activation : nullptr};
    if (!args.then) return cpu::RunMatMulJob(job, kernels_.matmul, pool_, matmul_scratch_, sums_);
    Validate(*args.then);
    HW_CHECK(AreSame(args.product.parts.back().out, args.then->x));
    cpu::RunMatMulJobs(job, {.args = *args.then}, kernels_.matmul, pool_, matmul_scratch_, sums_);
  }

  size_t PageBytes(const KvLayout& layout) const override { return cpu::PageBytes(layout); }
  void BeginStep(const KvStep& step) override { Validate(step); }  // tables are read where they are
  void CopyPages(const CopyPagesArgs& args) override {
    Validate(args);
    cpu::CopyPages(args, pool_);
  }
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
    cpu::Attention(args, kernels_, pool_, attention_scratch_, sums_);
  }
  void Compensate(const CompensateArgs& args) override {
    Validate(args);
    cpu::Compensate(args, kernels_, pool_);
  }
  void SelectKv(const SelectKvArgs& args) override {
    Validate(args);
    cpu::SelectKv(args, kernels_, pool_, attention_scratch_);
  }

 private:
  static bool AreSame(const TensorView& written, const ConstTensorView& read) {
    return written.data == read.data && written.shape == read.shape;
  }
  // What the activation reads and writes has to be all that the product gives.
  static void CheckActivation(const LinearArgs& args) {
    Validate(*args.activation);
    const auto& parts = args.product.parts;
    const bool is_gated = IsGated(args.activation->kind);
    HW_CHECK(parts.size() == (is_gated ? 2 : 1) && args.product.write == MatMulArgs::Write::kStore, "{} parts",
             parts.size());
    HW_CHECK(AreSame(parts.back().out, args.activation->x) &&
             (!is_gated || AreSame(parts[0].out, args.activation->gate)));
  }

  static void AddPosition(const EmbedArgs& args, int64_t row, float* out) {
    const int64_t dim = args.positions.shape[1];
    const int64_t id = args.position_ids[static_cast<size_t>(row)];
    thread_local std::vector<float> position;
    position.resize(static_cast<size_t>(dim));
    if (cpu::IsPacked(args.positions)) {
      cpu::UnpackRow(args.positions, id, position.data());
    } else {
      ToF32(args.positions.dtype, args.positions.rows().Rows(id, 1).data, dim, position.data());
    }
    for (int64_t i = 0; i < dim; ++i) out[i] += position[static_cast<size_t>(i)];
  }

  Result<std::byte*> TakePacked(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > packed_left_) {
      HW_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                          DeviceBuffer::Make(device_, std::max(kPackedBufferBytes, WholeHugePages(bytes))));
      packed_left_ = buffer.size_bytes();
      packed_end_ = buffer.data();
      packed_.push_back(std::move(buffer));
    }
    packed_left_ -= bytes;
    return std::exchange(packed_end_, packed_end_ + bytes);
  }

  template <typename Body>
  void ForRows(int64_t num_rows, int64_t row_elements, const Body& body) {
    cpu::ForRows(num_rows, row_elements, pool_, body);
  }

  const KernelTable& kernels_;
  const cpu::RowSums sums_;
  HostDevice device_;
  ThreadPool pool_;
  cpu::MatMulScratch matmul_scratch_;
  cpu::ExpertsScratch experts_scratch_;
  cpu::ExpertStore expert_store_;
  cpu::AttentionScratch attention_scratch_;
  std::vector<DeviceBuffer> packed_;  // adopted weights of block formats, one behind the other
  std::deque<cpu::PackedState> packed_states_;
  std::byte* packed_end_ = nullptr;  // of what the last buffer holds
  size_t packed_left_ = 0;           // bytes behind it
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options) {
  HW_ASSIGN_OR_RETURN(const KernelTable* kernels, cpu::FindKernels(options.isa));
  const int num_threads = options.num_threads > 0 ? options.num_threads : NumUsableCores();
  const cpu::RowSums sums = options.batch_invariant ? cpu::RowSums::kAlike : cpu::RowSums::kFastest;
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(*kernels, num_threads, sums, options.expert_bytes));
}

}  // namespace headwise
