// What a handful of cases can and cannot tell: confidence intervals of rates and means, and the comparison of two
// plans on the same cases.
#ifndef HEADWISE_EVAL_STATISTICS_H_
#define HEADWISE_EVAL_STATISTICS_H_

#include <cstdint>
#include <span>

namespace headwise {

// Both ends belong to it. Everything here is at 95 %.
struct Interval {
  double low = 0;
  double high = 0;
};

// Of a rate, by Wilson's score: it never leaves [0, 1] and is sensible at 0 and `total` of `total`. Requires: 0 <=
// successes <= total, total >= 1.
Interval WilsonInterval(int64_t successes, int64_t total);

// Of a mean, by the percentile bootstrap: 2,000 resamples with replacement, the same ones at every call. The ends are
// the lowest and the highest mean that remain when the 50 lowest and the 50 highest are put aside (2.5 % each); nothing
// is interpolated. One value gives an interval of that value. Requires: at least one value, all finite.
Interval BootstrapMeanInterval(std::span<const double> values);

// a - b over pairs that belong to the same case.
struct PairedComparison {
  int64_t num_pairs = 0;
  int64_t num_higher = 0;  // pairs in which a is above b
  int64_t num_lower = 0;   // pairs in which a is below b
  double mean_difference = 0;
  Interval interval;  // of the mean difference, by the percentile bootstrap over pairs
  // Two-sided exact sign test over the pairs that differ; for rates that is McNemar's exact test. 1 where none differs.
  double p_value = 1;
};
// Requires: as many values in a as in b, at least one, all finite.
PairedComparison ComparePaired(std::span<const double> a, std::span<const double> b);

// The same for means of logarithms: of two perplexities, say. `mean_difference` and the interval are those of
// exp(mean ln a) - exp(mean ln b), pairs drawn together. Requires also: all above 0.
PairedComparison ComparePairedGeometrically(std::span<const double> a, std::span<const double> b);
// exp of BootstrapMeanInterval of the logarithms. Requires: at least one value, all finite and above 0.
Interval BootstrapGeometricMeanInterval(std::span<const double> values);
double GeometricMean(std::span<const double> values);

}  // namespace headwise

#endif  // HEADWISE_EVAL_STATISTICS_H_
