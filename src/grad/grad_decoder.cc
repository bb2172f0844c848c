#include "grad/grad_decoder.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "backend/cpu/isa.h"
#include "base/check.h"
#include "grad/gemm.h"
#include "grad/grad_state.h"
#include "model/rope.h"

namespace headwise {
namespace {

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

std::string GradArithmetic(Compute compute) {
  return fmt::format("{}, {}{}", cpu::AvailableKernelTables().front()->isa, BlasName(),
                     compute == Compute::kBF16 ? ", weights multiplied in bf16" : "");
}

Status CheckHasGradients(const ModelConfig& config, std::string_view what) {
  if (!config.AnyExperts()) return Status::Ok();
  return Status::Unsupported(
      fmt::format("{} needs gradients, which are not computed through the {} experts of family {}; plan razor, plan "
                  "profile and plan moa --influence measured need none",
                  what, config.experts.num_experts, config.family));
}

// The numbers of one layer both ways, as Activations, and of what is saved, with gates and with influence.
int64_t GradMemoryBytes(const ModelConfig& config, int64_t num_tokens, int64_t bytes_per_number, Compute compute) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  const bool has_norms_before = config.norm_places != NormPlaces::kAfter;
  const int64_t num_norms_before = !has_norms_before ? 0 : config.residual == ResidualKind::kParallelSharedNorm ? 1 : 2;
  const int64_t num_branches = config.norm_places == NormPlaces::kBefore ? 0 : 2;
  int64_t num_angles = 0;
  for (const RopeConfig& rope : config.ropes) num_angles += rope.rotary_dims;
  int64_t per_token = (config.num_layers + 5 + num_norms_before + num_branches) * config.model_dim +
                      (5 + NumKeySlabs(num_tokens)) * q_dim + 4 * kv_dim +
                      (IsGated(config.mlp) ? 3 : 2) * config.ffn_dim + 5 * config.num_q_heads + num_angles;
  if (KeepsRaw(config)) per_token += q_dim + kv_dim;
  const int64_t widened = std::max({config.ffn_dim, config.vocab_size, q_dim}) * config.model_dim;
  const int64_t rounded =
      compute == Compute::kBF16 ? std::max({config.ffn_dim, config.model_dim, q_dim}) * num_tokens * 2 : 0;
  return (per_token * num_tokens + widened) * bytes_per_number + rounded;
}

template <typename Real>
double AttentionView<Real>::Probability(int64_t q_head, int64_t query, int64_t key) const {
  if (!Readable(shape.rule, query, key)) return 0;
  const int64_t kv_head = q_head / (shape.num_q_heads / shape.num_kv_heads);
  const Real* q_row = q + (query * shape.num_q_heads + q_head) * shape.head_dim;
  const Real* k_row = k + (key * shape.num_kv_heads + kv_head) * shape.head_dim;
  Real dot = 0;
  for (int64_t i = 0; i < shape.head_dim; ++i) dot += q_row[i] * k_row[i];
  double score = static_cast<double>(shape.scale) * static_cast<double>(dot);
  if (const double cap = shape.score_cap; cap > 0) score = cap * std::tanh(score / cap);
  if (!shape.alibi_slopes.empty()) {
    score += static_cast<double>(shape.alibi_slopes[static_cast<size_t>(q_head)]) * static_cast<double>(key - query);
  }
  return std::exp(score - static_cast<double>(lse[query * shape.num_q_heads + q_head]));
}

template <typename Real>
GradDecoder<Real>::GradDecoder(const Model& model, ThreadPool& pool, Compute compute, const cpu::KernelTable* kernels)
    : model_(&model),
      pool_(&pool),
      linear_(pool, compute, kernels),
      a_(std::make_unique<Activations>()),
      saved_(std::make_unique<Saved>()) {}

template <typename Real>
GradDecoder<Real>::~GradDecoder() = default;

template <typename Real>
int64_t GradDecoder<Real>::HeldBytes() const {
  size_t saved = 0;
  for (const auto* each : {&saved_->angles, &saved_->inputs}) {
    for (const std::vector<Real>& matrix : *each) saved += matrix.size();
  }
  return (a_->num_elements() + static_cast<int64_t>(saved) + linear_.num_widened()) * int64_t{sizeof(Real)};
}

template <typename Real>
NormRowParams GradDecoder<Real>::NormParams(const NormWeights& norm) const {
  return {.kind = model_->config.norm,
          .weight = static_cast<const float*>(norm.weight.data),
          .bias = static_cast<const float*>(norm.bias.data),
          .eps = model_->config.norm_eps};
}

template <typename Real>
RowNorm GradDecoder<Real>::StreamNorm(const NormWeights& norm) const {
  return {.params = NormParams(norm), .dim = model_->config.model_dim};
}

template <typename Real>
RowNorm GradDecoder<Real>::HeadNorm(const NormWeights& norm, int64_t num_heads) const {
  const ModelConfig& config = model_->config;
  if (config.qk_norm == QkNorm::kRows) return {.params = NormParams(norm), .dim = num_heads * config.head_dim};
  return {.params = NormParams(norm),
          .dim = config.head_dim,
          .rows_per_token = num_heads,
          .weight_step = norm.weight.shape.rank() == 2 ? config.head_dim : 0};
}

template <typename Real>
void GradDecoder<Real>::NormRows(const RowNorm& norm, const Real* x, RowWrite write, Real* y) {
  ForRows(*pool_, saved_->num_tokens * norm.rows_per_token, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      NormForward(norm.Of(row), x + row * norm.dim, write, y + row * norm.dim, norm.dim);
    }
  });
}

