// A model folder's tokenizer as the arrays that a .gguf file keeps: the way back of text/gguf_tokenizer.h.
#ifndef HEADWISE_TEXT_GGUF_TOKENIZER_EXPORT_H_
#define HEADWISE_TEXT_GGUF_TOKENIZER_EXPORT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>
#include <headwise/tokenizer.h>

namespace headwise {

// Fields as in GgufTokenizer.
struct GgufTokenizerArrays {
  std::string kind;
  std::string splitting;  // gpt2; empty where no name of the table says it
  std::vector<std::string> tokens;
  std::vector<int64_t> token_types;
  std::vector<double> scores;       // llama
  std::vector<std::string> merges;  // gpt2
  std::optional<int32_t> bos_id;
  std::optional<int64_t> eos_id;
  std::optional<int64_t> unknown_id;
  std::optional<int64_t> padding_id;
  std::optional<bool> adds_bos;
  std::optional<bool> adds_space_prefix;
  std::vector<ChatTemplateText> chat_templates;
  std::string tokenizer_json;  // where the arrays do not say it all; they then serve other readers
};

// For a model of this vocabulary and architecture, as files call it: ids without a token get names that no text has.
// kNotFound if the folder has no tokenizer; an error for one that the arrays cannot hold.
Result<GgufTokenizerArrays> ExportTokenizer(const std::filesystem::path& model_folder, int64_t vocab_size,
                                            std::string_view architecture);

}  // namespace headwise

#endif  // HEADWISE_TEXT_GGUF_TOKENIZER_EXPORT_H_
