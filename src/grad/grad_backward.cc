// The way back.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "grad/grad_state.h"

namespace headwise {

template <typename Real>
void GradDecoder<Real>::Backward(const BackwardArgs& args) {
  const ModelConfig& config = model_->config;
  HW_CHECK(saved_->keeps_inputs && !config.AnyExperts(), "the forward pass kept too little");
  HW_CHECK(args.d_gates.size() == saved_->gates.size());
  saved_->wants_other_mass = !args.influence.empty();
  const std::vector<Real>& last = saved_->inputs.back();
  a_->d_x.assign(last.size(), Real{0});
  const NormRowParams norm = NormParams(model_->weights.final_norm);
  for (size_t row = 0; row < saved_->wanted.size(); ++row) {
    const int64_t at = saved_->wanted[row] * config.model_dim;
    NormBackward(norm, last.data() + at, args.d_hidden.data() + MatrixSize(static_cast<int64_t>(row), config.model_dim),
                 RowWrite::kAdd, a_->d_x.data() + at, config.model_dim);
  }
  for (int64_t layer_idx = config.num_layers - 1; layer_idx >= 0; --layer_idx) BackLayer(layer_idx, args);
}

// From d_x of the layer's output to d_x of its input.
template <typename Real>
void GradDecoder<Real>::BackLayer(int64_t layer_idx, const BackwardArgs& args) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const Real* x = saved_->inputs[static_cast<size_t>(layer_idx)].data();
  RunAttention(layer_idx, x, Outputs::kBoth);
  RunMlp(layer_idx, MlpInput(layer_idx, x));
  BackMlp(layer_idx);
  if (config.residual == ResidualKind::kSerial) AddGradient(layer.mlp_norm, a_->x_mid.data(), a_->d_mlp_normed);
  a_->d_mixed.resize(a_->q.size());
  BackFromStream(layer.o, layer.post_norm, a_->branch, a_->d_mixed.data());
  BackGates(layer_idx, args.d_gates);
  Influence* influence = args.influence.empty() ? nullptr : &args.influence[static_cast<size_t>(layer_idx)];
  // Nothing below the first layer has a gradient that anyone wants.
  if (layer_idx == 0 && influence == nullptr) return;
  a_->d_q.assign(a_->q.size(), Real{0});
  a_->d_k.assign(a_->k.size(), Real{0});
  a_->d_v.assign(a_->v.size(), Real{0});
  BackPath(layer_idx, Path::kFull, influence);
  if (!saved_->gates.empty()) BackPath(layer_idx, Path::kBounded, nullptr);
  if (layer_idx == 0) return;
  BackProjections(layer_idx);
  if (config.residual == ResidualKind::kParallelSharedNorm) {
    for (size_t i = 0; i < a_->d_normed.size(); ++i) a_->d_normed[i] += a_->d_mlp_normed[i];
  }
  AddGradient(layer.norm, x, a_->d_normed);
  if (config.residual == ResidualKind::kParallelTwoNorms) AddGradient(layer.mlp_norm, x, a_->d_mlp_normed);
}

// d_x += d_y through `norm`, which read x; without one it was x that was read.
template <typename Real>
void GradDecoder<Real>::AddGradient(const NormWeights& norm, const Real* x, const std::vector<Real>& d_y) {
  if (!norm.weight.present()) {
    for (size_t i = 0; i < d_y.size(); ++i) a_->d_x[i] += d_y[i];
    return;
  }
  NormRowsBackward(StreamNorm(norm), x, d_y.data(), RowWrite::kAdd, a_->d_x.data());
}

// From d_x to the gradient of what AddToStream read; its `branch`, where there is one, becomes a gradient.
template <typename Real>
void GradDecoder<Real>::BackFromStream(const LinearWeights& linear, const NormWeights& norm, std::vector<Real>& branch,
                                       Real* d_input) {
  const Real* d_output = a_->d_x.data();
  if (norm.weight.present()) {
    NormRowsBackward(StreamNorm(norm), branch.data(), d_output, RowWrite::kStore, branch.data());
    d_output = branch.data();
  }
  linear_.Backward(linear, d_output, saved_->num_tokens, RowWrite::kStore, d_input);
}

template <typename Real>
void GradDecoder<Real>::NormRowsBackward(const RowNorm& norm, const Real* x, const Real* d_y, RowWrite write,
                                         Real* d_x) {
  ForRows(*pool_, saved_->num_tokens * norm.rows_per_token, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * norm.dim;
      NormBackward(norm.Of(row), x + at, d_y + at, write, d_x + at, norm.dim);
    }
  });
}

