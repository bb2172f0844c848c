// Planners on a model whose far-sighted heads are known by construction: each method must find exactly those.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>

#include "planner/duo.h"
#include "planner/gates.h"
#include "planner/moa.h"
#include "planner/moa_influence.h"
#include "planner/razor.h"
#include "support/planted_model.h"

namespace headwise {
namespace {

using ::testing::UnorderedElementsAre;

constexpr int64_t kEcho = PlantedModel::kEchoHead;
constexpr int64_t kInduction = PlantedModel::kInductionHead;

// Every token twice, in different orders; the second half is labelled. What stood before a token, and after it, is far
// away and can only be looked up there.
TokenSample MakeSample(uint64_t seed) {
  Rng rng(seed);
  TokenSample sample;
  for (int half = 0; half < 2; ++half) {
    std::vector<int32_t> ids(PlantedModel::kVocab);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < ids.size(); ++i) std::swap(ids[i], ids[i + rng.Below(ids.size() - i)]);
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  }
  const auto num_tokens = static_cast<int32_t>(sample.ids.size());
  for (int32_t pos = num_tokens / 2; pos + 1 < num_tokens; ++pos) sample.labels.push_back(pos);
  return sample;
}

DuoOptions FastDuo() {
  DuoOptions options;
  options.num_steps = 60;
  options.learning_rate = 0.1;
  options.lowest_learning_rate = 0.01;
  options.train_rule = HeadRule::Stream(1, 8);
  options.max_tokens = 2 * PlantedModel::kVocab;
  return options;
}

Result<TokenSample> SampleOfStep(int64_t step, int64_t sample_idx) {
  return MakeSample(static_cast<uint64_t>(100 + 7 * step + sample_idx));
}

Status Ignore(const DuoState&, int64_t) {
  return Status::Ok();
}

TEST(PlantedHeads, DuoFindsThem) {
  const PlantedModel planted;
  DuoState state;
  const Status status = TrainGates(planted.model(), FastDuo(), SampleOfStep, Ignore, state);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<int64_t> large;
  for (size_t head = 0; head < state.gates.size(); ++head) {
    EXPECT_GE(state.gates[head], 0);
    EXPECT_LE(state.gates[head], 1);
    if (state.gates[head] > 0.5) large.push_back(static_cast<int64_t>(head));
  }
  EXPECT_THAT(large, UnorderedElementsAre(kEcho, kInduction)) << testing::PrintToString(state.gates);
}

// Gates in descending order, those that differ by less than a hundredth in that of the heads.
std::vector<size_t> Ranking(const std::vector<double>& gates) {
  std::vector<size_t> order(gates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t head) { return std::round(100 * gates[head]); });
  return order;
}

TEST(PlantedHeads, DuoRanksThemInBF16AsInF32) {
  const PlantedModel planted;
  DuoOptions options = FastDuo();
  DuoState exact;
  ASSERT_TRUE(TrainGates(planted.model(), options, SampleOfStep, Ignore, exact).ok());
  options.compute = Compute::kBF16;
  DuoState rounded;
  ASSERT_TRUE(TrainGates(planted.model(), options, SampleOfStep, Ignore, rounded).ok());
  EXPECT_EQ(Ranking(rounded.gates), Ranking(exact.gates));
  for (size_t head = 0; head < exact.gates.size(); ++head) {
    EXPECT_NEAR(rounded.gates[head], exact.gates[head], 0.02) << "head " << head;
  }
}

TEST(Duo, LossFallsAgainOnceOnlyUselessHeadsAreClosed) {
  const PlantedModel planted;
  DuoState state;
  ASSERT_TRUE(TrainGates(planted.model(), FastDuo(), SampleOfStep, Ignore, state).ok());
  const double worst = *std::max_element(state.losses.begin(), state.losses.end());
  EXPECT_GT(worst, 1e-4);
  EXPECT_LT(state.losses.back(), worst / 2);
}

