#include "backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cuda/cublas.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/step_tables.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

// Of a matrix in a block format that is unpacked at a time.
constexpr int64_t kUnpackElements = int64_t{1} << 20;

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<cuda::CudaDevice> device) : device_(std::move(device)), tables_(*device_) {}

  std::string_view name() const override { return "cuda"; }
  std::string Description() const override {
    const cuda::DeviceFacts& facts = device_->facts();
    const int64_t num_replays = device_->num_replays();
    return fmt::format("cuda: {}, compute capability {}.{}, {} multiprocessors{}{}", facts.name, facts.major,
                       facts.minor, facts.num_multiprocessors, has_unpacked_ ? ", block formats unpacked to bf16" : "",
                       num_replays > 0 ? fmt::format(", {} steps replayed as graphs", num_replays) : "");
  }
  std::string_view isa() const override { return "cuda"; }
  bool IsFast(Compute compute) const override { return compute == Compute::kBF16; }
  Device& device() override { return *device_; }

  // Plain formats as they are, block formats as bf16.
  Result<WeightMatrix> AdoptWeights(const WeightMatrix& host) override {
    const ConstTensorView rows = host.rows();
    const DType dtype = IsBlockFormat(rows.dtype) ? DType::kBF16 : rows.dtype;
    const auto bytes = static_cast<size_t>(BytesOf(dtype, rows.shape.num_elements()));
    HW_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(*device_, bytes));
    if (dtype == rows.dtype) {
      device_->CopyFromHost(buffer.data(), rows.data, bytes);
    } else {
      has_unpacked_ = true;
      Unpack(rows, buffer.data());
    }
    const WeightMatrix adopted(ConstTensorView(buffer.data(), dtype, rows.shape));
    weights_.push_back(std::move(buffer));
    return adopted;
  }

  void Embed(const EmbedArgs& args) override {
    Validate(args);
    cuda::Embed(args, *device_);
  }
  void Norm(const NormArgs& args) override {
    Validate(args);
    cuda::Norm(args, *device_);
  }
  void MatMul(const MatMulArgs& args) override {
    Validate(args);
    const LinearArgs linear{.product = args};
    if (cuda::HasFewRows(linear)) return cuda::MatMulFewRows(linear, *device_);
    if (HasCublas(args)) return LinearByCublas(linear);
    cuda::MatMul(args, *device_);
  }
  void Linear(const LinearArgs& args) override {
    const bool has_few_rows = cuda::HasFewRows(args);
    if (!has_few_rows && !HasCublas(args.product)) return Backend::Linear(args);
    if (args.norm) Validate(*args.norm);
    Validate(args.product);
    if (args.activation) Validate(*args.activation);
    if (!has_few_rows) return LinearByCublas(args);
    cuda::MatMulFewRows(args, *device_);
    if (args.then) MatMul(*args.then);
  }
  void Rope(const RopeArgs& args) override {
    Validate(args);
    cuda::Rope(args, *device_);
  }
  void Activate(const ActivateArgs& args) override {
    Validate(args);
    cuda::Activate(args, *device_);
  }
  void Clamp(const ClampArgs& args) override {
    Validate(args);
    cuda::Clamp(args, *device_);
  }
  void SoftCap(const SoftCapArgs& args) override {
    Validate(args);
    cuda::SoftCap(args, *device_);
  }
  void GatherRows(const GatherRowsArgs& args) override {
    Validate(args);
    cuda::GatherRows(args, *device_);
  }
  void ArgMax(const ArgMaxArgs& args) override {
    Validate(args);
    cuda::ArgMax(args, *device_);
  }

  // Rows of codes or numbers, then scales (kv_page.cuh).
  size_t PageBytes(const KvLayout& layout) const override {
    return static_cast<size_t>((TokensBytes(layout.format, layout.head_dim, layout.page_tokens) + 63) / 64 * 64);
  }
  void BeginStep(const KvStep& step) override {
    Validate(step);
    tables_.Begin(step);
    decodes_alone_ = std::all_of(step.sequences.begin(), step.sequences.end(),
                                 [](const StepRows& rows) { return rows.num_rows == 1; });
    if (decodes_alone_) device_->RecordLaunches();
    cuda::PlanDecode(step, tables_, *device_);
  }
  void CopyPages(const CopyPagesArgs& args) override {
    Validate(args);
    cuda::CopyPages(args, tables_, *device_);
  }
  void AppendKv(const AppendKvArgs& args) override {
    Validate(args);
    cuda::AppendKv(args, tables_, *device_);
  }
  void RopeThenAppendKv(std::span<const RopeArgs> ropes, const AppendKvArgs& append) override {
    if (!cuda::FusesRopes(ropes, append)) return Backend::RopeThenAppendKv(ropes, append);
    for (const RopeArgs& rope : ropes) Validate(rope);
    Validate(append);
    cuda::RopeThenAppendKv(ropes, append, tables_, *device_);
  }
  void AgeKv(const AgeKvArgs& args) override {
    Validate(args);
    cuda::AgeKv(args, tables_, *device_);
  }
  void Attention(const AttentionArgs& args) override {
    Validate(args);
    const bool has_decode = cuda::DecodesFast(args, tables_);
    if (has_decode) cuda::DecodeAttention(args, tables_, *device_);
    if (!has_decode || !decodes_alone_) cuda::Attention(args, tables_, has_decode, *device_);
  }
  void Compensate(const CompensateArgs& args) override {
    Validate(args);
    cuda::Compensate(args, tables_, *device_);
  }

 private:
  // Where the rounding of x is asked for and the library is there.
  bool HasCublas(const MatMulArgs& args) {
    if (args.compute == Compute::kF32) return false;
    for (const MatMulPart& part : args.parts) {
      if (part.weight.dtype != DType::kBF16) return false;
    }
    if (!has_looked_for_cublas_) cublas_ = cuda::Cublas::Load(*device_);
    has_looked_for_cublas_ = true;
    return cublas_ != nullptr;
  }

  // Room for x as bf16. Null after an error.
  std::byte* RoomForRounded(const ConstTensorView& x) {
    return device_->Scratch(static_cast<size_t>(x.shape.num_elements() + 3) / 4 * 8);
  }
  void ProductsByCublas(const MatMulArgs& args, const std::byte* rounded) {
    const ConstTensorView x(rounded, DType::kBF16, args.x.shape);
    for (const MatMulPart& part : args.parts) cublas_->MatMul(x, part, args.write);
  }
  // Many rows. What a norm or an activation gives is rounded where it is computed. Requires: HasCublas(args.product).
  void LinearByCublas(const LinearArgs& args) {
    std::byte* rounded = RoomForRounded(args.product.x);
    if (rounded == nullptr) return;
    if (args.norm) {
      cuda::NormRounded(*args.norm, rounded, *device_);
    } else {
      cuda::RoundToBf16(args.product.x, rounded, *device_);
    }
    ProductsByCublas(args.product, rounded);
    if (args.activation && args.then && HasCublas(*args.then)) {
      Validate(*args.then);
      rounded = RoomForRounded(args.then->x);  // the products before have read theirs
      if (rounded == nullptr) return;
      cuda::ActivateRounded(*args.activation, rounded, *device_);
      return ProductsByCublas(*args.then, rounded);
    }
    if (args.activation) cuda::Activate(*args.activation, *device_);
    if (args.then) MatMul(*args.then);
  }

  void Unpack(const ConstTensorView& rows, std::byte* to) {
    std::vector<float> values;
    std::vector<uint16_t> rounded;
    const int64_t num_elements = rows.shape.num_elements();
    for (int64_t begin = 0; begin < num_elements; begin += kUnpackElements) {
      const int64_t count = std::min(kUnpackElements, num_elements - begin);
      values.resize(static_cast<size_t>(count));
      rounded.resize(values.size());
      const auto* from = static_cast<const std::byte*>(rows.data) + BytesOf(rows.dtype, begin);
      ToF32(rows.dtype, from, count, values.data());
      std::transform(values.begin(), values.end(), rounded.begin(), F32ToBF16);
      device_->CopyFromHost(to + begin * 2, rounded.data(), rounded.size() * sizeof(uint16_t));
    }
  }

  std::unique_ptr<cuda::CudaDevice> device_;
  cuda::StepTables tables_;
  bool decodes_alone_ = false;  // the step: every sequence of it has one row
  std::vector<DeviceBuffer> weights_;
  bool has_unpacked_ = false;
  std::unique_ptr<cuda::Cublas> cublas_;
  bool has_looked_for_cublas_ = false;
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeCudaBackend() {
  HW_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaDevice> device, cuda::CudaDevice::Make());
  std::unique_ptr<Backend> backend = std::make_unique<CudaBackend>(std::move(device));
  return backend;
}

}  // namespace headwise