// d_mlp_normed from d_x; gate, up and activated become gradients.
template <typename Real>
void GradDecoder<Real>::BackMlp(int64_t layer_idx) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  if (layer.mlp_post_norm.weight.present()) {
    a_->mlp_branch.resize(a_->d_x.size());
    linear_.Forward(layer.down, a_->activated.data(), num_tokens, RowWrite::kStore, a_->mlp_branch.data());
  }
  BackFromStream(layer.down, layer.mlp_post_norm, a_->mlp_branch, a_->activated.data());
  ForRows(*pool_, num_tokens, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * config.ffn_dim;
    ActivationBackward(config.mlp, a_->activated.data() + at, !IsGated(config.mlp) ? nullptr : a_->gate.data() + at,
                       a_->up.data() + at, (end - begin) * config.ffn_dim);
  });
  a_->d_mlp_normed.resize(a_->d_x.size());
  linear_.Backward(layer.up, a_->up.data(), num_tokens, RowWrite::kStore, a_->d_mlp_normed.data());
  if (IsGated(config.mlp)) {
    linear_.Backward(layer.gate, a_->gate.data(), num_tokens, RowWrite::kAdd, a_->d_mlp_normed.data());
  }
}

// delta of both paths, gates' gradients from their difference, and the gradient to each path's output in its place.
template <typename Real>
void GradDecoder<Real>::BackGates(int64_t layer_idx, std::span<double> d_gates) {
  const ModelConfig& config = model_->config;
  const bool has_gates = !saved_->gates.empty();
  const int64_t num_tokens = saved_->num_tokens;
  const int64_t dim = config.head_dim;
  const int64_t group = config.q_heads_per_kv_head();
  a_->full_delta.resize(a_->full_lse.size());
  if (has_gates) a_->bounded_delta.resize(a_->full_lse.size());
  std::vector<double> by_row(has_gates ? MatrixSize(num_tokens, config.num_kv_heads) : 0);
  ForRows(*pool_, num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t head_row = begin * config.num_q_heads; head_row < end * config.num_q_heads; ++head_row) {
      const int64_t kv_head = head_row % config.num_q_heads / group;
      const auto gate = static_cast<Real>(GateOf(layer_idx, kv_head));
      const Real* d = a_->d_mixed.data() + head_row * dim;
      Real* full = a_->full_out.data() + head_row * dim;
      Real full_sum = 0;
      for (int64_t i = 0; i < dim; ++i) full_sum += d[i] * full[i];
      a_->full_delta[static_cast<size_t>(head_row)] = gate * full_sum;
      for (int64_t i = 0; i < dim; ++i) full[i] = gate * d[i];
      if (!has_gates) continue;
      Real* bounded = a_->bounded_out.data() + head_row * dim;
      Real bounded_sum = 0;
      for (int64_t i = 0; i < dim; ++i) bounded_sum += d[i] * bounded[i];
      a_->bounded_delta[static_cast<size_t>(head_row)] = (1 - gate) * bounded_sum;
      for (int64_t i = 0; i < dim; ++i) bounded[i] = (1 - gate) * d[i];
      by_row[MatrixSize(head_row / config.num_q_heads, config.num_kv_heads) + static_cast<size_t>(kv_head)] +=
          static_cast<double>(full_sum - bounded_sum);
    }
  });
  if (!has_gates) return;
  for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
    double sum = 0;
    for (int64_t row = 0; row < num_tokens; ++row) {
      sum += by_row[MatrixSize(row, config.num_kv_heads) + static_cast<size_t>(kv_head)];
    }
    d_gates[MatrixSize(layer_idx, config.num_kv_heads) + static_cast<size_t>(kv_head)] = sum;
  }
}

// Adds to d_q, d_k and d_v. A head whose gate leaves this path no weight is skipped.
template <typename Real>
void GradDecoder<Real>::BackPath(int64_t layer_idx, Path path, Influence* influence) {
  const bool is_full = path == Path::kFull;
  AttentionShape<Real> shape = ShapeOf(layer_idx, path);
  shape.active = WeightedHeads(layer_idx, path);
  AttentionBackward(AttentionBackwardArgs<Real>{.shape = shape,
                                                .q = a_->q.data(),
                                                .k = a_->k.data(),
                                                .v = a_->v.data(),
                                                .lse = (is_full ? a_->full_lse : a_->bounded_lse).data(),
                                                .delta = (is_full ? a_->full_delta : a_->bounded_delta).data(),
                                                .d_out = (is_full ? a_->full_out : a_->bounded_out).data(),
                                                .other_mass = influence != nullptr ? a_->other_mass.data() : nullptr,
                                                .d_q = a_->d_q.data(),
                                                .d_k = a_->d_k.data(),
                                                .d_v = a_->d_v.data(),
                                                .scratch = &a_->d_q_slabs,
                                                .influence = influence},
                    *pool_);
}

