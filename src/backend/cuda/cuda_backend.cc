#include "backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda/block_order.h"
#include "backend/cuda/cublas.h"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/pack_blocks.h"
#include "backend/cuda/step_tables.h"
#include "backend/step_checker.h"
#include "base/thread_pool.h"

namespace headwise {
namespace {

// Of a matrix in a block format that is put in order at a time, on the host.
constexpr int64_t kPackBytes = int64_t{16} << 20;
constexpr int kMaxPackThreads = 16;
// Of weights in other formats as plain numbers, or in bf16, at a time, on the device, where a product wants those.
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr size_t kOperandAlign = 256;

// Of outputs and depth of products in FP8.
constexpr int64_t kFp8Multiple = 16;

bool HasBlocks(const MatMulArgs& args) {
  return std::ranges::any_of(args.parts, [](const MatMulPart& part) { return IsBlockFormat(part.weight.dtype); });
}
// As they are multiplied by a library.
bool HasBf16Alone(const MatMulArgs& args) {
  return std::ranges::all_of(args.parts, [](const MatMulPart& part) { return part.weight.dtype == DType::kBF16; });
}
bool IsMixed(const MatMulArgs& args) {
  return std::ranges::any_of(
      args.parts, [&](const MatMulPart& part) { return part.weight.dtype != args.parts.front().weight.dtype; });
}
// body(args) with parts of one format at a time, neighbours together.
template <typename Body>
void ForFormats(const MatMulArgs& args, const Body& body) {
  for (size_t begin = 0, end = 0; begin < args.parts.size(); begin = end) {
    while (end < args.parts.size() && args.parts[end].weight.dtype == args.parts[begin].weight.dtype) ++end;
    MatMulArgs some = args;
    some.parts = args.parts.subspan(begin, end - begin);
    body(some);
  }
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<cuda::CudaDevice> device)
      : device_(std::move(device)), tables_(*device_), experts_(*device_) {}

  std::string_view name() const override { return "cuda"; }
  std::string Description() const override {
    const cuda::DeviceFacts& facts = device_->facts();
    const int64_t num_replays = device_->num_replays();
    return fmt::format("cuda: {}, compute capability {}.{}, {} multiprocessors{}", facts.name, facts.major, facts.minor,
                       facts.num_multiprocessors,
                       num_replays > 0 ? fmt::format(", {} steps replayed as graphs", num_replays) : "");
  }
  std::string_view isa() const override { return "cuda"; }
  bool IsFast(Compute compute) const override { return compute != Compute::kF32; }
  Device& device() override { return *device_; }

  bool Has(Feature feature) const override { return feature != Feature::kSelection; }

  // Plain formats as they are, block formats in their bits, in an order of this backend's own (block_order.h).
  Result<WeightMatrix> AdoptWeights(const WeightMatrix& host) override {
    const ConstTensorView rows = host.rows();
    if (rows.dtype > DType::kMXFP4) {
      return Status::Unsupported(
          fmt::format("backend cuda: weights in {} are not supported, expected f32, f16, bf16 or a block format up to "
                      "mxfp4; quantize can write them as one",
                      NameOf(rows.dtype)));
    }
    if (rows.dtype != DType::kBF16 && workspace_.data() == nullptr) {
      HW_ASSIGN_OR_RETURN(workspace_, DeviceBuffer::Make(*device_, static_cast<size_t>(kWorkspaceBytes)));
    }
    if (IsBlockFormat(rows.dtype)) return AdoptBlocks(rows);
    const auto bytes = static_cast<size_t>(BytesOf(rows.dtype, rows.shape.num_elements()));
    HW_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(*device_, bytes));
    device_->CopyFromHost(buffer.data(), rows.data, bytes);
    const WeightMatrix adopted(ConstTensorView(buffer.data(), rows.dtype, rows.shape));
    weights_.push_back(std::move(buffer));
    return adopted;
  }

