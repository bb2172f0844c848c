#include "eval/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace headwise {
namespace {

// What says that two plans answered the same thing.
using CaseKey = std::tuple<int64_t, int64_t, int64_t>;  // length, case, question
// The cases of one plan; of a case that stands twice, the later line.
using PlanCases = std::map<CaseKey, const CaseResult*>;

CaseKey KeyOf(const CaseResult& result) {
  return {result.length, result.case_idx, result.question_idx};
}

// A task may leave a score out (an answer that could not be judged, say), and a mean of "not a number" is none.
std::optional<double> ScoreOf(const CaseResult& result, const MetricInfo& metric) {
  const auto found = result.scores.find(metric.name);
  if (found == result.scores.end() || !std::isfinite(found->second)) return std::nullopt;
  if (metric.kind == MetricInfo::Kind::kGeometricMean && found->second <= 0) return std::nullopt;  // has no logarithm
  return found->second;
}

bool InLength(const CaseKey& key, std::optional<int64_t> length) {
  return !length || std::get<0>(key) == *length;
}

Interval IntervalOf(MetricInfo::Kind kind, const std::vector<double>& values) {
  const auto num_ones = std::count(values.begin(), values.end(), 1.0);
  const auto num_zeros = std::count(values.begin(), values.end(), 0.0);
  const auto total = static_cast<int64_t>(values.size());
  if (kind == MetricInfo::Kind::kGeometricMean) return BootstrapGeometricMeanInterval(values);
  // Partly right answers under a metric that calls itself a rate: Wilson's score would not be about them.
  const bool is_rate = kind == MetricInfo::Kind::kRate && num_ones + num_zeros == total;
  return is_rate ? WilsonInterval(num_ones, total) : BootstrapMeanInterval(values);
}

// The values of a metric along the text, where the task gives them. Of a single long text they stand for the cases that
// it has none of.
const Curve* CurveOf(const CaseResult& result, const std::string& metric) {
  const auto found = result.curves.find(metric);
  return found == result.curves.end() || found->second.size() < 2 ? nullptr : &found->second;
}

std::vector<double> HeightsOf(const Curve& curve) {
  std::vector<double> heights;
  for (const auto& [x, y] : curve) heights.push_back(y);
  return heights;
}

std::optional<Cell> CellOf(const PlanCases& cases, const std::string& plan, std::optional<int64_t> length,
                           const MetricInfo& metric) {
  Cell cell;
  cell.plan = plan;
  cell.length = length;
  cell.metric = metric.name;
  std::vector<double> values;
  const CaseResult* last = nullptr;
  double sum = 0;
  for (const auto& [key, result] : cases) {
    if (!InLength(key, length)) continue;
    const std::optional<double> score = ScoreOf(*result, metric);
    if (!score) continue;
    values.push_back(*score);
    last = result;
    sum += *score;
    cell.kv_bytes = std::max(cell.kv_bytes, result->kv_bytes);
    cell.kv_peak_bytes = std::max(cell.kv_peak_bytes, result->kv_peak_bytes);
    cell.kv_read_bytes = std::max(cell.kv_read_bytes, result->kv_read_bytes);
  }
  if (values.empty()) return std::nullopt;
  cell.count = static_cast<int64_t>(values.size());
  const bool is_geometric = metric.kind == MetricInfo::Kind::kGeometricMean;
  cell.mean = is_geometric ? GeometricMean(values) : sum / static_cast<double>(values.size());
  const Curve* curve = values.size() == 1 ? CurveOf(*last, metric.name) : nullptr;
  cell.interval = IntervalOf(metric.kind, curve == nullptr ? values : HeightsOf(*curve));
  return cell;
}

std::optional<PairedComparison> PairsOf(const PlanCases& cases, const PlanCases& reference,
                                        std::optional<int64_t> length, const MetricInfo& metric) {
  std::vector<double> scores;
  std::vector<double> reference_scores;
  const Curve* curve = nullptr;
  const Curve* reference_curve = nullptr;
  for (const auto& [key, result] : cases) {
    if (!InLength(key, length)) continue;
    const auto other = reference.find(key);
    if (other == reference.end()) continue;
    const std::optional<double> score = ScoreOf(*result, metric);
    const std::optional<double> reference_score = ScoreOf(*other->second, metric);
    if (!score || !reference_score) continue;
    scores.push_back(*score);
    reference_scores.push_back(*reference_score);
    curve = CurveOf(*result, metric.name);
    reference_curve = CurveOf(*other->second, metric.name);
  }
  if (scores.empty()) return std::nullopt;
  if (scores.size() == 1 && curve != nullptr && reference_curve != nullptr &&
      curve->size() == reference_curve->size()) {
    return ComparePaired(HeightsOf(*curve), HeightsOf(*reference_curve));
  }
  if (metric.kind == MetricInfo::Kind::kGeometricMean) return ComparePairedGeometrically(scores, reference_scores);
  return ComparePaired(scores, reference_scores);
}

Json LengthJson(std::optional<int64_t> length) {
  return length ? Json(*length) : Json(nullptr);
}

Json IntervalJson(const Interval& interval) {
  return {{"low", interval.low}, {"high", interval.high}};
}

}  // namespace

