#include "bench/fill_cache.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/rng.h"

namespace headwise {
namespace {

constexpr int64_t kStepTokens = 256;

// Drawn once: every step and layer takes the same values from another place on.
class NormalRows {
 public:
  NormalRows(Backend& backend, int64_t row_elements, uint64_t seed)
      : row_elements_(row_elements),
        num_rows_(kStepTokens + kShifts),
        memory_(backend, static_cast<size_t>(num_rows_ * row_elements) * sizeof(float)) {
    Rng rng(seed);
    std::vector<float> values(static_cast<size_t>(num_rows_ * row_elements_));
    for (float& value : values) {
      // Box and Muller; 1 - u is never 0.
      const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
      value = static_cast<float>(radius * std::cos(2 * std::numbers::pi * rng.Uniform()));
    }
    backend.CopyFromHost(memory_.data(), values.data(), values.size() * sizeof(float));
  }

  // [num_rows, row_elements] f32
  ConstTensorView Rows(int64_t shift, int64_t num_rows) const {
    const auto* begin = reinterpret_cast<const float*>(memory_.data()) + shift % kShifts * row_elements_;
    return ConstTensorView(begin, DType::kF32, {num_rows, row_elements_});
  }

 private:
  static constexpr int64_t kShifts = 61;  // a prime

  int64_t row_elements_;
  int64_t num_rows_;
  DeviceBuffer memory_;
};

}  // namespace

void FillCache(Sequence& sequence, int64_t num_tokens, uint64_t seed) {
  Backend& backend = *sequence.memory()->backend;
  KvCache& cache = *sequence.cache;
  const int64_t row_elements = cache.num_kv_heads() * cache.head_dim();
  const NormalRows rows(backend, row_elements, seed);
  int64_t shift = 0;
  for (int64_t left = num_tokens; left > 0;) {
    const int64_t num_new = std::min({left, kStepTokens, cache.MaxStepTokens()});
    for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
      std::vector<HeadWork> work;
      std::vector<HeadFold> folds;
      cache.Extend(layer_idx, num_new);
      cache.Work(layer_idx, 0, num_new, work);
      cache.Folds(layer_idx, 0, num_new, folds);
      backend.AppendKv({.k = rows.Rows(++shift, num_new), .v = rows.Rows(shift + 30, num_new), .heads = work});
      PagesToAge pages;
      cache.Ages(layer_idx, num_new, pages);
      if (!pages.from.empty()) backend.AgeKv(pages.Args());
      cache.Commit(layer_idx, num_new);
    }
    cache.FinishStep(num_new);
    left -= num_new;
  }
}

}  // namespace headwise
