#include "report/chart_scale.h"

#include <cmath>
#include <span>

namespace headwise {
namespace {

// 1, 2 or 5 times a power of ten, at least `step`.
double NiceStep(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::vector<double> DecadeTicks(double least, double most, std::span<const double> factors) {
  std::vector<double> ticks;
  const int last = static_cast<int>(std::floor(std::log10(most)));
  for (int exponent = static_cast<int>(std::floor(std::log10(least))); exponent <= last; ++exponent) {
    for (const double factor : factors) {
      const double tick = factor * std::pow(10.0, exponent);
      if (tick >= least * (1 - 1e-9) && tick <= most * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

}  // namespace

std::vector<double> LinearTicks(double least, double most, int wanted) {
  const double step = NiceStep((most - least) / wanted);
  std::vector<double> ticks;
  const double slack = step * 1e-9;
  for (double index = std::ceil((least - slack) / step); index * step <= most + slack; ++index) {
    ticks.push_back(index == 0 ? 0.0 : index * step);  // never "-0"
  }
  return ticks;
}

std::vector<double> LogTicks(double least, double most, int wanted) {
  static constexpr double kFine[] = {1, 1.5, 2, 3, 4, 5, 7};
  static constexpr double kCoarse[] = {1, 2, 5};
  static constexpr double kDecades[] = {1};
  for (const std::span<const double> factors : {std::span<const double>(kFine), std::span<const double>(kCoarse)}) {
    std::vector<double> ticks = DecadeTicks(least, most, factors);
    if (ticks.size() < 3) return LinearTicks(least, most, wanted);
    if (static_cast<int>(ticks.size()) <= wanted + 1) return ticks;
  }
  const std::vector<double> decades = DecadeTicks(least, most, kDecades);
  const size_t stride = (decades.size() + static_cast<size_t>(wanted) - 1) / static_cast<size_t>(wanted);
  std::vector<double> ticks;
  for (size_t i = 0; i < decades.size(); i += stride) ticks.push_back(decades[i]);
  return ticks;
}

Scale::Scale(ScaleKind kind, double least, double most, double from, double to)
    : kind_(kind), least_(least), most_(most), from_(from), to_(to) {}

double Scale::At(double value) const {
  const double share = kind_ == ScaleKind::kLog ? std::log(value / least_) / std::log(most_ / least_)
                                                : (value - least_) / (most_ - least_);
  return from_ + share * (to_ - from_);
}

std::vector<double> Scale::Ticks(int wanted) const {
  return kind_ == ScaleKind::kLog ? LogTicks(least_, most_, wanted) : LinearTicks(least_, most_, wanted);
}

}  // namespace headwise
