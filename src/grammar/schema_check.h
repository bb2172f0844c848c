// JSON schemas before they are compiled: held against what is supported and what is bounded.
#ifndef HEADWISE_GRAMMAR_SCHEMA_CHECK_H_
#define HEADWISE_GRAMMAR_SCHEMA_CHECK_H_

#include <headwise/status.h>

#include <string>
#include <string_view>

namespace headwise {

// The same schema in the words that the compiler takes as they are meant: types that follow from keywords are written
// out, allOf is merged, objects without a word about properties are open. Keywords that only describe stay; those that
// would say something and are not supported are errors, as is what CheckGrammar lists.
Result<std::string> NormaliseSchema(std::string_view text, bool strict);

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_SCHEMA_CHECK_H_
