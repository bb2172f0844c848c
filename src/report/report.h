// The evaluation report: one HTML file about any number of runs.
#ifndef HEADWISE_REPORT_REPORT_H_
#define HEADWISE_REPORT_REPORT_H_

#include <string>
#include <vector>

#include "report/report_run.h"

namespace headwise {

// A pure function of the runs: the same runs give the same bytes.
std::string RenderReport(const std::vector<ReportRun>& runs);

}  // namespace headwise

#endif  // HEADWISE_REPORT_REPORT_H_
