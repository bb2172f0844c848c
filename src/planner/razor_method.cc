// headwise plan razor: echo and induction heads stay full, the others keep an elastic window and a compensation token
// [razor §3]; for ALiBi models, windows from eq. 2.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/progress.h"
#include "planner/budget.h"
#include "planner/calibration.h"
#include "planner/duo_method.h"
#include "planner/methods.h"
#include "planner/razor.h"
#include "planner/run_log.h"

namespace headwise {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 40;

// [razor table 2]
struct RazorOptions {
  double induction_share = 0.14;
  double echo_share = 0.01;
  uint64_t seed = 0;
  HeadRule rule;  // of heads that are not protected
};

Result<RazorOptions> ReadOptions(const PlannerInput& input) {
  const NamedOptions& options = input.options;
  RazorOptions razor;
  HW_ASSIGN_OR_RETURN(razor.induction_share, options.DoubleOr("induction-share", razor.induction_share, 0.0, 1.0));
  HW_ASSIGN_OR_RETURN(razor.echo_share, options.DoubleOr("echo-share", razor.echo_share, 0.0, 1.0));
  HW_ASSIGN_OR_RETURN(const int64_t seed, options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  razor.seed = static_cast<uint64_t>(seed);
  // Sinks, compensation and where the rule begins are read as for any stream; the window is Razor's own.
  NamedOptions stream = options;
  if (!options.Has("compensate")) stream = stream.With("compensate", "true");
  if (!options.Has("from")) stream = stream.With("from", "end_of_prompt");
  HW_ASSIGN_OR_RETURN(razor.rule, StreamRuleFromOptions(stream, /*default_sink=*/4, /*default_recent=*/1));
  razor.rule.kind = HeadRule::Kind::kElasticRazor;
  razor.rule.recent = 0;
  HW_ASSIGN_OR_RETURN(razor.rule.min_recent, options.IntOr("min-recent", 4000, 0, kMaxTokens));
  HW_ASSIGN_OR_RETURN(razor.rule.divisor, options.DoubleOr("divisor", 5.0, 1.0, 1e9));
  return razor;
}

// Counts are rounded up, and a share above zero protects at least one head: the paper leaves rounding open.
int64_t CountOf(double share, int64_t num_heads) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(num_heads) - 1e-9));
}

// The window of `recent` tokens as prompt / divisor; the half keeps the division from rounding below it.
HeadRule ElasticRule(const HeadRule& rule, const KvBudget& budget, int64_t recent) {
  HeadRule elastic = rule;
  elastic.min_recent = 0;
  elastic.divisor = std::max(1.0, static_cast<double>(budget.at_tokens) / (static_cast<double>(recent) + 0.5));
  return elastic;
}

std::vector<size_t> Unprotected(const std::vector<bool>& is_protected) {
  std::vector<size_t> heads;
  for (size_t head = 0; head < is_protected.size(); ++head) {
    if (!is_protected[head]) heads.push_back(head);
  }
  return heads;
}

// Protects as many heads as the budget has room for, at most those of the shares, and gives the others what is left.
Status FitBudget(const RazorOptions& razor, const RetrievalScores& scores, const KvBudget& budget, HeadPlan& plan) {
  const auto num_heads = static_cast<int64_t>(scores.echo.size());
  const int64_t num_echo = CountOf(razor.echo_share, num_heads);
  const int64_t asked = CountOf(razor.induction_share, num_heads);
  const WindowRule rule = [&](int64_t recent) { return ElasticRule(razor.rule, budget, recent); };
  Status status;
  for (int64_t num_protected = asked + num_echo; num_protected >= 0; --num_protected) {
    const int64_t num_induction = std::max<int64_t>(0, num_protected - num_echo);
    const auto is_protected = ProtectedHeads(scores, plan.shape, num_induction, std::min(num_echo, num_protected));
    for (size_t head = 0; head < is_protected.size(); ++head) {
      plan.rules[head] = is_protected[head] ? HeadRule::Full() : rule(1);
    }
    status = FitWindows(plan, Unprotected(is_protected), rule, budget);
    if (!status.ok()) continue;
    if (num_protected < asked + num_echo) {
      plan.notes.push_back(fmt::format(
          "the shares were lowered to fit the budget: {} induction and {} echo query heads are protected, {} and {} "
          "were asked for",
          num_induction, std::min(num_echo, num_protected), asked, num_echo));
    }
    return status;
  }
  return status;
}

