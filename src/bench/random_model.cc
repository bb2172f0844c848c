#include "bench/random_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bench/random_weights.h"
#include "model/load_config.h"

namespace headwise {
namespace {

struct NamedShape {
  const char* name;
  int64_t num_layers;
  int64_t model_dim;
  int64_t ffn_dim;
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t vocab_size;
  int64_t trained_length;
  double rope_theta;
  bool tied_embeddings;
};

constexpr NamedShape kShapes[] = {
    {"llama-3.2-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5, true},
    {"llama-3-8b", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 5e5, false},
    {"llama-2-7b", 32, 4096, 11008, 32, 32, 128, 32000, 4096, 1e4, false},
    {"headwise-17m", 8, 384, 1024, 8, 4, 64, 8192, 32768, 1e6, true},
};

// Of published config.json files, what their families read.
struct PublishedShape {
  const char* name;
  const char* config;
};
constexpr PublishedShape kPublished[] = {
    {"qwen3-4b", R"({"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
         "max_position_embeddings": 40960, "rope_theta": 1000000, "tie_word_embeddings": true})"},
    {"gemma-3-4b", R"({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
         "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
         "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window": 1024, "rope_theta": 1000000,
         "rope_local_base_freq": 10000, "rope_scaling": {"rope_type": "linear", "factor": 8}})"},
    {"phi-4-mini", R"({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064, "max_position_embeddings": 131072,
         "partial_rotary_factor": 0.75, "eos_token_id": 199999, "tie_word_embeddings": true})"},
    {"qwen3-30b-a3b", R"({"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
         "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
         "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000})"},
    {"gpt-oss-20b", R"({"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
         "num_local_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_attention_heads": 64,
         "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "vocab_size": 201088,
         "max_position_embeddings": 131072, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
         "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096}})"},
};

ConstTensorView Ones(int64_t n, ModelWeights& weights) {
  auto memory = std::make_unique<std::byte[]>(static_cast<size_t>(n) * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(memory.get()), n, 1.0f);
  const ConstTensorView view(memory.get(), DType::kF32, Shape{n});
  weights.owned.push_back(std::move(memory));
  return view;
}

bool IsComplete(const ModelWeights& weights) {
  const auto is_there = [](const LinearWeights& linear) { return linear.weight.present(); };
  return weights.embedding.present() && is_there(weights.output) &&
         std::ranges::all_of(weights.layers, [&](const LayerWeights& layer) {
           const bool has_mlp = is_there(layer.gate) && is_there(layer.up) && is_there(layer.down);
           const bool has_experts =
               is_there(layer.router) && std::ranges::all_of(layer.experts, [&](const ExpertWeights& expert) {
                 return is_there(expert.gate) && is_there(expert.up) && is_there(expert.down);
               });
           return is_there(layer.q) && is_there(layer.k) && is_there(layer.v) && is_there(layer.o) &&
                  (has_mlp || (!layer.experts.empty() && has_experts));
         });
}

}  // namespace

std::vector<std::string> NamedShapes() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.emplace_back(shape.name);
  for (const PublishedShape& shape : kPublished) names.emplace_back(shape.name);
  return names;
}

Result<ModelConfig> ConfigOfShape(const std::string& name) {
  for (const PublishedShape& published : kPublished) {
    if (name == published.name) return ParseModelConfig(published.config, name);
  }
  const auto* const shape =
      std::find_if(std::begin(kShapes), std::end(kShapes), [&](const NamedShape& s) { return s.name == name; });
  if (shape == std::end(kShapes)) {
    return Status::InvalidInput(
        fmt::format("shape \"{}\" is unknown, expected one of: {}", name, fmt::join(NamedShapes(), ", ")));
  }
  ModelConfig config;
  config.family = "llama";
  config.num_layers = shape->num_layers;
  config.model_dim = shape->model_dim;
  config.ffn_dim = shape->ffn_dim;
  config.num_q_heads = shape->num_q_heads;
  config.num_kv_heads = shape->num_kv_heads;
  config.head_dim = shape->head_dim;
  config.vocab_size = shape->vocab_size;
  config.trained_length = shape->trained_length;
  config.tied_embeddings = shape->tied_embeddings;
  config.softmax_scale = 1.0 / std::sqrt(static_cast<double>(shape->head_dim));
  config.SetLayersAlike(RopeConfig{.rotary_dims = shape->head_dim, .theta = shape->rope_theta}, /*window=*/{});
  HW_RETURN_IF_ERROR(ValidateConfig(config, name));
  return config;
}

