// What the kernels of mixtures of experts share: who goes where, and the products' arguments.
//
// A slot is a place of a row's choice, t * num_chosen + i. Whatever is made for a row's expert lies at its slot, so
// that nothing is put in order but the numbers of slots themselves.
#ifndef HEADWISE_BACKEND_CUDA_EXPERTS_CUH_
#define HEADWISE_BACKEND_CUDA_EXPERTS_CUH_

#include <optional>

#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_device.h"
#include "backend/cuda/expert_tables.h"
#include "backend/cuda/launch.cuh"
#include "backend/ops.h"

namespace headwise::cuda {

// What routing leaves in scratch memory for T rows of X experts, k of them each.
struct RoutedRows {
  int32_t* chosen;    // [T * k]: the slot's expert
  float* weights;     // [T * k]: and what its output is multiplied by
  int32_t* slots;     // [T * k]: those of an expert side by side, in the order of rows
  int32_t* first;     // [X + 1]: where in `slots` an expert's begin
  int32_t* used;      // [X]: experts that somebody chose
  int32_t* num_used;  // [1]; `used` and this are there for few rows alone (kMaxRoutedAtOnce)
  int num_rows, num_experts, num_chosen;
};
// Rows that one block routes and sorts, of which products read the weights once.
inline constexpr int kMaxRoutedAtOnce = 32;

// `logits`, `bias` and what routing says. Two launches, or one of up to kMaxRoutedAtOnce rows.
void RouteRows(const ExpertsArgs& args, const RoutedRows& routed, CudaDevice& device);

// A product with the matrices of each slot's expert, of which one row of x and one of out belong to a slot.
struct ExpertsProduct {
  const ExpertRow* experts;  // [X]
  RoutedRows routed;
  const void* x;           // [T, K] where gated, else [T * k, K]: f32, by tensor cores bf16
  void* out;               // [T * k, N]: f32, by tensor cores and gated bf16
  int depth, num_outputs;  // K, N
  bool is_gated;           // out = act(gate) * up, else of down
  int64_t activation;      // ActivateArgs::Kind
  bool rounds_bf16;        // operands, as Compute::kBF16 says

  __device__ int64_t RowOfX(int slot) const { return is_gated ? slot / routed.num_chosen : slot; }
};

__device__ inline float ActivatedAs(int64_t kind, float gate, float x) {
  using Kind = ActivateArgs::Kind;
  switch (static_cast<Kind>(kind)) {
    case Kind::kGatedGeluTanh:
      return GeluTanh(gate) * x;
    case Kind::kGatedSiluClamped:
      return ClampedSilu(gate, x);
    default:
      return Silu(gate) * x;
  }
}

// Of rows of any number and length, and weights of any format: of `dtype` all of them, or of several.
void AnyExpertsProduct(const ExpertsProduct& product, std::optional<DType> dtype, CudaDevice& device);
// bf16 weights, where K and the number of rows fit.
bool HasFewExpertsRows(int64_t num_rows, int64_t depth);
void FewRowsExpertsProduct(const ExpertsProduct& product, CudaDevice& device);
// The same of weights in block formats in integer products, with memory for x as bytes.
bool HasFewExpertsRowsInBlocks(int64_t num_rows, DType dtype, Compute compute);
int64_t RoundedBytes(int64_t num_slots, int64_t depth, DType dtype);
void FewRowsExpertsProductInBlocks(const ExpertsProduct& product, DType dtype, void* rounded, CudaDevice& device);
// By tensor cores in bf16, any number of rows, of weights of one format; K and N are multiples of 8.
void ManyRowsExpertsProduct(const ExpertsProduct& product, DType dtype, CudaDevice& device);

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_EXPERTS_CUH_
