// Figures of a load run out of its records. Pure.
#ifndef HEADWISE_LOADGEN_LOAD_SUMMARY_H_
#define HEADWISE_LOADGEN_LOAD_SUMMARY_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "loadgen/load_record.h"

namespace headwise {

// `share` of the sorted values lie below it, between neighbours in proportion (numpy's default, Hyndman and Fan's
// seventh). Requires: sorted, not empty, 0 <= share <= 1.
double Quantile(std::span<const double> sorted, double share);

struct Distribution {
  int64_t count = 0;  // with 0 all of the rest are 0
  double mean = 0;
  double median = 0;
  double std = 0;  // of these values as the whole population: divided by their number
  double min = 0;
  double max = 0;
  double p50 = 0;
  double p90 = 0;
  double p95 = 0;
  double p99 = 0;
};
Distribution DistributionOf(std::vector<double> values);

// Seconds of each request that came whole, and gaps of all of them.
struct LoadTimes {
  std::vector<double> first;        // from the start, connecting included, to the first piece
  std::vector<double> per_token;    // from the first piece to the last, over the tokens after the first; none for one
  std::vector<double> gaps;         // between pieces, all of them
  std::vector<double> longest_gap;  // of each request with two pieces and more
  std::vector<double> whole;        // from the start to the end
  std::vector<double> connect;
};
LoadTimes TimesOf(std::span<const LoadRecord> records);

// Tokens and rates count requests that came whole.
struct LoadSummary {
  int64_t completed = 0;
  int64_t failed = 0;
  std::map<std::string, int64_t> failures;  // by kind
  double duration = 0;                      // seconds from the first start to the last end
  int64_t input_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t num_counted = 0;        // requests whose tokens the server told
  int64_t num_short = 0;          // requests that got fewer tokens than they wanted
  double request_throughput = 0;  // a second
  double input_throughput = 0;    // tokens a second
  double output_throughput = 0;
  double total_throughput = 0;
  int64_t peak_concurrency = 0;  // failed ones included
  Distribution delay;            // of starts behind arrivals, failed ones included
  Distribution ttft;             // LoadTimes::first, and so on
  Distribution tpot;
  Distribution itl;
  Distribution longest_gap;
  Distribution e2el;
  Distribution connect;
};
LoadSummary Summarise(std::span<const LoadRecord> records);

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_LOAD_SUMMARY_H_
