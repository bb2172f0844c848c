// Bounds of grammars and expressions whose size says little of the work that they make.
#ifndef HEADWISE_GRAMMAR_GBNF_CHECK_H_
#define HEADWISE_GRAMMAR_GBNF_CHECK_H_

#include <headwise/status.h>

#include <string_view>

namespace headwise {

// Size, depth of its brackets, numbers of repetitions; what is well formed the compiler finds out.
Status CheckGbnf(std::string_view text);

// That what counted repetitions make of an expression, those inside others multiplied, is not too much. `what` opens
// the message.
Status CheckRepetition(std::string_view text, std::string_view what);

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_GBNF_CHECK_H_
