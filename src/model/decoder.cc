#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>

#include "base/format_bytes.h"
#include "base/no_memory.h"
#include "kv/token_marks.h"

namespace headwise {

ActivateArgs::Kind ActivationOf(MlpKind kind) {
  switch (kind) {
    case MlpKind::kGatedSilu:
      return ActivateArgs::Kind::kGatedSilu;
    case MlpKind::kGatedGeluTanh:
      return ActivateArgs::Kind::kGatedGeluTanh;
    case MlpKind::kGatedSiluClamped:
      return ActivateArgs::Kind::kGatedSiluClamped;
    case MlpKind::kGelu:
      return ActivateArgs::Kind::kGelu;
    case MlpKind::kGeluTanh:
      return ActivateArgs::Kind::kGeluTanh;
  }
  HW_CHECK(false, "MLP {}", static_cast<int>(kind));
}

ExpertRouting RoutingOf(const ExpertsConfig& experts, const ConstTensorView& selection_bias) {
  const bool is_softmax = experts.scores == ExpertsConfig::Scores::kSoftmax;
  return {.scores = is_softmax ? ExpertRouting::Scores::kSoftmax : ExpertRouting::Scores::kSigmoid,
          .num_chosen = experts.num_chosen,
          .selection_bias = selection_bias,
          .normalised = experts.normalised,
          .scale = static_cast<float>(experts.scale)};
}

// A step's activations, all f32.
struct Decoder::Buffers {
  TensorView x;           // [T, E] the residual stream
  TensorView normed;      // [T, E]
  TensorView mlp_normed;  // [T, E] only where attention and MLP run in parallel with their own norms
  TensorView q;           // [T, Hq*D]
  TensorView q_sink;      // [T, Hq*D] only where a layer needs it
  TensorView q_ahead;     // [T, Hq*D] only where a head observes queries to expect others
  TensorView k;           // [T, Hkv*D]
  TensorView v;           // [T, Hkv*D]
  TensorView attended;    // [T, Hq*D]
  TensorView lse;         // [T, Hq] read only where a head compensates
  TensorView gate;        // [T, F] of the widest layer, only where gated
  TensorView up;          // [T, F]
  TensorView router;      // [T, X] logits, only with experts
  TensorView shared;      // [T, 1] of the MLP beside experts, only where it has a gate
  TensorView branch;      // [T, E] what attention or the MLP adds, only where a norm is behind it
  TensorView wanted;      // [R, E]
  TensorView logits;      // [R, V]
  TensorView logprobs;    // [R, 1 + N] only where they are wanted of what is drawn
  TensorView top_ids;     // [R, N]
  // By rope: [A, R/2, 2], and memory for those of them that the device is not lent.
  std::vector<ConstTensorView> angles;
  std::vector<TensorView> angle_memory;

