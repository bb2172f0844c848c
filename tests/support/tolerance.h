// The one table of tolerances: how far a result may be from its oracle, by op and number format.
#ifndef HEADWISE_TESTS_SUPPORT_TOLERANCE_H_
#define HEADWISE_TESTS_SUPPORT_TOLERANCE_H_

#include "backend/ops.h"

namespace headwise {

// Attention outputs of N(0,1) values, largest |difference|. The cache's own rounding is the same in both (the oracle
// reads what was stored), so only sums and exp differ in f32; bf16 products round q, k, p and v to 8 bits: 2^-9 relative
// each, on outputs of a few units.
inline double AttentionTolerance(Compute compute) { return compute == Compute::kF32 ? 2e-5 : 4e-2; }

// Logits against float64 goldens, largest |difference| [golden README].
inline constexpr double kTinyLogitsF32 = 1e-4;
inline constexpr double kBundledLogitsF32 = 1e-3;
// f16 keeps 11 bits of keys and values, bf16 8: relative 2^-12 and 2^-9 of logits up to about 20.
inline constexpr double kBundledLogitsKvF16 = 2e-2;
inline constexpr double kBundledLogitsKvBF16 = 2.5e-1;
// bf16 products round every activation to 8 bits.
inline constexpr double kBundledLogitsComputeBF16 = 3.5e-1;

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TOLERANCE_H_
