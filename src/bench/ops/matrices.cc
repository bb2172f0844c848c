// Operations on a model's matrices: products with every different one, and rows of the embedding.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "backend/cpu/packed_weights.h"
#include "base/rng.h"
#include "bench/op_data.h"
#include "bench/op_method.h"

namespace headwise {
namespace {

// Matrices that are multiplied with the same x, in one launch.
struct Launch {
  std::string name;
  MatMulArgs::Write write = MatMulArgs::Write::kStore;
  std::vector<LinearWeights> parts;
  bool is_of_layer = true;  // and its weights are what an engine prepares for products of prompts
};

bool Exists(const LinearWeights& linear) {
  return linear.weight.shape.rank() == 2;
}

// The launches of Decoder::Attend and Decoder::Mlp.
std::vector<Launch> LaunchesOf(const LayerWeights& layer) {
  const bool is_gated = Exists(layer.gate);
  return {{"qkv", MatMulArgs::Write::kStore, {layer.q, layer.k, layer.v}},
          {"output", MatMulArgs::Write::kAdd, {layer.o}},
          {is_gated ? "gate+up" : "up", MatMulArgs::Write::kStore,
           is_gated ? std::vector<LinearWeights>{layer.gate, layer.up} : std::vector<LinearWeights>{layer.up}},
          {"down", MatMulArgs::Write::kAdd, {layer.down}}};
}
Launch LogitsLaunch(const LinearWeights& output) {
  return {"logits", MatMulArgs::Write::kStore, {output}, /*is_of_layer=*/false};
}

// Shapes without data.
LinearWeights ShapeOf(DType dtype, int64_t num_outputs, int64_t num_inputs) {
  return {.weight = ConstTensorView(nullptr, dtype, Shape{num_outputs, num_inputs}), .bias = {}};
}
std::vector<Launch> ShapesOf(const ModelConfig& config, DType dtype) {
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  LayerWeights layer;
  layer.q = ShapeOf(dtype, q_dim, config.model_dim);
  layer.k = layer.v = ShapeOf(dtype, kv_dim, config.model_dim);
  layer.o = ShapeOf(dtype, config.model_dim, q_dim);
  layer.up = ShapeOf(dtype, config.ffn_dim, config.model_dim);
  if (IsGated(config.mlp)) layer.gate = layer.up;
  layer.down = ShapeOf(dtype, config.model_dim, config.ffn_dim);
  std::vector<Launch> launches = LaunchesOf(layer);
  launches.push_back(LogitsLaunch(ShapeOf(dtype, config.vocab_size, config.model_dim)));
  return launches;
}

// "q8_0", or of mixed ones each once: "q4_k+q6_k".
std::string FormatsOf(const std::vector<LinearWeights>& parts) {
  std::vector<std::string_view> names;
  for (const LinearWeights& part : parts) {
    const std::string_view name = NameOf(part.weight.dtype);
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

// "2048 -> 2048+512+512"
std::string ShapeText(const std::vector<LinearWeights>& parts) {
  std::vector<int64_t> outputs;
  for (const LinearWeights& part : parts) outputs.push_back(part.weight.shape[0]);
  return fmt::format("{} -> {}", parts.front().weight.shape[1], fmt::join(outputs, "+"));
}

bool IsAlike(const Launch& a, const Launch& b) {
  return a.name == b.name && std::ranges::equal(a.parts, b.parts, [](const LinearWeights& x, const LinearWeights& y) {
           return x.weight.dtype == y.weight.dtype && x.weight.shape == y.weight.shape;
         });
}

// One launch of every layer in turn.
class MatMulCalls {
 public:
  static Result<MatMulCalls> Make(const MatrixCycle& cycle, MatMulArgs::Write write, Compute compute, int64_t num_rows,
                                  uint64_t seed) {
    MatMulCalls calls(*cycle.backend, write, compute);
    const int64_t row_elements = cycle.launches.front().front().weight.shape[1];
    HW_ASSIGN_OR_RETURN(calls.x_, RandomTensor::Make(*cycle.backend, {num_rows, row_elements}, seed));
    for (const LinearWeights& part : cycle.launches.front()) {
      HW_ASSIGN_OR_RETURN(RandomTensor out, RandomTensor::Make(*cycle.backend, {num_rows, part.weight.shape[0]}, seed));
      calls.outs_.push_back(std::move(out));
    }
    for (const std::vector<LinearWeights>& launch : cycle.launches) {
      std::vector<MatMulPart>& parts = calls.parts_.emplace_back();
      for (size_t i = 0; i < launch.size(); ++i) {
        parts.push_back({.weight = launch[i].weight, .bias = launch[i].bias, .out = calls.outs_[i].view()});
      }
    }
    return calls;
  }

  void Call(int64_t call_idx) {
    backend_->MatMul({.x = x_.view(),
                      .parts = parts_[static_cast<size_t>(call_idx) % parts_.size()],
                      .write = write_,
                      .compute = compute_});
  }

 private:
  MatMulCalls(Backend& backend, MatMulArgs::Write write, Compute compute)
      : backend_(&backend), write_(write), compute_(compute) {}

  Backend* backend_;
  MatMulArgs::Write write_;
  Compute compute_;
  RandomTensor x_;
  std::vector<RandomTensor> outs_;
  std::vector<std::vector<MatMulPart>> parts_;  // by launch
};

Status MeasureCycle(const OpRun& run, const Launch& launch, const MatrixCycle& cycle, Compute compute) {
  if (launch.is_of_layer) {
    for (const std::vector<LinearWeights>& parts : cycle.launches) {
      for (const LinearWeights& part : parts) {
        HW_RETURN_IF_ERROR(cycle.backend->PrepareProducts(part.weight, compute));
      }
    }
  }
  // A mapped file comes into memory, and every page of it into this process, at the first reading.
  HW_ASSIGN_OR_RETURN(MatMulCalls first, MatMulCalls::Make(cycle, launch.write, compute, 1, run.options().seed));
  for (size_t i = 0; i < cycle.launches.size(); ++i) first.Call(static_cast<int64_t>(i));
  const WeightMatrix& weight = cycle.launches.front().front().weight;
  const bool are_rounded = compute == Compute::kW8A8 && cpu::HasGroupScales(weight);
  for (const int64_t num_rows : run.options().rows) {
    const OpWork work = MatMulWork(launch.parts, launch.write, num_rows);
    int64_t activation_elements = num_rows * weight.shape[1];
    for (const LinearWeights& part : launch.parts) activation_elements += num_rows * part.weight.shape[0];
    const int64_t activation_bytes = activation_elements * static_cast<int64_t>(sizeof(float));
    HW_RETURN_IF_ERROR(CheckMemory(cycle.backend->device(), cycle.bytes() + activation_bytes, "matmul"));
    HW_ASSIGN_OR_RETURN(MatMulCalls calls,
                        MatMulCalls::Make(cycle, launch.write, compute, num_rows, run.options().seed));
    OpCase op_case;
    op_case.point = {.part = launch.name,
                     .shape = ShapeText(launch.parts),
                     .format = FormatsOf(launch.parts),
                     .rows = num_rows,
                     .work = work,
                     .numbers = NumbersOf(compute, {&weight.dtype, 1}, num_rows, are_rounded),
                     .cycled_bytes = cycle.bytes() + activation_bytes};
    op_case.device = &cycle.backend->device();
    op_case.period = static_cast<int64_t>(cycle.launches.size());
    op_case.call = [&](int64_t call_idx) { calls.Call(call_idx); };
    HW_RETURN_IF_ERROR(run.Measure(op_case));
  }
  return Status::Ok();
}

// Layers of one shape and format together, in order.
Status TimeModelMatrices(const OpRun& run) {
  const ModelWeights& weights = run.subject().model->weights;
  std::vector<std::pair<Launch, MatrixCycle>> groups;
  const auto add = [&](const Launch& launch) {
    auto group = std::ranges::find_if(groups, [&](const auto& known) { return IsAlike(known.first, launch); });
    if (group == groups.end()) {
      groups.emplace_back(launch, MatrixCycle{});
      group = groups.end() - 1;
      group->second.backend = run.subject().backend;
    }
    group->second.launches.push_back(launch.parts);
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const Launch& launch : LaunchesOf(layer)) add(launch);
  }
  add(LogitsLaunch(weights.output));
  HW_ASSIGN_OR_RETURN(const Compute compute, run.ComputeFor(DType::kF32));
  for (const auto& [launch, cycle] : groups) HW_RETURN_IF_ERROR(MeasureCycle(run, launch, cycle, compute));
  return Status::Ok();
}

RandomWeights RandomWeightsOf(const OpRun& run, DType dtype) {
  return RandomWeights({.dtype = dtype, .seed = run.options().seed, .num_threads = run.options().num_fill_threads});
}

// A format's embedding table: the model's, or a random one.
Result<MatrixCycle> TableOf(const OpRun& run, DType dtype) {
  if (run.subject().model != nullptr) {
    MatrixCycle cycle;
    cycle.backend = run.subject().backend;
    cycle.launches.push_back({{.weight = run.subject().model->weights.embedding, .bias = {}}});
    return cycle;
  }
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, run.subject().new_backend());
  RandomWeights random = RandomWeightsOf(run, dtype);
  return MakeRandomCycle(random, std::move(backend), {ShapeOf(dtype, run.config().vocab_size, run.config().model_dim)},
                         /*min_bytes=*/1);
}

}  // namespace

Status TimeMatMul(const OpRun& run) {
  if (run.subject().model != nullptr) return TimeModelMatrices(run);
  for (const DType dtype : run.WeightFormats()) {
    RandomWeights random = RandomWeightsOf(run, dtype);
    HW_ASSIGN_OR_RETURN(const Compute compute, run.ComputeFor(dtype));
    for (const Launch& launch : ShapesOf(run.config(), dtype)) {
      HW_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, run.subject().new_backend());
      HW_ASSIGN_OR_RETURN(const MatrixCycle cycle,
                          MakeRandomCycle(random, std::move(backend), launch.parts, run.CycleBytes(dtype)));
      HW_RETURN_IF_ERROR(MeasureCycle(run, launch, cycle, compute));
    }
  }
  return Status::Ok();
}

