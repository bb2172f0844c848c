#include "model/gguf_model.h"

#include <fmt/format.h>

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
  GgufWeights(std::unique_ptr<GgufFile> file, const GgufArchitecture& architecture, const ModelConfig& config,
              std::string hash)
      : file_(std::move(file)), architecture_(architecture), config_(config), hash_(std::move(hash)) {
    for (const std::string& file_name : file_->Names()) {
      for (std::string& name : FamilyTensorNames(architecture, file_name)) {
        file_names_.emplace(std::move(name), file_name);
      }
    }
  }

  const std::string& origin() const override { return file_->origin(); }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, file_name] : file_names_) names.push_back(name);
    return names;
  }
  bool Has(std::string_view name) const override { return file_names_.contains(name); }
  using WeightSource::Get;
  Result<ConstTensorView> Get(std::string_view name) const override {
    const auto found = file_names_.find(name);
    if (found != file_names_.end()) return file_->Get(found->second);
    return Status::NotFound(fmt::format("{}: tensor \"{}\" is missing, which is \"{}\" in family {}", origin(),
                                        GgufTensorName(architecture_, name).value_or("?"), name, architecture_.family));
  }
  void Release(const ConstTensorView& view) const override { file_->Release(view); }
  bool LiesInFile(const ConstTensorView& view) const override { return file_->LiesInFile(view); }
  std::vector<int64_t> RowOrder(std::string_view name) const override {
    return GgufRowOrder(architecture_, config_, name);
  }
  double Offset(std::string_view name) const override { return GgufOffset(architecture_, name); }
  bool IsTransposed(std::string_view name) const override { return GgufIsTransposed(architecture_, name); }
  std::string RecordedHash() const override { return hash_; }

 private:
  std::unique_ptr<GgufFile> file_;
  const GgufArchitecture& architecture_;  // a row of the table, which outlives all
  ModelConfig config_;
  std::string hash_;
  std::map<std::string, std::string, std::less<>> file_names_;  // by the family's
};

// GgufConfigJson looks at the first layer to see which tensors there are. One that is in another layer alone, or beyond
// the last one, or in no row of the table would be left out without a word.
Status CheckAllAreKnown(const GgufArchitecture& architecture, const ModelConfig& config, const GgufFile& file) {
  const GgufTensorNames names = NamesIn(file);
  for (const std::string& name : names) {
    if (name == kGgufRopeFreqs || name == kGgufRopeShort || name == kGgufRopeLong) continue;
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
    // Layers without experts have an MLP in their place, and reading tells what is there too much or too little.
    const bool may_differ = config.AnyExperts() && name.substr(dot).starts_with(".ffn_");
    if (!is_inside || (!may_differ && !names.contains(fmt::format("blk.0{}", name.substr(dot))))) {
      return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is there, expected {} layers of the same tensors",
                                              file.origin(), name, config.num_layers));
    }
  }
  return Status::Ok();
}

// A config.json has LongRoPE's factors beside its other numbers.
Status AddLongRopeFactors(const GgufFile& file, Json& config) {
  const std::pair<const char*, const char*> tensors[] = {{kGgufRopeShort, "short_factor"},
                                                         {kGgufRopeLong, "long_factor"}};
  for (const auto& [name, key] : tensors) {
    if (!file.Has(name)) continue;
    if (!config.contains("rope_scaling")) {
      return Status::Unsupported(
          fmt::format("{}: tensor \"{}\" in a model without a rotary embedding", file.origin(), name));
    }
    HW_ASSIGN_OR_RETURN(const ConstTensorView any, file.Get(name));
    HW_ASSIGN_OR_RETURN(const ConstTensorView factors, file.Get(name, Shape{any.shape.num_elements()}));
    Json& numbers = config["rope_scaling"][key] = Json::array();
    for (int64_t i = 0; i < factors.shape[0]; ++i) numbers.push_back(LoadAsF32(factors.dtype, factors.data, i));
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

Result<std::unique_ptr<GgufFile>> OpenGgufModel(const std::string& path, FileAccess access) {
  auto file = OpenGgufFile(path, access);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  const bool is_of_folder = std::filesystem::exists(folder / "config.json", ignored) ||
                            std::filesystem::path(path).extension() == ".safetensors";
  if (file.ok() || file.status().code() != StatusCode::kInvalidInput || !is_of_folder) return file;
  return Status::InvalidInput(fmt::format("{}; a Hugging Face model is named by its folder, which here is {}",
                                          file.status().message(), folder.empty() ? "." : folder.string()));
}

Result<ModelConfig> GgufModelConfig(const GgufFile& file) {
  HW_ASSIGN_OR_RETURN(Json json, GgufConfigJson(file.metadata(), NamesIn(file)));
  HW_RETURN_IF_ERROR(AddLongRopeFactors(file, json));
  HW_ASSIGN_OR_RETURN(ModelConfig config, ModelConfigFromJson(json, file.origin()));
  if (!file.Has(kGgufRopeFreqs)) return config;
  if (config.ropes.size() != 1 || !config.ropes.front().freq_divisors.empty()) {
    return Status::Unsupported(
        fmt::format("{}: tensor \"{}\" in a model with {} rotary embeddings, expected one without factors",
                    file.origin(), kGgufRopeFreqs, config.ropes.size()));
  }
  RopeConfig& rope = config.ropes.front();
  HW_ASSIGN_OR_RETURN(const ConstTensorView divisors, file.Get(kGgufRopeFreqs, Shape{rope.rotary_dims / 2}));
  for (int64_t i = 0; i < divisors.shape[0]; ++i) {
    rope.freq_divisors.push_back(LoadAsF32(divisors.dtype, divisors.data, i));
  }
  HW_RETURN_IF_ERROR(ValidateConfig(config, file.origin()));
  return config;
}

Result<std::unique_ptr<WeightSource>> GgufModelWeights(std::unique_ptr<GgufFile> file, const ModelConfig& config) {
  const GgufArchitecture* architecture = FindGgufArchitecture(config.family);
  HW_CHECK(architecture != nullptr, "{}", config.family);
  HW_RETURN_IF_ERROR(CheckAllAreKnown(*architecture, config, *file));
  HW_ASSIGN_OR_RETURN(std::string hash, file->metadata().StringOr(kGgufSourceHashKey, ""));
  return std::unique_ptr<WeightSource>(
      std::make_unique<GgufWeights>(std::move(file), *architecture, config, std::move(hash)));
}

}  // namespace headwise