  friend bool operator==(const Buffers&, const Buffers&) = default;
};

struct Decoder::Layers {
  Buffers buffers;
  StepAngles::Rows rows;
  std::vector<char> compensates, selects;  // as in CacheStep
};

Status Decoder::PlaceBuffers(int64_t num_tokens, int64_t num_wanted, Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  int64_t num_top = -1;
  for (const TokenDraw& draw : draws_) num_top = std::max(num_top, draw.num_top);
  int64_t ffn_dim = 0;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    ffn_dim = std::max(ffn_dim, config.FfnDim(layer_idx));
  }
  struct Wish {
    TensorView* view;
    Shape shape;
    bool wanted = true;
  };
  std::vector<Wish> wishes{
      {&buffers.x, {num_tokens, config.model_dim}},
      {&buffers.normed, {num_tokens, config.model_dim}},
      {&buffers.mlp_normed, {num_tokens, config.model_dim}, config.residual == ResidualKind::kParallelTwoNorms},
      {&buffers.q, {num_tokens, q_dim}},
      {&buffers.q_sink, {num_tokens, q_dim}, angles_.HasSinkRows()},
      {&buffers.q_ahead, {num_tokens, q_dim}, !angles_.rows().ahead.empty()},
      {&buffers.k, {num_tokens, kv_dim}},
      {&buffers.v, {num_tokens, kv_dim}},
      {&buffers.attended, {num_tokens, q_dim}},
      {&buffers.lse, {num_tokens, config.num_q_heads}},
      {&buffers.gate, {num_tokens, ffn_dim}, ffn_dim > 0 && IsGated(config.mlp)},
      {&buffers.up, {num_tokens, ffn_dim}, ffn_dim > 0},
      {&buffers.router, {num_tokens, config.experts.num_experts}, config.AnyExperts()},
      {&buffers.shared, {num_tokens, 1}, config.experts.has_shared_gate},
      {&buffers.branch, {num_tokens, config.model_dim}, config.norm_places != NormPlaces::kBefore},
      {&buffers.wanted, {num_wanted, config.model_dim}, num_wanted > 0},
      {&buffers.logits, {num_wanted, config.vocab_size}, num_wanted > 0},
      {&buffers.logprobs, {num_wanted, 1 + num_top}, num_top >= 0},
      {&buffers.top_ids, {num_wanted, num_top}, num_top > 0},
  };
  buffers.angles.resize(angles_.tables().size());
  buffers.angle_memory.resize(buffers.angles.size());
  for (size_t rope = 0; rope < buffers.angles.size(); ++rope) {
    const StepAngles::Table& table = angles_.tables()[rope];
    wishes.push_back({&buffers.angle_memory[rope], {table.num_rows(), table.row_floats / 2, 2}});
  }
  size_t bytes = 0;
  for (const Wish& wish : wishes) bytes += wish.wanted ? Arena::BytesFor(wish.shape) : 0;
  Status room = arena_.Reset(bytes);
  const size_t drawn_bytes = static_cast<size_t>(num_wanted) * sizeof(int32_t);
  if (room.ok() && drawn_bytes > drawn_.size_bytes()) {
    constexpr size_t kLeastBytes = 256;
    Result<DeviceBuffer> drawn = DeviceBuffer::Make(backend_->device(), std::max(kLeastBytes, 2 * drawn_bytes));
    if (drawn.ok()) drawn_ = *std::move(drawn);
    room = drawn.status();
  }
  if (!room.ok()) {
    return Status::OutOfMemory(fmt::format(
        "could not allocate {} for the activations of a step of {} tokens: {}; allow smaller steps or fewer requests",
        FormatBytes(static_cast<int64_t>(bytes)), num_tokens, room.message()));
  }
  for (const Wish& wish : wishes) {
    if (wish.wanted) *wish.view = arena_.New(wish.shape);
  }
  buffers.top_ids.dtype = DType::kI32;
  return Status::Ok();
}

NormArgs Decoder::NormOf(const NormWeights& norm, const TensorView& x, const TensorView& out) const {
  return {.kind = model_->config.norm == NormKind::kRms ? NormArgs::Kind::kRms : NormArgs::Kind::kLayer,
          .x = x,
          .weight = norm.weight,
          .bias = norm.bias,
          .eps = static_cast<float>(model_->config.norm_eps),
          .out = out};
}

MatMulPart Decoder::StreamPart(const LinearWeights& weights, const NormWeights& norm, const Buffers& buffers) {
  return {weights.weight, weights.bias, norm.weight.present() ? buffers.branch : buffers.x};
}

MatMulArgs Decoder::StreamProduct(const TensorView& x, const MatMulPart& part, const NormWeights& norm) const {
  return {.x = x,
          .parts = {&part, 1},
          .write = norm.weight.present() ? MatMulArgs::Write::kStore : MatMulArgs::Write::kAdd,
          .compute = compute_};
}

void Decoder::AddToStream(const TensorView& x, const LinearWeights& weights, const NormWeights& norm,
                          const Buffers& buffers) {
  const MatMulPart part = StreamPart(weights, norm, buffers);
  backend_->MatMul(StreamProduct(x, part, norm));
  AddBranch(norm, buffers);
}