  // FP8: codes of the matrix beside it, which products of many rows read.
  Status PrepareProducts(const WeightMatrix& adopted, Compute compute) override {
    if (compute != Compute::kFp8) return Backend::PrepareProducts(adopted, compute);
    LoadCublas();
    if (cublas_ == nullptr || !cublas_->HasFp8()) {
      return Status::Unsupported("products in fp8 need compute capability 9.0 and cuBLASLt 12.9 or later");
    }
    const int64_t num_outputs = adopted.shape[0];
    const int64_t depth = adopted.shape[1];
    // Others stay bf16.
    if (num_outputs % kFp8Multiple != 0 || depth % kFp8Multiple != 0 || fp8_.contains(adopted.planes[0])) {
      return Status::Ok();
    }
    Fp8Matrix made;
    HW_ASSIGN_OR_RETURN(made.codes, DeviceBuffer::Make(*device_, static_cast<size_t>(num_outputs * depth)));
    HW_ASSIGN_OR_RETURN(made.scales, DeviceBuffer::Make(*device_, static_cast<size_t>(num_outputs) * sizeof(float)));
    const cuda::Fp8Rows to = made.rows();
    if (IsBlockFormat(adopted.dtype)) {
      ForRowsOf(adopted, DType::kF32, [&](const ConstTensorView& rows, int64_t first) {
        cuda::RowsToFp8(rows, {.codes = made.codes.data() + first * depth, .scales = to.scales + first}, *device_);
      });
    } else {
      cuda::RowsToFp8(adopted.rows(), to, *device_);
    }
    fp8_.emplace(adopted.planes[0], std::move(made));
    return device_->Wait();
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
    Multiply(args);
  }
  void Linear(const LinearArgs& args) override {
    const bool has_few_rows = HasFewRows(args);
    // Parts that differ, each with the norm before it: a file may have values in another format than keys.
    const bool is_split = !has_few_rows && !args.activation && IsMixed(args.product) && AllHaveFewRows(args);
    // A norm or an activation that is not done on the way leaves the product itself as it is for few rows.
    const bool is_apart = !has_few_rows && AllHaveFewRows({.product = args.product});
    if (!has_few_rows && !is_split && (is_apart || !MultipliesRounded(args.product))) return Backend::Linear(args);
    if (args.norm) Validate(*args.norm);
    Validate(args.product);
    if (args.activation) Validate(*args.activation);
    bool has_then_done = false;
    if (has_few_rows) {
      has_then_done = FewRows(args);
    } else if (is_split) {
      ForFormats(args.product, [&](const MatMulArgs& some) { FewRows({.norm = args.norm, .product = some}); });
    } else {
      return LinearOfRounded(args);
    }
    if (args.then && !has_then_done) MatMul(*args.then);
  }
  void Rope(const RopeArgs& args) override {
    Validate(args);
    cuda::Rope(args, *device_);
  }
  void Activate(const ActivateArgs& args) override {
    Validate(args);
    cuda::Activate(args, *device_);
  }
  void Experts(const ExpertsArgs& args) override {
    Validate(args);
    cuda::Experts(args, experts_, *device_);
  }
  void GateRows(const GateRowsArgs& args) override {
    Validate(args);
    cuda::GateRows(args, *device_);
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
  void DrawTokens(const DrawTokensArgs& args) override {
    Validate(args);
    cuda::DrawTokens(args, *device_);
  }

  // Rows of codes or numbers, then scales (kv_page.cuh).
  size_t PageBytes(const KvLayout& layout) const override {
    return static_cast<size_t>((TokensBytes(layout.format, layout.head_dim, layout.page_tokens) + 63) / 64 * 64);
  }
  void BeginStep(const KvStep& step) override {
    checker_.Check(step);
    tables_.Begin(step);
    decodes_alone_ = std::all_of(step.sequences.begin(), step.sequences.end(),
                                 [](const StepRows& rows) { return rows.num_rows == 1; });
    if (decodes_alone_) device_->RecordLaunches();
    cuda::PlanDecode(step, tables_, *device_);
    puts_alike_ = decodes_alone_ && !cuda::AppendsByHeads(step);
    pages_ = cuda::FastPagesOf(step);
  }
  // As one part of what is recorded.
  void PutAlike(uint64_t kind, const std::function<void()>& put) override {
    if (kind == 0 || !puts_alike_) {
      alike_ = {};
      return put();
    }
    const Alike alike{.kind = kind, .tables = tables_.for_launches(), .pages = pages_};
    const bool goes_on = alike == alike_;
    if (goes_on && device_->RepeatPart()) return;
    alike_ = alike;
    device_->BeginPart(goes_on);
    put();
    device_->EndPart();
    if (!puts_alike_) alike_ = {};
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
    appended_ = cuda::RopeThenAppendKv(ropes, append, tables_, *device_);
  }
  void AgeKv(const AgeKvArgs& args) override {
    Validate(args);
    puts_alike_ = false;  // other pages in each step
    cuda::AgeKv(args, tables_, *device_);
  }
  void Attention(const AttentionArgs& args) override {
    Validate(args);
    const bool has_decode = cuda::DecodesFast(args, tables_, *device_);
    if (has_decode) prepared_ = cuda::DecodeAttention(args, appended_, attention_leaves_bytes_, tables_, *device_);
    if (has_decode && decodes_alone_) return;
    puts_alike_ = false;  // it is cut by positions
    cuda::Attention(args, tables_, has_decode, *device_);
  }
  void Compensate(const CompensateArgs& args) override {
    Validate(args);
    cuda::Compensate(args, tables_, *device_);
  }
  void SelectKv(const SelectKvArgs& /*args*/) override { HW_CHECK(false, "plans that ask for it are refused"); }

 private:
  Result<WeightMatrix> AdoptBlocks(const ConstTensorView& rows) {
    if (pool_ == nullptr) {
      const auto num_cores = static_cast<int>(std::thread::hardware_concurrency());
      pool_ = std::make_unique<ThreadPool>(std::clamp(num_cores, 1, kMaxPackThreads));
    }
    const int64_t tile_bytes = cuda::OrderOf(rows.dtype).TileBytes(rows.shape[1]);
    const int64_t num_tiles = (rows.shape[0] + cuda::kOrderOutputs - 1) / cuda::kOrderOutputs;
    HW_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Make(*device_, static_cast<size_t>(num_tiles * tile_bytes)));
    const int64_t tiles_at_once = std::clamp<int64_t>(kPackBytes / std::max<int64_t>(tile_bytes, 1), 1, num_tiles);
    std::vector<std::byte> packed(static_cast<size_t>(tiles_at_once * tile_bytes));
    for (int64_t first = 0; first < num_tiles; first += tiles_at_once) {
      const int64_t count = std::min(tiles_at_once, num_tiles - first);
      pool_->ParallelFor(count,
                         [&](int64_t i, int) { cuda::PackTile(rows, first + i, packed.data() + i * tile_bytes); });
      device_->CopyFromHost(buffer.data() + first * tile_bytes, packed.data(), static_cast<size_t>(count * tile_bytes));
    }
    WeightMatrix adopted;
    adopted.dtype = rows.dtype;
    adopted.order = WeightMatrix::Order::kBackend;
    adopted.shape = rows.shape;
    adopted.planes[0] = buffer.data();
    weights_.push_back(std::move(buffer));
    return adopted;
  }

