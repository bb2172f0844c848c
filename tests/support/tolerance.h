// The one table of tolerances: how far a result may be from its oracle, by op and number format.
#ifndef HEADWISE_TESTS_SUPPORT_TOLERANCE_H_
#define HEADWISE_TESTS_SUPPORT_TOLERANCE_H_

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "backend/ops.h"

namespace headwise {

// The larger of what was the worst so far and |a - b|; infinity, which no bound allows, where that is not finite
// (std::max passes over what is no number).
inline double Worse(double worst, double a, double b) {
  const double difference = std::abs(a - b);
  return std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
}
// The same of whole rows of numbers; infinity also where they are not as many, or none.
template <typename A, typename B>
double MaxDifference(const A& a, const B& b) {
  if (std::size(a) != std::size(b) || std::empty(a)) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < std::size(a); ++i) worst = Worse(worst, a[i], b[i]);
  return worst;
}

// Attention outputs of N(0,1) values, largest |difference|. In f32 only sums and exp differ. With 16-bit pages a key
// that is rotated in float rather than double can round to the neighbouring number: 2^-10 (f16) or 2^-7 (bf16) of one
// element, times |q| / sqrt(D). bf16 products round q, k, p and v to 8 bits each, on outputs of a few units.
// q8: keys and values are the same numbers everywhere, but for a code that flips as above, by 1/127 of the row's
// largest. Decode rounds q to steps of max|q| / 127 and p to 1/127 of the largest of 64. So a score errs by up to
// 4 sigma = 4 * (3.5 / 127 / sqrt(12)) |k| / sqrt(D) = 0.03, an output of two keys by a quarter of that times
// |v1 - v2| <= 6, and by half a step of p, 1/254, times |v| <= 4.
// q4: the same, as aged pages hold the same numbers everywhere too. A q8 code that flips can move scale and low of what
// it shares them with by no more than its own step.
inline double AttentionTolerance(KvFormat kv_format, Compute compute) {
  if (NewestFormat(kv_format) == KvFormat::kQ8) return 6.5e-2;
  if (compute == Compute::kBF16) return 4e-2;
  return kv_format == KvFormat::kF32 ? 2e-5 : kv_format == KvFormat::kF16 ? 5e-4 : 4e-3;
}

inline double AttentionTolerance(const KvFormats& formats, Compute compute) {
  return std::max(AttentionTolerance(formats.full, compute), AttentionTolerance(formats.bounded, compute));
}

// Four roundings of f32, as a share of what is rounded.
inline constexpr double kElementwiseRounding = 0x1p-22;

// A normed row before its weight, largest |difference|: sums of up to 300 squares and the root round to 2^-20 of the
// result. Of a mean that is subtracted as much of the row's largest number, magnified as that number is: rows that are
// nearly constant lose digits.
inline double NormTolerance(NormArgs::Kind kind, std::span<const float> row, double eps) {
  double mean = 0, variance = 0, largest = 0;
  for (const float x : row) mean += x / static_cast<double>(row.size());
  if (kind == NormArgs::Kind::kRms) mean = 0;
  for (const float x : row) {
    variance += (x - mean) * (x - mean) / static_cast<double>(row.size());
    largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  return 0x1p-20 * largest / std::sqrt(variance + eps);
}

// silu: e^gate has a relative error of |gate| 1e-7, and where it is beyond f32 the result is below 1e-30 anyway. gelu
// is x times a number from 0 to 1 that rounds like 1.
inline double ActivateTolerance(ActivateArgs::Kind kind, double input, double expected) {
  if (kind != ActivateArgs::Kind::kGatedSilu) return kElementwiseRounding * std::abs(input);
  return (kElementwiseRounding + 1.5e-7 * std::min(88.0, std::abs(input))) * std::abs(expected) + 1e-30;
}

// Logits against float64 goldens, largest |difference| [golden README].
inline constexpr double kTinyLogitsF32 = 1e-4;
inline constexpr double kBundledLogitsF32 = 1e-3;
// f16 keeps 11 bits of keys and values, bf16 8: relative 2^-12 and 2^-9 of logits up to about 20.
inline constexpr double kBundledLogitsKvF16 = 2e-2;
inline constexpr double kBundledLogitsKvBF16 = 2.5e-1;
// q8 rounds to 1/254 of a row's largest number, bf16 to 1/512 of each: the largest is some 3 times the usual one.
inline constexpr double kBundledLogitsKvQ8 = 7.5e-1;
// q4 rounds aged tokens to 1/30 of what 32 numbers span (pages of 32 tokens), some 4 of their deviations, where q8
// rounds to 1/254 of the largest number of a row, outliers included: a few times the error on most of a text, none on
// the newest tokens.
inline constexpr double kBundledLogitsKvQ4 = 1.0;
// bf16 products round every activation to 8 bits.
inline constexpr double kBundledLogitsComputeBF16 = 3.5e-1;

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TOLERANCE_H_
