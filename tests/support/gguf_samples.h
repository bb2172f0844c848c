// Models as .gguf files would hold them, without a file.
#ifndef HEADWISE_TESTS_SUPPORT_GGUF_SAMPLES_H_
#define HEADWISE_TESTS_SUPPORT_GGUF_SAMPLES_H_

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/families/family.h"
#include "model/gguf_names.h"
#include "model/rope.h"
#include "tensor/blocks.h"
#include "weights/gguf.h"

namespace headwise {

// Tensors in memory, each of which a test can remove or change.
class FakeGgufFile final : public GgufFile {
 public:
  explicit FakeGgufFile(GgufMetadata metadata) : metadata_(std::move(metadata)) {}

  const std::string& origin() const override { return metadata_.origin(); }
  const GgufMetadata& metadata() const override { return metadata_; }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, view] : tensors_) names.push_back(name);
    return names;
  }
  bool Has(std::string_view name) const override { return tensors_.contains(name); }
  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return Status::NotFound(fmt::format("{}: no tensor \"{}\"", origin(), name));
    return it->second;
  }

  Status Write(const std::string& path) const {
    std::vector<GgufTensor> tensors;
    for (const auto& [name, view] : tensors_) {
      const auto fill = [from = view.data](std::span<std::byte> bytes) {
        std::memcpy(bytes.data(), from, bytes.size());
        return Status::Ok();
      };
      tensors.push_back({.name = name, .dtype = view.dtype, .shape = view.shape, .fill = fill});
    }
    return WriteGguf(path, metadata_, tensors);
  }

  void Erase(const std::string& name) { tensors_.erase(name); }
  // A copy; where `rows` are given, its row i is row rows[i] of `from`.
  void Add(const std::string& name, const ConstTensorView& from, const std::vector<int64_t>& rows = {}) {
    const auto size_bytes = static_cast<size_t>(from.size_bytes());
    auto& memory = owned_.emplace_back(std::make_unique<std::byte[]>(size_bytes));
    std::memcpy(memory.get(), from.data, size_bytes);
    const size_t row_bytes = size_bytes / static_cast<size_t>(from.shape[0]);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::memcpy(memory.get() + i * row_bytes,
                  static_cast<const std::byte*>(from.data) + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
    }
    tensors_[name] = {memory.get(), from.dtype, from.shape};
  }

 private:
  GgufMetadata metadata_;
  std::map<std::string, ConstTensorView, std::less<>> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
};

// By how much llama3 scaling divides each frequency.
inline std::vector<float> Llama3Divisors(const ModelConfig& config) {
  RopeConfig plain = config.ropes.at(0);
  plain.scaling = RopeConfig::Scaling::kNone;
  const std::vector<double> scaled = RopeFrequencies(config, 1, 1).at(0);
  std::vector<float> divisors;
  for (const double frequency : RopeFrequencies(plain, {.trained = config.trained_length, .prompt = 1, .most = 1})) {
    divisors.push_back(static_cast<float>(frequency / scaled[divisors.size()]));
  }
  return divisors;
}

// Windows and layers without a rotation, each with its pattern.
inline void SetLayers(const ModelConfig& config, std::string_view architecture, GgufMetadata& metadata) {
  std::vector<int64_t> slides, rotates;
  for (const LayerConfig& layer : config.layers) {
    slides.push_back(layer.window.has_value() ? 1 : 0);
    rotates.push_back(layer.rope.has_value() ? 1 : 0);
    if (layer.window) metadata.SetU32(fmt::format("{}.attention.sliding_window", architecture), *layer.window);
  }
  if (!config.CommonLayer() && metadata.Has(fmt::format("{}.attention.sliding_window", architecture))) {
    metadata.Set(fmt::format("{}.attention.sliding_window_pattern", architecture), {GgufType::kBool, slides});
  }
  if (config.family == "smollm3") {
    metadata.Set(fmt::format("{}.attention.rope_pattern", architecture), {GgufType::kBool, rotates});
  }
}

// The multipliers and caps of some families. Granite's are those of its golden: the config has them multiplied out.
inline void SetScales(const ModelConfig& config, std::string_view architecture, GgufMetadata& metadata) {
  const auto set = [&](std::string_view rest, double value) {
    metadata.SetF32(fmt::format("{}.{}", architecture, rest), static_cast<double>(static_cast<float>(value)));
  };
  if (config.score_cap) set("attn_logit_softcapping", *config.score_cap);
  if (config.logit_cap) set("final_logit_softcapping", *config.logit_cap);
  if (config.family == "cohere") set("logit_scale", config.logit_scale);
  if (config.family == "gemma2" || config.family == "gemma3_text") set("attention.scale", config.softmax_scale);
  if (config.family != "granite" && config.family != "granitemoe") return;
  set("attention.scale", config.softmax_scale);
  set("logit_scale", 1.0 / config.logit_scale);
  set("residual_scale", 0.4);
  set("embedding_scale", 3.0);
  set("attention.layer_norm_rms_epsilon", 1e-6);
}

