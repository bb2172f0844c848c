// Which experts scores choose, and with what weights, as torch has it.
#include "backend/choose_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "support/random_rows.h"

namespace headwise {
namespace {

// What ChooseExperts reads of a call.
ExpertsArgs Routed(const Floats& logits, const std::vector<ExpertWeights>& experts, int64_t num_chosen) {
  ExpertsArgs args;
  args.logits = ConstTensorView(logits.data(), DType::kF32, {1, static_cast<int64_t>(logits.size())});
  args.routing.num_chosen = num_chosen;
  args.experts = experts;
  return args;
}

std::vector<int32_t> ChosenOf(const Floats& logits, int64_t num_chosen) {
  const std::vector<ExpertWeights> experts(logits.size());
  const ExpertsArgs args = Routed(logits, experts, num_chosen);
  std::vector<ChosenExpert> chosen(static_cast<size_t>(num_chosen));
  ChooseExperts(args, 0, chosen);
  std::vector<int32_t> found;
  for (const ChosenExpert& each : chosen) found.push_back(each.expert);
  return found;
}

// What torch 2.15 gives on a CPU: torch.topk(torch.zeros(n), k).indices, and of one row with some that are equal.
TEST(ChooseExperts, OfEqualScoresTakesThoseThatTorchTakes) {
  EXPECT_EQ(ChosenOf(Floats(4), 2), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(ChosenOf(Floats(8), 2), (std::vector<int32_t>{6, 5}));
  EXPECT_EQ(ChosenOf(Floats(8), 8), (std::vector<int32_t>{4, 7, 6, 5, 2, 1, 0, 3}));
  EXPECT_EQ(ChosenOf(Floats(60), 4), (std::vector<int32_t>{39, 40, 41, 38}));
  EXPECT_EQ(ChosenOf(Floats(128), 8), (std::vector<int32_t>{84, 87, 86, 85, 82, 81, 88, 83}));
  EXPECT_EQ(ChosenOf(Floats(128), 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(ChosenOf({1, 2, 2, 0, 2, 1, 2, 2}, 3), (std::vector<int32_t>{4, 7, 6}));
}

TEST(ChooseExperts, WeightsFollowFromScores) {
  const Floats logits{0.5f, -1.0f, 2.0f, 1.0f};
  const std::vector<ExpertWeights> experts(4);
  const Floats bias{0, 5, 0, 0};
  ExpertsArgs args = Routed(logits, experts, 2);
  const auto expect = [&](const std::vector<std::pair<int32_t, double>>& expected) {
    std::vector<ChosenExpert> chosen(2);
    ChooseExperts(args, 0, chosen);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(chosen[i].expert, expected[i].first);
      EXPECT_NEAR(chosen[i].weight, expected[i].second, 1e-6);
    }
  };
  const double two = std::exp(2), one = std::exp(1), sum = two + one + std::exp(0.5) + std::exp(-1);
  expect({{2, two / (two + one)}, {3, one / (two + one)}});
  args.routing.normalised = false;
  expect({{2, two / sum}, {3, one / sum}});
  args.routing.scores = ExpertRouting::Scores::kSigmoid;
  args.routing.scale = 3;
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  expect({{2, 3 * sigmoid(2)}, {3, 3 * sigmoid(1)}});
  args.routing.selection_bias = ConstTensorView(bias.data(), DType::kF32, {4});
  expect({{1, 3 * sigmoid(-1)}, {2, 3 * sigmoid(2)}});
}

}  // namespace
}  // namespace headwise