  bool HasFewRows(const LinearArgs& args) const {
    return cuda::HasFewRows(args) || cuda::HasFewRowsInBlocks(args, *device_);
  }
  // Format by format.
  bool AllHaveFewRows(const LinearArgs& args) const {
    bool all = true;
    ForFormats(args.product,
               [&](const MatMulArgs& some) { all = all && HasFewRows({.norm = args.norm, .product = some}); });
    return all;
  }
  // Returns whether `then` is done as well. Requires: HasFewRows(args).
  bool FewRows(const LinearArgs& args) {
    const bool has_blocks = IsBlockFormat(args.product.parts.front().weight.dtype);
    const bool does_then = has_blocks ? cuda::DoesThenInBlocks(args, *device_) : cuda::DoesThen(args);
    if (does_then) Validate(*args.then);
    NoteNorm(args);
    const MatMulArgs& last = does_then ? *args.then : args.product;
    // Of a product that is behind a norm itself x may lie where it would leave the next one's.
    const bool may_prepare = does_then || !args.norm;
    if (IsOfAttention(args)) attention_leaves_bytes_ = has_blocks;
    const cuda::NormBehind behind = may_prepare ? BehindOf(last) : cuda::NormBehind{};
    prepared_ = has_blocks ? cuda::MatMulFewRowsInBlocks(args, prepared_, behind, *device_)
                           : cuda::MatMulFewRows(args, prepared_, behind, *device_);
    last_sum_ = {.out = SumOf(last),
                 .weight = last.parts[0].weight.planes[0],
                 .num_outputs = last.parts[0].weight.shape[0],
                 .num_put = device_->num_put()};
    return does_then;
  }
  // A step's operations are those of the step before: a product that is added to a stream leaves it as that norm
  // wants it which read the stream behind it then (Prepared). A guess that is wrong costs what was left and nothing
  // else. Weights of norms are there as long as those of products.
  void NoteNorm(const LinearArgs& args) {
    if (!args.norm || last_sum_.num_put != device_->num_put() || last_sum_.out != args.norm->x.data) return;
    if (last_sum_.num_outputs != args.norm->x.shape[1]) return;
    norm_behind_[last_sum_.weight] = static_cast<const float*>(args.norm->weight.data);
  }
  cuda::NormBehind BehindOf(const MatMulArgs& last) {
    const auto known = norm_behind_.find(last.parts[0].weight.planes[0]);
    if (SumOf(last) == nullptr || known == norm_behind_.end()) return {};
    const size_t bytes = cuda::ColumnsBytes(last.parts[0].weight.shape[0]);
    if (bytes > normed_columns_.size_bytes()) {
      Result<DeviceBuffer> made = DeviceBuffer::Make(*device_, bytes);
      if (!made.ok()) return {};  // then the product behind rounds
      normed_columns_ = *std::move(made);
    }
    return {.weight = known->second, .room = normed_columns_.data()};
  }
  // Where the product adds to, of one part; else null.
  static const void* SumOf(const MatMulArgs& args) {
    return args.parts.size() == 1 && args.write == MatMulArgs::Write::kAdd ? args.parts[0].out.data : nullptr;
  }