// y += W x, through the norm behind W where there is one; `branch` then keeps what that norm read.
template <typename Real>
void GradDecoder<Real>::AddToStream(const LinearWeights& linear, const NormWeights& norm, const Real* x,
                                    std::vector<Real>& branch, Real* y) {
  const int64_t num_tokens = saved_->num_tokens;
  if (!norm.weight.present()) return linear_.Forward(linear, x, num_tokens, RowWrite::kAdd, y);
  branch.resize(MatrixSize(num_tokens, model_->config.model_dim));
  linear_.Forward(linear, x, num_tokens, RowWrite::kStore, branch.data());
  NormRows(StreamNorm(norm), branch.data(), RowWrite::kAdd, y);
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
          .score_cap = static_cast<Real>(config.score_cap.value_or(0.0)),
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
  out.resize(MatrixSize(saved_->num_tokens, config.num_q_heads * config.head_dim));
  lse.resize(MatrixSize(saved_->num_tokens, config.num_q_heads));
  const bool wants_other_mass = is_full && saved_->wants_other_mass;
  if (wants_other_mass) a_->other_mass.resize(lse.size());
  AttentionShape<Real> shape = ShapeOf(layer_idx, path);
  if (outputs == Outputs::kWeighted) shape.active = WeightedHeads(layer_idx, path);
  AttentionForward(AttentionForwardArgs<Real>{.shape = shape,
                                              .q = a_->q.data(),
                                              .k = a_->k.data(),
                                              .v = a_->v.data(),
                                              .out = out.data(),
                                              .lse = lse.data(),
                                              .other_mass = wants_other_mass ? a_->other_mass.data() : nullptr},
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
        const size_t at = MatrixSize(row * config.num_kv_heads + kv_head, group_dim);
        for (size_t i = at; i < at + static_cast<size_t>(group_dim); ++i) {
          // An output without weight may not have been computed.
          const Real full = gate > 0 ? gate * a_->full_out[i] : Real{0};
          a_->mixed[i] = gate < 1 ? full + (1 - gate) * a_->bounded_out[i] : full;
        }
      }
    }
  });
}

// From the normed stream, or the stream where no norm is before attention, to q, k and v.
template <typename Real>
void GradDecoder<Real>::RunProjections(int64_t layer_idx, const Real* input) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  a_->q.resize(MatrixSize(num_tokens, config.num_q_heads * config.head_dim));
  a_->k.resize(MatrixSize(num_tokens, config.num_kv_heads * config.head_dim));
  a_->v.resize(a_->k.size());
  linear_.Forward(layer.q, input, num_tokens, RowWrite::kStore, a_->q.data());
  linear_.Forward(layer.k, input, num_tokens, RowWrite::kStore, a_->k.data());
  linear_.Forward(layer.v, input, num_tokens, RowWrite::kStore, a_->v.data());
  if (config.qkv_clip) {
    const auto limit = static_cast<Real>(*config.qkv_clip);
    for (std::vector<Real>* each : {&a_->q, &a_->k, &a_->v}) {
      for (Real& value : *each) value = std::clamp(value, -limit, limit);
    }
  }
  if (KeepsRaw(config)) {
    a_->q_raw = a_->q;
    a_->k_raw = a_->k;
  }
  if (config.qk_norm != QkNorm::kNone) {
    NormRows(HeadNorm(layer.q_norm, config.num_q_heads), a_->q_raw.data(), RowWrite::kStore, a_->q.data());
    NormRows(HeadNorm(layer.k_norm, config.num_kv_heads), a_->k_raw.data(), RowWrite::kStore, a_->k.data());
  }
  RotateRows(layer_idx, Rotation::kForward, config.num_q_heads, a_->q.data());
  RotateRows(layer_idx, Rotation::kForward, config.num_kv_heads, a_->k.data());
}

