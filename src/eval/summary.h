// Results gathered into cells: one per plan, length and metric, each with its interval, and every plan compared with
// the first on the same cases.
#ifndef HEADWISE_EVAL_SUMMARY_H_
#define HEADWISE_EVAL_SUMMARY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eval/run_data.h"
#include "eval/statistics.h"

namespace headwise {

struct Cell {
  std::string plan;
  std::optional<int64_t> length;  // none: over all lengths
  std::string metric;             // MetricInfo::name
  int64_t count = 0;              // values
  double mean = 0;
  Interval interval;
  // Largest over the cell's cases.
  int64_t kv_bytes = 0;
  int64_t kv_peak_bytes = 0;
  int64_t kv_read_bytes = 0;

  bool ReadsLess() const { return kv_read_bytes < kv_bytes; }
};

struct Comparison {
  std::string plan;
  std::string reference;          // the run's first plan
  std::optional<int64_t> length;  // none: over all lengths
  std::string metric;
  PairedComparison paired;  // plan - reference
};

struct Summary {
  std::vector<Cell> cells;              // plans in the run's order, lengths ascending and the sum over all first
  std::vector<Comparison> comparisons;  // the same order
};

// A single text has no spread of its own: where it carries a curve of the metric, its intervals and comparisons are
// over the blocks of that curve. Of any results, finished or not; a comparison takes the cases that both plans have.
Summary Summarise(const RunData& run);

// Null where there is none.
const Cell* FindCell(const Summary& summary, const std::string& plan, std::optional<int64_t> length,
                     const std::string& metric);

Json ToJson(const Summary& summary);

}  // namespace headwise

#endif  // HEADWISE_EVAL_SUMMARY_H_