  // By whatever is fastest.
  void Multiply(const MatMulArgs& args) {
    const LinearArgs linear{.product = args};
    if (HasFewRows(linear)) {
      FewRows(linear);
      return;
    }
    if (HasBlocks(args) && IsMixed(args)) {
      return ForFormats(args, [&](const MatMulArgs& some) { Multiply(some); });
    }
    if (MultipliesRounded(args)) return LinearOfRounded(linear);
    if (!HasBlocks(args)) return cuda::MatMul(args, *device_);
    ForPartsOf(args, DType::kF32, [&](const MatMulPart& some, int64_t num_outputs) {
      MatMulArgs product = args;
      product.parts = {&some, 1};
      cuda::MatMul(product, *device_, num_outputs);
    });
  }

  // Where it is asked for and all weights are there as that.
  bool IsFp8(const MatMulArgs& args) const {
    return args.compute == Compute::kFp8 && std::ranges::all_of(args.parts, [&](const MatMulPart& part) {
             return fp8_.contains(part.weight.planes[0]);
           });
  }
  // Where the rounding of x is asked for, and there is a kernel for it or the library.
  bool MultipliesRounded(const MatMulArgs& args) {
    if (args.compute == Compute::kF32) return false;
    if (IsFp8(args)) return true;
    if (cuda::HasSomeRows(args, *device_) && HasRoomForSums()) return true;
    for (const MatMulPart& part : args.parts) {
      const bool is_rounded = part.weight.dtype == DType::kF16 || part.weight.dtype == DType::kF32;
      // Rows of quads. Of few rows the weights are read where they are.
      if (is_rounded && (part.weight.shape[1] % 4 != 0 || args.x.shape[0] <= cuda::kMaxFewColumns)) return false;
    }
    LoadCublas();
    return cublas_ != nullptr;
  }
  void LoadCublas() {
    if (!has_looked_for_cublas_) cublas_ = cuda::Cublas::Load(*device_);
    has_looked_for_cublas_ = true;
  }

  // body(rows, first) with rows of the matrix as plain numbers, as many at a time as the workspace holds.
  template <typename Body>
  void ForRowsOf(const WeightMatrix& matrix, DType dtype, const Body& body) {
    const int64_t depth = matrix.shape[1];
    const int64_t at_once = kWorkspaceBytes / (depth * SizeOf(dtype)) / cuda::kOrderOutputs * cuda::kOrderOutputs;
    HW_CHECK(at_once > 0, "rows of {} are more than the workspace holds", depth);
    for (int64_t first = 0; first < matrix.shape[0]; first += at_once) {
      const int64_t count = std::min(at_once, matrix.shape[0] - first);
      if (IsBlockFormat(matrix.dtype)) {
        cuda::Dequantize(matrix, first, count, dtype, workspace_.data(), *device_);
      } else {
        HW_CHECK(dtype == DType::kBF16, "{}", NameOf(dtype));
        cuda::RoundToBf16(matrix.rows().Rows(first, count), workspace_.data(), *device_);
      }
      body(ConstTensorView(workspace_.data(), dtype, {count, depth}), first);
    }
  }
  // body(part, N) with outputs of every part, as many at a time as the workspace holds rows of them, of f32 or bf16.
  // Rows of what is written are N numbers apart.
  template <typename Body>
  void ForPartsOf(const MatMulArgs& args, DType dtype, const Body& body) {
    for (const MatMulPart& part : args.parts) {
      ForRowsOf(part.weight, dtype, [&](const ConstTensorView& rows, int64_t first) {
        const int64_t count = rows.shape[0];
        MatMulPart some{.weight = rows,
                        .bias = {},
                        .out = {static_cast<float*>(part.out.data) + first, DType::kF32, {args.x.shape[0], count}}};
        if (part.bias.present()) {
          some.bias = ConstTensorView(static_cast<const float*>(part.bias.data) + first, DType::kF32, {count});
        }
        body(some, part.weight.shape[0]);
      });
    }
  }

