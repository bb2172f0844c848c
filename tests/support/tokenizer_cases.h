// Cases of tokenizers from outside (tests/golden/tokenizer_styles), as tools/make_tokenizer_golden.py writes them.
#ifndef HEADWISE_TESTS_SUPPORT_TOKENIZER_CASES_H_
#define HEADWISE_TESTS_SUPPORT_TOKENIZER_CASES_H_

#include <string>

#include "base/json.h"

namespace headwise {

// What a case's ids are decoded to: "decoded", or "decoded_skip_special". In place of a text that stands in the case
// already there is `true`: that of "text", or of "decoded".
inline std::string DecodedOf(const Json& one, const std::string& key) {
  const Json& decoded = one.at(key);
  if (decoded.is_string()) return decoded.get<std::string>();
  return key == "decoded" ? one.at("text").get<std::string>() : DecodedOf(one, "decoded");
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TOKENIZER_CASES_H_
