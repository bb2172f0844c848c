#include "model/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

namespace headwise {

// Rotary angles of one step: for each rope of the model a row of cos, sin per distinct (sequence, position).
struct Decoder::Angles {
  struct Table {
    std::vector<float> values;  // [A, R/2, 2]
    int64_t row_floats = 0;     // R

    int64_t num_rows() const { return row_floats == 0 ? 0 : static_cast<int64_t>(values.size()) / row_floats; }
  };
  std::vector<Table> tables;       // by rope
  std::vector<int32_t> text_rows;  // [T] row of each token's text position, the same in every table
  // For layers with heads that count positions in the cache: row of SinkPosition(t) per token and KV head, in the table
  // of the layer's rope.
  std::vector<std::vector<int32_t>> sink_rows;  // [L][T * Hkv], empty where no head of the layer needs it

  Angles(const ModelConfig& config, std::span<const StepSequence> sequences);

 private:
  // Row of a position in the table of a rope; a new one if it has none yet.
  int32_t Row(int64_t rope, size_t sequence_idx, const StepSequence& sequence, int64_t pos);

  std::vector<std::vector<std::map<int64_t, int32_t>>> row_of_;  // by rope and sequence
};

// A step's activations, all f32.
struct Decoder::Buffers {
  TensorView x;           // [T, E] the residual stream
  TensorView normed;      // [T, E]
  TensorView mlp_normed;  // [T, E] only where attention and MLP run in parallel with their own norms
  TensorView q;           // [T, Hq*D]
  TensorView q_sink;      // [T, Hq*D] only where a layer needs it
  TensorView k;           // [T, Hkv*D]
  TensorView v;           // [T, Hkv*D]
  TensorView attended;    // [T, Hq*D]
  TensorView lse;         // [T, Hq] read only where a head compensates
  TensorView gate;        // [T, F] only where gated
  TensorView up;          // [T, F]
  TensorView wanted;      // [R, E]
  TensorView logits;      // [R, V]
  // By rope: [A, R/2, 2].
  std::vector<TensorView> angles;
};

int32_t Decoder::Angles::Row(int64_t rope, size_t sequence_idx, const StepSequence& sequence, int64_t pos) {
  Table& table = tables[static_cast<size_t>(rope)];
  auto& rows = row_of_[static_cast<size_t>(rope)][sequence_idx];
  const auto [it, is_new] = rows.try_emplace(pos, static_cast<int32_t>(table.num_rows()));
  if (is_new) AppendRopeAngles((*sequence.rope_frequencies)[static_cast<size_t>(rope)], pos, table.values);
  return it->second;
}

Decoder::Angles::Angles(const ModelConfig& config, std::span<const StepSequence> sequences)
    : sink_rows(static_cast<size_t>(config.num_layers)),
      row_of_(config.ropes.size(), std::vector<std::map<int64_t, int32_t>>(sequences.size())) {
  for (const RopeConfig& rope : config.ropes) {
    // Text positions come first, so that their rows have the same numbers in all tables.
    tables.push_back({.values = {}, .row_floats = rope.rotary_dims});
    text_rows.clear();
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int64_t first_pos = sequences[s].cache->num_tokens();
      for (size_t i = 0; i < sequences[s].ids.size(); ++i) {
        text_rows.push_back(
            Row(static_cast<int64_t>(tables.size()) - 1, s, sequences[s], first_pos + static_cast<int64_t>(i)));
      }
    }
  }
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const std::optional<int64_t> rope = config.layer(layer_idx).rope;
    const auto counts_in_cache = [&](const StepSequence& sequence) {
      for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
        const ResolvedRule& rule = sequence.cache->rule(layer_idx, kv_head);
        if (rule.positions == Positions::kCache && rule.Bounded() && rule.sink > 0) return true;
      }
      return false;
    };
    // Without a rotation queries are the same wherever they stand.
    if (!rope || std::none_of(sequences.begin(), sequences.end(), counts_in_cache)) continue;
    std::vector<int32_t>& rows = sink_rows[static_cast<size_t>(layer_idx)];
    for (size_t s = 0; s < sequences.size(); ++s) {
      const KvCache& cache = *sequences[s].cache;
      for (size_t i = 0; i < sequences[s].ids.size(); ++i) {
        const int64_t pos = cache.num_tokens() + static_cast<int64_t>(i);
        for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
          rows.push_back(Row(*rope, s, sequences[s], cache.rule(layer_idx, kv_head).SinkPosition(pos)));
        }
      }
    }
  }
}

