#include "model/families/experts_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/families/config_reader.h"

namespace headwise {

Status ReadExpertsConfig(const JsonObject& config, const ExpertKeys& keys, ModelConfig& model) {
  ExpertsConfig& experts = model.experts;
  const bool has_other = keys.also_num_experts != nullptr && !config.Has(keys.num_experts);
  const char* const count = has_other && config.Has(keys.also_num_experts) ? keys.also_num_experts : keys.num_experts;
  HW_ASSIGN_OR_RETURN(experts.num_experts, ReadSize(config, count, keys.default_experts));
  HW_ASSIGN_OR_RETURN(experts.num_chosen, ReadSize(config, keys.num_chosen, keys.default_chosen));
  HW_ASSIGN_OR_RETURN(experts.ffn_dim, ReadSize(config, keys.ffn, keys.default_ffn));
  if (experts.num_chosen > experts.num_experts) {
    return Status::InvalidInput(fmt::format("{}: \"{}\" is {}, expected at most \"{}\", which is {}", config.origin(),
                                            keys.num_chosen, experts.num_chosen, count, experts.num_experts));
  }
  for (LayerConfig& layer : model.layers) layer.has_experts = true;
  return Status::Ok();
}

Status ReadNormalised(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(model.experts.normalised, config.BoolOr("norm_topk_prob", false));
  return Status::Ok();
}

Status ReadSparseLayers(const JsonObject& config, ModelConfig& model) {
  HW_ASSIGN_OR_RETURN(const int64_t step, ReadSize(config, "decoder_sparse_step", 1));
  for (int64_t i = 0; i < model.num_layers; ++i) {
    model.layers[static_cast<size_t>(i)].has_experts = (i + 1) % step == 0;
  }
  constexpr const char* kDense = "mlp_only_layers";
  if (!config.Has(kDense)) return Status::Ok();
  HW_ASSIGN_OR_RETURN(const std::vector<double> dense, config.Doubles(kDense));
  for (const double number : dense) {
    const auto layer = static_cast<int64_t>(std::clamp<double>(number, -1, static_cast<double>(kMaxLayers)));
    if (layer < 0 || layer >= model.num_layers || static_cast<double>(layer) != number) {
      return Status::InvalidInput(fmt::format("{}: \"{}\" has {}, expected layers below {}", config.origin(), kDense,
                                              number, model.num_layers));
    }
    model.layers[static_cast<size_t>(layer)].has_experts = false;
  }
  return Status::Ok();
}

namespace {

Status ReadApart(const ModelConfig& config, const ExpertTensors& tensors, const std::string& experts,
                 WeightReader& reader, LayerWeights& layer) {
  const int64_t ffn_dim = config.experts.ffn_dim;
  const Bias bias = BiasIf(config.experts.bias);
  for (int64_t i = 0; i < config.experts.num_experts; ++i) {
    const std::string at = fmt::format("{}.{}.", experts, i);
    ExpertWeights expert;
    HW_RETURN_IF_ERROR(reader.Linear(at + tensors.gate, ffn_dim, config.model_dim, bias, expert.gate));
    HW_RETURN_IF_ERROR(reader.Linear(at + tensors.up, ffn_dim, config.model_dim, bias, expert.up));
    HW_RETURN_IF_ERROR(reader.Linear(at + tensors.down, config.model_dim, ffn_dim, bias, expert.down));
    layer.experts.push_back(expert);
  }
  return Status::Ok();
}

// Copies: rows of the file are columns, and every second one at that.
Status ReadInterleaved(const ModelConfig& config, const std::string& gate_up, const std::string& down,
                       WeightReader& reader, LayerWeights& layer) {
  const int64_t ffn_dim = config.experts.ffn_dim;
  const Bias bias = BiasIf(config.experts.bias);
  std::vector<LinearWeights> gates, ups, downs;
  HW_RETURN_IF_ERROR(
      reader.TransposedStack(gate_up, config.experts.num_experts, config.model_dim, ffn_dim, bias, {&gates, &ups}));
  HW_RETURN_IF_ERROR(
      reader.TransposedStack(down, config.experts.num_experts, ffn_dim, config.model_dim, bias, {&downs}));
  for (size_t i = 0; i < gates.size(); ++i) layer.experts.push_back({gates[i], ups[i], downs[i]});
  return Status::Ok();
}

// What converters to .gguf files make of any layout.
Status ReadStacked(const ModelConfig& config, const std::string& experts, WeightReader& reader, LayerWeights& layer) {
  const int64_t num_experts = config.experts.num_experts;
  const int64_t ffn_dim = config.experts.ffn_dim;
  const Bias bias = BiasIf(config.experts.bias);
  layer.experts.resize(static_cast<size_t>(num_experts));
  const auto read = [&](const char* name, int64_t rows, int64_t columns,
                        LinearWeights ExpertWeights::*member) -> Status {
    HW_ASSIGN_OR_RETURN(const std::vector<LinearWeights> linears,
                        reader.Stacked(fmt::format("{}.{}", experts, name), num_experts, rows, columns, bias));
    for (size_t i = 0; i < linears.size(); ++i) layer.experts[i].*member = linears[i];
    return Status::Ok();
  };
  HW_RETURN_IF_ERROR(read("gate_proj", ffn_dim, config.model_dim, &ExpertWeights::gate));
  HW_RETURN_IF_ERROR(read("up_proj", ffn_dim, config.model_dim, &ExpertWeights::up));
  return read("down_proj", config.model_dim, ffn_dim, &ExpertWeights::down);
}

Status ReadFused(const ModelConfig& config, const std::string& gate_up, const std::string& down, WeightReader& reader,
                 LayerWeights& layer) {
  const int64_t num_experts = config.experts.num_experts;
  const int64_t ffn_dim = config.experts.ffn_dim;
  HW_ASSIGN_OR_RETURN(const ConstTensorView both, reader.Stack(gate_up, num_experts, 2 * ffn_dim, config.model_dim));
  HW_ASSIGN_OR_RETURN(const ConstTensorView downs, reader.Stack(down, num_experts, config.model_dim, ffn_dim));
  for (int64_t i = 0; i < num_experts; ++i) {
    ExpertWeights expert;
    expert.gate.weight = both.Rows(2 * i * ffn_dim, ffn_dim);
    expert.up.weight = both.Rows((2 * i + 1) * ffn_dim, ffn_dim);
    expert.down.weight = downs.Rows(i * config.model_dim, config.model_dim);
    layer.experts.push_back(expert);
  }
  return Status::Ok();
}

}  // namespace

Status ReadExperts(const ModelConfig& config, const ExpertTensors& tensors, const std::string& at, WeightReader& reader,
                   LayerWeights& layer) {
  const ExpertsConfig& experts = config.experts;
  HW_RETURN_IF_ERROR(reader.Linear(at + tensors.router, experts.num_experts, config.model_dim,
                                   BiasIf(experts.router_bias), layer.router));
  const std::string modules = at + tensors.experts;
  if (reader.Has(at + tensors.fused_gate_up) || reader.Has(at + tensors.fused_down)) {
    const auto read = tensors.interleaved ? ReadInterleaved : ReadFused;
    HW_RETURN_IF_ERROR(read(config, at + tensors.fused_gate_up, at + tensors.fused_down, reader, layer));
  } else if (reader.Has(modules + ".gate_proj.weight") || reader.Has(modules + ".up_proj.weight")) {
    HW_RETURN_IF_ERROR(ReadStacked(config, modules, reader, layer));
  } else {
    HW_RETURN_IF_ERROR(ReadApart(config, tensors, modules, reader, layer));
  }
  if (experts.shared_ffn_dim == 0) return Status::Ok();
  const std::string shared = at + tensors.shared;
  const int64_t ffn_dim = experts.shared_ffn_dim;
  HW_RETURN_IF_ERROR(reader.Linear(shared + ".gate_proj", ffn_dim, config.model_dim, Bias::kNone, layer.gate));
  HW_RETURN_IF_ERROR(reader.Linear(shared + ".up_proj", ffn_dim, config.model_dim, Bias::kNone, layer.up));
  HW_RETURN_IF_ERROR(reader.Linear(shared + ".down_proj", config.model_dim, ffn_dim, Bias::kNone, layer.down));
  if (!experts.has_shared_gate) return Status::Ok();
  return reader.RowMatrix(at + tensors.shared_gate, config.model_dim, layer.shared_gate);
}

}  // namespace headwise
