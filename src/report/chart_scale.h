// From values to places along an axis, and which values deserve a tick.
#ifndef HEADWISE_REPORT_CHART_SCALE_H_
#define HEADWISE_REPORT_CHART_SCALE_H_

#include <vector>

namespace headwise {

enum class ScaleKind { kLinear, kLog };

// About `wanted` values at steps of 1, 2 or 5 times a power of ten, all within [least, most]. Requires: finite, least <
// most, wanted >= 1.
std::vector<double> LinearTicks(double least, double most, int wanted);
// Powers of ten within [least, most], and between them as many round values as there is room for; linear ones where
// fewer than three of those lie inside. Requires: 0 < least < most, finite, wanted >= 1.
std::vector<double> LogTicks(double least, double most, int wanted);

class Scale {
 public:
  // [least, most] lies on [from, to], which may run backwards. Requires: least < most, both positive under kLog.
  Scale(ScaleKind kind, double least, double most, double from, double to);

  double least() const { return least_; }
  double most() const { return most_; }
  // Requires: value > 0 under kLog.
  double At(double value) const;
  std::vector<double> Ticks(int wanted) const;

 private:
  ScaleKind kind_;
  double least_;
  double most_;
  double from_;
  double to_;
};

}  // namespace headwise

#endif  // HEADWISE_REPORT_CHART_SCALE_H_