Status Decoder::PlaceBuffers(int64_t num_tokens, int64_t num_wanted, const Angles& angles, Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  const bool counts_in_cache = std::any_of(angles.sink_rows.begin(), angles.sink_rows.end(),
                                           [](const std::vector<int32_t>& rows) { return !rows.empty(); });
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
      {&buffers.q_sink, {num_tokens, q_dim}, counts_in_cache},
      {&buffers.k, {num_tokens, kv_dim}},
      {&buffers.v, {num_tokens, kv_dim}},
      {&buffers.attended, {num_tokens, q_dim}},
      {&buffers.lse, {num_tokens, config.num_q_heads}},
      {&buffers.gate, {num_tokens, config.ffn_dim}, config.mlp == MlpKind::kGatedSilu},
      {&buffers.up, {num_tokens, config.ffn_dim}},
      {&buffers.wanted, {num_wanted, config.model_dim}, num_wanted > 0},
      {&buffers.logits, {num_wanted, config.vocab_size}, num_wanted > 0},
  };
  buffers.angles.resize(angles.tables.size());
  for (size_t rope = 0; rope < angles.tables.size(); ++rope) {
    const Angles::Table& table = angles.tables[rope];
    wishes.push_back({&buffers.angles[rope], {table.num_rows(), table.row_floats / 2, 2}});
  }
  size_t bytes = 0;
  for (const Wish& wish : wishes) bytes += wish.wanted ? Arena::BytesFor(wish.shape) : 0;
  HW_RETURN_IF_ERROR(arena_.Reset(bytes));
  for (const Wish& wish : wishes) {
    if (wish.wanted) *wish.view = arena_.New(wish.shape);
  }
  return Status::Ok();
}

void Decoder::Norm(const NormWeights& norm, const TensorView& x, const TensorView& out) {
  backend_->Norm({.kind = model_->config.norm == NormKind::kRms ? NormArgs::Kind::kRms : NormArgs::Kind::kLayer,
                  .x = x,
                  .weight = norm.weight,
                  .bias = norm.bias,
                  .eps = static_cast<float>(model_->config.norm_eps),
                  .out = out});
}

void Decoder::Linear(const TensorView& x, std::span<const MatMulPart> parts, MatMulArgs::Write write) {
  backend_->MatMul({.x = x, .parts = parts, .write = write, .compute = compute_});
}

// q and k by their text positions, q_sink by the positions of sink reads, each by the layer's own angles. True if there
// are sink reads with queries of their own.
bool Decoder::Rotate(int64_t layer_idx, const Angles& angles, const Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const std::optional<int64_t> rope_idx = config.layer(layer_idx).rope;
  if (!rope_idx) return false;
  RopeArgs rope{.x = buffers.q,
                .out = buffers.q,
                .angles = buffers.angles[static_cast<size_t>(*rope_idx)],
                .rows = angles.text_rows,
                .num_heads = config.num_q_heads,
                .head_dim = config.head_dim};
  const std::vector<int32_t>& sink_rows = angles.sink_rows[static_cast<size_t>(layer_idx)];
  if (!sink_rows.empty()) {
    RopeArgs sink_rope = rope;
    sink_rope.out = buffers.q_sink;
    sink_rope.rows = sink_rows;
    sink_rope.rows_per_token = config.num_kv_heads;
    backend_->Rope(sink_rope);
  }
  backend_->Rope(rope);
  rope.x = rope.out = buffers.k;
  rope.num_heads = config.num_kv_heads;
  backend_->Rope(rope);
  return !sink_rows.empty();
}

// q, k, v -> rotate -> the cache's part, for one layer of every sequence. Reads buffers.normed, leaves the heads'
// outputs in buffers.attended.
void Decoder::Attend(int64_t layer_idx, CacheStep& step, const Angles& angles, Buffers& buffers) {
  const ModelConfig& config = model_->config;
  const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
  Linear(buffers.normed,
         std::array<MatMulPart, 3>{{{layer.q.weight, layer.q.bias, buffers.q},
                                    {layer.k.weight, layer.k.bias, buffers.k},
                                    {layer.v.weight, layer.v.bias, buffers.v}}},
         MatMulArgs::Write::kStore);
  if (config.qkv_clip) {
    for (const TensorView& x : {buffers.q, buffers.k, buffers.v}) {
      backend_->Clamp({.x = x, .limit = static_cast<float>(*config.qkv_clip)});
    }
  }
  const bool has_sink_queries = Rotate(layer_idx, angles, buffers);

  // Where nothing is rotated queries are the same for all ranges: under ALiBi the sink distance enters through SinkPos
  // alone, and without positions not at all.
  step.RunLayer(layer_idx, {.k = buffers.k,
                            .v = buffers.v,
                            .q = buffers.q,
                            .q_sink = has_sink_queries ? buffers.q_sink : TensorView{},
                            .out = buffers.attended,
                            .lse = buffers.lse,
                            .alibi_slopes = model_->alibi_slopes,
                            .sink_logits = config.zero_sink ? model_->zero_sink_logits : layer.sink_logits,
                            .num_q_heads = config.num_q_heads,
                            .scale = static_cast<float>(config.softmax_scale),
                            .compute = compute_});
}