void Decoder::AddBranch(const NormWeights& norm, const Buffers& buffers) {
  if (!norm.weight.present()) return;
  NormArgs add = NormOf(norm, buffers.branch, buffers.x);
  add.write = NormArgs::Write::kAdd;
  backend_->Norm(add);
}

// Queries and keys in place, each head by itself or all heads of a token together.
void Decoder::NormHeads(const LayerWeights& layer, const Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const auto norm = [&](const NormWeights& weights, const TensorView& x, int64_t num_heads) {
    TensorView rows = x;
    if (config.qk_norm == QkNorm::kHeads) rows.shape = {x.shape[0] * num_heads, config.head_dim};
    backend_->Norm(NormOf(weights, rows, rows));
  };
  norm(layer.q_norm, buffers.q, config.num_q_heads);
  norm(layer.k_norm, buffers.k, config.num_kv_heads);
}

// q and k by their text positions, q_sink by the positions of sink reads, q_ahead by those to come, each by the layer's
// own angles. True if there are sink reads with queries of their own.
bool Decoder::FillRopes(int64_t layer_idx, const Buffers& buffers) {
  ropes_.clear();
  const ModelConfig& config = model_->config;
  const std::optional<int64_t> rope_idx = config.layer(layer_idx).rope;
  if (!rope_idx) return false;
  RopeArgs rope{.x = buffers.q,
                .out = buffers.q,
                .angles = buffers.angles[static_cast<size_t>(*rope_idx)],
                .rows = angles_.rows().text,
                .num_heads = config.num_q_heads,
                .head_dim = config.head_dim};
  const std::span<const int32_t> sink_rows = angles_.rows().sink[static_cast<size_t>(layer_idx)];
  if (!sink_rows.empty()) {
    RopeArgs sink_rope = rope;
    sink_rope.out = buffers.q_sink;
    sink_rope.rows = sink_rows;
    sink_rope.rows_per_token = config.num_kv_heads;
    ropes_.push_back(sink_rope);
  }
  if (!angles_.rows().ahead.empty()) {
    RopeArgs ahead_rope = rope;
    ahead_rope.out = buffers.q_ahead;
    ahead_rope.rows = angles_.rows().ahead;
    ropes_.push_back(ahead_rope);
  }
  ropes_.push_back(rope);
  rope.x = rope.out = buffers.k;
  rope.num_heads = config.num_kv_heads;
  ropes_.push_back(rope);
  return !sink_rows.empty();
}

// q, k, v -> rotate -> the cache's part, for one layer of every sequence. Leaves the heads' outputs in
// buffers.attended.
void Decoder::Attend(int64_t layer_idx, const TensorView& input, const std::optional<NormArgs>& norm,
                     Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const std::array<MatMulPart, 3> parts{{{layer.q.weight, layer.q.bias, buffers.q},
                                         {layer.k.weight, layer.k.bias, buffers.k},
                                         {layer.v.weight, layer.v.bias, buffers.v}}};
  backend_->Linear({.norm = norm, .product = {.x = input, .parts = parts, .compute = compute_}});
  if (config.qkv_clip) {
    for (const TensorView& x : {buffers.q, buffers.k, buffers.v}) {
      backend_->Clamp({.x = x, .limit = static_cast<float>(*config.qkv_clip)});
    }
  }
  if (config.qk_norm != QkNorm::kNone) NormHeads(layer, buffers);
  const bool has_sink_queries = FillRopes(layer_idx, buffers);

  // Where nothing is rotated queries are the same for all ranges: under ALiBi the sink distance enters through SinkPos
  // alone, and without positions not at all.
  cache_step_->RunLayer(layer_idx, {.k = buffers.k,
                                    .v = buffers.v,
                                    .ropes = ropes_,
                                    .q = buffers.q,
                                    .q_sink = has_sink_queries ? buffers.q_sink : TensorView{},
                                    .q_ahead = config.layer(layer_idx).rope ? buffers.q_ahead : TensorView{},
                                    .out = buffers.attended,
                                    .lse = buffers.lse,
                                    .alibi_slopes = model_->alibi_slopes,
                                    .sink_logits = config.zero_sink ? model_->zero_sink_logits : layer.sink_logits,
                                    .num_q_heads = config.num_q_heads,
                                    .scale = static_cast<float>(config.softmax_scale),
                                    .score_cap = static_cast<float>(config.score_cap.value_or(0.0)),
                                    .compute = compute_});
}