// Fills everything of Activations up to x_mid.
template <typename Real>
void GradDecoder<Real>::RunAttention(int64_t layer_idx, const Real* x, Outputs outputs) {
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const auto x_size = MatrixSize(saved_->num_tokens, model_->config.model_dim);
  const Real* input = x;
  if (layer.norm.weight.present()) {
    a_->normed.resize(x_size);
    NormRows(StreamNorm(layer.norm), x, RowWrite::kStore, a_->normed.data());
    input = a_->normed.data();
  }
  RunProjections(layer_idx, input);
  AttendPath(layer_idx, Path::kFull, outputs);
  if (!saved_->gates.empty()) {
    AttendPath(layer_idx, Path::kBounded, outputs);
    MixPaths(layer_idx);
  }
  const std::vector<Real>& attended = saved_->gates.empty() ? a_->full_out : a_->mixed;
  a_->x_mid.assign(x, x + x_size);
  AddToStream(layer.o, layer.post_norm, attended.data(), a_->branch, a_->x_mid.data());
}

// Fills mlp_normed. Requires: RunAttention of the same layer.
template <typename Real>
const Real* GradDecoder<Real>::MlpInput(int64_t layer_idx, const Real* x) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const Real* input = config.residual == ResidualKind::kSerial ? a_->x_mid.data() : x;
  if (config.residual == ResidualKind::kParallelSharedNorm) {
    input = a_->normed.data();
  } else if (layer.mlp_norm.weight.present()) {
    a_->mlp_normed.resize(a_->x_mid.size());
    NormRows(StreamNorm(layer.mlp_norm), input, RowWrite::kStore, a_->mlp_normed.data());
    input = a_->mlp_normed.data();
  }
  return input;
}

// Fills gate, up and activated.
template <typename Real>
void GradDecoder<Real>::RunMlp(int64_t layer_idx, const Real* input) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const int64_t num_tokens = saved_->num_tokens;
  a_->up.resize(MatrixSize(num_tokens, config.ffn_dim));
  a_->activated.resize(a_->up.size());
  linear_.Forward(layer.up, input, num_tokens, RowWrite::kStore, a_->up.data());
  if (IsGated(config.mlp)) {
    a_->gate.resize(a_->up.size());
    linear_.Forward(layer.gate, input, num_tokens, RowWrite::kStore, a_->gate.data());
  }
  ForRows(*pool_, num_tokens, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * config.ffn_dim;
    ActivationForward(config.mlp, IsGated(config.mlp) ? a_->gate.data() + at : nullptr, a_->up.data() + at,
                      a_->activated.data() + at, (end - begin) * config.ffn_dim);
  });
}

// cos, sin of every position, by rope.
template <typename Real>
void GradDecoder<Real>::FillAngles(int64_t num_tokens) {
  const ModelConfig& config = model_->config;
  saved_->angles.clear();
  const SequenceFrequencies frequencies = RopeFrequencies(config, num_tokens, num_tokens);
  for (size_t rope = 0; rope < frequencies.size(); ++rope) {
    std::vector<Real>& angles = saved_->angles.emplace_back();
    const double amplitude = config.ropes[rope].amplitude;
    for (int64_t pos = 0; pos < num_tokens; ++pos) {
      for (const double frequency : frequencies[rope]) {
        angles.push_back(static_cast<Real>(amplitude * std::cos(static_cast<double>(pos) * frequency)));
        angles.push_back(static_cast<Real>(amplitude * std::sin(static_cast<double>(pos) * frequency)));
      }
    }
  }
}