  // Rows of x on their way into a product, in scratch memory: FP8 or else bf16. Without memory after an error.
  struct Operand {
    std::byte* memory = nullptr;
    Shape shape;  // [T, K]
    bool is_fp8 = false;

    ConstTensorView bf16() const { return {memory, DType::kBF16, shape}; }
    cuda::Fp8Rows fp8() const {
      return {.codes = memory, .scales = reinterpret_cast<float*>(memory + shape.num_elements())};
    }
  };
  size_t OperandBytes(const MatMulArgs& args) const {
    const int64_t num_elements = args.x.shape.num_elements();
    return IsFp8(args) ? static_cast<size_t>(num_elements) + args.x.shape[0] * sizeof(float)
                       : static_cast<size_t>(num_elements + 3) / 4 * 8;
  }
  Operand OperandFor(const MatMulArgs& args, size_t least_bytes = 0) {
    return {.memory = device_->Scratch(std::max(OperandBytes(args), least_bytes)),
            .shape = args.x.shape,
            .is_fp8 = IsFp8(args)};
  }
  void ProductsOfRounded(const MatMulArgs& args, const Operand& x) {
    if (x.is_fp8) {
      for (const MatMulPart& part : args.parts) {
        if (part.bias.present()) cuda::WriteBias(part, args.write, *device_);
        cublas_->MatMulFp8(x.fp8(), x.shape, fp8_.at(part.weight.planes[0]).rows(), part.out,
                           part.bias.present() ? MatMulArgs::Write::kAdd : args.write);
      }
      return;
    }
    ForFormats(args, [&](const MatMulArgs& some) {
      if (cuda::HasSomeRows(some, *device_) && HasRoomForSums()) {
        return cuda::MatMulSomeRows(x.bf16(), {.product = some}, nullptr, sums_of_tiles_.data(), *device_);
      }
      if (!HasBf16Alone(some)) {
        return ForPartsOf(some, DType::kBF16, [&](const MatMulPart& part, int64_t num_outputs) {
          cublas_->MatMul(x.bf16(), part, args.write, num_outputs);
        });
      }
      for (const MatMulPart& part : some.parts) cublas_->MatMul(x.bf16(), part, args.write);
    });
  }
  // Whether there is memory for MatMulSomeRows, which is asked for once.
  bool HasRoomForSums() {
    if (has_asked_for_sums_) return sums_of_tiles_.size_bytes() > 0;
    has_asked_for_sums_ = true;
    Result<DeviceBuffer> made = DeviceBuffer::Make(*device_, cuda::SomeRowsBytes(*device_));
    if (made.ok()) sums_of_tiles_ = *std::move(made);
    return made.ok();
  }
  // Whether attention right ahead has left its x.
  bool IsOfAttention(const LinearArgs& args) const {
    return !args.norm && prepared_.num_put == device_->num_put() && prepared_.x == args.product.x.data &&
           prepared_.norm_weight == nullptr && prepared_.num_rows == args.product.x.shape[0];
  }
  // The same, as it is multiplied in bf16.
  bool IsPrepared(const LinearArgs& args) const {
    return IsOfAttention(args) && !args.activation && !args.then && !IsFp8(args.product) && !prepared_.are_bytes &&
           prepared_.num_parts == 1;
  }
  // Rows that are rounded first. What a norm or an activation gives is rounded where it is computed. Requires:
  // MultipliesRounded(args.product).
  void LinearOfRounded(const LinearArgs& args) {
    if (IsPrepared(args)) {
      return ProductsOfRounded(args.product,
                               {.memory = static_cast<std::byte*>(prepared_.columns), .shape = args.product.x.shape});
    }
    // Then both products' rows are there at once.
    const bool gates = args.then && !IsFp8(args.product) && !IsFp8(*args.then) && MultipliesRounded(*args.then) &&
                       cuda::GatesSomeRows(args, *device_) && HasRoomForSums();
    const size_t x_bytes = (OperandBytes(args.product) + kOperandAlign - 1) / kOperandAlign * kOperandAlign;
    Operand x = OperandFor(args.product, gates ? x_bytes + OperandBytes(*args.then) : 0);
    if (x.memory == nullptr) return;
    if (args.norm) {
      x.is_fp8 ? cuda::NormToFp8(*args.norm, x.fp8(), *device_) : cuda::NormRounded(*args.norm, x.memory, *device_);
    } else {
      x.is_fp8 ? cuda::RowsToFp8(args.product.x, x.fp8(), *device_)
               : cuda::RoundToBf16(args.product.x, x.memory, *device_);
    }
    if (gates) {
      Validate(*args.then);
      cuda::MatMulSomeRows(x.bf16(), args, x.memory + x_bytes, sums_of_tiles_.data(), *device_);
      return ProductsOfRounded(*args.then, {.memory = x.memory + x_bytes, .shape = args.then->x.shape});
    }
    ProductsOfRounded(args.product, x);
    if (args.activation && args.then && MultipliesRounded(*args.then)) {
      Validate(*args.then);
      x = OperandFor(*args.then);  // the products before have read theirs
      if (x.memory == nullptr) return;
      x.is_fp8 ? cuda::ActivateToFp8(*args.activation, x.fp8(), *device_)
               : cuda::ActivateRounded(*args.activation, x.memory, *device_);
      return ProductsOfRounded(*args.then, x);
    }
    if (args.activation) cuda::Activate(*args.activation, *device_);
    if (args.then) MatMul(*args.then);
  }