// A norm is done by itself: experts read what it gives, which on the way into the router's product need not be written.
// Small differences of logits decide who computes, so they are f32 whatever products are.
void Decoder::RunExperts(const LayerWeights& layer, const TensorView& input, const std::optional<NormArgs>& norm,
                         const Buffers& buffers) {
  const ExpertsConfig& experts = model_->config.experts;
  const std::array<MatMulPart, 2> parts{
      {{layer.router.weight, layer.router.bias, buffers.router}, {layer.shared_gate.weight, {}, buffers.shared}}};
  if (norm) backend_->Norm(*norm);
  backend_->MatMul(
      {.x = input, .parts = std::span(parts).first(experts.has_shared_gate ? 2 : 1), .compute = Compute::kF32});
  const bool has_branch = layer.mlp_post_norm.weight.present();
  backend_->Experts({.x = input,
                     .logits = buffers.router,
                     .routing = RoutingOf(experts, layer.selection_bias),
                     .activation = ActivationOf(model_->config.mlp),
                     .experts = layer.experts,
                     .out = has_branch ? buffers.branch : buffers.x,
                     .write = has_branch ? MatMulArgs::Write::kStore : MatMulArgs::Write::kAdd,
                     .compute = compute_});
}

void Decoder::Mlp(int64_t layer_idx, const TensorView& input, const std::optional<NormArgs>& norm, Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  const bool has_experts = config.layer(layer_idx).has_experts;
  if (has_experts) RunExperts(layer, input, norm, buffers);
  if (const int64_t ffn_dim = config.FfnDim(layer_idx); ffn_dim > 0) {
    const MlpKind kind = config.mlp;
    TensorView gate = buffers.gate, up = buffers.up;
    gate.shape = up.shape = {input.shape[0], ffn_dim};
    const std::array<MatMulPart, 2> parts{
        {{layer.gate.weight, layer.gate.bias, gate}, {layer.up.weight, layer.up.bias, up}}};
    const MatMulArgs product = {.x = input, .parts = std::span(parts).last(IsGated(kind) ? 2 : 1), .compute = compute_};
    const ActivateArgs activation{.kind = ActivationOf(kind), .gate = gate, .x = up};
    const MatMulPart down = StreamPart(layer.down, layer.mlp_post_norm, buffers);
    MatMulArgs then = StreamProduct(up, down, layer.mlp_post_norm);
    if (has_experts) then.write = MatMulArgs::Write::kAdd;  // to what they left
    if (layer.shared_gate.weight.present()) {
      backend_->MatMul(product);
      backend_->Activate(activation);
      backend_->GateRows({.gate = buffers.shared, .x = up});
      backend_->MatMul(then);
    } else {
      const std::optional<NormArgs> norm_left = has_experts ? std::nullopt : norm;
      backend_->Linear({.norm = norm_left, .product = product, .activation = activation, .then = then});
    }
  }
  AddBranch(layer.mlp_post_norm, buffers);
}

void Decoder::PutAngles(bool are_few, Buffers& buffers) {
  for (size_t rope = 0; rope < buffers.angles.size(); ++rope) {
    const std::vector<float>& values = angles_.tables()[rope].values;
    const size_t bytes = values.size() * sizeof(float);
    if ((bytes <= Device::kMaxLent) != are_few) continue;
    const TensorView& memory = buffers.angle_memory[rope];
    ConstTensorView& angles = buffers.angles[rope];
    angles = memory;
    if (const void* lent = are_few ? backend_->device().Lend(values.data(), bytes) : nullptr) {
      angles.data = lent;
    } else {
      backend_->device().CopyFromHost(memory.data, values.data(), bytes);
    }
  }
}

