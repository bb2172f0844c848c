#include "model/read_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "model/families/family.h"

namespace headwise {
namespace {

// Remembers which tensors are read.
class RecordingSource final : public WeightSource {
 public:
  explicit RecordingSource(const WeightSource& source) : source_(source) {}

  const std::string& origin() const override { return source_.origin(); }
  std::vector<std::string> Names() const override { return source_.Names(); }
  bool Has(std::string_view name) const override { return source_.Has(name); }
  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    auto view = source_.Get(name);
    if (view.ok()) {
      names_.emplace(name);
      data_.insert(view->data);
    }
    return view;
  }
  void Release(const ConstTensorView& view) const override { source_.Release(view); }
  std::vector<int64_t> RowOrder(std::string_view name) const override { return source_.RowOrder(name); }
  double Offset(std::string_view name) const override { return source_.Offset(name); }
  bool IsTransposed(std::string_view name) const override { return source_.IsTransposed(name); }
  std::string RecordedHash() const override { return source_.RecordedHash(); }

  const std::set<std::string>& names() const { return names_; }
  // Under this name or another one: where two layouts of a family have different names for a tensor, a source has both.
  bool HasRead(const std::string& name) const {
    if (names_.contains(name)) return true;
    const auto view = source_.Get(name);
    return view.ok() && data_.contains(view->data);
  }

 private:
  const WeightSource& source_;
  mutable std::set<std::string> names_;
  mutable std::set<const void*> data_;
};

// Whether `name` is `before`, a number, `after`.
bool IsOfLayer(std::string_view name, std::string_view before, std::string_view after) {
  if (!name.starts_with(before) || !name.ends_with(after) || name.size() <= before.size() + after.size()) return false;
  const std::string_view layer = name.substr(before.size(), name.size() - before.size() - after.size());
  return layer.find_first_not_of("0123456789") == std::string_view::npos;
}

// What checkpoints keep beside their weights, though it follows from the config.
bool IsBuffer(std::string_view name) {
  constexpr std::string_view kRotary[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"};
  if (std::ranges::any_of(kRotary, [&](std::string_view end) { return name.ends_with(end); })) return true;
  // The causal mask and what is added where it hides a key; the bias of the projections has a name of its own.
  for (const std::string_view gpt2_layer : {"h.", "transformer.h."}) {
    if (IsOfLayer(name, gpt2_layer, ".attn.bias") || IsOfLayer(name, gpt2_layer, ".attn.masked_bias")) return true;
  }
  constexpr std::string_view kNeoxLayer = "gpt_neox.layers.";
  return IsOfLayer(name, kNeoxLayer, ".attention.bias") || IsOfLayer(name, kNeoxLayer, ".attention.masked_bias");
}

// What a family of models that see and read has for seeing.
bool IsOfVision(std::string_view name, const ModelConfig& config) {
  if (config.family != "gemma3_text") return false;
  constexpr std::string_view kParts[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                         "model.multi_modal_projector."};
  return std::ranges::any_of(kParts, [&](std::string_view part) { return name.starts_with(part); });
}

// Whether it is a copy of the embedding that the output matrix is tied to.
bool IsTiedOutput(std::string_view name, const ModelConfig& config, const ModelWeights& weights,
                  const WeightSource& source) {
  if (!config.tied_embeddings || (!name.ends_with("lm_head.weight") && name != "embed_out.weight")) return false;
  const auto copy = source.Get(name);
  if (!copy.ok()) return false;
  const ConstTensorView embedding = weights.embedding.rows();
  const bool is_same = copy->dtype == embedding.dtype && copy->shape == embedding.shape &&
                       std::memcmp(copy->data, embedding.data, static_cast<size_t>(embedding.size_bytes())) == 0;
  source.Release(*copy);
  return is_same;
}

Status CheckAllRead(const ModelConfig& config, const ModelWeights& weights, const RecordingSource& source) {
  std::string first;
  int64_t num_left = 0;
  for (const std::string& name : source.Names()) {
    if (source.HasRead(name) || IsBuffer(name) || IsOfVision(name, config) ||
        IsTiedOutput(name, config, weights, source))
      continue;
    if (num_left++ == 0) first = name;
  }
  if (num_left == 0) return Status::Ok();
  const std::string others = num_left > 1 ? fmt::format(" and {} others have", num_left - 1) : " has";
  const bool any_bias = config.qkv_bias || config.o_bias || config.mlp_bias;
  return Status::InvalidInput(
      fmt::format("{}: tensor \"{}\"{} no place in the model, expected nothing beyond family {} with {} layers and {}",
                  source.origin(), first, others, config.family, config.num_layers,
                  any_bias ? "the biases that its config names" : "no biases on projections"));
}

}  // namespace

Result<ReadTensors> ReadModelWeights(const ModelConfig& config, const WeightSource& source) {
  HW_ASSIGN_OR_RETURN(const ModelFamily* family, FindFamily(config.family, source.origin()));
  const RecordingSource recording(source);
  ReadTensors read;
  HW_ASSIGN_OR_RETURN(read.weights, family->read_weights(config, recording));
  read.names = recording.names();
  HW_RETURN_IF_ERROR(CheckAllRead(config, read.weights, recording));
  return read;
}

}  // namespace headwise