Result<HeadPlan> PlanOfScores(const PlannerInput& input, const RetrievalScores& scores, const RazorOptions& razor,
                              const std::optional<KvBudget>& budget) {
  HeadPlan plan = HeadPlan::Dense(input.shape);
  const auto num_heads = static_cast<int64_t>(scores.echo.size());
  if (budget) {
    HW_RETURN_IF_ERROR(FitBudget(razor, scores, *budget, plan));
    plan.notes.push_back(DescribeBudget(plan, *budget));
  } else {
    const auto is_protected = ProtectedHeads(scores, input.shape, CountOf(razor.induction_share, num_heads),
                                             CountOf(razor.echo_share, num_heads));
    for (const size_t head : Unprotected(is_protected)) plan.rules[head] = razor.rule;
  }
  return plan;
}

Result<HeadPlan> PlanByScores(const PlannerInput& input, const PlannerModel& model, const RazorOptions& razor,
                              const std::optional<KvBudget>& budget) {
  RunLog log;
  const ModelConfig& config = model.model->config;
  const int64_t tokens_per_repetition = RazorTokensPerRepetition(config);
  Rng rng(razor.seed);
  const auto is_ordinary = [&](int32_t id) {
    return model.tokenizer->TokenOf(id) != nullptr && !model.tokenizer->IsSpecial(id);
  };
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      MakeRepeatedTokens(tokens_per_repetition, config.vocab_size, is_ordinary, model.start_ids, rng));
  ThreadPool pool(model.num_threads);
  GradDecoder<float> decoder(*model.model, pool, model.compute);
  ProgressBar progress(input.progress, "razor", config.num_layers);
  const RetrievalScores scores = ScoreRepeatedTokens(decoder, ids, tokens_per_repetition,
                                                     [&](int64_t layer_idx) { progress.Update(layer_idx + 1); });
  log.EndStep("score");
  for (const std::vector<double>* each : {&scores.echo, &scores.induction}) {
    if (std::ranges::all_of(*each, [](double score) { return std::isfinite(score); })) continue;
    return Status::InvalidInput("razor: a score is not finite, expected finite weights");
  }

  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanOfScores(input, scores, razor, budget));
  // A KV head's score is its best query head's, whichever kind it is.
  const auto group = static_cast<size_t>(input.shape.num_q_heads / input.shape.num_kv_heads);
  plan.scores.assign(plan.rules.size(), 0.0);
  for (size_t q_head = 0; q_head < scores.echo.size(); ++q_head) {
    double& score = plan.scores[q_head / group];
    score = std::max({score, scores.echo[q_head], scores.induction[q_head]});
  }
  plan.seed = razor.seed;
  plan.report_json = log.ToJson({{"num_tokens", ids.size()},
                                 {"tokens_per_repetition", tokens_per_repetition},
                                 {"echo_by_query_head", scores.echo},
                                 {"induction_by_query_head", scores.induction}})
                         .dump();
  return plan;
}

// A window of L_h per KV head, the widest of its group; from `context` tokens on it means full. Nothing outside it has
// weight, so that no compensation token is needed. scopes [Hq of all layers].
Result<HeadPlan> PlanOfScopes(const PlannerInput& input, std::span<const int64_t> scopes, int64_t context,
                              const RazorOptions& razor, const std::optional<KvBudget>& budget) {
  HeadPlan plan = HeadPlan::Dense(input.shape);
  const auto group = static_cast<size_t>(input.shape.num_q_heads / input.shape.num_kv_heads);
  HeadRule stream = HeadRule::Stream(input.options.Has("sink") ? razor.rule.sink : 0, 1);
  stream.compensate = input.options.Has("compensate") && razor.rule.compensate;
  stream.start = input.options.Has("from") ? razor.rule.start : RuleStart::kFirstToken;
  plan.scores.assign(plan.rules.size(), 0.0);
  for (size_t q_head = 0; q_head < scopes.size(); ++q_head) {
    double& score = plan.scores[q_head / group];
    score = std::max(score, static_cast<double>(scopes[q_head]));
  }
  const auto cap_windows = [&](int64_t cap) {
    for (size_t head = 0; head < plan.rules.size(); ++head) {
      stream.recent = std::min(static_cast<int64_t>(plan.scores[head]), cap);
      plan.rules[head] =
          plan.scores[head] >= static_cast<double>(context) && cap >= context ? HeadRule::Full() : stream;
    }
    return budget ? PlanBytesAt(plan, *budget) : 0;
  };
  cap_windows(context);
  if (budget && PlanBytesAt(plan, *budget) > budget->bytes) {
    int64_t fits = 0;
    int64_t too_wide = context;
    while (too_wide - fits > 1) {
      const int64_t middle = fits + (too_wide - fits) / 2;
      (cap_windows(middle) <= budget->bytes ? fits : too_wide) = middle;
    }
    if (fits == 0) {
      return Status::InvalidInput(fmt::format("KV budget: {} bytes at {} tokens; windows of one token need {}",
                                              budget->bytes, budget->at_tokens, cap_windows(1)));
    }
    cap_windows(fits);
    plan.notes.push_back(
        fmt::format("windows are cut at {} tokens to fit the budget: weights beyond it are dropped", fits));
  }
  if (budget) plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

Result<HeadPlan> PlanByScope(const PlannerInput& input, const PlannerModel& model, const RazorOptions& razor,
                             const std::optional<KvBudget>& budget) {
  for (const char* name : {"induction-share", "echo-share", "min-recent", "divisor", "seed"}) {
    if (!input.options.Has(name)) continue;
    return Status::InvalidInput(
        fmt::format("--{}: is for models with rotary positions; this one has ALiBi, whose windows follow from its "
                    "weights and --epsilon alone",
                    name));
  }
  RunLog log;
  HW_ASSIGN_OR_RETURN(const double epsilon, input.options.DoubleOr("epsilon", 0.001, 1e-12, 0.5));
  HW_ASSIGN_OR_RETURN(
      const int64_t context,
      input.options.IntOr("context", budget ? budget->at_tokens : model.model->config.trained_length, 1, kMaxTokens));
  const std::vector<int64_t> scopes = AlibiScopes(*model.model, epsilon);
  log.EndStep("score");
  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanOfScopes(input, scopes, context, razor, budget));
  plan.report_json = log.ToJson({{"scope_by_query_head", scopes}, {"epsilon", epsilon}}).dump();
  return plan;
}

