#include "planner/zigzag.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "base/rng.h"
#include "planner/gates.h"

namespace headwise {
namespace {

// The cheapest of all C(L, q) choices of q full layers.
double CheapestByEnumeration(const TransportProblem& problem, int64_t num_full) {
  double cheapest = std::numeric_limits<double>::infinity();
  for (uint32_t choice = 0; choice < (1u << problem.num_layers); ++choice) {
    if (std::popcount(choice) != num_full) continue;
    std::vector<bool> is_full;
    for (int64_t layer_idx = 0; layer_idx < problem.num_layers; ++layer_idx) {
      is_full.push_back((choice >> layer_idx & 1) != 0);
    }
    cheapest = std::min(cheapest, TransportCost(problem, is_full));
  }
  return cheapest;
}

TEST(Zigzag, SortingIsAsGoodAsEnumeration) {
  Rng rng(11);
  for (int round = 0; round < 1000; ++round) {
    TransportProblem problem{.num_layers = static_cast<int64_t>(1 + rng.Below(9)),
                             .heads_per_layer = static_cast<int64_t>(1 + rng.Below(5)),
                             .gates = {},
                             .is_retrieval = {},
                             .omega = rng.Uniform()};
    const auto num_heads = static_cast<size_t>(problem.num_layers * problem.heads_per_layer);
    // Coarse gates, so that ties occur.
    for (size_t i = 0; i < num_heads; ++i) problem.gates.push_back(static_cast<double>(rng.Below(11)) / 10);
    const auto num_full = static_cast<int64_t>(rng.Below(static_cast<uint64_t>(problem.num_layers) + 1));
    problem.is_retrieval.assign(num_heads, false);
    const std::vector<size_t> by_gate = HeadsByGate(problem.gates);
    for (size_t i = 0; i < static_cast<size_t>(num_full * problem.heads_per_layer); ++i) {
      problem.is_retrieval[by_gate[i]] = true;
    }
    const std::vector<int64_t> order = LayersBySaving(problem);
    std::vector<bool> is_full(static_cast<size_t>(problem.num_layers), false);
    for (int64_t i = 0; i < num_full; ++i) is_full[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
    ASSERT_NEAR(TransportCost(problem, is_full), CheapestByEnumeration(problem, num_full), 1e-12) << "round " << round;
  }
}

TEST(Zigzag, CostIsEquationFive) {
  const TransportProblem problem{.num_layers = 2,
                                 .heads_per_layer = 2,
                                 .gates = {0.9, 0.2, 0.6, 0.1},
                                 .is_retrieval = {true, false, true, false},
                                 .omega = 0.5};
  // Layer 0 full: its head 1 turns into a retrieval head and earns; layer 1 streams: its head 0 costs.
  EXPECT_DOUBLE_EQ(TransportCost(problem, {true, false}), -0.5 * 0.2 + 0.6);
  EXPECT_DOUBLE_EQ(TransportCost(problem, {false, true}), 0.9 - 0.5 * 0.1);
  EXPECT_EQ(LayersBySaving(problem), (std::vector<int64_t>{0, 1}));
}

}  // namespace
}  // namespace headwise
