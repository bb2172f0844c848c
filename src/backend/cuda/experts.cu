// Mixtures of experts: rows are routed and sorted where they are (route_experts.cu), two products go over all experts
// at once, and each row adds up what its experts gave, in the order in which it chose them. Nothing that is launched
// depends on who is chosen.
#include <algorithm>
#include <optional>
#include <utility>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/experts.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;
// A row's experts, added in its own order.
__global__ void __launch_bounds__(kThreads) AddUpKernel(const float* outputs, const __grid_constant__ RoutedRows routed,
                                                        int64_t dim, int64_t adds, float* out) {
  LetLaterBegin();
  WaitForEarlier();
  const int64_t row = blockIdx.y;
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i >= dim) return;
  float sum = 0;
  for (int64_t slot = row * routed.num_chosen; slot < (row + 1) * routed.num_chosen; ++slot) {
    sum = fmaf(routed.weights[slot], outputs[slot * dim + i], sum);
  }
  float& to = out[row * dim + i];
  to = adds != 0 ? to + sum : sum;
}

// ---- what is launched -----------------------------------------------------------------------------------------------

// Of outputs of all slots at a time.
constexpr int64_t kMaxOutputBytes = int64_t{256} << 20;
constexpr int64_t kMaxGridRows = 65535;

// Parts of one operation's scratch memory, each from 256 bytes on.
class Parts {
 public:
  size_t Add(int64_t bytes) {
    const size_t at = end_;
    end_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    return at;
  }
  size_t size_bytes() const { return end_; }

 private:
  size_t end_ = 0;
};

// The one format of all matrices of a product, or none.
std::optional<DType> FormatOf(std::span<const ExpertWeights> experts, bool is_gated) {
  const DType dtype = is_gated ? experts.front().gate.weight.dtype : experts.front().down.weight.dtype;
  const auto is_of_it = [&](const ExpertWeights& expert) {
    return is_gated ? expert.gate.weight.dtype == dtype && expert.up.weight.dtype == dtype
                    : expert.down.weight.dtype == dtype;
  };
  return std::all_of(experts.begin(), experts.end(), is_of_it) ? std::optional(dtype) : std::nullopt;
}

// Of all experts, or none.
struct Formats {
  std::optional<DType> up, down;
  explicit Formats(std::span<const ExpertWeights> experts)
      : up(FormatOf(experts, /*is_gated=*/true)), down(FormatOf(experts, /*is_gated=*/false)) {}
  std::optional<DType> Of(bool is_gated) const { return is_gated ? up : down; }
};

// Whether both products go by tensor cores in bf16: where the rounding of x is asked for, of many rows, and of few with
// weights in block formats, unless those are asked for in integers.
bool TakesTensorCores(const ExpertsArgs& args, const Formats& formats) {
  constexpr int64_t kMultiple = 8;  // 16 bytes in bf16
  if (args.compute == Compute::kF32 || !formats.up || !formats.down) return false;
  if (args.x.shape[1] % kMultiple != 0 || args.ffn_dim() % kMultiple != 0) return false;
  const bool has_blocks = IsBlockFormat(*formats.up) || IsBlockFormat(*formats.down);
  return args.x.shape[0] > kMaxRoutedAtOnce || (has_blocks && args.compute == Compute::kBF16);
}

// Memory that the products want for rounded rows.
int64_t BytesOfRounded(const ExpertsArgs& args, const Formats& formats, bool by_tensor_cores) {
  const int64_t num_rows = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  if (by_tensor_cores) return num_rows * dim * 2;
  int64_t bytes = 0;
  for (const bool is_gated : {true, false}) {
    const std::optional<DType> dtype = formats.Of(is_gated);
    if (!dtype || !HasFewExpertsRowsInBlocks(num_rows, *dtype, args.compute)) continue;
    bytes = std::max(bytes, RoundedBytes(num_rows * args.routing.num_chosen, is_gated ? dim : args.ffn_dim(), *dtype));
  }
  return bytes;
}