namespace {

Status KeepLayers(int64_t num_layers, const std::string& shape, ModelConfig& config) {
  if (num_layers < 1 || num_layers > config.num_layers) {
    return Status::InvalidInput(
        fmt::format("shape \"{}\": {} layers, expected 1 to {}", shape, num_layers, config.num_layers));
  }
  config.num_layers = num_layers;
  config.layers.resize(static_cast<size_t>(num_layers));
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Model>> MakeRandomModel(const RandomModelOptions& options, Backend& backend) {
  HW_ASSIGN_OR_RETURN(ModelConfig config, ConfigOfShape(options.shape));
  if (options.num_layers) HW_RETURN_IF_ERROR(KeepLayers(*options.num_layers, options.shape, config));
  ModelWeights weights;
  RandomWeights random({.dtype = options.weights, .seed = options.seed, .num_threads = options.num_threads});
  const int64_t model_dim = config.model_dim;
  const int64_t q_dim = config.num_q_heads * config.head_dim;
  const int64_t kv_dim = config.num_kv_heads * config.head_dim;
  // y = x W^T keeps the scale of x. Without data where there is no memory for it.
  const auto matrix = [&](int64_t num_outputs, int64_t num_inputs) {
    RandomMatrix made = random.Make(num_outputs, num_inputs, 1.0 / std::sqrt(static_cast<double>(num_inputs)));
    if (made.memory != nullptr) weights.owned.push_back(std::move(made.memory));
    return made.view;
  };
  const auto linear = [&](int64_t num_outputs, int64_t num_inputs) {
    return LinearWeights{.weight = matrix(num_outputs, num_inputs), .bias = {}};
  };
  weights.embedding = matrix(config.vocab_size, model_dim);
  weights.layers.resize(static_cast<size_t>(config.num_layers));
  const bool has_post_norms = config.norm_places == NormPlaces::kBoth;
  const bool has_head_norms = config.qk_norm == QkNorm::kHeads;
  for (LayerWeights& layer : weights.layers) {
    layer.norm.weight = Ones(model_dim, weights);
    if (has_post_norms) layer.post_norm.weight = Ones(model_dim, weights);
    if (has_post_norms) layer.mlp_post_norm.weight = Ones(model_dim, weights);
    if (has_head_norms) layer.q_norm.weight = Ones(config.head_dim, weights);
    if (has_head_norms) layer.k_norm.weight = Ones(config.head_dim, weights);
    layer.q = linear(q_dim, model_dim);
    layer.k = linear(kv_dim, model_dim);
    layer.v = linear(kv_dim, model_dim);
    layer.o = linear(model_dim, q_dim);
    layer.mlp_norm.weight = Ones(model_dim, weights);
    if (config.learned_sinks) layer.sink_logits = Ones(config.num_q_heads, weights);
    if (!config.AnyExperts()) {
      layer.gate = linear(config.ffn_dim, model_dim);
      layer.up = linear(config.ffn_dim, model_dim);
      layer.down = linear(model_dim, config.ffn_dim);
      continue;
    }
    // Of the published shapes all layers have some, and nothing beside them.
    const ExpertsConfig& experts = config.experts;
    layer.router = linear(experts.num_experts, model_dim);
    for (int64_t i = 0; i < experts.num_experts; ++i) {
      layer.experts.push_back({.gate = linear(experts.ffn_dim, model_dim),
                               .up = linear(experts.ffn_dim, model_dim),
                               .down = linear(model_dim, experts.ffn_dim)});
    }
  }
  weights.final_norm.weight = Ones(model_dim, weights);
  if (config.tied_embeddings) {
    weights.output.weight = weights.embedding;
  } else {
    weights.output = linear(config.vocab_size, model_dim);
  }
  if (!IsComplete(weights)) {
    return Status::OutOfMemory(
        fmt::format("{}: no memory for its weights of {}", options.shape, NameOf(options.weights)));
  }
  return MakeModel(std::move(config), std::move(weights), backend);
}

}  // namespace headwise
