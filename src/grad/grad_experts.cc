// Layers with experts, forward alone: what razor and profile read attention of. Planners that need gradients refuse
// such models (CheckHasGradients).
#include <cmath>
#include <utility>
#include <vector>

#include "backend/choose_experts.h"
#include "grad/grad_state.h"
#include "model/decoder.h"

namespace headwise {
namespace {

template <typename Real>
struct RowOfExpert {
  int64_t row;
  Real weight;
};

}  // namespace

template <typename Real>
void GradDecoder<Real>::AddExperts(int64_t layer_idx, const Real* input, Real* y) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  const int64_t num_experts = config.experts.num_experts;
  const int64_t dim = config.model_dim;
  std::vector<Real> logits(MatrixSize(num_tokens, num_experts));
  linear_.Forward(layer.router, input, num_tokens, RowWrite::kStore, logits.data());
  std::vector<float> rounded(logits.begin(), logits.end());
  ExpertsArgs routed;
  routed.logits = ConstTensorView(rounded.data(), DType::kF32, {num_tokens, num_experts});
  routed.routing = RoutingOf(config.experts, layer.selection_bias);
  routed.experts = layer.experts;
  std::vector<std::vector<RowOfExpert<Real>>> rows(static_cast<size_t>(num_experts));
  std::vector<ChosenExpert> chosen(static_cast<size_t>(config.experts.num_chosen));
  for (int64_t row = 0; row < num_tokens; ++row) {
    ChooseExperts(routed, row, chosen);
    for (const ChosenExpert& each : chosen) {
      rows[static_cast<size_t>(each.expert)].push_back({row, static_cast<Real>(each.weight)});
    }
  }
  std::vector<Real> sums(MatrixSize(num_tokens, dim)), x, gate, up, activated, out;
  for (size_t idx = 0; idx < rows.size(); ++idx) {
    if (rows[idx].empty()) continue;
    const ExpertWeights& expert = layer.experts[idx];
    const auto num_rows = static_cast<int64_t>(rows[idx].size());
    x.clear();
    for (const RowOfExpert<Real>& each : rows[idx]) {
      x.insert(x.end(), input + each.row * dim, input + (each.row + 1) * dim);
    }
    gate.resize(MatrixSize(num_rows, config.experts.ffn_dim));
    up.resize(gate.size());
    activated.resize(gate.size());
    out.resize(x.size());
    linear_.Forward(expert.gate, x.data(), num_rows, RowWrite::kStore, gate.data());
    linear_.Forward(expert.up, x.data(), num_rows, RowWrite::kStore, up.data());
    ActivationForward(config.mlp, gate.data(), up.data(), activated.data(), static_cast<int64_t>(gate.size()));
    linear_.Forward(expert.down, activated.data(), num_rows, RowWrite::kStore, out.data());
    const Real* from = out.data();
    for (const RowOfExpert<Real>& each : rows[idx]) {
      Real* const sum = sums.data() + each.row * dim;
      for (int64_t i = 0; i < dim; ++i) sum[i] += each.weight * *from++;
    }
  }
  if (config.experts.shared_ffn_dim > 0) AddSharedMlp(layer_idx, input, sums);
  if (layer.mlp_post_norm.weight.present()) {
    NormRows(StreamNorm(layer.mlp_post_norm), sums.data(), RowWrite::kAdd, y);
  } else {
    for (size_t i = 0; i < sums.size(); ++i) y[i] += sums[i];
  }
}

// sums += what the MLP adds that all tokens go through.
template <typename Real>
void GradDecoder<Real>::AddSharedMlp(int64_t layer_idx, const Real* input, std::vector<Real>& sums) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  const int64_t ffn_dim = config.experts.shared_ffn_dim;
  std::vector<Real> gate(MatrixSize(num_tokens, ffn_dim)), up(gate.size()), activated(gate.size());
  linear_.Forward(layer.gate, input, num_tokens, RowWrite::kStore, gate.data());
  linear_.Forward(layer.up, input, num_tokens, RowWrite::kStore, up.data());
  ActivationForward(config.mlp, gate.data(), up.data(), activated.data(), static_cast<int64_t>(gate.size()));
  if (layer.shared_gate.weight.present()) {
    std::vector<Real> shares(static_cast<size_t>(num_tokens));
    linear_.Forward(layer.shared_gate, input, num_tokens, RowWrite::kStore, shares.data());
    for (size_t i = 0; i < activated.size(); ++i) {
      activated[i] /= 1 + std::exp(-shares[i / static_cast<size_t>(ffn_dim)]);
    }
  }
  linear_.Forward(layer.down, activated.data(), num_tokens, RowWrite::kAdd, sums.data());
}

template void GradDecoder<float>::AddExperts(int64_t, const float*, float*);
template void GradDecoder<double>::AddExperts(int64_t, const double*, double*);

}  // namespace headwise
