#include "model/gguf_model.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/gguf_names.h"
#include "model/load_config.h"

namespace headwise {
namespace {

GgufTensorNames NamesIn(const GgufFile& file) {
  const std::vector<std::string> names = file.Names();
  return GgufTensorNames(names.begin(), names.end());
}

class GgufWeights final : public WeightSource {
 public:
  GgufWeights(std::unique_ptr<GgufFile> file, const GgufArchitecture& architecture, std::string hash)
      : file_(std::move(file)), architecture_(architecture), hash_(std::move(hash)) {}

  Status Open(const ModelConfig& config) {
    for (const std::string& file_name : file_->Names()) {
      for (const std::string& name : FamilyTensorNames(architecture_, file_name)) {
        Tensor tensor;
        HW_ASSIGN_OR_RETURN(tensor.view, file_->Get(file_name));
        // Fused matrices stay blocks, as HasFusedBlocks says.
        const bool is_paired = architecture_.rope_rows == GgufArchitecture::RopeRows::kPairs;
        if (is_paired) tensor.rows = GgufRowOrder(architecture_, config, name);
        if (!tensor.rows.empty() &&
            (tensor.view.shape.rank() < 1 || tensor.view.shape[0] != static_cast<int64_t>(tensor.rows.size()))) {
          return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is {}, expected {} rows", origin(), file_name,
                                                  tensor.view.shape.ToString(), tensor.rows.size()));
        }
        tensors_.emplace(name, std::move(tensor));
      }
    }
    return Status::Ok();
  }

  const std::string& origin() const override { return file_->origin(); }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  bool Has(std::string_view name) const override { return tensors_.contains(name); }
  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto found = tensors_.find(name);
    if (found != tensors_.end()) return found->second.rows.empty() ? found->second.view : PutBack(found->second);
    return Status::NotFound(fmt::format("{}: tensor \"{}\" is missing, which is \"{}\" in family {}", origin(),
                                        GgufTensorName(architecture_, name).value_or("?"), name, architecture_.family));
  }
  void Release(const ConstTensorView& view) const override {
    if (std::erase_if(put_back_, [&](const auto& entry) { return entry.second.get() == view.data; }) == 0) {
      file_->Release(view);
    }
  }
  bool HasFusedBlocks() const override { return true; }
  std::string RecordedHash() const override { return hash_; }

 private:
  struct Tensor {
    ConstTensorView view;       // in the file
    std::vector<int64_t> rows;  // where they differ in order: row i there is row rows[i] here
  };

  // A copy in the family's order, made when it is asked for and kept until it is released.
  ConstTensorView PutBack(const Tensor& tensor) const {
    const ConstTensorView& view = tensor.view;
    std::unique_ptr<std::byte[]>& copy = put_back_[view.data];
    if (copy == nullptr) {
      const auto size_bytes = static_cast<size_t>(view.size_bytes());
      const size_t row_bytes = size_bytes / tensor.rows.size();
      copy = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
      for (size_t i = 0; i < tensor.rows.size(); ++i) {
        std::memcpy(copy.get() + static_cast<size_t>(tensor.rows[i]) * row_bytes,
                    static_cast<const std::byte*>(view.data) + i * row_bytes, row_bytes);
      }
      file_->Release(view);
    }
    return ConstTensorView(copy.get(), view.dtype, view.shape);
  }

  std::unique_ptr<GgufFile> file_;
  const GgufArchitecture& architecture_;  // a row of the table, which outlives all
  std::string hash_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  mutable std::map<const void*, std::unique_ptr<std::byte[]>> put_back_;  // by where the rows lie in the file
};

// GgufConfigJson looks at the first layer to see which tensors there are. One that is in another layer alone, or beyond
// the last one, or in no row of the table would be left out without a word.
Status CheckAllAreKnown(const GgufArchitecture& architecture, const ModelConfig& config, const GgufFile& file) {
  const GgufTensorNames names = NamesIn(file);
  for (const std::string& name : names) {
    if (name == kGgufRopeFreqs) continue;
    if (FamilyTensorNames(architecture, name).empty()) {
      return Status::Unsupported(
          fmt::format("{}: tensor \"{}\" has no place in family {}", file.origin(), name, config.family));
    }
    constexpr std::string_view kLayers = "blk.";
    if (!name.starts_with(kLayers)) continue;
    const size_t dot = name.find('.', kLayers.size());
    const std::string layer = name.substr(kLayers.size(), dot - kLayers.size());
    // Compared as numbers of any length: the table lets digits through, without zeros in front.
    const std::string end = fmt::to_string(config.num_layers);
    const bool is_inside = layer.size() != end.size() ? layer.size() < end.size() : layer < end;
    if (!is_inside || !names.contains(fmt::format("blk.0{}", name.substr(dot)))) {
      return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is there, expected {} layers of the same tensors",
                                              file.origin(), name, config.num_layers));
    }
  }
  return Status::Ok();
}

}  // namespace

bool IsGgufPath(const std::string& path) {
  const std::filesystem::path file(path);
  std::error_code ignored;
  const auto type = std::filesystem::status(file, ignored).type();
  return type == std::filesystem::file_type::regular ||
         (type == std::filesystem::file_type::not_found && file.extension() == ".gguf");
}

Result<ModelConfig> GgufModelConfig(const GgufFile& file) {
  HW_ASSIGN_OR_RETURN(const Json json, GgufConfigJson(file.metadata(), NamesIn(file)));
  HW_ASSIGN_OR_RETURN(ModelConfig config, ModelConfigFromJson(json, file.origin()));
  if (!file.Has(kGgufRopeFreqs)) return config;
  HW_ASSIGN_OR_RETURN(const ConstTensorView divisors, file.Get(kGgufRopeFreqs, Shape{config.rope.rotary_dims / 2}));
  for (int64_t i = 0; i < divisors.shape[0]; ++i) {
    config.rope.freq_divisors.push_back(LoadAsF32(divisors.dtype, divisors.data, i));
  }
  HW_RETURN_IF_ERROR(ValidateConfig(config, file.origin()));
  return config;
}

Result<std::unique_ptr<WeightSource>> GgufModelWeights(std::unique_ptr<GgufFile> file, const ModelConfig& config) {
  const GgufArchitecture* architecture = FindGgufArchitecture(config.family);
  HW_CHECK(architecture != nullptr, "{}", config.family);
  HW_RETURN_IF_ERROR(CheckAllAreKnown(*architecture, config, *file));
  HW_ASSIGN_OR_RETURN(std::string hash, file->metadata().StringOr(kGgufSourceHashKey, ""));
  auto weights = std::make_unique<GgufWeights>(std::move(file), *architecture, std::move(hash));
  HW_RETURN_IF_ERROR(weights->Open(config));
  return std::unique_ptr<WeightSource>(std::move(weights));
}

}  // namespace headwise
