#include "planner/zigzag.h"

#include <algorithm>
#include <numeric>

namespace headwise {
namespace {

double LayerCost(const TransportProblem& problem, int64_t layer_idx, bool is_full) {
  double cost = 0;
  for (int64_t i = 0; i < problem.heads_per_layer; ++i) {
    const auto head = static_cast<size_t>(layer_idx * problem.heads_per_layer + i);
    if (problem.is_retrieval[head] && !is_full) cost += problem.gates[head];
    if (!problem.is_retrieval[head] && is_full) cost -= problem.omega * problem.gates[head];
  }
  return cost;
}

}  // namespace

double TransportCost(const TransportProblem& problem, const std::vector<bool>& layer_is_full) {
  double cost = 0;
  for (int64_t layer_idx = 0; layer_idx < problem.num_layers; ++layer_idx) {
    cost += LayerCost(problem, layer_idx, layer_is_full[static_cast<size_t>(layer_idx)]);
  }
  return cost;
}

std::vector<int64_t> LayersBySaving(const TransportProblem& problem) {
  std::vector<double> saving;
  for (int64_t layer_idx = 0; layer_idx < problem.num_layers; ++layer_idx) {
    saving.push_back(LayerCost(problem, layer_idx, /*is_full=*/false) -
                     LayerCost(problem, layer_idx, /*is_full=*/true));
  }
  std::vector<int64_t> order(static_cast<size_t>(problem.num_layers));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double saving_a = saving[static_cast<size_t>(a)];
    const double saving_b = saving[static_cast<size_t>(b)];
    return saving_a != saving_b ? saving_a > saving_b : a > b;
  });
  return order;
}

}  // namespace headwise