Result<HeadPlan> MakeRazor(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const RazorOptions razor, ReadOptions(input));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (budget && (input.options.Has("min-recent") || input.options.Has("divisor"))) {
    return Status::InvalidInput("found --min-recent or --divisor and a KV budget, which solves for them; expected one");
  }
  HW_ASSIGN_OR_RETURN(const PlannerModel model, OpenPlannerModel(input));
  if (model.model->config.positions == PositionKind::kAlibi) return PlanByScope(input, model, razor, budget);
  for (const char* name : {"epsilon", "context"}) {
    if (!input.options.Has(name)) continue;
    return Status::InvalidInput(fmt::format("--{}: is for models with ALiBi, which this one has not", name));
  }
  return PlanByScores(input, model, razor, budget);
}

// From the scores by query head, or the ALiBi scopes, of the earlier plan's report.
Result<HeadPlan> RefitRazor(const PlannerInput& input, const HeadPlan& earlier) {
  HW_ASSIGN_OR_RETURN(const RazorOptions razor, ReadOptions(input));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  HW_ASSIGN_OR_RETURN(const Json json, ParseJson(earlier.report_json, "report"));
  HW_ASSIGN_OR_RETURN(const JsonObject report, JsonObject::Of(json, "report"));
  const auto num_q_heads = static_cast<size_t>(input.shape.num_layers * input.shape.num_q_heads);
  const auto per_query_head = [&](const char* key) -> Result<std::vector<double>> {
    HW_ASSIGN_OR_RETURN(std::vector<double> values, report.Doubles(key));
    if (values.size() == num_q_heads) return values;
    return Status::InvalidInput(
        fmt::format("report: \"{}\" has {} values, expected one per query head, {}", key, values.size(), num_q_heads));
  };
  if (report.Has("scope_by_query_head")) {
    HW_ASSIGN_OR_RETURN(const std::vector<double> values, per_query_head("scope_by_query_head"));
    for (const double scope : values) HW_RETURN_IF_ERROR(CheckReportedTokens("scope_by_query_head", scope));
    HW_ASSIGN_OR_RETURN(const int64_t context, input.options.IntOr("context", budget->at_tokens, 1, kMaxTokens));
    return PlanOfScopes(input, std::vector<int64_t>(values.begin(), values.end()), context, razor, budget);
  }
  RetrievalScores scores;
  HW_ASSIGN_OR_RETURN(scores.echo, per_query_head("echo_by_query_head"));
  HW_ASSIGN_OR_RETURN(scores.induction, per_query_head("induction_by_query_head"));
  return PlanOfScores(input, scores, razor, budget);
}

}  // namespace

const PlannerMethod kRazorMethod = {
    .name = "razor",
    .description = "echo and induction heads stay full, the others fold what they drop; needs no training [razor]",
    .options = JoinLists<std::string_view>(
        std::to_array<std::string_view>({"induction-share", "echo-share", "sink", "min-recent", "divisor", "compensate",
                                         "from", "seed", "epsilon", "context", "compute"}),
        kBudgetOptions),
    .make = MakeRazor,
    .runs = PlannerMethod::Runs::kModel,
    .refit = {.make = RefitRazor, .replaced = {"min-recent", "divisor"}},
};

}  // namespace headwise