  // A matrix in FP8, beside its own format.
  struct Fp8Matrix {
    DeviceBuffer codes;   // [N, K] e4m3
    DeviceBuffer scales;  // [N] f32
    cuda::Fp8Rows rows() const { return {.codes = codes.data(), .scales = reinterpret_cast<float*>(scales.data())}; }
  };

  std::unique_ptr<cuda::CudaDevice> device_;
  cuda::StepTables tables_;
  StepChecker checker_;
  cuda::Appended appended_;
  cuda::Prepared prepared_;  // by the last attention or product of few rows
  // As the product behind attention wanted it the last time.
  bool attention_leaves_bytes_ = true;
  struct Sum {
    const void* out = nullptr;     // what was added to
    const void* weight = nullptr;  // of the product
    int64_t num_outputs = 0;
    int64_t num_put = -1;  // CudaDevice::num_put() behind it
  };
  Sum last_sum_;
  std::unordered_map<const void*, const float*> norm_behind_;  // by a product's weight
  DeviceBuffer normed_columns_;
  DeviceBuffer sums_of_tiles_;
  bool has_asked_for_sums_ = false;
  cuda::ExpertTables experts_;
  bool decodes_alone_ = false;  // the step: every sequence of it has one row
  bool puts_alike_ = false;     // what it puts follows from Alike
  // Two steps for which this is the same put the same, of what PutAlike says.
  struct Alike {
    uint64_t kind = 0;
    cuda::StepTables::ForLaunches tables;
    cuda::FastPages pages;

    friend bool operator==(const Alike&, const Alike&) = default;
  };
  Alike alike_;
  cuda::FastPages pages_;  // of the step
  std::vector<DeviceBuffer> weights_;
  std::map<const void*, Fp8Matrix> fp8_;  // by the first plane of what was adopted
  DeviceBuffer workspace_;                // once there are weights that are not bf16
  std::unique_ptr<ThreadPool> pool_;      // that puts those in order
  std::unique_ptr<cuda::Cublas> cublas_;
  bool has_looked_for_cublas_ = false;
};

}  // namespace

Result<std::unique_ptr<Backend>> MakeCudaBackend() {
  HW_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaDevice> device, cuda::CudaDevice::Make());
  std::unique_ptr<Backend> backend = std::make_unique<CudaBackend>(std::move(device));
  return backend;
}

int64_t FreeCudaMemoryBytes() {
  size_t free_bytes = 0;
  size_t all_bytes = 0;
  return cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess ? static_cast<int64_t>(free_bytes) : 0;
}

}  // namespace headwise