void Decoder::Mlp(const LayerWeights& layer, const TensorView& input, Buffers& buffers) {
  const MlpKind kind = model_->config.mlp;
  const MatMulPart up{layer.up.weight, layer.up.bias, buffers.up};
  if (kind == MlpKind::kGatedSilu) {
    Linear(input, std::array<MatMulPart, 2>{{{layer.gate.weight, layer.gate.bias, buffers.gate}, up}},
           MatMulArgs::Write::kStore);
  } else {
    Linear(input, std::array<MatMulPart, 1>{{up}}, MatMulArgs::Write::kStore);
  }
  backend_->Activate({.kind = kind == MlpKind::kGatedSilu ? ActivateArgs::Kind::kGatedSilu
                              : kind == MlpKind::kGelu    ? ActivateArgs::Kind::kGelu
                                                          : ActivateArgs::Kind::kGeluTanh,
                      .gate = buffers.gate,
                      .x = buffers.up});
  Linear(buffers.up, std::array<MatMulPart, 1>{{{layer.down.weight, layer.down.bias, buffers.x}}},
         MatMulArgs::Write::kAdd);
}

Status Decoder::Step(std::span<const StepSequence> sequences, StepOutput& output) {
  const ModelConfig& config = model_->config;
  std::vector<int32_t> ids;
  std::vector<int32_t> wanted_rows;
  for (const StepSequence& sequence : sequences) {
    for (const int32_t idx : sequence.wanted) wanted_rows.push_back(static_cast<int32_t>(ids.size()) + idx);
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
  }
  const Angles angles(config, sequences);
  Buffers buffers;
  HW_RETURN_IF_ERROR(
      PlaceBuffers(static_cast<int64_t>(ids.size()), static_cast<int64_t>(wanted_rows.size()), angles, buffers));
  CacheStep cache_step(*backend_, sequences.front().cache->pools());
  for (const StepSequence& sequence : sequences) {
    HW_CHECK(sequence.cache->planned_tokens() == static_cast<int64_t>(sequence.ids.size()));
    cache_step.Add(*sequence.cache);
  }
  cache_step.Begin();
  for (size_t rope = 0; rope < angles.tables.size(); ++rope) {
    const std::vector<float>& values = angles.tables[rope].values;
    backend_->device().CopyFromHost(buffers.angles[rope].data, values.data(), values.size() * sizeof(float));
  }

  backend_->Embed({.table = model_->weights.embedding, .ids = ids, .out = buffers.x});
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) {
    const LayerWeights& layer = model_->weights.layers[static_cast<size_t>(layer_idx)];
    Norm(layer.norm, buffers.x, buffers.normed);
    // A parallel MLP reads x as it was before attention joins it.
    if (config.residual == ResidualKind::kParallelTwoNorms) Norm(layer.mlp_norm, buffers.x, buffers.mlp_normed);
    Attend(layer_idx, cache_step, angles, buffers);
    Linear(buffers.attended, std::array<MatMulPart, 1>{{{layer.o.weight, layer.o.bias, buffers.x}}},
           MatMulArgs::Write::kAdd);
    TensorView mlp_input = buffers.normed;
    if (config.residual == ResidualKind::kSerial) Norm(layer.mlp_norm, buffers.x, buffers.normed);
    if (config.residual == ResidualKind::kParallelTwoNorms) mlp_input = buffers.mlp_normed;
    Mlp(layer, mlp_input, buffers);
  }
  cache_step.Finish();

  output.logits.resize(wanted_rows.size() * static_cast<size_t>(config.vocab_size));
  output.hidden.resize(wanted_rows.size() * static_cast<size_t>(config.model_dim));
  if (wanted_rows.empty()) return backend_->device().Wait();
  backend_->GatherRows({.x = buffers.x, .rows = wanted_rows, .out = buffers.wanted});
  Norm(model_->weights.final_norm, buffers.wanted, buffers.wanted);
  const LinearWeights& head = model_->weights.output;
  Linear(buffers.wanted, std::array<MatMulPart, 1>{{{head.weight, head.bias, buffers.logits}}},
         MatMulArgs::Write::kStore);
  Device& device = backend_->device();
  device.CopyToHost(output.logits.data(), buffers.logits.data, output.logits.size() * sizeof(float));
  device.CopyToHost(output.hidden.data(), buffers.wanted.data, output.hidden.size() * sizeof(float));
  return device.Wait();
}

}  // namespace headwise