// Where the host finds the view's rows once the queue is done: where they are, or in `copy`, but for those of sequences
// that draw. Empty where all do.
std::span<float> Decoder::OnHost(const TensorView& view, std::span<const StepSequence> sequences,
                                 std::vector<float>& copy) {
  const auto num_elements = static_cast<size_t>(view.shape.num_elements());
  if (void* in_place = backend_->device().HostView(view.data)) return {static_cast<float*>(in_place), num_elements};
  if (std::ranges::all_of(sequences,
                          [](const StepSequence& each) { return each.draw != nullptr || each.wanted.empty(); })) {
    return {};
  }
  copy.resize(num_elements);
  int64_t begin = 0;
  int64_t end = 0;  // of rows to copy at once
  const auto copy_rows = [&] {
    if (end > begin) {
      const ConstTensorView rows = ConstTensorView(view).Rows(begin, end - begin);
      backend_->device().CopyToHost(&copy[static_cast<size_t>(begin * view.shape[1])], rows.data,
                                    static_cast<size_t>(rows.size_bytes()));
    }
    begin = end;
  };
  for (const StepSequence& sequence : sequences) {
    const auto num_rows = static_cast<int64_t>(sequence.wanted.size());
    if (sequence.draw != nullptr) {
      copy_rows();
      begin += num_rows;
    }
    end += num_rows;
  }
  copy_rows();
  return copy;
}

void Decoder::FinishRows(std::span<const StepSequence> sequences, const Buffers& buffers) {
  backend_->GatherRows({.x = buffers.x, .rows = wanted_rows_, .out = buffers.wanted});
  backend_->Norm(NormOf(model_->weights.final_norm, buffers.wanted, buffers.wanted));
  const LinearWeights& head = model_->weights.output;
  const MatMulPart part{head.weight, head.bias, buffers.logits};
  backend_->MatMul({.x = buffers.wanted, .parts = {&part, 1}, .compute = compute_});
  const std::optional<double> cap = model_->config.logit_cap;
  if (cap) backend_->SoftCap({.x = buffers.logits, .cap = static_cast<float>(*cap)});
  Outcome& outcome = newest();
  if (!draws_.empty()) DrawRows(buffers);
  outcome.output.logits = OnHost(buffers.logits, sequences, outcome.logits);
  outcome.output.hidden = OnHost(buffers.wanted, sequences, outcome.hidden);
}

// Draws may change the logits of their rows: those are not copied.
void Decoder::DrawRows(const Buffers& buffers) {
  const size_t num_rows = wanted_rows_.size();
  const auto ids_at = [&](void* data) {
    return TensorView{.data = data, .dtype = DType::kI32, .shape = {static_cast<int64_t>(num_rows)}};
  };
  Outcome& outcome = newest();
  outcome.ids.resize(num_rows);
  void* const arriving = backend_->device().Arriving(outcome.ids.data(), num_rows * sizeof(int32_t));
  backend_->DrawTokens({.logits = buffers.logits,
                        .draws = draws_,
                        .ids = ids_at(drawn_.data()),
                        .arriving_ids = ids_at(arriving),
                        .logprobs = buffers.logprobs,
                        .top_ids = buffers.top_ids});
  const auto copy = [&](const void* from, size_t size, auto& to) {
    to.resize(size);
    backend_->device().CopyToHost(to.data(), from, size * sizeof(to[0]));
    return std::span<const std::decay_t<decltype(to[0])>>(to);
  };
  outcome.output.ids = outcome.ids;
  if (arriving == nullptr) copy(drawn_.data(), num_rows, outcome.ids);
  if (!buffers.logprobs.present()) return;
  outcome.output.num_top = buffers.logprobs.shape[1] - 1;
  outcome.output.logprobs =
      copy(buffers.logprobs.data, static_cast<size_t>(buffers.logprobs.shape.num_elements()), outcome.logprobs);
  if (!buffers.top_ids.present()) return;
  outcome.output.top_ids =
      copy(buffers.top_ids.data, static_cast<size_t>(buffers.top_ids.shape.num_elements()), outcome.top_ids);
}

