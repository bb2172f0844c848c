// What one instruction set offers: tables of plain functions, filled in by kernels/*.cc, which are compiled once per
// instruction set (CMakeLists.txt). Only plain structs and pointers cross this border: a std:: template compiled there
// would be a weak symbol with that set's instructions in it.
//
// Kernels run on one thread, check nothing, and get memory from the caller.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_KERNELS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_KERNELS_H_

#include "backend/cpu/kernels/attention_kernels.h"
#include "backend/cpu/kernels/elementwise_kernels.h"
#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/peak_kernels.h"
#include "backend/cpu/kernels/softmax_kernels.h"

namespace headwise::cpu {

struct KernelTable {
  const char* isa;  // "amx", "avx512", "avx2", "baseline", "amx_emulated"
  MatMulKernels matmul;
  AttentionKernels attention;
  ElementwiseKernels elementwise;
  SoftmaxKernels softmax;
  PeakKernels peak;
};

namespace baseline {
extern const KernelTable kKernelTable;
}
// The kernels of amx in what every machine has, for tests: see tiles-inl.h.
namespace amx_emulated {
extern const KernelTable kKernelTable;
}
#if defined(HEADWISE_X86)
namespace avx2 {
extern const KernelTable kKernelTable;
}
namespace avx512 {
extern const KernelTable kKernelTable;
}
namespace amx {
extern const KernelTable kKernelTable;
}
#endif

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KERNELS_KERNELS_H_
