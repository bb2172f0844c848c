#include "loadgen/load_summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace headwise {
namespace {

int64_t PeakConcurrency(std::span<const LoadRecord> records) {
  // Ends go before starts of the same moment: a closed loop begins one as another ends.
  std::vector<std::pair<double, int>> changes;
  for (const LoadRecord& record : records) {
    changes.emplace_back(record.start, 1);
    changes.emplace_back(record.end, -1);
  }
  std::ranges::sort(changes);
  int64_t running = 0;
  int64_t peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, running += change);
  return peak;
}

}  // namespace

double Quantile(std::span<const double> sorted, double share) {
  HW_CHECK(!sorted.empty() && share >= 0 && share <= 1);
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

Distribution DistributionOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double median = Quantile(values, 0.5);
  return {.count = static_cast<int64_t>(values.size()),
          .mean = mean,
          .median = median,
          .std = std::sqrt(squares / count),
          .min = values.front(),
          .max = values.back(),
          .p50 = median,
          .p90 = Quantile(values, 0.9),
          .p95 = Quantile(values, 0.95),
          .p99 = Quantile(values, 0.99)};
}

LoadTimes TimesOf(std::span<const LoadRecord> records) {
  LoadTimes times;
  for (const LoadRecord& record : records) {
    if (!record.ok() || record.pieces.empty()) continue;
    const double first = record.pieces.front();
    times.first.push_back(first - record.start);
    times.whole.push_back(record.end - record.start);
    times.connect.push_back(record.connected - record.start);
    if (record.output_tokens > 1) {
      times.per_token.push_back((record.pieces.back() - first) / static_cast<double>(record.output_tokens - 1));
    }
    if (record.pieces.size() < 2) continue;
    double longest = 0;
    for (size_t i = 1; i < record.pieces.size(); ++i) {
      const double gap = record.pieces[i] - record.pieces[i - 1];
      times.gaps.push_back(gap);
      longest = std::max(longest, gap);
    }
    times.longest_gap.push_back(longest);
  }
  return times;
}

LoadSummary Summarise(std::span<const LoadRecord> records) {
  LoadSummary summary;
  if (records.empty()) return summary;
  double begin = records.front().start;
  double end = records.front().end;
  std::vector<double> delays;
  for (const LoadRecord& record : records) {
    begin = std::min(begin, record.start);
    end = std::max(end, record.end);
    delays.push_back(record.start - record.arrival);
    if (!record.ok()) {
      ++summary.failed;
      ++summary.failures[record.failure];
      continue;
    }
    ++summary.completed;
    summary.input_tokens += record.prompt_tokens;
    summary.cached_tokens += record.cached_tokens;
    summary.output_tokens += record.output_tokens;
    summary.num_counted += record.is_counted ? 1 : 0;
    summary.num_short += record.output_tokens < record.wanted_tokens ? 1 : 0;
  }
  summary.duration = end - begin;
  if (summary.duration > 0) {
    const auto per_second = [&](int64_t count) { return static_cast<double>(count) / summary.duration; };
    summary.request_throughput = per_second(summary.completed);
    summary.input_throughput = per_second(summary.input_tokens);
    summary.output_throughput = per_second(summary.output_tokens);
    summary.total_throughput = per_second(summary.input_tokens + summary.output_tokens);
  }
  summary.peak_concurrency = PeakConcurrency(records);
  summary.delay = DistributionOf(std::move(delays));
  LoadTimes times = TimesOf(records);
  summary.ttft = DistributionOf(std::move(times.first));
  summary.tpot = DistributionOf(std::move(times.per_token));
  summary.itl = DistributionOf(std::move(times.gaps));
  summary.longest_gap = DistributionOf(std::move(times.longest_gap));
  summary.e2el = DistributionOf(std::move(times.whole));
  summary.connect = DistributionOf(std::move(times.connect));
  return summary;
}

}  // namespace headwise