// x [N, E]: the tokens' embeddings, scaled, and those of their positions where the model has learned some.
template <typename Real>
void GradDecoder<Real>::Embed(std::span<const int32_t> ids, std::vector<Real>& x) const {
  const ModelConfig& config = model_->config;
  const int64_t dim = config.model_dim;
  const auto num_tokens = static_cast<int64_t>(ids.size());
  x.resize(MatrixSize(num_tokens, dim));
  for (int64_t token = 0; token < num_tokens; ++token) {
    WidenElements(model_->weights.embedding.rows(), ids[static_cast<size_t>(token)] * dim, dim, x.data() + token * dim);
  }
  for (Real& value : x) value *= static_cast<Real>(config.embedding_scale);
  if (config.positions != PositionKind::kLearned) return;
  HW_CHECK(num_tokens <= config.num_positions, "{} tokens, {} positions", num_tokens, config.num_positions);
  std::vector<Real> positions(x.size());
  WidenElements(model_->weights.positions.rows(), 0, num_tokens * dim, positions.data());
  for (size_t i = 0; i < x.size(); ++i) x[i] += positions[i];
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
  HW_CHECK(args.keep != ForwardArgs::Keep::kForBackward || !config.AnyExperts(), "no gradients through experts");
  saved.keeps_inputs = args.keep != ForwardArgs::Keep::kNothing;
  saved.wants_other_mass = false;
  saved.full_rules = RulesOfLayers(HeadRule::Full(), config, num_tokens);
  saved.gates.clear();
  if (args.gates != nullptr) {
    saved.gates.assign(args.gates->values.begin(), args.gates->values.end());
    saved.bounded_rules = RulesOfLayers(args.gates->bounded, config, num_tokens);
  }
  FillAngles(num_tokens);
  saved.inputs.resize(saved.keeps_inputs ? static_cast<size_t>(config.num_layers) + 1 : 1);
  Embed(args.ids, saved.inputs[0]);
  const Inputs inputs = saved.keeps_inputs ? Inputs::kKept : Inputs::kOverwritten;
  NormWanted(*RunLayers(/*first_layer=*/0, saved.inputs.data(), inputs, args.on_attention), hidden);
}

template <typename Real>
void GradDecoder<Real>::ForwardFrom(int64_t first_layer, const HeadGates& gates, std::vector<Real>& hidden) {
  Saved& saved = *saved_;
  HW_CHECK(saved.keeps_inputs && saved.gates.empty(), "the forward pass kept nothing, or had gates");
  HW_CHECK(gates.bounded.positions == Positions::kText);
  saved.gates.assign(gates.values.begin(), gates.values.end());
  saved.bounded_rules = RulesOfLayers(gates.bounded, model_->config, saved.num_tokens);
  a_->changed = saved.inputs[static_cast<size_t>(first_layer)];
  NormWanted(*RunLayers(first_layer, &a_->changed, Inputs::kOverwritten, {}), hidden);
  saved.gates.clear();
}

template <typename Real>
std::vector<Real>* GradDecoder<Real>::RunLayers(int64_t first_layer, std::vector<Real>* x, Inputs inputs,
                                                const OnAttention& on_attention) {
  const ModelConfig& config = model_->config;
  for (int64_t layer_idx = first_layer; layer_idx < config.num_layers; ++layer_idx) {
    RunAttention(layer_idx, x->data(), Outputs::kWeighted);
    if (on_attention) {
      on_attention({.layer_idx = layer_idx,
                    .shape = ShapeOf(layer_idx, Path::kFull),
                    .q = a_->q.data(),
                    .k = a_->k.data(),
                    .v = a_->v.data(),
                    .out = a_->full_out.data(),
                    .lse = a_->full_lse.data()});
    }
    const Real* const mlp_input = MlpInput(layer_idx, x->data());
    std::vector<Real>* next = inputs == Inputs::kKept ? x + 1 : x;
    if (config.layer(layer_idx).has_experts) {
      next->assign(a_->x_mid.begin(), a_->x_mid.end());
      AddExperts(layer_idx, mlp_input, next->data());
    } else {
      RunMlp(layer_idx, mlp_input);
      next->assign(a_->x_mid.begin(), a_->x_mid.end());
      const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
      AddToStream(layer.down, layer.mlp_post_norm, a_->activated.data(), a_->mlp_branch, next->data());
    }
    x = next;
  }
  return x;
}

template <typename Real>
void GradDecoder<Real>::NormWanted(const std::vector<Real>& x, std::vector<Real>& hidden) const {
  const int64_t dim = model_->config.model_dim;
  const NormRowParams norm = NormParams(model_->weights.final_norm);
  hidden.resize(MatrixSize(static_cast<int64_t>(saved_->wanted.size()), dim));
  for (size_t row = 0; row < saved_->wanted.size(); ++row) {
    NormForward(norm, x.data() + saved_->wanted[row] * dim, RowWrite::kStore,
                hidden.data() + MatrixSize(static_cast<int64_t>(row), dim), dim);
  }
}

template struct AttentionView<float>;
template struct AttentionView<double>;
template class GradDecoder<float>;
template class GradDecoder<double>;

}  // namespace headwise