void Decoder::RunLayers(Buffers& buffers) {
  const ModelConfig& config = model_->config;
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
    if (config.norm_places == NormPlaces::kAfter) {
      Attend(layer_idx, buffers.x, std::nullopt, buffers);
      AddToStream(buffers.attended, layer.o, layer.post_norm, buffers);
      Mlp(layer_idx, buffers.x, std::nullopt, buffers);
      continue;
    }
    const NormArgs norm = NormOf(layer.norm, buffers.x, buffers.normed);
    if (config.residual == ResidualKind::kSerial) {
      // Each norm has one reader, which may do it on the way.
      Attend(layer_idx, buffers.normed, norm, buffers);
      AddToStream(buffers.attended, layer.o, layer.post_norm, buffers);
      Mlp(layer_idx, buffers.normed, NormOf(layer.mlp_norm, buffers.x, buffers.normed), buffers);
      continue;
    }
    // A parallel MLP reads x as it was before attention joins it.
    const bool has_two_norms = config.residual == ResidualKind::kParallelTwoNorms;
    backend_->Norm(norm);
    if (has_two_norms) backend_->Norm(NormOf(layer.mlp_norm, buffers.x, buffers.mlp_normed));
    Attend(layer_idx, buffers.normed, std::nullopt, buffers);
    AddToStream(buffers.attended, layer.o, layer.post_norm, buffers);
    Mlp(layer_idx, has_two_norms ? buffers.mlp_normed : buffers.normed, std::nullopt, buffers);
  }
}

uint64_t Decoder::KindOfLayers(const Buffers& buffers) {
  static std::atomic<uint64_t> next_kind = 1;
  const KvStep& step = cache_step_->step();
  if (!step.ages.empty()) return 0;  // other pages in each step
  // Prompts hardly come alike, and have rows by the million.
  if (step.num_rows() != static_cast<int64_t>(step.sequences.size())) return 0;
  const bool is_known = layers_ != nullptr && layers_->buffers == buffers && layers_->rows == angles_.rows() &&
                        layers_->compensates == cache_step_->compensates() &&
                        layers_->selects == cache_step_->selects();
  if (!is_known) {
    layers_ = nullptr;  // unless all of it is there
    layers_ =
        std::make_unique<Layers>(Layers{buffers, angles_.rows(), cache_step_->compensates(), cache_step_->selects()});
    kind_ = next_kind++;
  }
  return kind_;
}

Decoder::Decoder(const Model& model, Backend& backend, Compute compute)
    : model_(&model), backend_(&backend), compute_(compute), arena_(backend.device()) {}

Decoder::~Decoder() {
  // What is on the queue writes into outcomes.
  if (num_collected_ < num_launched_) static_cast<void>(backend_->device().Wait());
}

Status Decoder::Launch(std::span<const StepSequence> sequences) {
  HW_CHECK(num_launched_ - num_collected_ <= 1, "{} steps to be collected", num_launched_ - num_collected_);
  newest().output = {};
  newest().status = Status::Ok();
  Status status = CatchNoMemory("the tables of a step", [&] { return PutStep(sequences); });
  if (status.ok()) {
    ++num_launched_;
    return status;
  }
  // What is on the queue still reads the pages and tables of the step. Its own error would be a second one, but of the
  // step before.
  Status before = backend_->device().Wait();
  if (num_collected_ < num_launched_) outcomes_[num_collected_ % 2].status = std::move(before);
  newest().output = {};
  if (cache_step_) cache_step_->Abandon();
  for (const StepSequence& sequence : sequences) {
    if (sequence.cache->planned_tokens() > 0) sequence.cache->AbandonStep();
  }
  return status;
}

Status Decoder::Collect(StepOutput& output) {
  HW_CHECK(num_collected_ < num_launched_, "no step is to be collected");
  Outcome& outcome = outcomes_[num_collected_ % 2];
  if (outcome.status.ok()) outcome.status = backend_->device().WaitForMark();
  ++num_collected_;
  if (outcome.status.ok()) {
    output = outcome.output;
    return Status::Ok();
  }
  output = {};
  if (num_collected_ < num_launched_) {
    outcomes_[num_collected_ % 2].status = CopyOf(outcome.status);
    static_cast<void>(backend_->device().Wait());
  }
  return std::move(outcome.status);
}

