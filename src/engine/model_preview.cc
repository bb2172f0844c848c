#include "engine/model_preview.h"

#include <headwise/tokenizer.h>

#include <utility>

#include "backend/all_backends.h"
#include "engine/engine_impl.h"
#include "model/load_config.h"
#include "model/model.h"
#include "model/read_weights.h"

namespace headwise {

Result<std::unique_ptr<ModelPreview>> ModelPreview::Open(const EngineOptions& options) {
  HW_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<ModelPreview> preview(new ModelPreview);
  KvMemory& memory = *preview->memory_;
  HW_ASSIGN_OR_RETURN(memory.backend, MakeBackend({.name = options.backend, .isa = options.isa, .num_threads = 1}));
  HW_ASSIGN_OR_RETURN(memory.formats, KvFormatsByName(options.kv_dtype));
  memory.limit_bytes = options.kv_limit_bytes;
  EngineOptions resolved = options;
  HW_ASSIGN_OR_RETURN(resolved.page_tokens, PageTokensFor(options.page_tokens, memory.formats.full));

  HW_ASSIGN_OR_RETURN(preview->config_, ReadModelConfig(options.model));
  const ModelConfig& config = preview->config_;
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, OpenModelWeights(options.model, config));
  HW_ASSIGN_OR_RETURN(const ReadTensors read, ReadModelWeights(config, *source));
  HW_RETURN_IF_ERROR(CheckFeatures(config, read.weights, *memory.backend));
  for (const std::string& name : source->Names()) {
    const Result<ConstTensorView> tensor = source->Get(name);  // those that have no view are not weights
    if (!tensor.ok()) continue;
    preview->weight_bytes_ += tensor->size_bytes();
    preview->bytes_by_format_[tensor->dtype] += tensor->size_bytes();
  }
  for (const LayerWeights& layer : read.weights.layers) {
    for (const ExpertWeights& expert : layer.experts) {
      for (const LinearWeights* linear : {&expert.gate, &expert.up, &expert.down}) {
        preview->expert_bytes_ += linear->weight.size_bytes();
      }
    }
  }
  preview->source_hash_ = SourceHash(*source);
  HW_RETURN_IF_ERROR(AddGenerationEosIds(options.model, preview->config_));
  const auto tokenizer = OpenTokenizer(options.model, options.on_warning);
  if (!tokenizer.ok() && tokenizer.status().code() != StatusCode::kNotFound) return tokenizer.status();
  preview->has_tokenizer_ = tokenizer.ok();
  preview->sequences_.emplace(config, preview->memory_, resolved);
  return preview;
}

int64_t ModelPreview::chosen_expert_bytes() const {
  // Those of a layer have one format.
  return config_.AnyExperts() ? expert_bytes_ / config_.experts.num_experts * config_.experts.num_chosen : 0;
}

}  // namespace headwise
