// The runs' figures for other programs and for documents.
#ifndef HEADWISE_REPORT_TABLES_H_
#define HEADWISE_REPORT_TABLES_H_

#include <string>
#include <vector>

#include "report/report_run.h"

namespace headwise {

// One row per cell, comma-separated with a header: task, plan, method, kv_ratio, length ("all": over all lengths),
// metric, count, mean, low, high, kv_bytes, kv_peak_bytes, model.
std::string ToCsv(const std::vector<ReportRun>& runs);

// A summary table (plans by tasks) per model, and one table per run (plans by lengths).
std::string ToMarkdown(const std::vector<ReportRun>& runs);

}  // namespace headwise

#endif  // HEADWISE_REPORT_TABLES_H_
