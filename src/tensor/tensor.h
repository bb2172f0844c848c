// Shapes and views. A TensorView borrows memory that may lie on a device: only a backend dereferences `data`.
#ifndef HEADWISE_TENSOR_TENSOR_H_
#define HEADWISE_TENSOR_TENSOR_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace headwise {

// Up to 4 dimensions, outermost first.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    HW_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
    std::copy(dims.begin(), dims.end(), dims_.begin());
  }

  // Requires: at most kMaxRank dimensions.
  explicit Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
    HW_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
    std::copy(dims.begin(), dims.end(), dims_.begin());
  }

  int rank() const { return rank_; }
  int64_t operator[](int dim) const { return dims_[static_cast<size_t>(dim)]; }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int dim = 0; dim < rank_; ++dim) n *= (*this)[dim];
    return n;
  }
  std::string ToString() const;  // "[2, 64]"

  // Written out, as operations compare shapes thousands of times a step, and the array's own way is a call.
  friend bool operator==(const Shape& a, const Shape& b) {
    int64_t difference = a.rank_ ^ b.rank_;
    for (size_t dim = 0; dim < kMaxRank; ++dim) difference |= a.dims_[dim] ^ b.dims_[dim];
    return difference == 0;
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// A dense row-major array somewhere. Does not own; a default-made view is "absent".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  bool present() const { return data != nullptr; }
  int64_t size_bytes() const { return BytesOf(dtype, shape.num_elements()); }
  // Rows [begin, begin + count) of the outermost dimension.
  TensorView Rows(int64_t begin, int64_t count) const;

  friend bool operator==(const TensorView&, const TensorView&) = default;
};

// The same for memory that must not be written: weights in a mapped file.
struct ConstTensorView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  ConstTensorView() = default;
  ConstTensorView(const void* d, DType t, Shape s) : data(d), dtype(t), shape(s) {}
  ConstTensorView(const TensorView& view)  // NOLINT: implicit, a writable view can always be read
      : data(view.data), dtype(view.dtype), shape(view.shape) {}

  bool present() const { return data != nullptr; }
  int64_t size_bytes() const { return BytesOf(dtype, shape.num_elements()); }
  ConstTensorView Rows(int64_t begin, int64_t count) const;

  friend bool operator==(const ConstTensorView&, const ConstTensorView&) = default;
};

}  // namespace headwise

#endif  // HEADWISE_TENSOR_TENSOR_H_
