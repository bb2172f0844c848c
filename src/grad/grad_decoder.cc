#include "grad/grad_decoder.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "backend/cpu/isa.h"
#include "base/check.h"
#include "grad/gemm.h"
#include "model/rope.h"

namespace headwise {
namespace {

size_t Size(int64_t rows, int64_t columns) {
  return static_cast<size_t>(rows * columns);
}

std::span<const float> FloatsOf(const ConstTensorView& view) {
  if (!view.present()) return {};
  return {static_cast<const float*>(view.data), static_cast<size_t>(view.shape.num_elements())};
}

// What `rule` means in every layer: [L].
std::vector<ResolvedRule> RulesOfLayers(const HeadRule& rule, const ModelConfig& config, int64_t num_tokens) {
  const LayerWindows windows = LayerWindowsOf(config);
  std::vector<ResolvedRule> rules;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    rules.push_back(ResolveRule(rule, {.prompt_tokens = num_tokens, .max_tokens = num_tokens}, windows.At(layer_idx)));
  }
  return rules;
}

}  // namespace

Status CheckHasGradient(const ModelConfig& config) {
  // After a rotation, which entries were clamped can no longer be told from the values.
  if (config.qkv_clip && config.positions == PositionKind::kRope) {
    return Status::Unsupported(
        fmt::format("family {}: clipped q, k and v under rotary positions have no gradient here", config.family));
  }
  const std::pair<bool, const char*> missing[] = {
      {config.norm_places != NormPlaces::kBefore, "norms behind attention and MLP"},
      {config.qk_norm != QkNorm::kNone, "norms of queries and keys"},
      {config.mlp == MlpKind::kGatedGeluTanh, "gated GELU"},
      {config.score_cap || config.logit_cap, "soft caps of scores and logits"},
      {config.positions == PositionKind::kLearned, "learned positions"},
  };
  for (const auto& [is_there, what] : missing) {
    if (is_there) return Status::Unsupported(fmt::format("family {}: {} have no gradient here", config.family, what));
  }
  return Status::Ok();
}

std::string GradArithmetic() {
  return fmt::format("{}, {}", cpu::AvailableKernelTables().front()->isa, BlasName());
}

// About: numbers of one layer both ways, as Activations below, and of what is saved.
int64_t GradMemoryBytes(const ModelConfig& config, int64_t num_tokens, int64_t bytes_per_number) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  const int64_t per_token = (config.num_layers + 7) * config.model_dim + (6 + kMaxKeySlabs) * q_dim + 4 * kv_dim +
                            3 * config.ffn_dim + 5 * config.num_q_heads;
  const int64_t widened = std::max(config.ffn_dim * config.model_dim, config.vocab_size * config.model_dim);
  return (per_token * num_tokens + widened) * bytes_per_number;
}

template <typename Real>
struct GradDecoder<Real>::Activations {
  using Matrix = std::vector<Real>;
  Matrix normed;                 // [N, E]
  Matrix q, k, v;                // [N, Hq*D], [N, Hkv*D] twice; rotated
  Matrix full_out, bounded_out;  // [N, Hq*D] each; on the way back the gradients to them
  Matrix full_lse, bounded_lse;  // [N, Hq]
  Matrix other_mass;             // [N, Hq], only for influence
  Matrix mixed;                  // [N, Hq*D]; without gates full_out stands in
  Matrix x_mid;                  // [N, E] the residual stream after attention
  Matrix mlp_normed;             // [N, E]
  Matrix gate, up, activated;    // [N, F]
  // On the way back:
  Matrix d_x;                        // [N, E]
  Matrix d_normed, d_mlp_normed;     // [N, E]
  Matrix d_mixed;                    // [N, Hq*D]
  Matrix d_q, d_k, d_v;              // as q, k, v
  Matrix full_delta, bounded_delta;  // [N, Hq]
  Matrix d_q_slabs;                  // partial gradients of q
};

