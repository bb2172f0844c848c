#include "bench/fill_cache.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/rng.h"
#include "kv/cache_step.h"

namespace headwise {
namespace {

// A step costs a table of all pages that are there, so that a long text comes in longer steps: a hundred or two, but of
// no more tokens than there is room for beside the cache, in which a step's pages of q4 are q8 at first.
constexpr int64_t kMinStepTokens = 4096, kMaxStepTokens = 16384;
int64_t StepTokensFor(int64_t num_tokens) {
  return std::clamp(num_tokens / 64, kMinStepTokens, kMaxStepTokens);
}

// For steps of `num_rows`: every step and layer takes the same values from another place on. Drawing takes longer than
// all the rest, so that no more numbers are drawn than make rows differ: a prime, over and over.
class NormalRows {
 public:
  static Result<NormalRows> Make(Device& device, int64_t num_rows, int64_t row_elements, uint64_t seed) {
    NormalRows rows;
    rows.row_elements_ = row_elements;
    Rng rng(seed);
    std::vector<float> values(static_cast<size_t>((num_rows + kShifts) * row_elements));
    for (size_t i = 0; i < std::min(kNumDrawn, values.size()); ++i) {
      // Box and Muller; 1 - u is never 0.
      const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
      values[i] = static_cast<float>(radius * std::cos(2 * std::numbers::pi * rng.Uniform()));
    }
    for (size_t i = kNumDrawn; i < values.size(); ++i) values[i] = values[i - kNumDrawn];
    HW_ASSIGN_OR_RETURN(rows.memory_, DeviceBuffer::Make(device, values.size() * sizeof(float)));
    device.CopyFromHost(rows.memory_.data(), values.data(), values.size() * sizeof(float));
    return rows;
  }

  // [num_rows, row_elements] f32
  ConstTensorView Rows(int64_t shift, int64_t num_rows) const {
    const auto* begin = reinterpret_cast<const float*>(memory_.data()) + shift % kShifts * row_elements_;
    return ConstTensorView(begin, DType::kF32, {num_rows, row_elements_});
  }

 private:
  static constexpr int64_t kShifts = 61;                      // a prime
  static constexpr size_t kNumDrawn = (size_t{1} << 20) - 3;  // a prime

  int64_t row_elements_ = 0;
  DeviceBuffer memory_;
};

}  // namespace

Status FillCache(Sequence& sequence, int64_t num_tokens, uint64_t seed) {
  Backend& backend = *sequence.memory()->backend;
  KvCache& cache = *sequence.cache;
  for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < cache.num_kv_heads(); ++kv_head) {
      if (cache.rule(layer_idx, kv_head).blocks.representatives == 0) continue;
      return Status::Unsupported(
          "a cache of random values: what a head reads by \"infllm\" follows from the queries of all tokens, of which "
          "there are none; expected a depth that a prompt leads to (--fill prefill)");
    }
  }
  const int64_t row_elements = cache.num_kv_heads() * cache.head_dim();
  const int64_t step_tokens = StepTokensFor(num_tokens);
  HW_ASSIGN_OR_RETURN(const NormalRows rows, NormalRows::Make(backend.device(), step_tokens, row_elements, seed));
  CacheStep step(backend, cache.pools());
  int64_t shift = 0;
  for (int64_t left = num_tokens; left > 0;) {
    const int64_t num_new = std::min({left, step_tokens, cache.MaxStepTokens()});
    HW_RETURN_IF_ERROR(cache.PlanStep(num_new));
    step.Add(cache);
    step.Begin();
    for (int64_t layer_idx = 0; layer_idx < cache.num_layers(); ++layer_idx) {
      CacheLayerArgs args;
      args.k = rows.Rows(++shift, num_new);
      args.v = rows.Rows(shift + 30, num_new);
      step.RunLayer(layer_idx, args);
    }
    step.Finish();
    left -= num_new;
    // A device keeps what a step uploaded until somebody waits: with millions of tokens, gigabytes of tables.
    HW_RETURN_IF_ERROR(backend.device().Wait());
  }
  return Status::Ok();
}

}  // namespace headwise
