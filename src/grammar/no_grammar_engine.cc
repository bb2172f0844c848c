// Of builds without xgrammar.
#include "grammar/grammar_engine.h"

namespace headwise {

bool HasGrammarEngine() {
  return false;
}

Result<std::unique_ptr<GrammarEngine>> MakeGrammarEngine(const Tokenizer&, int64_t, std::chrono::milliseconds) {
  return Status::Unsupported(
      "this headwise was built without constrained decoding: `make deps` brings the sources of xgrammar, which it is "
      "built on");
}

}  // namespace headwise
