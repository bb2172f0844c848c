// A matrix of weights as a handle: what its numbers are, and the planes that hold them. In a file and wherever nobody
// reordered it, it is its rows, one plane. A backend that adopts it may give it an order and planes of its own (codes
// here, scales there), which nobody else can read.
#ifndef HEADWISE_TENSOR_WEIGHT_MATRIX_H_
#define HEADWISE_TENSOR_WEIGHT_MATRIX_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace headwise {

// Does not own; a default-made one is "absent". Its planes lie in host memory before a backend adopts it, in the
// backend's memory afterwards.
struct WeightMatrix {
  enum class Order : uint8_t {
    kRows,      // one plane: rows of numbers or of blocks, one behind the other
    kBackend,   // what AdoptWeights of one backend made
    kOnDemand,  // rows, of an expert that one backend brings into its order when it is chosen (DeferExpert)
  };
  static constexpr size_t kMaxPlanes = 3;

  DType dtype = DType::kF32;  // of its numbers: f32, f16, bf16 or a block format
  Order order = Order::kRows;
  Shape shape;  // [N, K]
  std::array<const void*, kMaxPlanes> planes{};

  WeightMatrix() = default;
  WeightMatrix(const ConstTensorView& rows)  // NOLINT: implicit, any view of rows is one
      : dtype(rows.dtype), shape(rows.shape), planes{rows.data} {}

  bool present() const { return planes[0] != nullptr; }
  // As rows. An order of a backend's own may pad them.
  int64_t size_bytes() const { return BytesOf(dtype, shape.num_elements()); }
  // Its rows where they lie. Requires: order kRows.
  ConstTensorView rows() const {
    HW_CHECK(order == Order::kRows, "a matrix in a backend's own order has no rows to read");
    return {planes[0], dtype, shape};
  }

  friend bool operator==(const WeightMatrix&, const WeightMatrix&) = default;
};

// y = x W^T + b.
struct LinearWeights {
  WeightMatrix weight;   // [N, K]
  ConstTensorView bias;  // [N] f32, or absent
};

}  // namespace headwise

#endif  // HEADWISE_TENSOR_WEIGHT_MATRIX_H_