// d_normed from d_q, d_k and d_v.
template <typename Real>
void GradDecoder<Real>::BackProjections(int64_t layer_idx) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  RotateRows(layer_idx, Rotation::kInverse, config.num_q_heads, a_->d_q.data());
  RotateRows(layer_idx, Rotation::kInverse, config.num_kv_heads, a_->d_k.data());
  if (config.qk_norm != QkNorm::kNone) {
    NormRowsBackward(HeadNorm(layer.q_norm, config.num_q_heads), a_->q_raw.data(), a_->d_q.data(), RowWrite::kStore,
                     a_->d_q.data());
    NormRowsBackward(HeadNorm(layer.k_norm, config.num_kv_heads), a_->k_raw.data(), a_->d_k.data(), RowWrite::kStore,
                     a_->d_k.data());
  }
  if (config.qkv_clip) {
    const auto limit = static_cast<Real>(*config.qkv_clip);
    const auto stop_clamped = [&](const std::vector<Real>& value, std::vector<Real>& gradient) {
      for (size_t i = 0; i < value.size(); ++i) {
        if (std::abs(value[i]) >= limit) gradient[i] = 0;
      }
    };
    stop_clamped(KeepsRaw(config) ? a_->q_raw : a_->q, a_->d_q);
    stop_clamped(KeepsRaw(config) ? a_->k_raw : a_->k, a_->d_k);
    stop_clamped(a_->v, a_->d_v);
  }
  a_->d_normed.resize(a_->d_x.size());
  linear_.Backward(layer.q, a_->d_q.data(), saved_->num_tokens, RowWrite::kStore, a_->d_normed.data());
  linear_.Backward(layer.k, a_->d_k.data(), saved_->num_tokens, RowWrite::kAdd, a_->d_normed.data());
  linear_.Backward(layer.v, a_->d_v.data(), saved_->num_tokens, RowWrite::kAdd, a_->d_normed.data());
}

template <typename Real>
template <typename LossOfRow>
double GradDecoder<Real>::MeanLoss(std::span<const Real> hidden, int64_t num_rows, std::vector<Real>& d_hidden,
                                   const LossOfRow& loss_of_row) {
  const int64_t vocab = model_->config.vocab_size;
  std::vector<Real> logits(MatrixSize(num_rows, vocab));
  linear_.Forward(model_->weights.output, hidden.data(), num_rows, RowWrite::kStore, logits.data());
  std::vector<double> losses(static_cast<size_t>(num_rows));
  const auto cap = static_cast<Real>(model_->config.logit_cap.value_or(0.0));
  ForRows(*pool_, num_rows, [&](int64_t begin, int64_t end) {
    std::vector<Real> capped(cap > 0 ? static_cast<size_t>(vocab) : 0);
    for (int64_t row = begin; row < end; ++row) {
      Real* scores = logits.data() + row * vocab;
      if (cap > 0) {
        CapRow(scores, vocab, cap);
        std::copy_n(scores, vocab, capped.begin());
      }
      losses[static_cast<size_t>(row)] = loss_of_row(row, scores);
      for (size_t i = 0; i < capped.size(); ++i) scores[i] *= CapSlope(capped[i], cap);
    }
  });
  d_hidden.resize(hidden.size());
  linear_.Backward(model_->weights.output, logits.data(), num_rows, RowWrite::kStore, d_hidden.data());
  double total = 0;
  for (const double each : losses) total += each;
  return total / static_cast<double>(num_rows);
}

template <typename Real>
double GradDecoder<Real>::NllLoss(std::span<const Real> hidden, std::span<const int32_t> targets,
                                  std::vector<Real>& d_hidden) {
  const int64_t vocab = model_->config.vocab_size;
  const auto num_rows = static_cast<int64_t>(targets.size());
  return MeanLoss(hidden, num_rows, d_hidden, [&](int64_t row, Real* scores) {
    const int32_t target = targets[static_cast<size_t>(row)];
    const Real max = MaxOfRow(scores, vocab);
    const Real target_score = scores[target] - max;
    const Real sum = ExpOfRow(scores, vocab, max);
    for (int64_t i = 0; i < vocab; ++i) scores[i] /= sum * static_cast<Real>(num_rows);
    scores[target] -= 1 / static_cast<Real>(num_rows);
    return std::log(static_cast<double>(sum)) - static_cast<double>(target_score);
  });
}

template <typename Real>
double GradDecoder<Real>::MarginLoss(std::span<const Real> hidden, std::span<const int32_t> targets,
                                     std::vector<Real>& d_hidden) {
  const int64_t vocab = model_->config.vocab_size;
  const auto num_rows = static_cast<int64_t>(targets.size());
  return MeanLoss(hidden, num_rows, d_hidden, [&](int64_t row, Real* scores) {
    const int32_t target = targets[static_cast<size_t>(row)];
    const Real target_score = scores[target];
    scores[target] = -std::numeric_limits<Real>::infinity();
    const auto other = std::max_element(scores, scores + vocab) - scores;
    const auto margin = static_cast<double>(scores[other]) - static_cast<double>(target_score);
    std::fill(scores, scores + vocab, Real{0});
    scores[other] = 1 / static_cast<Real>(num_rows);
    scores[target] = -scores[other];
    return margin;
  });
}

template void GradDecoder<float>::Backward(const BackwardArgs&);
template void GradDecoder<double>::Backward(const BackwardArgs&);
template double GradDecoder<float>::NllLoss(std::span<const float>, std::span<const int32_t>, std::vector<float>&);
template double GradDecoder<double>::NllLoss(std::span<const double>, std::span<const int32_t>, std::vector<double>&);
template double GradDecoder<float>::MarginLoss(std::span<const float>, std::span<const int32_t>, std::vector<float>&);
template double GradDecoder<double>::MarginLoss(std::span<const double>, std::span<const int32_t>,
                                                std::vector<double>&);

}  // namespace headwise
