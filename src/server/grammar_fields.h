// The fields of a request that say what form its answers have: OpenAI's response_format, and the names that vLLM and
// llama.cpp have for the same.
#ifndef HEADWISE_SERVER_GRAMMAR_FIELDS_H_
#define HEADWISE_SERVER_GRAMMAR_FIELDS_H_

#include <headwise/grammar.h>

#include <optional>
#include <string>
#include <string_view>

#include "server/json_fields.h"

namespace headwise {

// A grammar, and the field that asks for it.
struct ApiGrammar {
  GrammarSource source;
  std::string param;
};

// response_format; structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar; grammar, json_schema.
// At most one of them. Nothing where none asks for more than text. `body` is the text of the object: the order of a
// schema's properties is that of the answer.
std::optional<ApiGrammar> ReadGrammar(JsonFields& fields, std::string_view body);

}  // namespace headwise

#endif  // HEADWISE_SERVER_GRAMMAR_FIELDS_H_
