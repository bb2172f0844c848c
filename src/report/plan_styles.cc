#include "report/plan_styles.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace headwise {
namespace {

// In the order of the page's colours.
constexpr const char* kMethods[] = {"full", "duo",     "streaming", "zigzag", "razor",
                                    "moa",  "profile", "random",    "uniform"};
constexpr int kNumMethods = static_cast<int>(std::size(kMethods));

int IndexOf(const std::vector<std::string>& names, const std::string& name) {
  return static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin());
}

}  // namespace

std::string PlanFamily(const PlanInfo& plan) {
  const size_t at = plan.name.rfind('@');
  return plan.kv_ratio && at != std::string::npos && at > 0 ? plan.name.substr(0, at) : plan.name;
}

PlanStyles::PlanStyles(const std::vector<PlanInfo>& plans) {
  for (int i = 0; i < kNumMethods; ++i) slots_[kMethods[i]] = i;
  int next = kNumMethods;
  for (const PlanInfo& plan : plans) {
    if (slots_.try_emplace(plan.method, next).second) ++next;
    std::vector<std::string>& families = families_[plan.method];
    const std::string family = PlanFamily(plan);
    if (std::find(families.begin(), families.end(), family) == families.end()) families.push_back(family);
    if (plan.kv_ratio) ratios_.push_back(*plan.kv_ratio);
  }
  std::sort(ratios_.begin(), ratios_.end(), std::greater<>());
  ratios_.erase(std::unique(ratios_.begin(), ratios_.end()), ratios_.end());
}

SeriesStyle PlanStyles::Of(const PlanInfo& plan) const {
  const auto slot = slots_.find(plan.method);
  const auto families = families_.find(plan.method);
  if (slot == slots_.end() || families == families_.end()) return {};
  const int family = IndexOf(families->second, PlanFamily(plan));
  const auto ratio = plan.kv_ratio ? std::find(ratios_.begin(), ratios_.end(), *plan.kv_ratio) : ratios_.begin();
  const int ratio_rank = static_cast<int>(ratio - ratios_.begin());
  return {.colour = slot->second % SeriesStyle::kNumColours,
          .shape = (slot->second + family) % SeriesStyle::kNumShapes,
          .dash = (ratio_rank + family) % SeriesStyle::kNumDashes,
          .shade = family % SeriesStyle::kNumShades};
}

}  // namespace headwise
