// Operations on activations alone: norms, rotations, activation functions, draws from logits. Their numbers stay in a
// cache between calls, as they do between the layers of a step.
#include <fmt/format.h>

#include "bench/op_data.h"
#include "bench/op_method.h"
#include "model/decoder.h"
#include "model/rope.h"

namespace headwise {
namespace {

constexpr int64_t kFloatBytes = static_cast<int64_t>(sizeof(float));

}  // namespace

Status TimeNorm(const OpRun& run) {
  const ModelConfig& config = run.config();
  const int64_t dim = config.model_dim;
  const bool is_rms = config.norm == NormKind::kRms;
  // Two norms in each layer.
  const int64_t num_norms = 2 * config.num_layers;
  HW_ASSIGN_OR_RETURN(const RandomTensor weights,
                      RandomTensor::Make(run.backend(), {num_norms, dim}, run.options().seed));
  HW_ASSIGN_OR_RETURN(const RandomTensor biases,
                      RandomTensor::Make(run.backend(), {num_norms, dim}, run.options().seed));
  const auto vector = [&](const RandomTensor& vectors, int64_t norm_idx) {
    return ConstTensorView(static_cast<const float*>(vectors.view().data) + norm_idx * dim, DType::kF32, Shape{dim});
  };
  for (const int64_t num_rows : run.options().rows) {
    HW_ASSIGN_OR_RETURN(const RandomTensor x, RandomTensor::Make(run.backend(), {num_rows, dim}, run.options().seed));
    HW_ASSIGN_OR_RETURN(const RandomTensor out, RandomTensor::Make(run.backend(), {num_rows, dim}, run.options().seed));
    OpCase op_case;
    op_case.point = {.part = is_rms ? "rms" : "layer",
                     .shape = fmt::format("{}", dim),
                     .format = "f32",
                     .rows = num_rows,
                     .work = NormWork(config, num_rows),
                     .cycled_bytes = (num_norms + 2 * num_rows) * dim * kFloatBytes};
    op_case.period = num_norms;
    op_case.call = [&](int64_t call_idx) {
      run.backend().Norm({.kind = is_rms ? NormArgs::Kind::kRms : NormArgs::Kind::kLayer,
                          .x = x.view(),
                          .weight = vector(weights, call_idx % num_norms),
                          .bias = config.norm_bias ? vector(biases, call_idx % num_norms) : ConstTensorView{},
                          .eps = static_cast<float>(config.norm_eps),
                          .out = out.view()});
    };
    HW_RETURN_IF_ERROR(run.Measure(op_case));
  }
  return Status::Ok();
}

Status CheckRope(const OpRun& run) {
  if (!run.config().ropes.empty()) return Status::Ok();
  return Status::InvalidInput("this model has no rotary embedding");
}

Status TimeRope(const OpRun& run) {
  if (!CheckRope(run).ok()) return Status::Ok();
  const ModelConfig& config = run.config();
  const RopeConfig& rope = config.ropes.front();  // of several, all take as long
  for (const int64_t num_rows : run.options().rows) {
    const std::vector<double> frequencies =
        RopeFrequencies(rope, {.trained = config.trained_length, .prompt = num_rows, .most = num_rows});
    std::vector<float> table;
    std::vector<int32_t> text_rows;
    for (int64_t pos = 0; pos < num_rows; ++pos) {
      AppendRopeAngles(frequencies, rope.amplitude, pos, table);
      text_rows.push_back(static_cast<int32_t>(pos));
    }
    HW_ASSIGN_OR_RETURN(const RandomTensor angles,
                        RandomTensor::Make(run.backend(), {num_rows, rope.rotary_dims / 2, 2}, run.options().seed));
    run.backend().device().CopyFromHost(angles.view().data, table.data(), table.size() * sizeof(float));
    HW_ASSIGN_OR_RETURN(
        const RandomTensor q,
        RandomTensor::Make(run.backend(), {num_rows, config.num_q_heads * config.head_dim}, run.options().seed));
    HW_ASSIGN_OR_RETURN(
        const RandomTensor k,
        RandomTensor::Make(run.backend(), {num_rows, config.num_kv_heads * config.head_dim}, run.options().seed));
    const auto rotate = [&](const RandomTensor& x, int64_t num_heads) {
      run.backend().Rope({.x = x.view(),
                          .out = x.view(),
                          .angles = angles.view(),
                          .rows = text_rows,
                          .num_heads = num_heads,
                          .head_dim = config.head_dim});
    };
    OpCase op_case;
    op_case.point = {
        .part = "q+k",
        .shape = fmt::format("{}+{} heads of {}", config.num_q_heads, config.num_kv_heads, config.head_dim),
        .format = "f32",
        .rows = num_rows,
        .work = RopeWork(config, num_rows),
        .cycled_bytes = angles.view().size_bytes() + q.view().size_bytes() + k.view().size_bytes()};
    op_case.call = [&](int64_t) {
      rotate(q, config.num_q_heads);
      rotate(k, config.num_kv_heads);
    };
    HW_RETURN_IF_ERROR(run.Measure(op_case));
  }
  return Status::Ok();
}

Status TimeActivate(const OpRun& run) {
  const ModelConfig& config = run.config();
  const ActivateArgs::Kind kind = ActivationOf(config.mlp);
  const bool is_gated = IsGated(config.mlp);
  for (const int64_t num_rows : run.options().rows) {
    const Shape shape{num_rows, config.ffn_dim};
    HW_ASSIGN_OR_RETURN(const RandomTensor gate, RandomTensor::Make(run.backend(), shape, run.options().seed));
    HW_ASSIGN_OR_RETURN(const RandomTensor up, RandomTensor::Make(run.backend(), shape, run.options().seed + 1));
    HW_ASSIGN_OR_RETURN(const RandomTensor x, RandomTensor::Make(run.backend(), shape, run.options().seed));
    OpCase op_case;
    op_case.point = {.part = kind == ActivateArgs::Kind::kGatedSilu ? "silu" : "gelu",
                     .shape = fmt::format("{}", config.ffn_dim),
                     .format = "f32",
                     .rows = num_rows,
                     .work = ActivateWork(config, num_rows),
                     .cycled_bytes = (is_gated ? 2 : 1) * x.view().size_bytes()};
    // In place: after some calls every number would be infinite or too small to be a normal one, which is slow.
    op_case.before = [&] {
      run.backend().device().Copy(x.view().data, up.view().data, static_cast<size_t>(x.view().size_bytes()));
    };
    op_case.call = [&](int64_t) {
      run.backend().Activate({.kind = kind, .gate = is_gated ? gate.view() : TensorView{}, .x = x.view()});
    };
    HW_RETURN_IF_ERROR(run.Measure(op_case));
  }
  return Status::Ok();
}

// Greedily, from all ids, and from few: of random logits, which are flatter than a model's.
Status TimeDraw(const OpRun& run) {
  const ModelConfig& config = run.config();
  struct Kind {
    const char* name;
    TokenDraw draw;
  };
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const Kind kinds[] = {{"greedy", {}},
                        {"all", {.temperature = 1, .word = kHalf}},
                        {"top-p", {.temperature = 0.8F, .top_p = 0.95F, .word = kHalf}},
                        {"top-k top-p", {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .word = kHalf}}};
  for (const int64_t num_rows : run.options().rows) {
    const Shape shape{num_rows, config.vocab_size};
    HW_ASSIGN_OR_RETURN(const RandomTensor logits, RandomTensor::Make(run.backend(), shape, run.options().seed));
    HW_ASSIGN_OR_RETURN(const RandomTensor ids, RandomTensor::Make(run.backend(), {1, num_rows}, run.options().seed));
    for (const Kind& kind : kinds) {
      const std::vector<TokenDraw> draws(static_cast<size_t>(num_rows), kind.draw);
      OpCase op_case;
      op_case.point = {.part = kind.name,
                       .shape = fmt::format("{}", config.vocab_size),
                       .format = "f32",
                       .rows = num_rows,
                       .work = DrawWork(config, num_rows),
                       .cycled_bytes = logits.view().size_bytes()};
      op_case.call = [&](int64_t) {
        run.backend().DrawTokens(
            {.logits = logits.view(), .draws = draws, .ids = {ids.view().data, DType::kI32, {num_rows}}});
      };
      HW_RETURN_IF_ERROR(run.Measure(op_case));
    }
  }
  return Status::Ok();
}

}  // namespace headwise