TEST(Duo, AResumedRunIsTheSameBitForBit) {
  const PlantedModel planted;
  DuoState whole;
  ASSERT_TRUE(TrainGates(planted.model(), FastDuo(), SampleOfStep, Ignore, whole).ok());

  DuoState first;
  const auto stop = [](const DuoState& state, int64_t) {
    return state.num_steps_done == 17 ? Status::Cancelled("the test pulls the plug") : Status::Ok();
  };
  ASSERT_FALSE(TrainGates(planted.model(), FastDuo(), SampleOfStep, stop, first).ok());
  // Through text, as a checkpoint goes.
  const Json saved = Json::parse(first.ToJson().dump());
  auto resumed = DuoState::FromJson(saved, "checkpoint");
  ASSERT_TRUE(resumed.ok()) << resumed.status().message();
  ASSERT_TRUE(TrainGates(planted.model(), FastDuo(), SampleOfStep, Ignore, *resumed).ok());
  EXPECT_EQ(resumed->gates, whole.gates);
  EXPECT_EQ(resumed->losses, whole.losses);
}

TEST(Duo, ThreadsAndLanesChangeNothing) {
  const PlantedModel planted;
  DuoOptions options = FastDuo();
  options.num_steps = 12;
  options.samples_per_step = 3;
  DuoState first;
  ASSERT_TRUE(TrainGates(planted.model(), options, SampleOfStep, Ignore, first).ok());
  for (const int num_threads : {2, 4}) {
    options.num_threads = num_threads;
    DuoState other;
    ASSERT_TRUE(TrainGates(planted.model(), options, SampleOfStep, Ignore, other).ok());
    EXPECT_EQ(other.gates, first.gates) << num_threads << " threads";
  }
}

TEST(Duo, OneGateALayerStaysOneGate) {
  const PlantedModel planted;
  DuoOptions options = FastDuo();
  options.sharing = GateSharing::kPerLayer;
  DuoState state;
  ASSERT_TRUE(TrainGates(planted.model(), options, SampleOfStep, Ignore, state).ok());
  for (size_t head = 0; head < state.gates.size(); ++head) {
    EXPECT_EQ(state.gates[head], state.gates[head / PlantedModel::kHeads * PlantedModel::kHeads]);
  }
  EXPECT_LT(state.gates[0], 0.5);
  EXPECT_GT(state.gates[PlantedModel::kHeads], 0.5);
}

TEST(Duo, ALossThatIsNotFiniteStopsTheRunAndKeepsTheLastGoodState) {
  const PlantedModel planted;
  DuoOptions options = FastDuo();
  options.regulariser = INFINITY;
  DuoState state;
  const Status status = TrainGates(planted.model(), options, SampleOfStep, Ignore, state);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("step 1 of 60"));
  EXPECT_EQ(state.num_steps_done, 0);
  EXPECT_EQ(state.gates, std::vector<double>(8, 1.0));
}

TEST(Duo, LearningRateRisesStaysAndFalls) {
  DuoOptions options;
  options.num_steps = 100;
  EXPECT_DOUBLE_EQ(DuoLearningRate(options, 0, 80), 0.002);
  EXPECT_NEAR(DuoLearningRate(options, 10, 80), 0.011, 1e-12);
  EXPECT_DOUBLE_EQ(DuoLearningRate(options, 20, 80), 0.02);
  EXPECT_DOUBLE_EQ(DuoLearningRate(options, 79, 80), 0.02);
  EXPECT_DOUBLE_EQ(DuoLearningRate(options, 99, 80), 0.002);
  EXPECT_LT(DuoLearningRate(options, 85, 80), 0.02);
}

