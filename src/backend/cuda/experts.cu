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

// Whether both products go by tensor cores in bf16: where the rounding of x is asked for, of many rows, and of few with
// weights in block formats, unless those are asked for in integers.
bool TakesTensorCores(const ExpertsArgs& args, const ExpertTable& table) {
  constexpr int64_t kMultiple = 8;  // 16 bytes in bf16
  if (args.compute == Compute::kF32 || !table.up || !table.down) return false;
  if (args.x.shape[1] % kMultiple != 0 || args.ffn_dim() % kMultiple != 0) return false;
  const bool has_blocks = IsBlockFormat(*table.up) || IsBlockFormat(*table.down);
  return args.x.shape[0] > kMaxRoutedAtOnce || (has_blocks && args.compute == Compute::kBF16);
}

// Memory that the products want for rounded rows.
int64_t BytesOfRounded(const ExpertsArgs& args, const ExpertTable& table, bool by_tensor_cores) {
  const int64_t num_rows = args.x.shape[0];
  const int64_t dim = args.x.shape[1];
  if (by_tensor_cores) return num_rows * dim * 2;
  int64_t bytes = 0;
  for (const bool is_gated : {true, false}) {
    const std::optional<DType> dtype = table.FormatOf(is_gated);
    if (!dtype || !HasFewExpertsRowsInBlocks(num_rows, *dtype, args.compute)) continue;
    bytes = std::max(bytes, RoundedBytes(num_rows * args.routing.num_chosen, is_gated ? dim : args.ffn_dim(), *dtype));
  }
  return bytes;
}

// What a call keeps in scratch memory.
struct Kept {
  RoutedRows routed;
  std::byte* rounded;    // rows of x as the products want them
  std::byte* activated;  // [T * k, F]
  std::byte* outputs;    // [T * k, E]
};
// False after an error.
bool PlaceKept(const ExpertsArgs& args, int64_t rounded_bytes, CudaDevice& device, Kept& kept) {
  const int64_t num_rows = args.x.shape[0];
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const int64_t num_slots = num_rows * args.routing.num_chosen;
  constexpr int64_t kNumber = 4;  // bytes
  std::byte* memory = nullptr;
  size_t end = 0;
  const auto take = [&](int64_t bytes) {
    std::byte* const part = memory == nullptr ? nullptr : memory + end;
    end += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    return part;
  };
  const auto numbers = [&](int64_t count) { return reinterpret_cast<int32_t*>(take(count * kNumber)); };
  // Sizes first, then places.
  for (const bool is_placed : {false, true}) {
    if (is_placed) memory = device.Scratch(std::exchange(end, 0));
    if (is_placed && memory == nullptr) return false;
    kept = {.routed = {.chosen = numbers(num_slots),
                       .weights = reinterpret_cast<float*>(numbers(num_slots)),
                       .slots = numbers(num_slots),
                       .first = numbers(num_experts + 1),
                       .used = numbers(num_experts),
                       .num_used = numbers(1),
                       .num_rows = static_cast<int>(num_rows),
                       .num_experts = static_cast<int>(num_experts),
                       .num_chosen = static_cast<int>(args.routing.num_chosen)},
            .rounded = take(rounded_bytes),
            .activated = take(num_slots * args.ffn_dim() * kNumber),
            .outputs = take(num_slots * args.x.shape[1] * kNumber)};
  }
  return true;
}

// By whatever is fastest.
void Multiply(const ExpertsProduct& product, std::optional<DType> dtype, Compute compute, void* rounded,
              CudaDevice& device) {
  const int64_t num_rows = product.routed.num_rows;
  if (dtype == DType::kBF16 && HasFewExpertsRows(num_rows, product.depth)) {
    return FewRowsExpertsProduct(product, device);
  }
  if (dtype && HasFewExpertsRowsInBlocks(num_rows, *dtype, compute)) {
    return FewRowsExpertsProductInBlocks(product, *dtype, rounded, device);
  }
  AnyExpertsProduct(product, dtype, device);
}

// Rows of a call that are done at once.
void RunRows(const ExpertsArgs& args, const ExpertTable& table, CudaDevice& device) {
  const int64_t dim = args.x.shape[1];
  const bool by_tensor_cores = TakesTensorCores(args, table);
  Kept kept{};
  if (!PlaceKept(args, BytesOfRounded(args, table, by_tensor_cores), device, kept)) return;
  RouteRows(args, kept.routed, device);
  if (by_tensor_cores) RoundToBf16(args.x, kept.rounded, device);
  ExpertsProduct product{.experts = table.rows,
                         .routed = kept.routed,
                         .x = by_tensor_cores ? kept.rounded : args.x.data,
                         .out = kept.activated,
                         .depth = static_cast<int>(dim),
                         .num_outputs = static_cast<int>(args.ffn_dim()),
                         .is_gated = true,
                         .activation = static_cast<int64_t>(args.activation),
                         .rounds_bf16 = args.compute != Compute::kF32};
  const auto multiply = [&] {
    const std::optional<DType> dtype = table.FormatOf(product.is_gated);
    if (by_tensor_cores) return ManyRowsExpertsProduct(product, *dtype, device);
    Multiply(product, dtype, args.compute, kept.rounded, device);
  };
  multiply();
  product.x = kept.activated;
  product.out = kept.outputs;
  std::swap(product.depth, product.num_outputs);
  product.is_gated = false;
  multiply();
  LaunchShape shape = Overlapping(Blocks(dim, kThreads), kThreads);
  shape.grid.y = static_cast<unsigned>(args.x.shape[0]);
  Launch(device, "Experts: add", shape, AddUpKernel, reinterpret_cast<const float*>(kept.outputs), kept.routed, dim,
         args.write == MatMulArgs::Write::kAdd ? 1 : 0, F32(args.out));
}

}  // namespace

void Experts(const ExpertsArgs& args, ExpertTables& tables, CudaDevice& device) {
  const int64_t num_rows = args.x.shape[0];
  if (!device.ok() || num_rows == 0) return;
  const ExpertTable table = tables.Get(args.experts);
  if (table.rows == nullptr) return;
  const int64_t bytes_of_row = args.routing.num_chosen * args.x.shape[1] * static_cast<int64_t>(sizeof(float));
  const int64_t at_once = std::clamp<int64_t>(kMaxOutputBytes / bytes_of_row, 1, kMaxGridRows);
  for (int64_t begin = 0; begin < num_rows; begin += at_once) {
    const int64_t count = std::min(at_once, num_rows - begin);
    ExpertsArgs some = args;
    some.x = args.x.Rows(begin, count);
    some.logits = args.logits.Rows(begin, count);
    some.out = args.out.Rows(begin, count);
    RunRows(some, table, device);
  }
}

}  // namespace headwise::cuda
