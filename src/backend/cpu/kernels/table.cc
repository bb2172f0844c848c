// This instruction set's kernels as one table.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/kernels.h"

#define HW_STRINGIFY_INNER(x) #x
#define HW_STRINGIFY(x) HW_STRINGIFY_INNER(x)

namespace headwise::cpu::HW_ISA {

extern const MatMulKernels kMatMulKernels;

extern const KernelTable kKernelTable;
const KernelTable kKernelTable = {
    .isa = HW_STRINGIFY(HW_ISA),
    .matmul = kMatMulKernels,
    .attention =
        {.append = Append, .decode = Decode, .prefill = Prefill, .fold = Fold, .has_bf16_dot = kPrefillHasBF16Dot},
    .elementwise = {.norm_row = NormRow,
                    .rope_row = RopeRow,
                    .gated_silu = GatedSilu,
                    .gelu = Gelu,
                    .gelu_tanh = GeluTanh,
                    .clamp = ClampRow},
};

}  // namespace headwise::cpu::HW_ISA
