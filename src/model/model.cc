#include "model/model.h"

#include <algorithm>
#include <cstring>

#include "model/families/family.h"
#include "model/gguf_model.h"
#include "model/load_config.h"

namespace headwise {
namespace {

// Gives weights to the backend one after the other. What it copies is let go at once, so that a model is never in
// memory twice.
class Adoption {
 public:
  Adoption(Backend& backend, ModelWeights& weights, const WeightSource* source)
      : backend_(backend), weights_(weights), source_(source) {}

  Status All(std::initializer_list<ConstTensorView*> views) {
    for (ConstTensorView* view : views) HW_RETURN_IF_ERROR(One(*view));
    return Status::Ok();
  }
  Status One(ConstTensorView& view) {
    if (!view.present()) return Status::Ok();
    const ConstTensorView host = view;
    HW_ASSIGN_OR_RETURN(view, backend_.AdoptWeights(host));
    if (view.data == host.data) return Status::Ok();
    if (source_ != nullptr) source_->Release(host);
    std::erase_if(weights_.owned, [&](const auto& memory) { return memory.get() == host.data; });
    return Status::Ok();
  }

 private:
  Backend& backend_;
  ModelWeights& weights_;
  const WeightSource* source_;
};

// A small f32 vector that comes from the config, as a weight of the model.
Result<ConstTensorView> AdoptVector(Backend& backend, const std::vector<float>& values, ModelWeights& weights) {
  auto memory = std::make_unique<std::byte[]>(values.size() * sizeof(float));
  std::memcpy(memory.get(), values.data(), values.size() * sizeof(float));
  const ConstTensorView host(memory.get(), DType::kF32, {static_cast<int64_t>(values.size())});
  weights.owned.push_back(std::move(memory));
  return backend.AdoptWeights(host);
}

}  // namespace

std::vector<DType> Model::MatrixTypes() const {
  std::vector<DType> types;
  const auto add = [&](const LinearWeights& linear) {
    if (linear.weight.present() && std::ranges::find(types, linear.weight.dtype) == types.end()) {
      types.push_back(linear.weight.dtype);
    }
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      add(*linear);
    }
  }
  add(weights.output);
  return types;
}

Result<std::unique_ptr<Model>> MakeModel(ModelConfig config, ModelWeights host_weights, Backend& backend,
                                         const WeightSource* source) {
  auto model = std::make_unique<Model>();
  model->config = std::move(config);
  model->weights = std::move(host_weights);
  ModelWeights& w = model->weights;
  Adoption adoption(backend, w, source);
  const bool is_tied = w.output.weight.data == w.embedding.data;
  HW_RETURN_IF_ERROR(adoption.All({&w.embedding, &w.final_norm.weight, &w.final_norm.bias, &w.output.bias}));
  if (is_tied) {
    w.output.weight = w.embedding;
  } else {
    HW_RETURN_IF_ERROR(adoption.One(w.output.weight));
  }
  for (LayerWeights& layer : w.layers) {
    HW_RETURN_IF_ERROR(
        adoption.All({&layer.norm.weight, &layer.norm.bias, &layer.mlp_norm.weight, &layer.mlp_norm.bias,
                      &layer.q.weight, &layer.q.bias, &layer.k.weight, &layer.k.bias, &layer.v.weight, &layer.v.bias,
                      &layer.o.weight, &layer.o.bias, &layer.gate.weight, &layer.gate.bias, &layer.up.weight,
                      &layer.up.bias, &layer.down.weight, &layer.down.bias, &layer.sink_logits}));
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
  std::string source_hash = SourceHash(*source);
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                      MakeModel(std::move(config), std::move(weights), backend, source.get()));
  model->source_hash = std::move(source_hash);
  model->source = std::move(source);
  return model;
}

}  // namespace headwise
