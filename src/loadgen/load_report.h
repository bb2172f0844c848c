// A load run as a page for a browser: figures, distributions, and what happened when.
#ifndef HEADWISE_LOADGEN_LOAD_REPORT_H_
#define HEADWISE_LOADGEN_LOAD_REPORT_H_

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "loadgen/load_record.h"

namespace headwise {

// In a cell, where there is no time.
inline constexpr const char* kNoTime = "-";

// Rows of a table: the name of a time, then mean, median, std, p50, p90, p95, p99 and the longest, in milliseconds.
struct LoadTableRow {
  std::string name;
  std::vector<std::string> cells;
};
struct LoadTable {
  std::vector<std::string> titles;
  std::vector<LoadTableRow> rows;
};
LoadTable TimesTable(std::span<const LoadRecord> records);

// The figures that are one number, each with its name.
std::vector<std::pair<std::string, std::string>> LoadFacts(std::span<const LoadRecord> records);

// The page, which needs nothing but itself. `config` is what the run was asked for.
std::string RenderLoadReport(const Json& config, std::span<const LoadRecord> records);

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_REPORT_H_
