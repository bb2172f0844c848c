// How byte-level tokenizers cut text into words. A .gguf file names the way in place of the regular expressions; a name
// that is not in the table is refused, as other words give other ids. Files from before there were names have none.
// Inside text/ only.
#ifndef HEADWISE_TEXT_GGUF_SPLITTING_H_
#define HEADWISE_TEXT_GGUF_SPLITTING_H_

#include <span>
#include <string>
#include <string_view>

#include <headwise/status.h>

#include "base/json.h"

namespace headwise {

struct GgufSplitting {
  enum class Form {
    kPattern,     // `pattern`, then bytes
    kGpt2,        // GPT-2's own, which "ByteLevel" stands for
    kDigitsGpt2,  // digits one by one, then as GPT-2
    kFalcon,      // punctuation, then as GPT-2, then digits by three
  };
  std::span<const std::string_view> names;
  Form form = Form::kPattern;
  std::string_view pattern = {};
  bool ignore_merges = false;
  bool adds_bos = false;  // where the file does not say
};

// By the name in the file; a name that is not known is an error, which lists those that are. An empty name and
// "default" are what the published models of the architecture have; where these differ, GPT-2's own, which byte-level
// tokenizers began with, and `is_guess`.
struct FoundSplitting {
  const GgufSplitting* splitting = nullptr;
  bool is_guess = false;
};
Result<FoundSplitting> FindGgufSplitting(std::string_view name, std::string_view architecture, std::string_view origin);

// The "pre_tokenizer" of a tokenizer.json.
Json SplittingJson(const GgufSplitting& splitting, bool adds_space_prefix);

// The way back: the first name of a way that cuts as this "pre_tokenizer" does; empty where the table has none.
std::string NameOfGgufSplitting(const Json& pre_tokenizer);

// Whether text is brought into Unicode's composed form first. Files do not say; the published models that do have
// architectures of their own.
bool ComposesCharacters(const GgufSplitting& splitting, std::string_view architecture);

}  // namespace headwise

#endif  // HEADWISE_TEXT_GGUF_SPLITTING_H_
