// What compiles grammars for a vocabulary. One implementation is xgrammar's; builds without it have none.
#ifndef HEADWISE_GRAMMAR_GRAMMAR_ENGINE_H_
#define HEADWISE_GRAMMAR_GRAMMAR_ENGINE_H_

#include <headwise/grammar.h>
#include <headwise/tokenizer.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "grammar/call_grammar.h"

namespace headwise {

using Constraint = std::shared_ptr<const TokenConstraint>;

class GrammarEngine {
 public:
  virtual ~GrammarEngine() = default;
  // Of a source that was checked. `text` is what is to be compiled: a schema as NormaliseSchema gives it, otherwise the
  // source's.
  virtual Result<Constraint> Compile(GrammarKind kind, const std::string& text) = 0;
  // `calls.form.text` is such a text too.
  virtual Result<Constraint> Compile(const CallGrammar& calls) = 0;
};

// One grammar may take so long; some would take hours.
inline constexpr std::chrono::milliseconds kCompileTime(20'000);

bool HasGrammarEngine();
Result<std::unique_ptr<GrammarEngine>> MakeGrammarEngine(const Tokenizer& tokenizer, int64_t vocab_size,
                                                         std::chrono::milliseconds compile_time = kCompileTime);

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_GRAMMAR_ENGINE_H_
