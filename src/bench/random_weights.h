// Matrices of random numbers in any format that can be written, made about as fast as memory is copied: what speed is
// measured on where no model is at hand.
#ifndef HEADWISE_BENCH_RANDOM_WEIGHTS_H_
#define HEADWISE_BENCH_RANDOM_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace headwise {

struct RandomWeightsOptions {
  DType dtype = DType::kBF16;  // CanQuantize (tensor/blocks.h)
  uint64_t seed = 0;
  int num_threads = 1;  // that fill the matrices
};

struct RandomMatrix {
  std::unique_ptr<std::byte[]> memory;  // null, and the view absent, where there is no memory for it
  ConstTensorView view;
};

// Thread-safety: none.
class RandomWeights {
 public:
  explicit RandomWeights(const RandomWeightsOptions& options);

  // [num_rows, num_columns] with standard deviation `deviation`. Requires: rows are whole blocks.
  RandomMatrix Make(int64_t num_rows, int64_t num_columns, double deviation);

 private:
  const std::vector<std::byte>& Bank(double deviation);

  DType dtype_;
  ThreadPool pool_;
  Rng rng_;
  std::vector<float> units_;
  std::map<double, std::vector<std::byte>> banks_;  // by deviation: a model has three or four
};

}  // namespace headwise

#endif  // HEADWISE_BENCH_RANDOM_WEIGHTS_H_