template <typename Real>
struct GradDecoder<Real>::Saved {
  int64_t num_tokens = 0;
  std::vector<int32_t> wanted;
  std::vector<double> gates;                // empty: every head full
  std::vector<ResolvedRule> full_rules;     // [L] the model's own masks
  std::vector<ResolvedRule> bounded_rules;  // [L], unused without gates
  std::vector<std::vector<Real>> angles;    // by rope of the model: [N, R/2, 2]
  std::vector<std::vector<Real>> inputs;    // [L + 1] of [N, E]; without kForBackward one that is passed on
  bool keeps_inputs = false;
  bool wants_other_mass = false;
};

template <typename Real>
GradDecoder<Real>::GradDecoder(const Model& model, ThreadPool& pool)
    : model_(&model),
      pool_(&pool),
      linear_(pool),
      a_(std::make_unique<Activations>()),
      saved_(std::make_unique<Saved>()) {}

template <typename Real>
GradDecoder<Real>::~GradDecoder() = default;

template <typename Real>
NormRowParams GradDecoder<Real>::NormParams(const NormWeights& norm) const {
  return {.kind = model_->config.norm,
          .weight = static_cast<const float*>(norm.weight.data),
          .bias = static_cast<const float*>(norm.bias.data),
          .eps = model_->config.norm_eps};
}

template <typename Real>
void GradDecoder<Real>::NormRows(const NormWeights& norm, const Real* x, int64_t num_rows, Real* y) {
  const NormRowParams params = NormParams(norm);
  const int64_t dim = model_->config.model_dim;
  ForRows(*pool_, num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) NormForward(params, x + row * dim, y + row * dim, dim);
  });
}

template <typename Real>
void GradDecoder<Real>::NormRowsBackward(const NormWeights& norm, const Real* x, const Real* d_y, Real* d_x) {
  const NormRowParams params = NormParams(norm);
  const int64_t dim = model_->config.model_dim;
  ForRows(*pool_, saved_->num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      NormBackward(params, x + row * dim, d_y + row * dim, d_x + row * dim, dim);
    }
  });
}

template <typename Real>
void GradDecoder<Real>::RotateRows(int64_t layer_idx, Rotation rotation, int64_t num_heads, Real* x) {
  const std::optional<int64_t> rope = model_->config.layer(layer_idx).rope;
  if (!rope) return;
  const std::vector<Real>& angles = saved_->angles[static_cast<size_t>(*rope)];
  const int64_t half = model_->config.ropes[static_cast<size_t>(*rope)].rotary_dims / 2;
  const int64_t dim = model_->config.head_dim;
  ForRows(*pool_, saved_->num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < num_heads; ++head) {
        RotateHead(rotation, angles.data() + row * half * 2, half, x + (row * num_heads + head) * dim);
      }
    }
  });
}

template <typename Real>
double GradDecoder<Real>::GateOf(int64_t layer_idx, int64_t kv_head) const {
  if (saved_->gates.empty()) return 1.0;
  return saved_->gates[static_cast<size_t>(layer_idx * model_->config.num_kv_heads + kv_head)];
}

template <typename Real>
AttentionShape<Real> GradDecoder<Real>::ShapeOf(int64_t layer_idx, Path path) const {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  return {.num_tokens = saved_->num_tokens,
          .num_q_heads = config.num_q_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = static_cast<Real>(config.softmax_scale),
          .alibi_slopes = FloatsOf(model_->alibi_slopes),
          .sink_logits = FloatsOf(config.zero_sink ? model_->zero_sink_logits : layer.sink_logits),
          .rule = (path == Path::kFull ? saved_->full_rules : saved_->bounded_rules)[static_cast<size_t>(layer_idx)],
          .active = {}};
}

