// What tests of gradients share: a model in host memory, the influence of its keys, and how far numbers are apart.
#ifndef HEADWISE_GRAD_GRAD_TEST_SUPPORT_H_
#define HEADWISE_GRAD_GRAD_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/all_backends.h"
#include "grad/grad_decoder.h"

namespace headwise {

struct LoadedModel {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;

  explicit LoadedModel(const std::string& folder) {
    backend = *MakeBackend({.name = "ref"});
    auto loaded = LoadModel(folder, *backend);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    model = *std::move(loaded);
  }
};

inline std::vector<int32_t> LastPositions(int64_t num_tokens, int64_t count) {
  std::vector<int32_t> positions;
  for (int64_t pos = num_tokens - count; pos < num_tokens; ++pos) positions.push_back(static_cast<int32_t>(pos));
  return positions;
}

inline double MaxMagnitude(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

inline std::vector<double> Widened(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// Of the loss of the last `last` tokens of a text.
template <typename Real>
std::vector<Influence> ComputeInfluence(const Model& model, std::span<const int32_t> ids, int64_t last,
                                        Influence::By by, int64_t block_tokens, double* loss) {
  const auto num_tokens = static_cast<int64_t>(ids.size()) - 1;
  const auto wanted = LastPositions(num_tokens, last);
  ThreadPool pool(2);
  GradDecoder<Real> decoder(model, pool);
  using Forward = typename GradDecoder<Real>::ForwardArgs;
  std::vector<Real> hidden;
  decoder.Forward({.ids = ids.first(static_cast<size_t>(num_tokens)),
                   .wanted = wanted,
                   .keep = Forward::Keep::kForBackward,
                   .on_attention = {}},
                  hidden);
  std::vector<Real> d_hidden;
  *loss = decoder.NllLoss(hidden, ids.last(static_cast<size_t>(last)), d_hidden);
  std::vector<Influence> influence(static_cast<size_t>(model.config.num_layers),
                                   Influence::For(by, num_tokens, model.config.num_q_heads, block_tokens));
  decoder.Backward({.d_hidden = d_hidden, .d_gates = {}, .influence = influence});
  return influence;
}

}  // namespace headwise

#endif  // HEADWISE_GRAD_GRAD_TEST_SUPPORT_H_