// Rows of a call that are done at once.
void RunRows(const ExpertsArgs& args, const ExpertRow* experts, CudaDevice& device) {
  const int64_t num_rows = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  const int64_t ffn_dim = args.ffn_dim();
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const int64_t num_slots = num_rows * args.routing.num_chosen;
  const Formats formats(args.experts);
  const bool by_tensor_cores = TakesTensorCores(args, formats);
  constexpr int64_t kNumber = 4;  // bytes
  Parts parts;
  const size_t chosen = parts.Add(num_slots * kNumber);
  const size_t weights = parts.Add(num_slots * kNumber);
  const size_t slots = parts.Add(num_slots * kNumber);
  const size_t first = parts.Add((num_experts + 1) * kNumber);
  const size_t used = parts.Add(num_experts * kNumber);
  const size_t num_used = parts.Add(kNumber);
  const size_t rounded = parts.Add(BytesOfRounded(args, formats, by_tensor_cores));
  const size_t activated = parts.Add(num_slots * ffn_dim * kNumber);
  const size_t outputs = parts.Add(num_slots * dim * kNumber);
  std::byte* const memory = device.Scratch(parts.size_bytes());
  if (memory == nullptr) return;
  const auto numbers = [&](size_t at) { return reinterpret_cast<int32_t*>(memory + at); };
  const RoutedRows routed{.chosen = numbers(chosen),
                          .weights = reinterpret_cast<float*>(memory + weights),
                          .slots = numbers(slots),
                          .first = numbers(first),
                          .used = numbers(used),
                          .num_used = numbers(num_used),
                          .num_rows = static_cast<int>(num_rows),
                          .num_experts = static_cast<int>(num_experts),
                          .num_chosen = static_cast<int>(args.routing.num_chosen)};
  RouteRows(args, routed, device);
  if (by_tensor_cores) RoundToBf16(args.x, memory + rounded, device);
  ExpertsProduct product{.experts = experts,
                         .routed = routed,
                         .x = by_tensor_cores ? memory + rounded : args.x.data,
                         .out = memory + activated,
                         .depth = static_cast<int>(dim),
                         .num_outputs = static_cast<int>(ffn_dim),
                         .is_gated = true,
                         .activation = static_cast<int64_t>(args.activation),
                         .rounds_bf16 = args.compute != Compute::kF32};
  const auto multiply = [&] {
    const std::optional<DType> dtype = formats.Of(product.is_gated);
    if (by_tensor_cores) return ManyRowsExpertsProduct(product, *dtype, device);
    if (dtype == DType::kBF16 && HasFewExpertsRows(num_rows, product.depth)) {
      return FewRowsExpertsProduct(product, device);
    }
    if (dtype && HasFewExpertsRowsInBlocks(num_rows, *dtype, args.compute)) {
      return FewRowsExpertsProductInBlocks(product, *dtype, memory + rounded, device);
    }
    AnyExpertsProduct(product, dtype, device);
  };
  multiply();
  product.x = memory + activated;
  product.out = memory + outputs;
  std::swap(product.depth, product.num_outputs);
  product.is_gated = false;
  multiply();
  LaunchShape shape = Overlapping(Blocks(dim, kThreads), kThreads);
  shape.grid.y = static_cast<unsigned>(num_rows);
  Launch(device, "Experts: add", shape, AddUpKernel, reinterpret_cast<const float*>(memory + outputs), routed, dim,
         args.write == MatMulArgs::Write::kAdd ? 1 : 0, F32(args.out));
}

}  // namespace

void Experts(const ExpertsArgs& args, ExpertTables& tables, CudaDevice& device) {
  const int64_t num_rows = args.x.shape[0];
  if (!device.ok() || num_rows == 0) return;
  const ExpertRow* const experts = tables.Get(args.experts);
  if (experts == nullptr) return;
  const int64_t bytes_of_row = args.routing.num_chosen * args.x.shape[1] * static_cast<int64_t>(sizeof(float));
  const int64_t at_once = std::clamp<int64_t>(kMaxOutputBytes / bytes_of_row, 1, kMaxGridRows);
  for (int64_t begin = 0; begin < num_rows; begin += at_once) {
    const int64_t count = std::min(at_once, num_rows - begin);
    ExpertsArgs some = args;
    some.x = args.x.Rows(begin, count);
    some.logits = args.logits.Rows(begin, count);
    some.out = args.out.Rows(begin, count);
    RunRows(some, experts, device);
  }
}

}  // namespace headwise::cuda