template <typename Real>
std::vector<bool> GradDecoder<Real>::WeightedHeads(int64_t layer_idx, Path path) const {
  std::vector<bool> heads;
  for (int64_t kv_head = 0; kv_head < model_->config.num_kv_heads; ++kv_head) {
    const double gate = GateOf(layer_idx, kv_head);
    heads.push_back((path == Path::kFull ? gate : 1 - gate) > 0);
  }
  return heads;
}

template <typename Real>
void GradDecoder<Real>::AttendPath(int64_t layer_idx, Path path, Outputs outputs) {
  const ModelConfig& config = model_->config;
  const bool is_full = path == Path::kFull;
  std::vector<Real>& out = is_full ? a_->full_out : a_->bounded_out;
  std::vector<Real>& lse = is_full ? a_->full_lse : a_->bounded_lse;
  out.resize(Size(saved_->num_tokens, config.num_q_heads * config.head_dim));
  lse.resize(Size(saved_->num_tokens, config.num_q_heads));
  if (saved_->wants_other_mass) a_->other_mass.resize(lse.size());
  AttentionShape<Real> shape = ShapeOf(layer_idx, path);
  if (outputs == Outputs::kWeighted) shape.active = WeightedHeads(layer_idx, path);
  AttentionForward(AttentionForwardArgs<Real>{.shape = shape,
                                              .q = a_->q.data(),
                                              .k = a_->k.data(),
                                              .v = a_->v.data(),
                                              .out = out.data(),
                                              .lse = lse.data(),
                                              .other_mass = saved_->wants_other_mass ? a_->other_mass.data() : nullptr},
                   *pool_);
}

// mixed = g * full + (1 - g) * bounded, per KV head.
template <typename Real>
void GradDecoder<Real>::MixPaths(int64_t layer_idx) {
  const ModelConfig& config = model_->config;
  const int64_t group_dim = config.q_heads_per_kv_head() * config.head_dim;
  a_->mixed.resize(a_->full_out.size());
  ForRows(*pool_, saved_->num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
        const auto gate = static_cast<Real>(GateOf(layer_idx, kv_head));
        const size_t at = Size(row * config.num_kv_heads + kv_head, group_dim);
        for (size_t i = at; i < at + static_cast<size_t>(group_dim); ++i) {
          // An output without weight may not have been computed.
          const Real full = gate > 0 ? gate * a_->full_out[i] : Real{0};
          a_->mixed[i] = gate < 1 ? full + (1 - gate) * a_->bounded_out[i] : full;
        }
      }
    }
  });
}

// Fills everything of Activations up to x_mid.
template <typename Real>
void GradDecoder<Real>::RunAttention(int64_t layer_idx, const Real* x, Outputs outputs) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  a_->normed.resize(Size(num_tokens, config.model_dim));
  a_->q.resize(Size(num_tokens, config.num_q_heads * config.head_dim));
  a_->k.resize(Size(num_tokens, config.num_kv_heads * config.head_dim));
  a_->v.resize(a_->k.size());
  NormRows(layer.norm, x, num_tokens, a_->normed.data());
  linear_.Forward(layer.q, a_->normed.data(), num_tokens, LinearWrite::kStore, a_->q.data());
  linear_.Forward(layer.k, a_->normed.data(), num_tokens, LinearWrite::kStore, a_->k.data());
  linear_.Forward(layer.v, a_->normed.data(), num_tokens, LinearWrite::kStore, a_->v.data());
  if (config.qkv_clip) {
    const auto limit = static_cast<Real>(*config.qkv_clip);
    for (std::vector<Real>* each : {&a_->q, &a_->k, &a_->v}) {
      for (Real& value : *each) value = std::clamp(value, -limit, limit);
    }
  }
  RotateRows(layer_idx, Rotation::kForward, config.num_q_heads, a_->q.data());
  RotateRows(layer_idx, Rotation::kForward, config.num_kv_heads, a_->k.data());
  AttendPath(layer_idx, Path::kFull, outputs);
  if (!saved_->gates.empty()) {
    AttendPath(layer_idx, Path::kBounded, outputs);
    MixPaths(layer_idx);
  }
  const std::vector<Real>& attended = saved_->gates.empty() ? a_->full_out : a_->mixed;
  a_->x_mid.assign(x, x + num_tokens * config.model_dim);
  linear_.Forward(layer.o, attended.data(), num_tokens, LinearWrite::kAdd, a_->x_mid.data());
}

