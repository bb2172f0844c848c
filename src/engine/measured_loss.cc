#include "engine/measured_loss.h"

#include <fmt/format.h>

#include <string_view>

#include "base/json.h"
#include "kv/plan_bytes.h"

namespace headwise {
namespace {

// docs/results.md, "Perplexity and divergence at equal bytes": windows of 8,192 tokens.
constexpr int64_t kPlanTokens = 8192;
constexpr double kFullPerplexity = 36.81;
// docs/results.md, "Retrieval at equal bytes": of LongEval's 50 cases of 200 and its 50 of 400 lines, with every head
// full.
constexpr double kFullAnswers = 49 + 50;

struct PlanFigure {
  std::string_view method;
  double share;       // of the bytes
  double perplexity;  // of the first of these tables
  int answers;        // of the second, both lengths together
};

// By method, the largest share first.
constexpr PlanFigure kPlanFigures[] = {
    {.method = "duo", .share = 0.5, .perplexity = 36.91, .answers = 49 + 49},
    {.method = "duo", .share = 0.25, .perplexity = 37.31, .answers = 50 + 50},
    {.method = "duo", .share = 0.125, .perplexity = 38.13, .answers = 49 + 50},
    {.method = "zigzag", .share = 0.5, .perplexity = 36.86, .answers = 50 + 50},
    {.method = "zigzag", .share = 0.25, .perplexity = 37.03, .answers = 50 + 50},
    {.method = "zigzag", .share = 0.125, .perplexity = 37.74, .answers = 3 + 7},
    {.method = "razor", .share = 0.5, .perplexity = 37.56, .answers = 49 + 50},
    {.method = "razor", .share = 0.25, .perplexity = 39.58, .answers = 49 + 50},
    {.method = "razor", .share = 0.125, .perplexity = 44.98, .answers = 49 + 49},
    {.method = "moa", .share = 0.5, .perplexity = 38.85, .answers = 25 + 15},
    {.method = "moa", .share = 0.25, .perplexity = 39.07, .answers = 25 + 15},
    {.method = "moa", .share = 0.125, .perplexity = 39.15, .answers = 25 + 15},
    {.method = "streaming", .share = 0.5, .perplexity = 36.92, .answers = 21 + 22},
    {.method = "streaming", .share = 0.25, .perplexity = 37.18, .answers = 9 + 12},
    {.method = "streaming", .share = 0.125, .perplexity = 37.80, .answers = 3 + 7},
    {.method = "random", .share = 0.5, .perplexity = 38.26, .answers = 1 + 0},
    {.method = "random", .share = 0.25, .perplexity = 39.89, .answers = 1 + 0},
    {.method = "random", .share = 0.125, .perplexity = 41.17, .answers = 1 + 0},
};
// Plans made for a share end a little below it, within a page of a head.
constexpr double kShareSlack = 1.01;

// docs/performance-cuda.md, the last table of "Weights in block formats": `cpu`, every head full; the same lines are
// answered in all of these.
constexpr double kQ8Cache = 36.345 / 36.332 - 1;
constexpr double kQ4Cache = 36.345 / 36.332 * (38.028 / 37.999) - 1;
// docs/kv-formats.md: the mean NLL moves by less than 0.001.
constexpr double kBF16Cache = 0.001;
// docs/results.md, "Smaller numbers".
constexpr double kQ8Weights = 34.66 / 34.62 - 1;
constexpr double kQ4Weights = 36.10 / 34.62 - 1;

// What every published import of a method is.
std::string_view MethodOf(const HeadPlan& plan) {
  return plan.method == "import-duo" ? std::string_view("duo") : plan.method;
}

Result<PlanLoss> LossOfReport(const JsonObject& report) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, report.Object(kMeasuredLossKey));
  constexpr std::string_view kKeys[] = {"perplexity", "answers", "from"};
  HW_RETURN_IF_ERROR(object.ExpectOnly(kKeys));
  MeasuredLoss loss;
  HW_ASSIGN_OR_RETURN(loss.perplexity, object.Double("perplexity"));
  HW_ASSIGN_OR_RETURN(loss.answers, object.Double("answers"));
  HW_ASSIGN_OR_RETURN(std::string from, object.StringOr("from", "its report"));
  return PlanLoss{.loss = loss, .from = std::move(from)};
}

PlanLoss LossOfMethod(std::string_view method, double share) {
  bool is_known = false;
  for (const PlanFigure& figure : kPlanFigures) {
    if (figure.method != method) continue;
    is_known = true;
    if (share * kShareSlack < figure.share) continue;
    return {.loss = MeasuredLoss{.perplexity = figure.perplexity / kFullPerplexity - 1,
                                 .answers = std::max(0.0, 1 - figure.answers / kFullAnswers)},
            .from = fmt::format("{} at {:g} % of the bytes, on the bundled model", method, 100 * figure.share)};
  }
  if (!is_known) return {.loss = {}, .from = fmt::format("plans of method {} have no figures", method)};
  return {.loss = {}, .from = fmt::format("{} at {:.1f} % of the bytes was not measured", method, 100 * share)};
}

}  // namespace

std::string Describe(const MeasuredLoss& loss) {
  if (loss.perplexity == 0 && loss.answers == 0) return "nothing";
  return fmt::format("{:.2f} % of perplexity, {:.1f} % of answers", 100 * loss.perplexity, 100 * loss.answers);
}

MeasuredLoss LossOfCache(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
    case KvFormat::kF16:
      return {};
    case KvFormat::kBF16:
      return {.perplexity = kBF16Cache};
    case KvFormat::kQ8:
      return {.perplexity = kQ8Cache};
    case KvFormat::kQ4:
      return {.perplexity = kQ4Cache};
  }
  return {};
}

MeasuredLoss LossOfCache(const KvFormats& formats) {
  const MeasuredLoss full = LossOfCache(formats.full);
  const MeasuredLoss bounded = LossOfCache(formats.bounded);
  return full.perplexity > bounded.perplexity ? full : bounded;
}

std::optional<MeasuredLoss> LossOfWeights(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return MeasuredLoss{};
    case DType::kQ8_0:
      return MeasuredLoss{.perplexity = kQ8Weights};
    case DType::kQ4_0:
      return MeasuredLoss{.perplexity = kQ4Weights};
    default:
      return std::nullopt;
  }
}

Result<PlanLoss> LossOfPlan(const HeadPlan& plan, const LayerWindows& windows, const std::string& origin) {
  const bool is_full =
      std::ranges::all_of(plan.rules, [](const HeadRule& rule) { return rule.kind == HeadRule::Kind::kFull; });
  if (is_full) return PlanLoss{.loss = MeasuredLoss{}, .from = "every head full"};
  HW_ASSIGN_OR_RETURN(const Json report, ParseJson(plan.report_json, origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(report, fmt::format("{}: report", origin)));
  if (object.Has(kMeasuredLossKey)) return LossOfReport(object);
  const auto bytes = static_cast<double>(PlanBytesAt(plan, kPlanTokens, windows));
  const auto dense = static_cast<double>(PlanBytesAt(HeadPlan::Dense(plan.shape), kPlanTokens, windows));
  return LossOfMethod(MethodOf(plan), bytes / dense);
}

}  // namespace headwise
