// How long an answer is likely to become, by how long others were.
#ifndef HEADWISE_ENGINE_OUTPUT_ESTIMATE_H_
#define HEADWISE_ENGINE_OUTPUT_ESTIMATE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace headwise {

// The mean length of answers that ended and how far they were from it on average, older ones counting less and less.
// Thread-safety: none.
class OutputEstimate {
 public:
  void Learn(int64_t num_tokens) {
    const auto length = static_cast<double>(num_tokens);
    if (!has_learned_) mean_ = length;
    has_learned_ = true;
    distance_ += kNewest * (std::abs(length - mean_) - distance_);
    mean_ += kNewest * (length - mean_);
  }
  // Tokens that an answer of `num_so_far` has yet to come, at least `least`: so many that most answers have no more.
  int64_t More(int64_t num_so_far, int64_t least) const {
    const double length = has_learned_ ? mean_ + distance_ : kUnknown;
    return std::max(least, static_cast<int64_t>(std::ceil(length)) - num_so_far);
  }

 private:
  static constexpr double kNewest = 0.05;  // weight of the newest answer
  static constexpr double kUnknown = 256;  // before any has ended
  double mean_ = 0;
  double distance_ = 0;
  bool has_learned_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_OUTPUT_ESTIMATE_H_
