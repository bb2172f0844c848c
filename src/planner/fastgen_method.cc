// headwise plan fastgen: each head gets the cheapest policy of a hierarchy that keeps enough of its attention [fastgen
// §3]. The paper looks at each prompt for itself when it has been read; a plan is made before, so that its memory is
// known before: what is looked at are calibration texts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/json.h"
#include "base/progress.h"
#include "kv/token_marks.h"
#include "planner/budget.h"
#include "planner/calibration.h"
#include "planner/fastgen.h"
#include "planner/methods.h"
#include "planner/run_log.h"

namespace headwise {
namespace {

constexpr double kDefaultThreshold = 0.95;  // T [fastgen §3.2]
constexpr int64_t kLongestSample = 4096;    // every key of a sample is looked at for every query

struct Profile {
  std::vector<FastGenRecovery> recovery;  // [L * Hkv]
  FastGenSizes sizes;
};

Result<FastGenOptions> ReadOptions(const NamedOptions& options) {
  FastGenOptions read;
  HW_ASSIGN_OR_RETURN(read.frequent_share, options.DoubleOr("frequent-share", read.frequent_share, 0.0, 1.0));
  HW_ASSIGN_OR_RETURN(read.local_share, options.DoubleOr("local-share", read.local_share, 0.0, 1.0));
  return read;
}

Json ToJson(const Profile& profile) {
  return {{"recovery", profile.recovery},
          {"special_tokens", profile.sizes.special},
          {"punctuation_share", profile.sizes.punctuation}};
}

Result<Profile> ProfileOf(const HeadPlan& plan) {
  HW_ASSIGN_OR_RETURN(const Json report, ParseJson(plan.report_json, "report"));
  HW_ASSIGN_OR_RETURN(const JsonObject root, JsonObject::Of(report, "report"));
  HW_ASSIGN_OR_RETURN(const JsonObject found, root.Object("profile"));
  Profile profile;
  HW_ASSIGN_OR_RETURN(profile.sizes.special, found.Double("special_tokens"));
  HW_ASSIGN_OR_RETURN(profile.sizes.punctuation, found.Double("punctuation_share"));
  const auto is_row = [](const Json& row) {
    return row.is_array() && row.size() == kNumFastGenCuts &&
           std::ranges::all_of(row, [](const Json& share) { return share.is_number(); });
  };
  const bool has_rows = found.Has("recovery") && found.At("recovery").is_array() &&
                        found.At("recovery").size() == plan.rules.size() &&
                        std::ranges::all_of(found.At("recovery"), is_row);
  if (!has_rows) {
    return Status::InvalidInput(fmt::format("{}: \"recovery\" is not a list of {} times {} shares", found.origin(),
                                            plan.rules.size(), kNumFastGenCuts));
  }
  for (const Json& row : found.At("recovery")) profile.recovery.push_back(row.get<FastGenRecovery>());
  return profile;
}

// Heads of layers with a window of their own keep that, which is a policy by position already.
void GivePolicies(const PlannerInput& input, const Profile& profile, const FastGenOptions& options, double threshold,
                  HeadPlan& plan) {
  for (size_t head = 0; head < plan.rules.size(); ++head) {
    const auto layer_idx = static_cast<int64_t>(head) / input.shape.num_kv_heads;
    const bool has_window = input.windows.At(layer_idx) != kNoLimit;
    const FastGenPolicy policy = has_window ? FastGenPolicy::kFull : CheapestPolicy(profile.recovery[head], threshold);
    plan.rules[head] = FastGenRule(policy, profile.sizes, options);
  }
}

// The largest threshold with which the plan takes no more than the budget. Every share that some head keeps under some
// policy is one: in between no head changes.
Result<double> ThresholdFor(const PlannerInput& input, const Profile& profile, const FastGenOptions& options,
                            const KvBudget& budget, HeadPlan& plan) {
  std::vector<double> thresholds = {0.0, 2.0};  // every head the cheapest; every head full
  for (const FastGenRecovery& recovery : profile.recovery) {
    thresholds.insert(thresholds.end(), recovery.begin(), recovery.end());
  }
  std::ranges::sort(thresholds);
  const auto bytes_at = [&](double threshold) {
    GivePolicies(input, profile, options, threshold, plan);
    return PlanBytesAt(plan, budget);
  };
  if (bytes_at(0.0) > budget.bytes) {
    return Status::InvalidInput(fmt::format("KV budget: {} bytes at {} tokens; this plan needs at least {} bytes",
                                            budget.bytes, budget.at_tokens, bytes_at(0.0)));
  }
  const auto too_many =
      std::ranges::partition_point(thresholds, [&](double threshold) { return bytes_at(threshold) <= budget.bytes; });
  return *(too_many - 1);
}

Result<HeadPlan> PlanFrom(const PlannerInput& input, const Profile& profile, TokenLists tokens) {
  HW_ASSIGN_OR_RETURN(const FastGenOptions options, ReadOptions(input.options));
  HW_ASSIGN_OR_RETURN(const std::optional<KvBudget> budget, BudgetFromOptions(input));
  HW_ASSIGN_OR_RETURN(double threshold, input.options.DoubleOr("recovery", kDefaultThreshold, 0.0, 1.0));
  if (budget && input.options.Has("recovery")) {
    return Status::InvalidInput("found --recovery and a KV budget, which solves for it; expected one");
  }
  HeadPlan plan = HeadPlan::Dense(input.shape);
  if (budget) {
    HW_ASSIGN_OR_RETURN(threshold, ThresholdFor(input, profile, options, *budget, plan));
  }
  GivePolicies(input, profile, options, threshold, plan);
  // What the last of the policies that drop tokens would lose.
  for (const FastGenRecovery& recovery : profile.recovery) plan.scores.push_back(1 - recovery.back());
  std::array<int64_t, kNumFastGenCuts + 1> counts{};
  for (size_t head = 0; head < plan.rules.size(); ++head) {
    const bool is_full = plan.rules[head].kind == HeadRule::Kind::kFull;
    ++counts[is_full ? kNumFastGenCuts : static_cast<size_t>(CheapestPolicy(profile.recovery[head], threshold))];
  }
  plan.notes.push_back(fmt::format(
      "of {} KV heads {} keep special tokens, {} punctuation too, {} frequent ones too, {} the newest too, {} all: the "
      "first that keeps {:.4f} of the attention",
      plan.rules.size(), counts[0], counts[1], counts[2], counts[3], counts[4], std::min(threshold, 1.0)));
  if (budget) plan.notes.push_back(DescribeBudget(plan, *budget));
  // Nothing asks for what tokens are where every head came out full.
  if (counts[kNumFastGenCuts] < static_cast<int64_t>(plan.rules.size())) plan.tokens = std::move(tokens);
  return plan;
}

Result<HeadPlan> MakeFastGen(const PlannerInput& input) {
  HW_ASSIGN_OR_RETURN(const int64_t num_samples, input.options.IntOr("samples", 4, 1, 100'000));
  HW_ASSIGN_OR_RETURN(const FastGenOptions options, ReadOptions(input.options));
  RunLog log;
  HW_ASSIGN_OR_RETURN(const PlannerModel model, OpenPlannerModel(input));
  HW_ASSIGN_OR_RETURN(const CalibrationOptions calibration, ReadCalibration(input, model, kLongestSample));
  HW_ASSIGN_OR_RETURN(const CalibrationSamples samples, CalibrationSamples::Open(model, calibration));
  TokenLists tokens = ListTokens(*model.tokenizer);
  if (tokens == TokenLists{}) {
    return Status::InvalidInput("fastgen: the tokenizer has no special tokens and none of punctuation alone");
  }
  log.EndStep("load");
  Profile profile;
  profile.recovery.resize(static_cast<size_t>(input.shape.num_layers * input.shape.num_kv_heads));
  ThreadPool pool(model.num_threads);
  GradDecoder<float> decoder(*model.model, pool, model.compute);
  ProgressBar progress(input.progress, "profile", num_samples);
  const auto part = 1.0 / static_cast<double>(num_samples);
  for (int64_t i = 0; i < num_samples; ++i) {
    HW_ASSIGN_OR_RETURN(const TokenSample sample, samples.Make(static_cast<uint64_t>(i)));
    std::vector<TokenMark> marks;
    AppendMarks(sample.ids, tokens, marks);
    profile.sizes.special += part * static_cast<double>(std::ranges::count(marks, TokenMark::kSpecial));
    profile.sizes.punctuation += part * static_cast<double>(std::ranges::count(marks, TokenMark::kPunctuation)) /
                                 static_cast<double>(marks.size());
    std::vector<float> hidden;
    decoder.Forward({.ids = sample.ids,
                     .wanted = {},
                     .on_attention =
                         [&](const AttentionView<float>& view) {
                           pool.ParallelFor(input.shape.num_kv_heads, [&](int64_t kv_head, int) {
                             const FastGenRecovery recovery = RecoveryOf(view, kv_head, marks, options);
                             const int64_t head = view.layer_idx * input.shape.num_kv_heads + kv_head;
                             for (size_t policy = 0; policy < kNumFastGenCuts; ++policy) {
                               profile.recovery[static_cast<size_t>(head)][policy] += part * recovery[policy];
                             }
                           });
                         }},
                    hidden);
    progress.Update(i + 1);
    if (input.should_stop && input.should_stop()) return Status::Cancelled("plan fastgen: interrupted");
  }
  for (const FastGenRecovery& recovery : profile.recovery) {
    if (std::ranges::all_of(recovery, [](double share) { return std::isfinite(share); })) continue;
    return Status::InvalidInput("fastgen: attention is not finite, expected finite weights and texts");
  }
  log.EndStep("profile");
  HW_ASSIGN_OR_RETURN(HeadPlan plan, PlanFrom(input, profile, std::move(tokens)));
  plan.data_hash = samples.DataHash();
  plan.seed = calibration.seed;
  plan.report_json = log.ToJson({{"profile", ToJson(profile)}, {"samples", num_samples}}).dump();
  return plan;
}

Result<HeadPlan> RefitFastGen(const PlannerInput& input, const HeadPlan& earlier) {
  HW_ASSIGN_OR_RETURN(const Profile profile, ProfileOf(earlier));
  if (earlier.tokens == TokenLists{}) {
    return Status::InvalidInput("the plan lists no tokens, because all of its heads are full; make it anew");
  }
  return PlanFrom(input, profile, earlier.tokens);
}

}  // namespace

const PlannerMethod kFastGenMethod = {
    .name = "fastgen",
    .description =
        "every head keeps special tokens, and the first of punctuation, frequent and newest tokens, or all, "
        "that its attention needs [fastgen]",
    .options = JoinLists<std::string_view>(
        std::to_array<std::string_view>({"recovery", "frequent-share", "local-share", "samples", "compute"}),
        kBudgetOptions, kCalibrationOptions),
    .make = MakeFastGen,
    .runs = PlannerMethod::Runs::kModel,
    .refit = {.make = RefitFastGen, .replaced = {"recovery"}},
};

}  // namespace headwise
