#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "model/gguf_model.h"
#include "model/load_config.h"
#include "model/read_weights.h"
#include "weights/published_weights.h"

namespace headwise {
namespace {

// Gives weights to the backend one after the other. What it copies is let go at once, so that a model is never in
// memory twice.
class Adoption {
 public:
  Adoption(Backend& backend, Model& model, const WeightSource* source, const LoadProgress& progress)
      : backend_(backend), model_(model), source_(source), progress_(progress) {
    const ModelWeights& weights = model.weights;
    const auto add = [&](const WeightMatrix& matrix) { total_bytes_ += matrix.present() ? matrix.size_bytes() : 0; };
    add(weights.embedding);
    add(weights.positions);
    if (weights.output.weight != weights.embedding) add(weights.output.weight);
    for (const LayerWeights& layer : weights.layers) {
      for (const LinearWeights* linear : LinearsOf(layer)) add(linear->weight);
      for (const LinearWeights* linear : {&layer.router, &layer.shared_gate}) add(linear->weight);
      for (const ExpertWeights& expert : layer.experts) {
        for (const LinearWeights* linear : {&expert.gate, &expert.up, &expert.down}) add(linear->weight);
      }
    }
    Tell(0);
  }
  Adoption(const Adoption&) = delete;
  Adoption& operator=(const Adoption&) = delete;
  ~Adoption() {
    if (progress_) progress_(total_bytes_, total_bytes_);
  }

  Status Matrix(WeightMatrix& matrix) {
    if (!matrix.present()) return Status::Ok();
    const WeightMatrix host = matrix;
    HW_ASSIGN_OR_RETURN(matrix, backend_.AdoptWeights(host));
    Tell(host.size_bytes());
    if (matrix == host) return Status::Ok();
    if (source_ != nullptr) source_->Release(host.rows());
    std::erase_if(model_.weights.owned, [&](const auto& memory) { return memory.get() == host.planes[0]; });
    return Status::Ok();
  }
  Status Vector(ConstTensorView& view) {
    if (!view.present()) return Status::Ok();
    const ConstTensorView host = view;
    view.data = backend_.device().DeviceView(host.data);
    if (view.data != nullptr) return Status::Ok();
    HW_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                        DeviceBuffer::Make(backend_.device(), static_cast<size_t>(host.size_bytes())));
    backend_.device().CopyFromHost(buffer.data(), host.data, buffer.size_bytes());
    view.data = buffer.data();
    model_.vectors.push_back(std::move(buffer));
    return Status::Ok();
  }
  Status Linear(LinearWeights& linear) {
    HW_RETURN_IF_ERROR(Matrix(linear.weight));
    return Vector(linear.bias);
  }
  // One that lies in a file may be read when it is chosen.
  Status Expert(ExpertWeights& expert) {
    LinearWeights* const linears[] = {&expert.gate, &expert.up, &expert.down};
    const ExpertWeights host = expert;
    const auto rows_of = [](const ExpertWeights& of) {
      return std::array{of.gate.weight.rows(), of.up.weight.rows(), of.down.weight.rows()};
    };
    const auto lies_in_file = [&](const ConstTensorView& rows) {
      return source_ != nullptr && source_->LiesInFile(rows);
    };
    if (std::ranges::all_of(rows_of(host), lies_in_file)) {
      const auto release = [source = source_, rows = rows_of(host)] {
        for (const ConstTensorView& each : rows) source->Release(each);
      };
      if (backend_.DeferExpert(expert, release)) {
        for (LinearWeights* linear : linears) {
          HW_RETURN_IF_ERROR(Vector(linear->bias));
          Tell(linear->weight.size_bytes());
        }
        return Status::Ok();
      }
    }
    for (LinearWeights* linear : linears) HW_RETURN_IF_ERROR(Linear(*linear));
    return Status::Ok();
  }
  Status Norm(NormWeights& norm) {
    HW_RETURN_IF_ERROR(Vector(norm.weight));
    return Vector(norm.bias);
  }
  // A small vector that comes from the config, as a weight of the model.
  Status Values(const std::vector<float>& values, ConstTensorView& view) {
    auto memory = std::make_unique<std::byte[]>(values.size() * sizeof(float));
    std::memcpy(memory.get(), values.data(), values.size() * sizeof(float));
    view = ConstTensorView(memory.get(), DType::kF32, {static_cast<int64_t>(values.size())});
    model_.weights.owned.push_back(std::move(memory));
    return Vector(view);
  }
  // Vectors may share a block, which goes when the last of them is copied.
  void End() {
    if (!model_.vectors.empty()) model_.weights.owned.clear();
  }

 private:
  void Tell(int64_t more_bytes) {
    done_bytes_ += more_bytes;
    if (progress_) progress_(done_bytes_, total_bytes_);
  }

  Backend& backend_;
  Model& model_;
  const WeightSource* source_;
  const LoadProgress& progress_;
  int64_t total_bytes_ = 0;
  int64_t done_bytes_ = 0;
};

}  // namespace

