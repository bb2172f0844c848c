#include "grad/gemm.h"

#include <cblas.h>
#include <fmt/format.h>

#include <algorithm>

namespace headwise {
namespace {

// OpenBLAS spreads a large product over threads of its own; ours are already running, and how many it may use is a
// setting of the whole process, which is not a library's to change. So a product is done in pieces that it computes on
// the calling thread whatever that setting is: up to 2^18 multiply-adds (SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD
// in its interface/gemm.c). It also makes results independent of the setting. A build of OpenBLAS with another
// threshold gives the same numbers, slower where its threads join in. These pieces are the best of those tried on a Zen
// 5: 128 x 4096 x 2048 in f32 runs at 94 GFLOP/s, in one piece at 105; 128 x 1024 x 256 at 97 and 113.
constexpr int64_t kPieceRows = 128;
constexpr int64_t kPieceColumns = 64;
constexpr int64_t kPieceDepth = 32;

CBLAS_TRANSPOSE ToCblas(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

// Elements from the beginning of a stored matrix to where (row, column) of op(matrix) lies.
int64_t OffsetOf(Transpose transpose, int64_t row, int64_t column, int64_t stride) {
  return transpose == Transpose::kYes ? column * stride + row : row * stride + column;
}

template <typename Real, typename Function>
void Call(const GemmArgs<Real>& args, Function function) {
  for (int64_t row = 0; row < args.m; row += kPieceRows) {
    for (int64_t column = 0; column < args.n; column += kPieceColumns) {
      for (int64_t depth = 0; depth < args.k; depth += kPieceDepth) {
        function(CblasRowMajor, ToCblas(args.transpose_a), ToCblas(args.transpose_b),
                 static_cast<blasint>(std::min(kPieceRows, args.m - row)),
                 static_cast<blasint>(std::min(kPieceColumns, args.n - column)),
                 static_cast<blasint>(std::min(kPieceDepth, args.k - depth)), args.alpha,
                 args.a + OffsetOf(args.transpose_a, row, depth, args.a_stride), static_cast<blasint>(args.a_stride),
                 args.b + OffsetOf(args.transpose_b, depth, column, args.b_stride), static_cast<blasint>(args.b_stride),
                 depth == 0 ? args.beta : Real{1}, args.c + row * args.c_stride + column,
                 static_cast<blasint>(args.c_stride));
      }
    }
  }
}

}  // namespace

void Gemm(const GemmArgs<float>& args) {
  Call(args, cblas_sgemm);
}

void Gemm(const GemmArgs<double>& args) {
  Call(args, cblas_dgemm);
}

std::string BlasName() {
  return fmt::format("OpenBLAS {}", openblas_get_corename());
}

}  // namespace headwise