// Fills mlp_normed, gate, up and activated. Requires: RunAttention of the same layer.
template <typename Real>
void GradDecoder<Real>::RunMlp(int64_t layer_idx, const Real* x) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  const Real* input = a_->normed.data();
  if (config.residual != ResidualKind::kParallelSharedNorm) {
    a_->mlp_normed.resize(a_->normed.size());
    const Real* from = config.residual == ResidualKind::kSerial ? a_->x_mid.data() : x;
    NormRows(layer.mlp_norm, from, num_tokens, a_->mlp_normed.data());
    input = a_->mlp_normed.data();
  }
  a_->up.resize(Size(num_tokens, config.ffn_dim));
  a_->activated.resize(a_->up.size());
  linear_.Forward(layer.up, input, num_tokens, LinearWrite::kStore, a_->up.data());
  if (config.mlp == MlpKind::kGatedSilu) {
    a_->gate.resize(a_->up.size());
    linear_.Forward(layer.gate, input, num_tokens, LinearWrite::kStore, a_->gate.data());
  }
  ForRows(*pool_, num_tokens, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * config.ffn_dim;
    ActivationForward(config.mlp, a_->gate.empty() ? nullptr : a_->gate.data() + at, a_->up.data() + at,
                      a_->activated.data() + at, (end - begin) * config.ffn_dim);
  });
}

template <typename Real>
void GradDecoder<Real>::Forward(const ForwardArgs& args, std::vector<Real>& hidden) {
  const ModelConfig& config = model_->config;
  const auto num_tokens = static_cast<int64_t>(args.ids.size());
  HW_CHECK(num_tokens > 0);
  HW_CHECK(args.gates == nullptr || args.gates->bounded.positions == Positions::kText);
  Saved& saved = *saved_;
  saved.num_tokens = num_tokens;
  saved.wanted.assign(args.wanted.begin(), args.wanted.end());
  saved.keeps_inputs = args.keep == ForwardArgs::Keep::kForBackward;
  saved.wants_other_mass = false;
  saved.full_rules = RulesOfLayers(HeadRule::Full(), config, num_tokens);
  saved.gates.clear();
  if (args.gates != nullptr) {
    saved.gates.assign(args.gates->values.begin(), args.gates->values.end());
    saved.bounded_rules = RulesOfLayers(args.gates->bounded, config, num_tokens);
  }
  saved.angles.clear();
  const SequenceFrequencies frequencies = RopeFrequencies(config, num_tokens, num_tokens);
  for (size_t rope = 0; rope < frequencies.size(); ++rope) {
    std::vector<Real>& angles = saved.angles.emplace_back();
    const double amplitude = config.ropes[rope].amplitude;
    for (int64_t pos = 0; pos < num_tokens; ++pos) {
      for (const double frequency : frequencies[rope]) {
        angles.push_back(static_cast<Real>(amplitude * std::cos(static_cast<double>(pos) * frequency)));
        angles.push_back(static_cast<Real>(amplitude * std::sin(static_cast<double>(pos) * frequency)));
      }
    }
  }

  saved.inputs.resize(saved.keeps_inputs ? static_cast<size_t>(config.num_layers) + 1 : 1);
  std::vector<Real>* x = &saved.inputs[0];
  x->resize(Size(num_tokens, config.model_dim));
  for (int64_t token = 0; token < num_tokens; ++token) {
    WidenElements(model_->weights.embedding.rows(), args.ids[static_cast<size_t>(token)] * config.model_dim,
                  config.model_dim, x->data() + token * config.model_dim);
  }
  for (Real& value : *x) value *= static_cast<Real>(config.embedding_scale);
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    RunAttention(layer_idx, x->data(), Outputs::kWeighted);
    if (args.on_attention) {
      args.on_attention({.layer_idx = layer_idx,
                         .shape = ShapeOf(layer_idx, Path::kFull),
                         .q = a_->q.data(),
                         .k = a_->k.data(),
                         .v = a_->v.data(),
                         .out = a_->full_out.data(),
                         .lse = a_->full_lse.data()});
    }
    RunMlp(layer_idx, x->data());
    std::vector<Real>* next = saved.keeps_inputs ? x + 1 : x;
    next->assign(a_->x_mid.begin(), a_->x_mid.end());
    linear_.Forward(model_->weights.layers[static_cast<size_t>(layer_idx)].down, a_->activated.data(), num_tokens,
                    LinearWrite::kAdd, next->data());
    x = next;
  }
  hidden.resize(Size(static_cast<int64_t>(args.wanted.size()), config.model_dim));
  const NormRowParams norm = NormParams(model_->weights.final_norm);
  for (size_t row = 0; row < args.wanted.size(); ++row) {
    NormForward(norm, x->data() + args.wanted[row] * config.model_dim,
                hidden.data() + Size(static_cast<int64_t>(row), config.model_dim), config.model_dim);
  }
}