inline void SetExperts(const ModelConfig& config, std::string_view architecture, GgufMetadata& metadata) {
  const ExpertsConfig& experts = config.experts;
  if (!config.AnyExperts()) return;
  const auto set = [&](std::string_view rest, int64_t value) {
    metadata.SetU32(fmt::format("{}.{}", architecture, rest), value);
  };
  set("expert_count", experts.num_experts);
  set("expert_used_count", experts.num_chosen);
  if (experts.ffn_dim != config.ffn_dim) set("expert_feed_forward_length", experts.ffn_dim);
  if (experts.shared_ffn_dim > 0) set("expert_shared_feed_forward_length", experts.shared_ffn_dim);
  int64_t num_dense = 0;
  while (!config.layer(num_dense).has_experts) ++num_dense;
  if (num_dense > 0) set("leading_dense_block_count", num_dense);
}

// Of all layers with experts, [X, rows, columns] each.
template <typename File>
void AddExperts(const ModelWeights& weights, File& file) {
  constexpr LinearWeights ExpertWeights::*kMembers[] = {&ExpertWeights::gate, &ExpertWeights::up, &ExpertWeights::down};
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const std::vector<ExpertWeights>& experts = weights.layers[layer].experts;
    for (size_t i = 0; i < 3 && !experts.empty(); ++i) {
      const auto add = [&](std::string_view part, auto view_of) {
        const ConstTensorView first = view_of(experts[0].*kMembers[i]);
        if (!first.present()) return;
        std::vector<std::byte> bytes;
        for (const ExpertWeights& expert : experts) {
          const ConstTensorView view = view_of(expert.*kMembers[i]);
          const auto* data = static_cast<const std::byte*>(view.data);
          bytes.insert(bytes.end(), data, data + view.size_bytes());
        }
        const auto num_experts = static_cast<int64_t>(experts.size());
        const Shape shape = first.shape.rank() == 2 ? Shape{num_experts, first.shape[0], first.shape[1]}
                                                    : Shape{num_experts, first.shape[0]};
        file.Add(fmt::format(fmt::runtime(kGgufExpertTensors[i]), layer) + std::string(part),
                 {bytes.data(), first.dtype, shape});
      };
      add(".weight", [](const LinearWeights& linear) { return linear.weight.rows(); });
      add(".bias", [](const LinearWeights& linear) { return linear.bias; });
    }
  }
}

// The metadata of a model of a family that the format knows. llama3 scaling is not in it: that is a tensor.
inline GgufMetadata SampleMetadata(const ModelConfig& config, const std::string& origin) {
  const GgufArchitecture& architecture = *FindGgufArchitecture(config.family);
  GgufMetadata metadata(origin);
  const auto key = [&](std::string_view rest) { return fmt::format("{}.{}", architecture.name, rest); };
  // As a file holds it.
  const auto set_float = [&](std::string_view rest, double value) {
    metadata.SetF32(key(rest), static_cast<double>(static_cast<float>(value)));
  };
  metadata.SetString("general.architecture", std::string(architecture.name));
  metadata.SetString(kGgufFamilyKey, config.family);
  metadata.SetU32(key("block_count"), config.num_layers);
  metadata.SetU32(key("context_length"), config.trained_length);
  metadata.SetU32(key("embedding_length"), config.model_dim);
  metadata.SetU32(key("feed_forward_length"), config.ffn_dim);
  metadata.SetU32(key("attention.head_count"), config.num_q_heads);
  metadata.SetU32(key("attention.head_count_kv"), config.num_kv_heads);
  metadata.SetU32(key("attention.key_length"), config.head_dim);
  metadata.SetU32(key("attention.value_length"), config.head_dim);
  metadata.SetU32(key("vocab_size"), config.vocab_size);
  set_float(config.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
            config.norm_eps);
  if (config.positions == PositionKind::kRope) {
    const RopeConfig& rope = config.ropes.at(0);
    if (config.ropes.size() > 1) set_float("rope.freq_base_swa", config.ropes[1].theta);
    // As converters write it, the scaling has no name.
    if (rope.scaling == RopeConfig::Scaling::kLongRope) {
      metadata.SetU32(key("rope.scaling.original_context_length"), rope.original_max_position);
      set_float("rope.scaling.attn_factor", rope.amplitude);
    }
    set_float("rope.freq_base", rope.theta);
    metadata.SetU32(key("rope.dimension_count"), rope.rotary_dims);
    const bool linear = rope.scaling == RopeConfig::Scaling::kLinear;
    if (linear || rope.scaling == RopeConfig::Scaling::kDynamicNtk) {
      metadata.SetString(key("rope.scaling.type"), linear ? "linear" : "dynamic");
      set_float("rope.scaling.factor", rope.factor);
    }
    if (rope.scaling == RopeConfig::Scaling::kYarn) {
      metadata.SetString(key("rope.scaling.type"), "yarn");
      set_float("rope.scaling.factor", rope.factor);
      metadata.SetU32(key("rope.scaling.original_context_length"), rope.original_max_position);
      set_float("rope.scaling.attn_factor", rope.amplitude / YarnAmplitude(rope.factor));
    }
  } else if (config.positions == PositionKind::kAlibi) {
    set_float("attention.max_alibi_bias", 8.0);
  }
  if (config.family == "gpt_neox" || config.family == "stablelm") {
    metadata.SetBool(key("use_parallel_residual"), config.residual != ResidualKind::kSerial);
  }
  if (config.qkv_clip) set_float("attention.clamp_kqv", *config.qkv_clip);
  SetLayers(config, architecture.name, metadata);
  SetScales(config, architecture.name, metadata);
  SetExperts(config, architecture.name, metadata);
  if (config.zero_sink) metadata.SetBool(kGgufZeroSinkKey, true);
  if (config.bos_id) metadata.SetU32("tokenizer.ggml.bos_token_id", *config.bos_id);
  if (!config.eos_ids.empty()) metadata.SetU32("tokenizer.ggml.eos_token_id", config.eos_ids[0]);
  if (config.eos_ids.size() > 1) metadata.SetU32("tokenizer.ggml.eot_token_id", config.eos_ids[1]);
  return metadata;
}