Status CheckFeatures(const ModelConfig& config, const ModelWeights& weights, const Backend& backend) {
  const bool has_own_norms = !weights.layers.empty() && weights.layers.front().q_norm.weight.shape.rank() == 2;
  const std::pair<bool, Feature> asked[] = {
      {config.mlp == MlpKind::kGatedGeluTanh, Feature::kGatedGelu},
      {config.positions == PositionKind::kLearned, Feature::kLearnedPositions},
      {config.norm_places != NormPlaces::kBefore, Feature::kNormAdded},
      {has_own_norms, Feature::kNormsByHead},
      {config.embedding_scale != 1.0, Feature::kScaledEmbedding},
      {config.score_cap || config.logit_cap, Feature::kSoftCaps},
      {config.AnyExperts(), Feature::kExperts},
  };
  for (const auto& [is_asked, feature] : asked) {
    if (!is_asked || backend.Has(feature)) continue;
    return Status::Unsupported(fmt::format("backend {}: {} are not supported, which models of the family {} have",
                                           backend.name(), NameOf(feature), config.family));
  }
  return Status::Ok();
}

std::vector<DType> Model::MatrixTypes() const {
  std::vector<DType> types;
  const auto add = [&](const LinearWeights& linear) {
    if (linear.weight.present() && std::ranges::find(types, linear.weight.dtype) == types.end()) {
      types.push_back(linear.weight.dtype);
    }
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : LinearsOf(layer)) add(*linear);
    for (const ExpertWeights& expert : layer.experts) {
      for (const LinearWeights* linear : {&expert.gate, &expert.up, &expert.down}) add(*linear);
    }
  }
  add(weights.output);
  return types;
}

Result<std::unique_ptr<Model>> MakeModel(ModelConfig config, ModelWeights host_weights, Backend& backend,
                                         const WeightSource* source, const LoadProgress& progress) {
  HW_RETURN_IF_ERROR(CheckFeatures(config, host_weights, backend));
  auto model = std::make_unique<Model>();
  model->config = std::move(config);
  model->weights = std::move(host_weights);
  ModelWeights& w = model->weights;
  Adoption adoption(backend, *model, source, progress);
  const bool is_tied = w.output.weight == w.embedding;
  HW_RETURN_IF_ERROR(adoption.Matrix(w.embedding));
  HW_RETURN_IF_ERROR(adoption.Matrix(w.positions));
  for (LayerWeights& layer : w.layers) {
    for (NormWeights* norm :
         {&layer.norm, &layer.post_norm, &layer.mlp_norm, &layer.mlp_post_norm, &layer.q_norm, &layer.k_norm}) {
      HW_RETURN_IF_ERROR(adoption.Norm(*norm));
    }
    for (LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      HW_RETURN_IF_ERROR(adoption.Linear(*linear));
    }
    HW_RETURN_IF_ERROR(adoption.Vector(layer.sink_logits));
    for (LinearWeights* linear : {&layer.router, &layer.shared_gate}) HW_RETURN_IF_ERROR(adoption.Linear(*linear));
    HW_RETURN_IF_ERROR(adoption.Vector(layer.selection_bias));
    for (ExpertWeights& expert : layer.experts) HW_RETURN_IF_ERROR(adoption.Expert(expert));
  }
  HW_RETURN_IF_ERROR(adoption.Norm(w.final_norm));
  if (is_tied) {
    w.output.weight = w.embedding;
    HW_RETURN_IF_ERROR(adoption.Vector(w.output.bias));
  } else {
    HW_RETURN_IF_ERROR(adoption.Linear(w.output));
  }
  HW_RETURN_IF_ERROR(backend.ReserveExperts());
  if (model->config.positions == PositionKind::kAlibi) {
    HW_RETURN_IF_ERROR(adoption.Values(model->config.alibi_slopes, model->alibi_slopes));
  }
  if (model->config.zero_sink) {
    const std::vector<float> zeros(static_cast<size_t>(model->config.num_q_heads), 0.0f);
    HW_RETURN_IF_ERROR(adoption.Values(zeros, model->zero_sink_logits));
  }
  adoption.End();
  return model;
}

Result<std::unique_ptr<WeightSource>> OpenModelWeights(const std::string& path, const ModelConfig& config,
                                                       FileAccess access) {
  if (!IsGgufPath(path)) return OpenWeightsFolder(path, access);
  HW_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, OpenGgufModel(path, access));
  return GgufModelWeights(std::move(file), config);
}

Result<std::unique_ptr<Model>> LoadModel(const std::string& path, Backend& backend, FileAccess access,
                                         const LoadProgress& progress) {
  HW_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(path));
  HW_ASSIGN_OR_RETURN(std::unique_ptr<WeightSource> source, OpenModelWeights(path, config, access));
  HW_ASSIGN_OR_RETURN(ReadTensors read, ReadModelWeights(config, *source));
  std::string source_hash = SourceHash(*source);
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                      MakeModel(std::move(config), std::move(read.weights), backend, source.get(), progress));
  model->source_hash = std::move(source_hash);
  model->source = std::move(source);
  return model;
}

}  // namespace headwise