template <typename Real>
void GradDecoder<Real>::Backward(const BackwardArgs& args) {
  const ModelConfig& config = model_->config;
  HW_CHECK(saved_->keeps_inputs, "the forward pass kept nothing");
  HW_CHECK(args.d_gates.size() == saved_->gates.size());
  saved_->wants_other_mass = !args.influence.empty();
  const std::vector<Real>& last = saved_->inputs.back();
  a_->d_x.assign(last.size(), Real{0});
  const NormRowParams norm = NormParams(model_->weights.final_norm);
  for (size_t row = 0; row < saved_->wanted.size(); ++row) {
    const int64_t at = saved_->wanted[row] * config.model_dim;
    NormBackward(norm, last.data() + at, args.d_hidden.data() + Size(static_cast<int64_t>(row), config.model_dim),
                 a_->d_x.data() + at, config.model_dim);
  }
  for (int64_t layer_idx = config.num_layers - 1; layer_idx >= 0; --layer_idx) BackLayer(layer_idx, args);
}

// From d_x of the layer's output to d_x of its input.
template <typename Real>
void GradDecoder<Real>::BackLayer(int64_t layer_idx, const BackwardArgs& args) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  const Real* x = saved_->inputs[static_cast<size_t>(layer_idx)].data();
  RunAttention(layer_idx, x, Outputs::kBoth);
  RunMlp(layer_idx, x);
  BackMlp(layer_idx);
  if (config.residual == ResidualKind::kSerial) {
    NormRowsBackward(layer.mlp_norm, a_->x_mid.data(), a_->d_mlp_normed.data(), a_->d_x.data());
  }
  a_->d_mixed.resize(a_->q.size());
  linear_.Backward(layer.o, a_->d_x.data(), num_tokens, LinearWrite::kStore, a_->d_mixed.data());
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
  NormRowsBackward(layer.norm, x, a_->d_normed.data(), a_->d_x.data());
  if (config.residual == ResidualKind::kParallelTwoNorms) {
    NormRowsBackward(layer.mlp_norm, x, a_->d_mlp_normed.data(), a_->d_x.data());
  }
}