// The model as a file, from its checkpoint.
inline std::unique_ptr<FakeGgufFile> SampleFile(const ModelConfig& config, const WeightSource& checkpoint,
                                                const std::string& origin) {
  const GgufArchitecture& architecture = *FindGgufArchitecture(config.family);
  auto file = std::make_unique<FakeGgufFile>(SampleMetadata(config, origin));
  std::map<std::string, std::vector<float>> joined;  // norms of heads, by the file's name
  for (const std::string& name : checkpoint.Names()) {
    if (GgufIsOfExpert(name)) continue;
    const auto view = checkpoint.Get(name);
    const auto file_name = GgufTensorName(architecture, name);
    if (!view.ok() || !file_name) continue;
    if (const auto head = GgufHeadOf(architecture, name)) {
      std::vector<float>& all = joined[*file_name];
      const auto begin = static_cast<size_t>(*head * config.head_dim);
      all.resize(std::max(all.size(), begin + static_cast<size_t>(config.head_dim)));
      ToF32(view->dtype, view->data, view->shape.num_elements(), all.data() + begin);
    } else if (GgufOffset(architecture, name) != 0.0) {
      std::vector<float> more(static_cast<size_t>(view->shape.num_elements()));
      ToF32(view->dtype, view->data, view->shape.num_elements(), more.data());
      for (float& value : more) value += 1.0f;
      file->Add(*file_name, {more.data(), DType::kF32, view->shape});
    } else if (GgufIsTransposed(architecture, name)) {
      const int64_t rows = view->shape[1], columns = view->shape[0];
      std::vector<std::byte> turned(static_cast<size_t>(view->size_bytes()));
      for (int64_t i = 0; i < rows * columns; ++i) {
        const float value = LoadAsF32(view->dtype, view->data, i % columns * rows + i / columns);
        StoreF32As(view->dtype, turned.data(), i, value);
      }
      file->Add(*file_name, {turned.data(), view->dtype, {rows, columns}});
    } else {
      file->Add(*file_name, *view, GgufRowOrder(architecture, config, name));
    }
  }
  if (config.AnyExperts()) {
    const ModelFamily* family = FindFamily(config.family, origin).value();
    AddExperts(family->read_weights(config, checkpoint).value(), *file);
  }
  for (const auto& [name, values] : joined) {
    const int64_t num_heads = static_cast<int64_t>(values.size()) / config.head_dim;
    file->Add(name, {values.data(), DType::kF32, {num_heads, config.head_dim}});
  }
  const auto add_divisors = [&](const char* name, const std::vector<float>& divisors) {
    file->Add(name, {divisors.data(), DType::kF32, {static_cast<int64_t>(divisors.size())}});
  };
  if (config.ropes.size() != 1) return file;
  if (config.ropes[0].scaling == RopeConfig::Scaling::kLlama3) add_divisors(kGgufRopeFreqs, Llama3Divisors(config));
  if (config.ropes[0].scaling == RopeConfig::Scaling::kLongRope) {
    add_divisors(kGgufRopeShort, config.ropes[0].freq_divisors);
    add_divisors(kGgufRopeLong, config.ropes[0].long_divisors);
  }
  return file;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_GGUF_SAMPLES_H_
