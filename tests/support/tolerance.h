// The one table of tolerances: how far a result may be from its oracle, by op and number format.
#ifndef HEADWISE_TESTS_SUPPORT_TOLERANCE_H_
#define HEADWISE_TESTS_SUPPORT_TOLERANCE_H_

#include "backend/ops.h"

namespace headwise {

// Attention outputs of N(0,1) values, largest |difference|. In f32 only sums and exp differ. With 16-bit pages a key
// that is rotated in float rather than double can round to the neighbouring number: 2^-10 (f16) or 2^-7 (bf16) of one
// element, times |q| / sqrt(D). bf16 products round q, k, p and v to 8 bits each, on outputs of a few units.
inline double AttentionTolerance(KvFormat kv_format, Compute compute) {
  if (compute == Compute::kBF16) return 4e-2;
  return kv_format == KvFormat::kF32 ? 2e-5 : kv_format == KvFormat::kF16 ? 5e-4 : 4e-3;
}

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