void Decoder::MarkTokens(std::span<const StepSequence> sequences) {
  marks_.clear();
  if (std::ranges::all_of(sequences, [](const StepSequence& sequence) { return sequence.marked == nullptr; })) return;
  for (const StepSequence& sequence : sequences) {
    HW_CHECK(sequence.marked == nullptr || !sequence.follows, "what follows is not known before the step");
    if (sequence.marked != nullptr) {
      AppendMarks(sequence.ids, *sequence.marked, marks_);
    } else {
      marks_.resize(marks_.size() + static_cast<size_t>(sequence.cache->planned_tokens()), TokenMark::kOther);
    }
  }
}

Status Decoder::PutStep(std::span<const StepSequence> sequences) {
  const ModelConfig& config = model_->config;
  ids_.clear();
  positions_.clear();
  wanted_rows_.clear();
  draws_.clear();
  angled_.clear();
  for (const StepSequence& sequence : sequences) {
    const int64_t num_new = sequence.follows ? 1 : static_cast<int64_t>(sequence.ids.size());
    HW_CHECK(sequence.follows.has_value() == sequences.front().follows.has_value(), "some follow, others do not");
    HW_CHECK(sequence.cache->planned_tokens() == num_new, "{} tokens, {} planned", num_new,
             sequence.cache->planned_tokens());
    for (const int32_t idx : sequence.wanted) wanted_rows_.push_back(static_cast<int32_t>(ids_.size()) + idx);
    if (sequence.draw != nullptr && !sequence.wanted.empty()) {
      HW_CHECK(DrawsOnDevice() && sequence.wanted.size() == 1, "{} rows to draw from", sequence.wanted.size());
      draws_.resize(wanted_rows_.size());  // the most likely token of rows before it, which nobody looks at
      draws_.back() = *sequence.draw;
      draws_.back().num_top = std::min(draws_.back().num_top, config.vocab_size);
    }
    if (sequence.follows) {
      ids_.push_back(*sequence.follows);
    } else {
      ids_.insert(ids_.end(), sequence.ids.begin(), sequence.ids.end());
    }
    for (int64_t i = 0; config.positions == PositionKind::kLearned && i < num_new; ++i) {
      positions_.push_back(static_cast<int32_t>(sequence.cache->num_tokens() + i));
    }
    angled_.push_back({.cache = sequence.cache, .num_new = num_new, .frequencies = sequence.rope_frequencies});
  }
  if (!draws_.empty()) draws_.resize(wanted_rows_.size());
  angles_.Fill(config, angled_);
  Buffers buffers;
  HW_RETURN_IF_ERROR(
      PlaceBuffers(static_cast<int64_t>(ids_.size()), static_cast<int64_t>(wanted_rows_.size()), buffers));
  PutAngles(false, buffers);
  if (!cache_step_) cache_step_.emplace(*backend_, sequences.front().cache->pools());
  for (const StepSequence& sequence : sequences) cache_step_->Add(*sequence.cache);
  MarkTokens(sequences);
  cache_step_->Begin(marks_);
  PutAngles(true, buffers);

  EmbedArgs embed = {.table = model_->weights.embedding,
                     .ids = ids_,
                     .out = buffers.x,
                     .scale = static_cast<float>(config.embedding_scale),
                     .positions = model_->weights.positions,
                     .position_ids = positions_};
  if (sequences.front().follows) {
    embed.chosen = {drawn_.data(), DType::kI32, Shape{static_cast<int64_t>(drawn_.size_bytes() / sizeof(int32_t))}};
  }
  backend_->Embed(embed);
  backend_->PutAlike(KindOfLayers(buffers), [&] { RunLayers(buffers); });
  cache_step_->Finish();

  if (!wanted_rows_.empty()) FinishRows(sequences, buffers);
  backend_->device().Mark();
  return Status::Ok();
}

}  // namespace headwise
