// Any bytes as a GGUF file that is a model: an error that begins with the file's name, or a config and a tokenizer that
// hold what others rely on.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "engine/open_tokenizer.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"
#include "model/load_config.h"

namespace {

using headwise::GgufContents;
using headwise::ModelConfig;
using headwise::Result;
using headwise::Status;

void CheckError(const Status& status) {
  HW_CHECK(status.ok() || status.message().starts_with("fuzz: "), "{}", status.message());
}

Result<ModelConfig> ReadConfig(const GgufContents& contents) {
  headwise::GgufTensorNames names;
  for (const auto& [name, tensor] : contents.tensors) names.insert(name);
  HW_ASSIGN_OR_RETURN(const headwise::Json json, headwise::GgufConfigJson(contents.metadata, names));
  return headwise::ModelConfigFromJson(json, contents.metadata.origin());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto contents = headwise::ParseGguf(std::as_bytes(std::span(data, size)), "fuzz");
  if (!contents.ok()) return 0;
  const auto config = ReadConfig(*contents);
  CheckError(config.status());
  if (config.ok()) {
    HW_CHECK(config->num_q_heads % config->num_kv_heads == 0, "{} {}", config->num_q_heads, config->num_kv_heads);
    const headwise::GgufArchitecture* architecture = headwise::FindGgufArchitecture(config->family);
    HW_CHECK(architecture != nullptr, "{}", config->family);
    for (const auto& [name, tensor] : contents->tensors) {
      for (const std::string& family_name : headwise::FamilyTensorNames(*architecture, name)) {
        HW_CHECK(headwise::GgufTensorName(*architecture, family_name) == name, "{}", name);
      }
    }
  }
  const auto tokenizer = headwise::TokenizerFromMetadata(contents->metadata);
  CheckError(tokenizer.status());
  if (!tokenizer.ok()) return 0;
  const auto ids = (*tokenizer)->Encode("Hello  world\n 123 <s>a\u0301\U0001F600</s>", headwise::SpecialText::kAsText);
  if (!ids.ok()) return 0;
  for (const int32_t id : *ids) {
    HW_CHECK(id >= 0 && id < (*tokenizer)->vocab_size(), "id {}", id);
  }
  return 0;
}
