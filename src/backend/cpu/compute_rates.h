// Which number format products are fastest in on this machine, for `--compute auto`. That a processor has an
// instruction does not make it fast: bf16 dot products were measured at twice the rate of f32 multiply-adds on AMD's
// Zen 5, and at half of it on an Intel Xeon.
#ifndef HEADWISE_BACKEND_CPU_COMPUTE_RATES_H_
#define HEADWISE_BACKEND_CPU_COMPUTE_RATES_H_

#include "backend/cpu/kernels/kernels.h"

namespace headwise::cpu {

// Operations per second on the registers of one core; a multiply-add is two.
struct ComputeRates {
  double f32_flops = 0;
  double bf16_dot_flops = 0;  // 0 where the instruction set has no bf16 dot product
};

// Both of one moment, that of the median ratio of several: neither is the machine's peak. Takes some 2 milliseconds.
ComputeRates MeasureComputeRates(const KernelTable& kernels);

// Whether matrix products gain by bf16 dots: they must be clearly faster, because rounding to bf16 costs digits and
// time.
bool Bf16Pays(const ComputeRates& rates);

// Bf16Pays of this machine, measured when first asked: the same answer for the life of the process. Thread-safe.
bool HasFastBf16(const KernelTable& kernels);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_COMPUTE_RATES_H_
