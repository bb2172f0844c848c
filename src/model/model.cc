#include "model/model.h"

#include <cstring>

#include "model/families/family.h"
#include "model/gguf_model.h"
#include "model/load_config.h"

namespace headwise {
namespace {

Status Adopt(Backend& backend, ConstTensorView& view) {
  if (!view.present()) return Status::Ok();
  HW_ASSIGN_OR_RETURN(view, backend.AdoptWeights(view));
  return Status::Ok();
}

Status AdoptAll(Backend& backend, std::initializer_list<ConstTensorView*> views) {
  for (ConstTensorView* view : views) HW_RETURN_IF_ERROR(Adopt(backend, *view));
  return Status::Ok();
}

// A small f32 vector that comes from the config, as a weight of the model.
Result<ConstTensorView> AdoptVector(Backend& backend, const std::vector<float>& values, ModelWeights& weights) {
  auto memory = std::make_unique<std::byte[]>(values.size() * sizeof(float));
  std::memcpy(memory.get(), values.data(), values.size() * sizeof(float));
  const ConstTensorView host(memory.get(), DType::kF32, {static_cast<int64_t>(values.size())});
  weights.owned.push_back(std::move(memory));
  return backend.AdoptWeights(host);
}

}  // namespace

bool Model::HasHalfWeights() const {
  const auto half = [](const LinearWeights& linear) {
    return !linear.weight.present() || linear.weight.dtype == DType::kF16 || linear.weight.dtype == DType::kBF16;
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      if (!half(*linear)) return false;
    }
  }
  return half(weights.output);
}

Result<std::unique_ptr<Model>> MakeModel(ModelConfig config, ModelWeights host_weights, Backend& backend) {
  auto model = std::make_unique<Model>();
  model->config = std::move(config);
  model->weights = std::move(host_weights);
  ModelWeights& w = model->weights;
  HW_RETURN_IF_ERROR(
      AdoptAll(backend, {&w.embedding, &w.final_norm.weight, &w.final_norm.bias, &w.output.weight, &w.output.bias}));
  for (LayerWeights& layer : w.layers) {
    HW_RETURN_IF_ERROR(AdoptAll(
        backend, {&layer.norm.weight, &layer.norm.bias, &layer.mlp_norm.weight, &layer.mlp_norm.bias, &layer.q.weight,
                  &layer.q.bias, &layer.k.weight, &layer.k.bias, &layer.v.weight, &layer.v.bias, &layer.o.weight,
                  &layer.o.bias, &layer.gate.weight, &layer.gate.bias, &layer.up.weight, &layer.up.bias,
                  &layer.down.weight, &layer.down.bias, &layer.sink_logits}));
  }
  if (model->config.positions == PositionKind::kAlibi) {
    HW_ASSIGN_OR_RETURN(model->alibi_slopes, AdoptVector(backend, model->config.alibi_slopes, w));
  }
  if (model->config.zero_sink) {
    const std::vector<float> zeros(static_cast<size_t>(model->config.num_q_heads), 0.0f);
    HW_ASSIGN_OR_RETURN(model->zero_sink_logits, AdoptVector(backend, zeros, w));
  }
  return model;
}

Result<std::unique_ptr<WeightSource>> OpenModelWeights(const std::string& path, const ModelConfig& config) {
  if (!IsGgufPath(path)) return OpenSafetensorsFolder(path);
  HW_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenGgufFile(path));
  return GgufModelWeights(std::move(file), config);
}

Result<std::unique_ptr<Model>> LoadModel(const std::string& path, Backend& backend) {
  HW_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(path));
  HW_ASSIGN_OR_RETURN(const ModelFamily* family, FindFamily(config.family, path));
  HW_ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> source, OpenModelWeights(path, config));
  HW_ASSIGN_OR_RETURN(ModelWeights weights, family->read_weights(config, *source));
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, MakeModel(std::move(config), std::move(weights), backend));
  model->source_hash = SourceHash(*source);
  model->source = std::move(source);
  return model;
}

}  // namespace headwise