TEST(PlantedHeads, RazorFindsThem) {
  const PlantedModel planted;
  ThreadPool pool(2);
  GradDecoder<float> decoder(planted.model(), pool);
  Rng rng(5);
  constexpr int64_t kTokens = PlantedModel::kVocab / 2;
  const auto ids = MakeRepeatedTokens(
      kTokens, PlantedModel::kVocab, [](int32_t) { return true; }, {}, rng);
  ASSERT_TRUE(ids.ok());
  const RetrievalScores scores = ScoreRepeatedTokens(decoder, *ids, kTokens, {});
  EXPECT_EQ(std::max_element(scores.echo.begin(), scores.echo.end()) - scores.echo.begin(), kEcho);
  EXPECT_EQ(std::max_element(scores.induction.begin(), scores.induction.end()) - scores.induction.begin(), kInduction);
  // By hand: an echo head shares its attention evenly between its own and all earlier equal tokens, 1, 2 and 3 of them;
  // an induction head finds its token only behind the earlier ones.
  EXPECT_NEAR(scores.echo[kEcho], (1.0 / 2 + 2.0 / 3 + 3.0 / 4) / 3, 0.02);
  EXPECT_GT(scores.induction[kInduction], 0.9);
  std::vector<bool> expected(8, false);
  expected[kEcho] = expected[kInduction] = true;
  EXPECT_EQ(ProtectedHeads(scores, planted.model().config.shape(), 1, 1), expected);
}

enum class Order { kSame, kReversed };

// An order of 32 tokens, far away and seen once, then again or backwards at the end: what follows there is known to the
// induction head, or to the echo head. Other tokens around, so that sinks and windows hold no copy.
TokenSample MakeFarAnswer(Order order, uint64_t seed) {
  constexpr size_t kAnswer = 32;
  Rng rng(seed);
  TokenSample sample;
  const auto add_others = [&](int count) {
    for (int i = 0; i < count; ++i) sample.ids.push_back(static_cast<int32_t>(kAnswer + rng.Below(32)));
  };
  std::vector<int32_t> answer(kAnswer);
  std::iota(answer.begin(), answer.end(), 0);
  for (size_t i = 0; i < kAnswer; ++i) std::swap(answer[i], answer[i + rng.Below(kAnswer - i)]);
  add_others(64);
  sample.ids.insert(sample.ids.end(), answer.begin(), answer.end());
  add_others(512 - 64 - 2 * kAnswer);
  if (order == Order::kReversed) std::ranges::reverse(answer);
  sample.ids.insert(sample.ids.end(), answer.begin(), answer.end());
  for (int32_t pos = 480; pos < 511; ++pos) sample.labels.push_back(pos);
  return sample;
}

using Kind = InfluenceOptions::Kind;

class MoaInfluence : public testing::TestWithParam<Kind> {
 protected:
  MoaInfluence() : rules_(MoaRuleGrid(256, std::vector<int64_t>{512})) {}

  std::vector<double> RuleLosses(const PlantedModel& planted, Order order, int64_t num_points = 4) {
    GradDecoder<float> decoder(planted.model(), pool_);
    return ProfileSample(decoder, MakeFarAnswer(order, 9), rules_, {.kind = GetParam(), .num_points = num_points})
        .rule_losses;
  }
  // Tokens that the head keeps under each rule.
  std::vector<double> Costs() const {
    std::vector<double> costs;
    for (int head = 0; head < 8; ++head) {
      for (const HeadRule& rule : rules_) {
        costs.push_back(
            static_cast<double>(NumKeptTokens(ResolveRule(rule, {.prompt_tokens = 512, .max_tokens = 512}), 512)));
      }
    }
    return costs;
  }

  ThreadPool pool_{2};
  std::vector<HeadRule> rules_;
};

