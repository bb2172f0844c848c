// headwise plan moa: elastic windows by profile and mixed-integer programme [moa §4-5].
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <headwise/engine.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/progress.h"
#include "grad/grad_decoder.h"
#include "planner/answers.h"
#include "planner/calibration.h"
#include "planner/checkpoint.h"
#include "planner/duo_method.h"
#include "planner/methods.h"
#include "planner/moa.h"
#include "planner/moa_influence.h"
#include "planner/run_log.h"

namespace headwise {
namespace {

constexpr int64_t kMinLength = 4 * kMoaBlock;  // below it no rule of the grid hides anything

// First-order losses of a few samples are not known better than this.
constexpr double kRelativeGap = 1e-3;

struct MoaOptions {
  std::vector<int64_t> lengths;   // profiled, rising
  int64_t validation_length = 0;  // longer than all of them
  int64_t samples_per_length = 6;
  int64_t validation_samples = 3;  // one of each kind of prompt
  int64_t max_answer_tokens = 48;
  double density = 0.5;       // limit at every profiled length, where there is no budget
  int64_t num_intervals = 5;  // [moa §D.2.2]
  int64_t max_rules_per_layer = 2;
  std::string text_file;
  std::string prompt_file;
  uint64_t seed = 0;
  bool has_static_spans = false;
  AnswerOptions::Data data = AnswerOptions::Data::kRecall;
  InfluenceOptions influence;
};

// In the order of InfluenceOptions::Kind.
constexpr auto kInfluenceNames = std::to_array<std::string_view>({"first-order", "margin", "integrated", "measured"});

Result<InfluenceOptions> ReadInfluence(const NamedOptions& options) {
  InfluenceOptions influence;
  HW_ASSIGN_OR_RETURN(const std::string name, options.ChoiceOr("influence", kInfluenceNames));
  influence.kind =
      static_cast<InfluenceOptions::Kind>(std::ranges::find(kInfluenceNames, name) - kInfluenceNames.begin());
  if (options.Has("integration-points") && influence.kind != InfluenceOptions::Kind::kIntegrated) {
    return Status::InvalidInput(
        fmt::format("--integration-points: found --influence {} too, expected integrated", name));
  }
  HW_ASSIGN_OR_RETURN(influence.num_points, options.IntOr("integration-points", influence.num_points, 1, 1000));
  return influence;
}

Result<MoaOptions> ReadOptions(const PlannerInput& input, const ModelConfig& config) {
  const NamedOptions& options = input.options;
  MoaOptions moa;
  if (config.trained_length < kMinLength) {
    return Status::InvalidInput(fmt::format("moa: the model was trained on texts of {} tokens, and profiling takes {}",
                                            config.trained_length, kMinLength));
  }
  // The paper's 2k, 4k and 8k with validation at 12k, or the same proportions of a shorter trained length.
  const int64_t unit = std::min<int64_t>(2048, config.trained_length / 6 / kMoaBlock * kMoaBlock);
  HW_ASSIGN_OR_RETURN(moa.lengths,
                      options.RisingIntsOr("lengths", {unit, 2 * unit, 4 * unit}, kMinLength, config.trained_length));
  const int64_t longest = moa.lengths.back();
  HW_ASSIGN_OR_RETURN(moa.validation_length,
                      options.IntOr("validation-length", std::min(longest * 3 / 2, config.trained_length), longest,
                                    config.trained_length));
  HW_ASSIGN_OR_RETURN(moa.samples_per_length, options.IntOr("samples", moa.samples_per_length, 1, 100'000));
  HW_ASSIGN_OR_RETURN(moa.validation_samples, options.IntOr("validation-samples", moa.validation_samples, 1, 100'000));
  HW_ASSIGN_OR_RETURN(moa.max_answer_tokens, options.IntOr("answer-tokens", moa.max_answer_tokens, 1, kMinLength / 2));
  HW_ASSIGN_OR_RETURN(moa.density, options.DoubleOr("density", moa.density, 0.0, 1.0));
  HW_ASSIGN_OR_RETURN(moa.num_intervals, options.IntOr("intervals", moa.num_intervals, 1, 100));
  HW_ASSIGN_OR_RETURN(moa.max_rules_per_layer, options.IntOr("max-rules-per-layer", moa.max_rules_per_layer, 1, 1000));
  HW_ASSIGN_OR_RETURN(const int64_t seed, options.IntOr("seed", 0, 0, std::numeric_limits<int64_t>::max()));
  moa.seed = static_cast<uint64_t>(seed);
  moa.text_file = options.StringOr("text", "");
  moa.prompt_file = options.StringOr("prompts", "");
  HW_ASSIGN_OR_RETURN(const std::string spans,
                      options.ChoiceOr("spans", std::to_array<std::string_view>({"elastic", "static"})));
  moa.has_static_spans = spans == "static";
  HW_ASSIGN_OR_RETURN(moa.influence, ReadInfluence(options));
  HW_ASSIGN_OR_RETURN(const std::string data,
                      options.ChoiceOr("data", std::to_array<std::string_view>({"recall", "text"})));
  if (data == "text") moa.data = AnswerOptions::Data::kText;
  if (data == "text" && !moa.prompt_file.empty()) {
    return Status::InvalidInput("--data: found --prompts too, which brings its own texts; expected one");
  }
  if (!moa.text_file.empty() && !moa.prompt_file.empty()) {
    return Status::InvalidInput("--text: stands around generated questions, --prompts brings its own; expected one");
  }
  return moa;
}

// Mean predicted loss per length, rule and head, as samples come in.
struct ProfileState {
  int64_t num_done = 0;                     // samples, over all lengths
  std::vector<std::vector<double>> losses;  // [lengths][L * Hkv * rules] sums
  std::vector<double> dense_losses;         // [lengths] sums
  std::vector<std::string> notes = {};      // for the plan
  int64_t num_summed = 1;                   // samples of each length in `losses`, once all are done

  static ProfileState Empty(size_t num_lengths, size_t num_values) {
    return {.losses = std::vector<std::vector<double>>(num_lengths, std::vector<double>(num_values)),
            .dense_losses = std::vector<double>(num_lengths)};
  }
  Json ToJson() const { return {{"num_done", num_done}, {"losses", losses}, {"dense_losses", dense_losses}}; }
  static Result<ProfileState> FromJson(const Json& json, const std::string& origin, const ProfileState& shape) {
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, origin));
    ProfileState state = shape;
    HW_ASSIGN_OR_RETURN(state.num_done, object.Int("num_done"));
    HW_ASSIGN_OR_RETURN(state.dense_losses, object.Doubles("dense_losses"));
    const Json losses = object.Has("losses") ? object.At("losses") : Json();
    if (!losses.is_array() || losses.size() != shape.losses.size()) {
      return Status::InvalidInput(
          fmt::format("{}: \"losses\" is not a list of {} tables", origin, shape.losses.size()));
    }
    for (size_t i = 0; i < losses.size(); ++i) {
      const Json row = {{"row", losses[i]}};
      HW_ASSIGN_OR_RETURN(const JsonObject wrapped, JsonObject::Of(row, origin));
      HW_ASSIGN_OR_RETURN(state.losses[i], wrapped.Doubles("row"));
      if (state.losses[i].size() == shape.losses[i].size()) continue;
      return Status::InvalidInput(fmt::format("{}: table {} has {} losses, expected {}", origin, i,
                                              state.losses[i].size(), shape.losses[i].size()));
    }
    if (state.num_done < 0 || state.dense_losses.size() != shape.dense_losses.size()) {
      return Status::InvalidInput(fmt::format("{}: {} samples and {} dense losses, expected 0 or more and {}", origin,
                                              state.num_done, state.dense_losses.size(), shape.dense_losses.size()));
    }
    return state;
  }
};

// What the columns of the loss tables mean: alpha and beta of every rule.
Json DescribeGrid(std::span<const HeadRule> rules) {
  Json grid = Json::array();
  for (const HeadRule& rule : rules) grid.push_back({rule.alpha, rule.beta});
  return grid;
}

// Enough for estimates, and half the size of all digits: the table is in every plan file.
double RoundToFiveDigits(double value) {
  if (value == 0) return 0;
  const double scale = std::pow(10.0, 4 - std::floor(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

// What RefitMoa reads back: the mean influence of every rule on every head, at every profiled length.
Json DescribeInfluence(const ProfileState& profile, int64_t samples_per_length, std::span<const HeadRule> rules) {
  Json losses = profile.losses;
  for (Json& length : losses) {
    for (Json& loss : length) loss = RoundToFiveDigits(loss.get<double>() / static_cast<double>(samples_per_length));
  }
  return {{"rules", DescribeGrid(rules)}, {"losses", std::move(losses)}};
}

// Answers by the dense model, then their influence; sample by sample, so that a checkpoint is never far behind.
Result<ProfileState> ProfileLengths(const PlannerInput& input, const MoaOptions& options, const PlannerModel& model,
                                    AnswerSource& answers, std::span<const HeadRule> rules) {
  const auto num_values = static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads) * rules.size();
  ProfileState state = ProfileState::Empty(options.lengths.size(), num_values);
  Checkpoint checkpoint(input, {{"work", "influence"},
                                {"lengths", options.lengths},
                                {"samples", options.samples_per_length},
                                {"answer_tokens", options.max_answer_tokens},
                                {"rules", DescribeGrid(rules)},
                                {"data", options.data == AnswerOptions::Data::kText ? "text" : "recall"},
                                {"influence", kInfluenceNames[static_cast<size_t>(options.influence.kind)]},
                                {"integration_points", options.influence.num_points},
                                {"data_hash", answers.DataHash()},
                                {"seed", options.seed}});
  HW_ASSIGN_OR_RETURN(const std::optional<Json> saved, checkpoint.Load());
  if (saved) {
    HW_ASSIGN_OR_RETURN(state, ProfileState::FromJson(*saved, input.checkpoint + ": state", state));
  }
  ThreadPool pool(model.num_threads);
  GradDecoder<float> decoder(*model.model, pool, model.compute);
  const int64_t total = options.samples_per_length * static_cast<int64_t>(options.lengths.size());
  ProgressBar progress(input.progress, "influence", total);
  while (state.num_done < total) {
    const auto length_idx = static_cast<size_t>(state.num_done / options.samples_per_length);
    HW_ASSIGN_OR_RETURN(const TokenSample sample,
                        answers.Make(options.lengths[length_idx], state.num_done % options.samples_per_length));
    const SampleInfluence influence = ProfileSample(decoder, sample, rules, options.influence);
    const bool is_finite = std::isfinite(influence.loss) &&
                           std::ranges::all_of(influence.rule_losses, [](double loss) { return std::isfinite(loss); });
    if (!is_finite) {
      HW_RETURN_IF_ERROR(checkpoint.Save(state.ToJson()));
      return Status::InvalidInput(fmt::format(
          "influence: the loss of sample {} at {} tokens is {}, or an influence is not finite; expected numbers",
          state.num_done % options.samples_per_length, options.lengths[length_idx], influence.loss));
    }
    for (size_t i = 0; i < num_values; ++i) state.losses[length_idx][i] += influence.rule_losses[i];
    state.dense_losses[length_idx] += influence.loss;
    progress.Update(++state.num_done);
    HW_RETURN_IF_ERROR(checkpoint.SaveNowAndThen([&] { return state.ToJson(); }));
  }
  HW_RETURN_IF_ERROR(checkpoint.Save(state.ToJson()));
  state.notes = checkpoint.Notes();
  state.num_summed = options.samples_per_length;
  return state;
}

// Of a prompt of `length` tokens.
int64_t KeptTokens(const HeadRule& rule, int64_t length, int64_t layer_window) {
  return NumKeptTokens(ResolveRule(rule, {.prompt_tokens = length, .max_tokens = length}, layer_window), length);
}

// Density limits at every profiled length [moa §4.2 eq.5], or one limit of real bytes.
RuleChoiceProblem MakeProblem(const PlannerInput& input, const MoaOptions& options, std::span<const HeadRule> rules,
                              const ProfileState& profile, const std::optional<KvBudget>& budget) {
  const int64_t num_heads = input.shape.num_layers * input.shape.num_kv_heads;
  RuleChoiceProblem problem{.num_layers = input.shape.num_layers,
                            .heads_per_layer = input.shape.num_kv_heads,
                            .num_rules = static_cast<int64_t>(rules.size()),
                            .losses = profile.losses,
                            .costs = {},
                            .cost_limits = {},
                            .max_rules_per_layer = options.max_rules_per_layer,
                            .relative_gap = kRelativeGap};
  for (std::vector<double>& losses : problem.losses) {
    for (double& loss : losses) loss /= static_cast<double>(profile.num_summed);
  }
  // Depths in golden steps leave no gap of two even spacings.
  const double spacing = 2.0 / static_cast<double>(std::max<int64_t>(2, options.samples_per_length));
  if (options.influence.kind != InfluenceOptions::Kind::kFirstOrder) {
    for (size_t i = 0; i < options.lengths.size(); ++i) {
      std::vector<double> kept;
      for (int64_t head = 0; head < num_heads; ++head) {
        for (const HeadRule& rule : rules) {
          kept.push_back(static_cast<double>(
              KeptTokens(rule, options.lengths[i], input.windows.At(head / input.shape.num_kv_heads))));
        }
      }
      SmoothLosses(kept, rules.size(), options.lengths[i], spacing * static_cast<double>(options.lengths[i]),
                   problem.losses[i]);
    }
  }
  const auto add_limit = [&](double limit, const auto& cost_in_layer) {
    std::vector<double> costs;
    for (int64_t head = 0; head < num_heads; ++head) {
      for (const HeadRule& rule : rules) costs.push_back(cost_in_layer(head / input.shape.num_kv_heads, rule));
    }
    problem.costs.push_back(std::move(costs));
    problem.cost_limits.push_back(limit);
  };
  if (budget) {
    add_limit(static_cast<double>(budget->bytes), [&](int64_t layer_idx, const HeadRule& rule) {
      return static_cast<double>(RuleBytesAt(rule, input.shape, *budget, layer_idx));
    });
    return problem;
  }
  for (const int64_t length : options.lengths) {
    add_limit(std::floor(options.density * static_cast<double>(length * num_heads)),
              [&](int64_t layer_idx, const HeadRule& rule) {
                return static_cast<double>(KeptTokens(rule, length, input.windows.At(layer_idx)));
              });
  }
  return problem;
}

// The most that a rule costs each head, summed over lengths: [L * Hkv].
std::vector<double> InfluenceOfHeads(const RuleChoiceProblem& problem) {
  std::vector<double> most(static_cast<size_t>(problem.num_layers * problem.heads_per_layer));
  const auto num_rules = static_cast<size_t>(problem.num_rules);
  for (const std::vector<double>& losses : problem.losses) {
    for (size_t head = 0; head < most.size(); ++head) {
      most[head] += std::ranges::max(std::span(losses).subspan(head * num_rules, num_rules));
    }
  }
  return most;
}

void SpendBudget(HeadPlan& plan, const KvBudget& budget, const InfluenceOptions& influence,
                 const RuleChoiceProblem& problem) {
  if (influence.kind == InfluenceOptions::Kind::kFirstOrder) {
    WidenToBudget(plan, budget);
  } else {
    WidenByInfluence(plan, budget, InfluenceOfHeads(problem));
  }
}

struct Candidate {
  HeadPlan plan;
  std::vector<double> predicted;  // [lengths] loss added, by influence
};

Result<std::vector<TokenSample>> MakeSamples(AnswerSource& answers, int64_t num_tokens, int64_t num_samples) {
  std::vector<TokenSample> samples;
  for (int64_t i = 0; i < num_samples; ++i) {
    HW_ASSIGN_OR_RETURN(TokenSample sample, answers.Make(num_tokens, i));
    samples.push_back(std::move(sample));
  }
  return samples;
}

// The measured loss of every plan of the Pareto set at a length that was not profiled decides; the first of the best is
// chosen [moa §4.2]. Of that one the loss at the longest profiled length is measured too, beside the predicted one.
Result<size_t> Choose(const PlannerInput& input, const MoaOptions& options, AnswerSource& answers,
                      const std::vector<Candidate>& candidates, Json& report) {
  HW_ASSIGN_OR_RETURN(const std::vector<TokenSample> unseen,
                      MakeSamples(answers, options.validation_length, options.validation_samples));
  HW_ASSIGN_OR_RETURN(const double dense_unseen, answers.MeanLoss(unseen, nullptr));
  ProgressBar progress(input.progress, "validation", static_cast<int64_t>(candidates.size()));
  Json rows = Json::array();
  size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < candidates.size(); ++i) {
    HW_ASSIGN_OR_RETURN(const double loss,
                        answers.MeanLoss(unseen, std::make_shared<const HeadPlan>(candidates[i].plan)));
    rows.push_back({{"predicted", candidates[i].predicted}, {"validation_loss", loss}});
    if (loss < least) {
      least = loss;
      best = i;
    }
    progress.Update(static_cast<int64_t>(i) + 1);
    if (input.should_stop && input.should_stop()) {
      return Status::Cancelled("stopped while plans were measured; the influence is kept, --resume goes on from it");
    }
  }
  HW_ASSIGN_OR_RETURN(const std::vector<TokenSample> profiled,
                      MakeSamples(answers, options.lengths.back(), options.samples_per_length));
  HW_ASSIGN_OR_RETURN(const double dense_profiled, answers.MeanLoss(profiled, nullptr));
  HW_ASSIGN_OR_RETURN(const double chosen_profiled,
                      answers.MeanLoss(profiled, std::make_shared<const HeadPlan>(candidates[best].plan)));
  report["candidates"] = std::move(rows);
  report["chosen"] = best;
  report["validation_loss"] = least;
  report["dense_validation_loss"] = dense_unseen;
  report["dense_loss_at_longest"] = dense_profiled;
  report["predicted_at_longest"] = candidates[best].predicted.back();
  report["measured_at_longest"] = chosen_profiled - dense_profiled;
  return best;
}

Result<HeadPlan> MakeMoa(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  if (budget && input.options.Has("density")) {
    return Status::InvalidInput("found --density and a KV budget, which stands in its place; expected one");
  }
  RunLog log;
  HW_ASSIGN_OR_RETURN(const PlannerModel model, OpenPlannerModel(input));
  HW_ASSIGN_OR_RETURN(const MoaOptions options, ReadOptions(input, model.model->config));
  if (options.influence.kind != InfluenceOptions::Kind::kMeasured) {
    HW_RETURN_IF_ERROR(CheckHasGradients(model.model->config, "plan moa"));
  }
  HW_ASSIGN_OR_RETURN(AnswerSource answers, AnswerSource::Open(input, model,
                                                               {.data = options.data,
                                                                .text_file = options.text_file,
                                                                .prompt_file = options.prompt_file,
                                                                .max_answer_tokens = options.max_answer_tokens,
                                                                .seed = options.seed}));
  log.EndStep("load");
  std::vector<int64_t> all_lengths = options.lengths;
  all_lengths.push_back(options.validation_length);
  if (budget) all_lengths.push_back(budget->at_tokens);
  const std::vector<HeadRule> rules =
      options.has_static_spans ? MoaStaticGrid(all_lengths) : MoaRuleGrid(options.lengths.front(), all_lengths);
  // Before the work: limits that no choice of rules can meet depend on no loss.
  const auto num_values = rules.size() * static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads);
  const ProfileState no_losses = ProfileState::Empty(options.lengths.size(), num_values);
  HW_RETURN_IF_ERROR(
      CheckCostLimits(MakeProblem(input, options, rules, no_losses, budget))
          .Annotate(budget ? "KV budget, in bytes"
                           : fmt::format("--density {}, in tokens of all heads at each length", options.density)));
  HW_ASSIGN_OR_RETURN(const ProfileState profile, ProfileLengths(input, options, model, answers, rules));
  log.EndStep("answers and influence");
  log.Move("answers and influence", "answers", answers.TakeAnswerSeconds());

  const RuleChoiceProblem problem = MakeProblem(input, options, rules, profile, budget);
  HW_ASSIGN_OR_RETURN(const std::vector<RuleChoice> choices,
                      ParetoSet(problem, options.num_intervals, input.should_stop));
  log.EndStep("programme");
  std::vector<Candidate> candidates;
  for (const RuleChoice& choice : choices) {
    Candidate& candidate = candidates.emplace_back();
    candidate.plan = PlanOfChoice(input.shape, rules, choice);
    candidate.predicted = choice.losses;
    if (budget) SpendBudget(candidate.plan, *budget, options.influence, problem);
    // What is left of a budget often makes neighbours in the set the same plan, and measuring is most of the work.
    const auto is_same = [&](const Candidate& other) { return other.plan.rules == candidate.plan.rules; };
    if (std::any_of(candidates.begin(), candidates.end() - 1, is_same)) candidates.pop_back();
  }
  Json report = {{"lengths", options.lengths},
                 {"validation_length", options.validation_length},
                 {"num_rules", rules.size()},
                 {"influence", DescribeInfluence(profile, options.samples_per_length, rules)},
                 {"dense_losses", profile.dense_losses}};
  HW_ASSIGN_OR_RETURN(const size_t chosen, Choose(input, options, answers, candidates, report));
  log.EndStep("validation");
  HeadPlan plan = candidates[chosen].plan;
  const auto figure = [&](const char* name) { return report.at(name).get<double>(); };
  plan.notes.push_back(fmt::format(
      "chosen of {} Pareto plans: loss added at {} tokens is {:.4g} as predicted and {:.4g} as measured; loss at {} "
      "tokens {:.4g}, dense {:.4g}",
      candidates.size(), options.lengths.back(), figure("predicted_at_longest"), figure("measured_at_longest"),
      options.validation_length, figure("validation_loss"), figure("dense_validation_loss")));
  if (budget) plan.notes.push_back(DescribeBudget(plan, *budget));
  plan.notes.insert(plan.notes.end(), profile.notes.begin(), profile.notes.end());
  // How much of the shortest, middle and longest text a head keeps on average: its score.
  for (size_t head = 0; head < plan.rules.size(); ++head) {
    const int64_t layer_window = input.windows.At(static_cast<int64_t>(head) / input.shape.num_kv_heads);
    double kept = 0;
    for (const int64_t length : options.lengths) {
      kept += static_cast<double>(KeptTokens(plan.rules[head], length, layer_window)) / static_cast<double>(length);
    }
    plan.scores.push_back(kept / static_cast<double>(options.lengths.size()));
  }
  plan.data_hash = answers.DataHash();
  plan.seed = options.seed;
  plan.report_json = log.ToJson(std::move(report)).dump();
  return plan;
}

// The programme again with the influence of the earlier plan's report. Nothing is measured: the choice of least
// predicted loss at the longest profiled length is taken.
Result<HeadPlan> RefitMoa(const PlannerInput& input, const HeadPlan& earlier) {
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  HW_ASSIGN_OR_RETURN(const Json json, ParseJson(earlier.report_json, "report"));
  HW_ASSIGN_OR_RETURN(const JsonObject report, JsonObject::Of(json, "report"));
  HW_ASSIGN_OR_RETURN(const std::vector<double> lengths, report.Doubles("lengths"));
  for (const double length : lengths) HW_RETURN_IF_ERROR(CheckReportedTokens("lengths", length));
  HW_ASSIGN_OR_RETURN(const JsonObject influence, report.Object("influence"));
  const Json grid = influence.Has("rules") ? influence.At("rules") : Json();
  std::vector<HeadRule> rules;
  for (const Json& entry : grid) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number() || !entry[1].is_number()) {
      return Status::InvalidInput(
          fmt::format("report: \"influence\": rule {} is {}, expected [alpha, beta]", rules.size(), entry.dump()));
    }
    HeadRule rule;
    rule.kind = HeadRule::Kind::kElasticMoa;
    rule.sink = kMoaBlock;
    rule.alpha = entry[0].get<double>();
    rule.beta = entry[1].get<double>();
    HW_RETURN_IF_ERROR(ValidateRule(rule).Annotate(fmt::format("report: \"influence\": rule {}", rules.size())));
    rules.push_back(rule);
  }
  if (rules.empty() || lengths.empty()) {
    return Status::InvalidInput(fmt::format(
        "report: {} rules of \"influence\" and {} \"lengths\", expected some of both", rules.size(), lengths.size()));
  }
  const auto num_values = rules.size() * static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads);
  const Json state = {{"num_done", 0},
                      {"losses", influence.Has("losses") ? influence.At("losses") : Json()},
                      {"dense_losses", std::vector<double>(lengths.size())}};
  HW_ASSIGN_OR_RETURN(
      const ProfileState profile,
      ProfileState::FromJson(state, "report: influence", ProfileState::Empty(lengths.size(), num_values)));
  MoaOptions options;
  // The report has means of so many.
  HW_ASSIGN_OR_RETURN(options.samples_per_length,
                      input.options.IntOr("samples", options.samples_per_length, 1, 100'000));
  options.lengths.assign(lengths.begin(), lengths.end());
  HW_ASSIGN_OR_RETURN(options.influence, ReadInfluence(input.options));
  HW_ASSIGN_OR_RETURN(options.max_rules_per_layer,
                      input.options.IntOr("max-rules-per-layer", options.max_rules_per_layer, 1, 1000));
  const RuleChoiceProblem problem = MakeProblem(input, options, rules, profile, budget);
  HW_RETURN_IF_ERROR(CheckCostLimits(problem).Annotate("KV budget, in bytes"));
  HW_ASSIGN_OR_RETURN(const RuleChoice choice,
                      MinimiseLoss(problem, static_cast<int64_t>(lengths.size()) - 1, /*loss_limits=*/{}));
  HeadPlan plan = PlanOfChoice(input.shape, rules, choice);
  SpendBudget(plan, *budget, options.influence, problem);
  plan.notes.push_back(fmt::format(
      "from the influence of an earlier plan: predicted to add {:.4g} to the loss at {:.0f} tokens, not measured",
      choice.losses.back(), lengths.back()));
  plan.notes.push_back(DescribeBudget(plan, *budget));
  return plan;
}

}  // namespace

const PlannerMethod kMoaMethod = {
    .name = "moa",
    .description = "an elastic window per head, by influence on the answer and a mixed-integer programme [moa]",
    .options = JoinLists<std::string_view>(
        std::to_array<std::string_view>({"lengths", "validation-length", "samples", "validation-samples",
                                         "answer-tokens", "density", "intervals", "max-rules-per-layer", "spans",
                                         "influence", "integration-points", "data", "text", "prompts", "seed",
                                         "compute"}),
        kBudgetOptions),
    .make = MakeMoa,
    .runs = PlannerMethod::Runs::kModelResumably,
    .refit = {.make = RefitMoa, .replaced = {"density"}},
};

}  // namespace headwise