Summary Summarise(const RunData& run) {
  std::map<std::string, PlanCases> cases;
  std::set<int64_t> seen_lengths;
  for (const CaseResult& result : run.results) {
    cases[result.plan][KeyOf(result)] = &result;
    seen_lengths.insert(result.length);
  }
  std::vector<std::optional<int64_t>> lengths = {std::nullopt};
  lengths.insert(lengths.end(), seen_lengths.begin(), seen_lengths.end());

  Summary summary;
  for (const PlanInfo& plan : run.info.plans) {
    const PlanCases& of_plan = cases[plan.name];
    const PlanCases& of_reference = cases[run.info.plans.front().name];
    for (const std::optional<int64_t>& length : lengths) {
      for (const MetricInfo& metric : run.info.metrics) {
        if (auto cell = CellOf(of_plan, plan.name, length, metric)) summary.cells.push_back(std::move(*cell));
        if (&plan == &run.info.plans.front()) continue;
        const auto paired = PairsOf(of_plan, of_reference, length, metric);
        if (paired) {
          summary.comparisons.push_back({plan.name, run.info.plans.front().name, length, metric.name, *paired});
        }
      }
    }
  }
  return summary;
}

const Cell* FindCell(const Summary& summary, const std::string& plan, std::optional<int64_t> length,
                     const std::string& metric) {
  for (const Cell& cell : summary.cells) {
    if (cell.plan == plan && cell.length == length && cell.metric == metric) return &cell;
  }
  return nullptr;
}

Json ToJson(const Summary& summary) {
  Json cells = Json::array();
  for (const Cell& cell : summary.cells) {
    cells.push_back({{"plan", cell.plan},
                     {"length", LengthJson(cell.length)},
                     {"metric", cell.metric},
                     {"count", cell.count},
                     {"mean", cell.mean},
                     {"interval", IntervalJson(cell.interval)},
                     {"kv_bytes", cell.kv_bytes},
                     {"kv_peak_bytes", cell.kv_peak_bytes},
                     {"kv_read_bytes", cell.kv_read_bytes}});
  }
  Json comparisons = Json::array();
  for (const Comparison& comparison : summary.comparisons) {
    const PairedComparison& paired = comparison.paired;
    comparisons.push_back({{"plan", comparison.plan},
                           {"reference", comparison.reference},
                           {"length", LengthJson(comparison.length)},
                           {"metric", comparison.metric},
                           {"num_pairs", paired.num_pairs},
                           {"num_higher", paired.num_higher},
                           {"num_lower", paired.num_lower},
                           {"mean_difference", paired.mean_difference},
                           {"interval", IntervalJson(paired.interval)},
                           {"p_value", paired.p_value}});
  }
  return {{"cells", std::move(cells)}, {"comparisons", std::move(comparisons)}};
}

}  // namespace headwise