Status TimeEmbed(const OpRun& run) {
  constexpr int64_t kIdSets = 64;  // calls that look up other rows than those before
  for (const DType dtype : run.WeightFormats()) {
    HW_ASSIGN_OR_RETURN(const MatrixCycle cycle, TableOf(run, dtype));
    const WeightMatrix& table = cycle.launches.front().front().weight;
    for (const int64_t num_rows : run.options().rows) {
      Rng rng(run.options().seed);
      std::vector<int32_t> ids(static_cast<size_t>(kIdSets * num_rows));
      for (int32_t& id : ids) id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(table.shape[0])));
      HW_ASSIGN_OR_RETURN(const RandomTensor out,
                          RandomTensor::Make(*cycle.backend, {num_rows, table.shape[1]}, run.options().seed));
      OpCase op_case;
      op_case.point = {.shape = fmt::format("{} of {}", table.shape[1], table.shape[0]),
                       .format = std::string(NameOf(table.dtype)),
                       .rows = num_rows,
                       .work = EmbedWork(run.config(), table.dtype, num_rows),
                       .cycled_bytes = table.size_bytes()};
      op_case.device = &cycle.backend->device();
      op_case.period = kIdSets;
      op_case.call = [&](int64_t call_idx) {
        const auto first = static_cast<size_t>(call_idx % kIdSets * num_rows);
        const auto called = std::span<const int32_t>(ids).subspan(first, static_cast<size_t>(num_rows));
        cycle.backend->Embed({.table = table, .ids = called, .out = out.view()});
      };
      HW_RETURN_IF_ERROR(run.Measure(op_case));
    }
  }
  return Status::Ok();
}

}  // namespace headwise
