// AdamW over a handful of numbers, in double precision: gates are few, and the same numbers must come out on every
// machine that computes the same gradients.
#ifndef HEADWISE_PLANNER_ADAMW_H_
#define HEADWISE_PLANNER_ADAMW_H_

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace headwise {

// The usual constants; weight decay is decoupled from the gradient, and 0 unless asked for: gates have a regulariser of
// their own [duo §2.2 eq.3].
struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;

  struct State {
    int64_t num_updates = 0;
    std::vector<double> first_moment;  // as many as parameters
    std::vector<double> second_moment;
  };

  void Update(std::span<const double> gradient, double learning_rate, State& state,
              std::span<double> parameters) const {
    state.first_moment.resize(parameters.size());
    state.second_moment.resize(parameters.size());
    ++state.num_updates;
    const double correction1 = 1 - std::pow(beta1, static_cast<double>(state.num_updates));
    const double correction2 = 1 - std::pow(beta2, static_cast<double>(state.num_updates));
    for (size_t i = 0; i < parameters.size(); ++i) {
      double& m = state.first_moment[i];
      double& v = state.second_moment[i];
      m = beta1 * m + (1 - beta1) * gradient[i];
      v = beta2 * v + (1 - beta2) * gradient[i] * gradient[i];
      parameters[i] *= 1 - learning_rate * weight_decay;
      parameters[i] -= learning_rate * (m / correction1) / (std::sqrt(v / correction2) + epsilon);
    }
  }
};

}  // namespace headwise

#endif  // HEADWISE_PLANNER_ADAMW_H_
