// Models as .gguf files would hold them, without a file.
#ifndef HEADWISE_TESTS_SUPPORT_GGUF_SAMPLES_H_
#define HEADWISE_TESTS_SUPPORT_GGUF_SAMPLES_H_

#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/gguf_names.h"
#include "model/rope.h"
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
  } else {
    set_float("attention.max_alibi_bias", 8.0);
  }
  if (config.family == "gpt_neox") {
    metadata.SetBool(key("use_parallel_residual"), config.residual == ResidualKind::kParallelTwoNorms);
  }
  if (config.qkv_clip) set_float("attention.clamp_kqv", *config.qkv_clip);
  const std::optional<int64_t> window = config.CommonLayer().value().window;
  if (window) metadata.SetU32(key("attention.sliding_window"), *window);
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
  for (const std::string& name : checkpoint.Names()) {
    const auto view = checkpoint.Get(name);
    const auto file_name = GgufTensorName(architecture, name);
    if (view.ok() && file_name) file->Add(*file_name, *view, GgufRowOrder(architecture, config, name));
  }
  if (!config.ropes.empty() && config.ropes[0].scaling == RopeConfig::Scaling::kLlama3) {
    const std::vector<float> divisors = Llama3Divisors(config);
    file->Add(kGgufRopeFreqs, {divisors.data(), DType::kF32, {static_cast<int64_t>(divisors.size())}});
  }
  return file;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_GGUF_SAMPLES_H_
