#include "grad/linear.h"

#include <type_traits>

#include "backend/cpu/isa.h"
#include "backend/cpu/matmul.h"
#include "base/check.h"
#include "grad/gemm.h"
#include "tensor/blocks.h"

namespace headwise {
namespace {

constexpr int64_t kBlockRows = 128;        // rows of x per product
constexpr int64_t kWidenElements = 65536;  // elements widened per task: whole blocks of every format
constexpr int64_t kTransposeRows = 32;     // rows transposed per task: two cache lines of each column

bool IsPlain(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

class BF16Products {
 public:
  BF16Products(const cpu::MatMulKernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // y [num_rows, N] = or += x [num_rows, K] W^T + b, W [N, K] of a plain format.
  void Run(const WeightMatrix& weight, const ConstTensorView& bias, const float* x, int64_t num_rows, RowWrite write,
           float* y) {
    const MatMulPart part{.weight = weight, .bias = bias, .out = {y, DType::kF32, Shape{num_rows, weight.shape[0]}}};
    cpu::RunMatMul({.x = {x, DType::kF32, Shape{num_rows, weight.shape[1]}},
                    .parts = {&part, 1},
                    .write = write == RowWrite::kAdd ? MatMulArgs::Write::kAdd : MatMulArgs::Write::kStore,
                    .compute = Compute::kBF16},
                   kernels_, pool_, scratch_);
  }

 private:
  const cpu::MatMulKernels& kernels_;
  ThreadPool& pool_;
  cpu::MatMulScratch scratch_;
};

template <typename Real>
LinearRunner<Real>::LinearRunner(ThreadPool& pool, Compute compute, const cpu::KernelTable* kernels) : pool_(&pool) {
  if (compute == Compute::kF32) return;
  constexpr bool kIsFloat = std::is_same_v<Real, float>;
  HW_CHECK(compute == Compute::kBF16 && kIsFloat, "gradients of products in another format");
  if (kernels == nullptr) kernels = cpu::AvailableKernelTables().front();
  bf16_ = std::make_unique<BF16Products>(kernels->matmul, pool);
}

template <typename Real>
LinearRunner<Real>::~LinearRunner() = default;

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
void LinearRunner<Real>::Reserve(int64_t num_elements) {
  if (num_widened() < num_elements) widened_.resize(static_cast<size_t>(num_elements));
}

template <typename Real>
const Real* LinearRunner<Real>::Widen(const ConstTensorView& weight) {
  if constexpr (std::is_same_v<Real, float>) {
    if (weight.dtype == DType::kF32) return static_cast<const float*>(weight.data);
  }
  const int64_t size = weight.shape.num_elements();
  Reserve(size);
  pool_->ParallelFor((size + kWidenElements - 1) / kWidenElements, [&](int64_t task, int) {
    const int64_t begin = task * kWidenElements;
    WidenElements(weight, begin, std::min(kWidenElements, size - begin), widened_.data() + begin);
  });
  return widened_.data();
}

// [K, M] of a weight [M, K].
template <typename Real>
const Real* LinearRunner<Real>::WidenTransposed(const ConstTensorView& weight) {
  const int64_t num_rows = weight.shape[0];
  const int64_t num_columns = weight.shape[1];
  Reserve(weight.shape.num_elements());
  pool_->ParallelFor((num_rows + kTransposeRows - 1) / kTransposeRows, [&](int64_t task, int) {
    const int64_t begin = task * kTransposeRows;
    const int64_t rows = std::min(kTransposeRows, num_rows - begin);
    std::vector<Real> widened(static_cast<size_t>(rows * num_columns));
    WidenElements(weight, begin * num_columns, rows * num_columns, widened.data());
    for (int64_t column = 0; column < num_columns; ++column) {
      Real* to = widened_.data() + column * num_rows + begin;
      for (int64_t row = 0; row < rows; ++row) to[row] = widened[static_cast<size_t>(row * num_columns + column)];
    }
  });
  return widened_.data();
}

template <typename Real>
void LinearRunner<Real>::Forward(const LinearWeights& linear, const Real* x, int64_t num_rows, RowWrite write,
                                 Real* y) {
  if constexpr (std::is_same_v<Real, float>) {
    if (bf16_ != nullptr) {
      const ConstTensorView rows = linear.weight.rows();
      const WeightMatrix plain =
          IsPlain(rows.dtype) ? linear.weight : ConstTensorView{Widen(rows), DType::kF32, rows.shape};
      return bf16_->Run(plain, linear.bias, x, num_rows, write, y);
    }
  }
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
  if constexpr (std::is_same_v<Real, float>) {
    if (bf16_ != nullptr) {
      const ConstTensorView rows = linear.weight.rows();
      const ConstTensorView transposed{WidenTransposed(rows), DType::kF32, Shape{rows.shape[1], rows.shape[0]}};
      return bf16_->Run(transposed, /*bias=*/{}, d_y, num_rows, write, d_x);
    }
  }
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