// d_mlp_normed from d_x; gate, up and activated become gradients.
template <typename Real>
void GradDecoder<Real>::BackMlp(int64_t layer_idx) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  linear_.Backward(layer.down, a_->d_x.data(), num_tokens, LinearWrite::kStore, a_->activated.data());
  ForRows(*pool_, num_tokens, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * config.ffn_dim;
    ActivationBackward(config.mlp, a_->activated.data() + at, a_->gate.empty() ? nullptr : a_->gate.data() + at,
                       a_->up.data() + at, (end - begin) * config.ffn_dim);
  });
  a_->d_mlp_normed.resize(a_->normed.size());
  linear_.Backward(layer.up, a_->up.data(), num_tokens, LinearWrite::kStore, a_->d_mlp_normed.data());
  if (config.mlp == MlpKind::kGatedSilu) {
    linear_.Backward(layer.gate, a_->gate.data(), num_tokens, LinearWrite::kAdd, a_->d_mlp_normed.data());
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
  std::vector<double> by_row(has_gates ? Size(num_tokens, config.num_kv_heads) : 0);
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
      by_row[Size(head_row / config.num_q_heads, config.num_kv_heads) + static_cast<size_t>(kv_head)] +=
          static_cast<double>(full_sum - bounded_sum);
    }
  });
  if (!has_gates) return;
  for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
    double sum = 0;
    for (int64_t row = 0; row < num_tokens; ++row) {
      sum += by_row[Size(row, config.num_kv_heads) + static_cast<size_t>(kv_head)];
    }
    d_gates[Size(layer_idx, config.num_kv_heads) + static_cast<size_t>(kv_head)] = sum;
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
  if (config.qkv_clip) {
    const auto limit = static_cast<Real>(*config.qkv_clip);
    const auto stop_clamped = [&](const std::vector<Real>& value, std::vector<Real>& gradient) {
      for (size_t i = 0; i < value.size(); ++i) {
        if (std::abs(value[i]) >= limit) gradient[i] = 0;
      }
    };
    stop_clamped(a_->q, a_->d_q);
    stop_clamped(a_->k, a_->d_k);
    stop_clamped(a_->v, a_->d_v);
  }
  a_->d_normed.resize(a_->normed.size());
  linear_.Backward(layer.q, a_->d_q.data(), saved_->num_tokens, LinearWrite::kStore, a_->d_normed.data());
  linear_.Backward(layer.k, a_->d_k.data(), saved_->num_tokens, LinearWrite::kAdd, a_->d_normed.data());
  linear_.Backward(layer.v, a_->d_v.data(), saved_->num_tokens, LinearWrite::kAdd, a_->d_normed.data());
}

template <typename Real>
double GradDecoder<Real>::NllLoss(std::span<const Real> hidden, std::span<const int32_t> targets,
                                  std::vector<Real>& d_hidden) {
  const auto num_rows = static_cast<int64_t>(targets.size());
  const int64_t vocab = model_->config.vocab_size;
  std::vector<Real> logits(Size(num_rows, vocab));
  linear_.Forward(model_->weights.output, hidden.data(), num_rows, LinearWrite::kStore, logits.data());
  std::vector<double> nll(static_cast<size_t>(num_rows));
  ForRows(*pool_, num_rows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Real* scores = logits.data() + row * vocab;
      const int32_t target = targets[static_cast<size_t>(row)];
      const Real max = MaxOfRow(scores, vocab);
      const Real target_score = scores[target] - max;
      const Real sum = ExpOfRow(scores, vocab, max);
      nll[static_cast<size_t>(row)] = std::log(static_cast<double>(sum)) - static_cast<double>(target_score);
      for (int64_t i = 0; i < vocab; ++i) scores[i] /= sum * static_cast<Real>(num_rows);
      scores[target] -= 1 / static_cast<Real>(num_rows);
    }
  });
  d_hidden.resize(hidden.size());
  linear_.Backward(model_->weights.output, logits.data(), num_rows, LinearWrite::kStore, d_hidden.data());
  double total = 0;
  for (const double each : nll) total += each;
  return total / static_cast<double>(num_rows);
}

template class GradDecoder<float>;
template class GradDecoder<double>;

}  // namespace headwise
