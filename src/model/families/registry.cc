// The table of model families.
#include <fmt/format.h>

#include <algorithm>

#include "model/families/families.h"

namespace headwise {

std::span<const ModelFamily> ModelFamilies() {
  static const std::vector<ModelFamily> kFamilies = {
      kLlamaFamily,      kMistralFamily, kQwen2Family,      kGptNeoxFamily,  kFalconFamily,   kMptFamily,
      kBaichuanFamily,   kQwen3Family,   kGemma2Family,     kGemma3Family,   kPhi3Family,     kPhiFamily,
      kOlmo2Family,      kGraniteFamily, kStarcoder2Family, kStableLmFamily, kCohereFamily,   kSmolLm3Family,
      kGlm4Family,       kGpt2Family,    kMixtralFamily,    kQwen3MoeFamily, kQwen2MoeFamily, kOlmoeFamily,
      kGraniteMoeFamily, kGptOssFamily};
  return kFamilies;
}

Result<const ModelFamily*> FindFamily(std::string_view model_type, std::string_view origin) {
  std::string known;
  for (const ModelFamily& family : ModelFamilies()) {
    const auto& others = family.other_names;
    if (family.name == model_type || std::find(others.begin(), others.end(), model_type) != others.end()) {
      return &family;
    }
    known += fmt::format("{}{}", known.empty() ? "" : ", ", family.name);
  }
  return Status::Unsupported(
      fmt::format("{}: model type \"{}\" is not supported, expected one of: {}", origin, model_type, known));
}

}  // namespace headwise