// Room for one whole head: it must go to the one that the answer rests on. The other one tells of what followed where
// the answer is what came before, and the loss is better without it.
TEST_P(MoaInfluence, FindsTheHeadThatTheAnswerRestsOn) {
  const PlantedModel planted;
  const std::vector<double> costs = Costs();
  const double least = *std::ranges::min_element(costs);
  for (const auto& [order, expected] : {std::pair(Order::kSame, kInduction), std::pair(Order::kReversed, kEcho)}) {
    const RuleChoiceProblem problem{.num_layers = 2,
                                    .heads_per_layer = 4,
                                    .num_rules = static_cast<int64_t>(rules_.size()),
                                    .losses = {RuleLosses(planted, order)},
                                    .costs = {costs},
                                    .cost_limits = {512 + 7 * least}};
    const auto choice = MinimiseLoss(problem, 0, {});
    ASSERT_TRUE(choice.ok()) << choice.status().message();
    std::vector<int64_t> wide;
    for (int64_t head = 0; head < 8; ++head) {
      const int64_t rule = choice->rule_of_head[static_cast<size_t>(head)];
      if (costs[static_cast<size_t>(head * problem.num_rules + rule)] > 256) wide.push_back(head);
    }
    EXPECT_THAT(wide, testing::ElementsAre(expected));
  }
}

// A model that is certain of its answer: by the first order of the loss what it rests on hardly matters, by all others
// it does.
TEST_P(MoaInfluence, OfACertainAnswerIsSmallInTheFirstOrderAlone) {
  const PlantedModel planted(/*logit_scale=*/2.0f);
  const std::vector<double> losses = RuleLosses(planted, Order::kSame);
  const auto of_head = std::span(losses).subspan(static_cast<size_t>(kInduction) * rules_.size(), rules_.size());
  if (GetParam() == Kind::kFirstOrder) {
    EXPECT_LT(std::ranges::max(of_head), 0.5);
  } else {
    EXPECT_GT(std::ranges::max(of_head), 1);
  }
}

std::string KindName(const testing::TestParamInfo<Kind>& kind) {
  constexpr std::array kNames = {"FirstOrder", "Margin", "Integrated", "Measured"};
  return kNames[static_cast<size_t>(kind.param)];
}
INSTANTIATE_TEST_SUITE_P(Kinds, MoaInfluence,
                         testing::Values(Kind::kFirstOrder, Kind::kMargin, Kind::kIntegrated, Kind::kMeasured),
                         KindName);

// The loss of the text with some heads under `bounded`, by a plain run.
double LossUnder(const PlantedModel& planted, const TokenSample& sample, const std::vector<double>& gates,
                 const HeadRule& bounded) {
  ThreadPool pool(1);
  GradDecoder<float> decoder(planted.model(), pool);
  const HeadGates head_gates{.values = gates, .bounded = bounded};
  std::vector<float> hidden;
  std::vector<float> unused;
  decoder.Forward({.ids = std::span(sample.ids).first(sample.ids.size() - 1),
                   .wanted = sample.labels,
                   .gates = &head_gates,
                   .on_attention = {}},
                  hidden);
  std::vector<int32_t> targets;
  for (const int32_t label : sample.labels) targets.push_back(sample.ids[static_cast<size_t>(label) + 1]);
  return decoder.NllLoss(hidden, targets, unused);
}

TEST(MeasuredInfluence, IsTheLossOfAPlainRunUnderTheRule) {
  const PlantedModel planted(/*logit_scale=*/2.0f);
  const TokenSample sample = MakeFarAnswer(Order::kSame, 9);
  const std::vector<HeadRule> rules = MoaRuleGrid(256, std::vector<int64_t>{512});
  ThreadPool pool(2);
  GradDecoder<float> decoder(planted.model(), pool);
  const SampleInfluence influence = ProfileSample(decoder, sample, rules, {.kind = Kind::kMeasured});
  std::vector<double> gates(8, 1.0);
  EXPECT_NEAR(influence.loss, LossUnder(planted, sample, gates, HeadRule::Full()), 1e-6);
  for (size_t head = 0; head < gates.size(); ++head) {
    gates[head] = 0;
    for (size_t i = 0; i < rules.size(); ++i) {
      const ResolvedRule rule = ResolveRule(rules[i], {.prompt_tokens = 512, .max_tokens = 512});
      const double loss = LossUnder(planted, sample, gates, HeadRule::Stream(rule.sink, rule.recent));
      // What costs less than 0.005 may count as nothing.
      EXPECT_NEAR(influence.rule_losses[head * rules.size() + i], loss - influence.loss, 0.005) << head << " " << i;
    }
    gates[head] = 1;
  }
}

