// How a plan looks wherever it is drawn: its method's colour, which is the same in every report, and a shade, a shape
// and a dash pattern that tell the budgets and files of one method apart.
#ifndef HEADWISE_REPORT_PLAN_STYLES_H_
#define HEADWISE_REPORT_PLAN_STYLES_H_

#include <map>
#include <string>
#include <vector>

#include "eval/run_data.h"

namespace headwise {

struct SeriesStyle {
  static constexpr int kNumColours = 10;  // --p0 ... in the page's style
  static constexpr int kNumShades = 6;    // of each colour: .v0 ...
  static constexpr int kNumShapes = 8;
  static constexpr int kNumDashes = 6;

  int colour = 0;
  int shape = 0;
  int dash = 0;
  int shade = 0;
};

// A plan's name without the budget it was re-planned to: "duo" of "duo@0.25".
std::string PlanFamily(const PlanInfo& plan);

class PlanStyles {
 public:
  // Plans are seen in this order: methods without a colour of their own take the free ones in turn.
  explicit PlanStyles(const std::vector<PlanInfo>& plans);

  SeriesStyle Of(const PlanInfo& plan) const;

 private:
  std::map<std::string, int> slots_;                          // by method
  std::map<std::string, std::vector<std::string>> families_;  // by method
  std::vector<double> ratios_;                                // descending
};

}  // namespace headwise

#endif  // HEADWISE_REPORT_PLAN_STYLES_H_
