#include "grad/gemm.h"

#include <cblas.h>

namespace headwise {
namespace {

// OpenBLAS would start threads of its own for every product; ours are already running.
void UseOneThread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

CBLAS_TRANSPOSE ToCblas(Transpose transpose) {
  return transpose == Transpose::kYes ? CblasTrans : CblasNoTrans;
}

template <typename Real, typename Function>
void Call(const GemmArgs<Real>& args, Function function) {
  UseOneThread();
  function(CblasRowMajor, ToCblas(args.transpose_a), ToCblas(args.transpose_b), static_cast<blasint>(args.m),
           static_cast<blasint>(args.n), static_cast<blasint>(args.k), args.alpha, args.a,
           static_cast<blasint>(args.a_stride), args.b, static_cast<blasint>(args.b_stride), args.beta, args.c,
           static_cast<blasint>(args.c_stride));
}

}  // namespace

void Gemm(const GemmArgs<float>& args) {
  Call(args, cblas_sgemm);
}

void Gemm(const GemmArgs<double>& args) {
  Call(args, cblas_dgemm);
}

}  // namespace headwise