// Integrated gradients add up to the difference between both ends, which plain runs measure.
TEST(IntegratedInfluence, AddsUpToWhatHidingInAllHeadsCosts) {
  const PlantedModel planted(/*logit_scale=*/2.0f);
  const TokenSample sample = MakeFarAnswer(Order::kSame, 9);
  const std::vector<HeadRule> rules{[] {
    HeadRule rule;
    rule.kind = HeadRule::Kind::kElasticMoa;
    rule.sink = kMoaBlock;
    rule.beta = 0.25;
    return rule;
  }()};
  ThreadPool pool(2);
  GradDecoder<float> decoder(planted.model(), pool);
  const SampleInfluence influence =
      ProfileSample(decoder, sample, rules, {.kind = Kind::kIntegrated, .num_points = 64});
  const ResolvedRule rule = ResolveRule(rules[0], {.prompt_tokens = 512, .max_tokens = 512});
  const double cost =
      LossUnder(planted, sample, std::vector<double>(8, 0.0), HeadRule::Stream(rule.sink, rule.recent)) -
      influence.loss;
  const double sum = std::accumulate(influence.rule_losses.begin(), influence.rule_losses.end(), 0.0);
  EXPECT_GT(cost, 1);
  EXPECT_NEAR(sum / cost, 1, 0.05);
}

// By hand: two heads, four rules that keep 100, 60, 60 and 20 of 100 tokens.
TEST(SmoothLosses, HidingMoreNeverCostsLessAndGapsAreFilled) {
  const std::vector<double> kept{100, 60, 60, 20, 100, 60, 60, 20};
  const std::vector<double> measured{9, -1, 0.5, 4, -3, 2, 1, -5};
  std::vector<double> losses = measured;
  SmoothLosses(kept, 4, 100, /*spacing=*/0, losses);
  EXPECT_THAT(losses, testing::ElementsAre(0, 0.5, 0.5, 4, 0, 2, 2, 2));
  losses = measured;
  // From 60 down to 40 it rises from 0.5 to 2.25; what keeps less than the narrowest rule costs as much.
  SmoothLosses(kept, 4, 100, /*spacing=*/20, losses);
  EXPECT_THAT(losses, testing::ElementsAre(0, 1.375, 1.375, 4, 0, 2, 2, 2));
  losses = measured;
  SmoothLosses(kept, 4, 100, /*spacing=*/80, losses);
  EXPECT_THAT(losses, testing::ElementsAre(0, (2.25 * 40 + 4 * 40) / 80, (2.25 * 40 + 4 * 40) / 80, 4, 0, 2, 2, 2));
}

// By hand, for distances of 0-63, 64-127 and 128-191 tokens.
TEST(HiddenLoss, CountsTheDistancesOutsideTheWindow) {
  const std::vector<double> distances{1, 10, 100};
  const auto window = [](int64_t recent) { return ResolvedRule{.sink = 64, .recent = recent}; };
  EXPECT_EQ(HiddenLoss(distances, window(64)), 110);
  EXPECT_EQ(HiddenLoss(distances, window(128)), 100);
  EXPECT_EQ(HiddenLoss(distances, window(96)), 105);
  EXPECT_EQ(HiddenLoss(distances, window(192)), 0);
  EXPECT_EQ(HiddenLoss(distances, ResolvedRule{}), 0);
}

}  // namespace
}  // namespace headwise
