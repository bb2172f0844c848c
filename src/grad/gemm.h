// Matrix products in f32 and f64 for gradients: a thin seam over a BLAS, so that one template serves both precisions
// and another library (cuBLAS) can take its place.
#ifndef HEADWISE_GRAD_GEMM_H_
#define HEADWISE_GRAD_GEMM_H_

#include <cstdint>
#include <string>

namespace headwise {

enum class Transpose { kNo, kYes };

// c = alpha * op(a) op(b) + beta * c, row-major. op(a) is [m, k], op(b) [k, n], c [m, n]; strides are elements between
// rows of the stored matrices. beta = 0 overwrites c, whatever it held.
template <typename Real>
struct GemmArgs {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Real alpha = 1;
  const Real* a = nullptr;
  int64_t a_stride = 0;
  const Real* b = nullptr;
  int64_t b_stride = 0;
  Real beta = 0;
  Real* c = nullptr;
  int64_t c_stride = 0;
};

// Runs on the calling thread alone: callers cut their work into pieces that do not depend on the number of threads.
// Thread-safe. Requires: m, n, k >= 1.
void Gemm(const GemmArgs<float>& args);
void Gemm(const GemmArgs<double>& args);

// The library and its kernels on this machine: "OpenBLAS SkylakeX".
std::string BlasName();

}  // namespace headwise

#endif  // HEADWISE_GRAD_GEMM_H_
