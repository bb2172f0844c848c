#include "grad/linear.h"

#include <type_traits>

#include "grad/gemm.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

constexpr int64_t kBlockRows = 128;        // rows of x per product
constexpr int64_t kWidenElements = 65536;  // elements widened per task: whole blocks of every format

}  // namespace

template <typename Real>
void WidenElements(const ConstTensorView& tensor, int64_t begin, int64_t count, Real* out) {
  switch (tensor.dtype) {
    case DType::kF32: {
      const auto* data = static_cast<const float*>(tensor.data) + begin;
      for (int64_t i = 0; i < count; ++i) out[i] = Real{data[i]};
      return;
    }
    case DType::kBF16: {
      const auto* data = static_cast<const uint16_t*>(tensor.data) + begin;
      for (int64_t i = 0; i < count; ++i) out[i] = Real{BF16ToF32(data[i])};
      return;
    }
    default: {
      const auto* data = static_cast<const std::byte*>(tensor.data) + BytesOf(tensor.dtype, begin);
      std::vector<float> values(static_cast<size_t>(count));
      ToF32(tensor.dtype, data, count, values.data());
      for (int64_t i = 0; i < count; ++i) out[i] = Real{values[static_cast<size_t>(i)]};
    }
  }
}

template <typename Real>
const Real* LinearRunner<Real>::Widen(const ConstTensorView& weight) {
  if constexpr (std::is_same_v<Real, float>) {
    if (weight.dtype == DType::kF32) return static_cast<const float*>(weight.data);
  }
  const int64_t size = weight.shape.num_elements();
  if (static_cast<int64_t>(widened_.size()) < size) widened_.resize(static_cast<size_t>(size));
  pool_->ParallelFor((size + kWidenElements - 1) / kWidenElements, [&](int64_t task, int) {
    const int64_t begin = task * kWidenElements;
    WidenElements(weight, begin, std::min(kWidenElements, size - begin), widened_.data() + begin);
  });
  return widened_.data();
}

template <typename Real>
void LinearRunner<Real>::Forward(const LinearWeights& linear, const Real* x, int64_t num_rows, RowWrite write,
                                 Real* y) {
  const int64_t outputs = linear.weight.shape[0];
  const int64_t inputs = linear.weight.shape[1];
  const Real* weight = Widen(linear.weight.rows());
  const auto* bias = static_cast<const float*>(linear.bias.data);
  pool_->ParallelFor((num_rows + kBlockRows - 1) / kBlockRows, [&](int64_t task, int) {
    const int64_t begin = task * kBlockRows;
    const int64_t rows = std::min(kBlockRows, num_rows - begin);
    Gemm(GemmArgs<Real>{.transpose_b = Transpose::kYes,
                        .m = rows,
                        .n = outputs,
                        .k = inputs,
                        .a = x + begin * inputs,
                        .a_stride = inputs,
                        .b = weight,
                        .b_stride = inputs,
                        .beta = write == RowWrite::kAdd ? Real{1} : Real{0},
                        .c = y + begin * outputs,
                        .c_stride = outputs});
    if (bias == nullptr) return;
    for (int64_t row = begin; row < begin + rows; ++row) {
      for (int64_t i = 0; i < outputs; ++i) y[row * outputs + i] += Real{bias[i]};
    }
  });
}

template <typename Real>
void LinearRunner<Real>::Backward(const LinearWeights& linear, const Real* d_y, int64_t num_rows, RowWrite write,
                                  Real* d_x) {
  const int64_t outputs = linear.weight.shape[0];
  const int64_t inputs = linear.weight.shape[1];
  const Real* weight = Widen(linear.weight.rows());
  pool_->ParallelFor((num_rows + kBlockRows - 1) / kBlockRows, [&](int64_t task, int) {
    const int64_t begin = task * kBlockRows;
    Gemm(GemmArgs<Real>{.m = std::min(kBlockRows, num_rows - begin),
                        .n = inputs,
                        .k = outputs,
                        .a = d_y + begin * outputs,
                        .a_stride = outputs,
                        .b = weight,
                        .b_stride = inputs,
                        .beta = write == RowWrite::kAdd ? Real{1} : Real{0},
                        .c = d_x + begin * inputs,
                        .c_stride = inputs});
  });
}

template void WidenElements(const ConstTensorView&, int64_t, int64_t, float*);
template void WidenElements(const ConstTensorView&, int64_t, int64_t, double*);
template class LinearRunner<float>;
template class LinearRunner<double>;

}  // namespace headwise
