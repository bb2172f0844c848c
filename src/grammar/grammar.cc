#include <headwise/grammar.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/no_memory.h"
#include "grammar/gbnf_check.h"
#include "grammar/grammar_engine.h"
#include "grammar/schema_check.h"
#include "text/utf8.h"

namespace headwise {
namespace {

constexpr const char* kCompiling = "compiling a grammar";
constexpr size_t kMaxRegexBytes = 4096;
constexpr size_t kMaxChoices = 2048;
constexpr size_t kMaxChoiceBytes = 128 << 10;

// A text as a literal of a grammar.
std::string Literal(std::string_view text) {
  std::string literal = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      literal += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7F) {
      literal += fmt::format("\\u{:04x}", byte);
    } else {
      literal += c;
    }
  }
  return literal + "\"";
}

Result<std::string> GrammarOfChoices(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return Status::InvalidInput(fmt::format("choice: has {} texts, expected 1 to {}", choices.size(), kMaxChoices));
  }
  std::string grammar = "root ::= ";
  for (const std::string& choice : choices) {
    if (choice.empty()) return Status::InvalidInput("choice: a text is empty, expected at least one character");
    if (FindInvalidUtf8(choice)) return Status::InvalidInput("choice: a text is not valid UTF-8");
    if (&choice != &choices.front()) grammar += " | ";
    grammar += Literal(choice);
    if (grammar.size() > kMaxChoiceBytes) {
      return Status::InvalidInput(fmt::format("choice: the texts have more than {} bytes", kMaxChoiceBytes));
    }
  }
  return grammar;
}

Result<std::string> CheckRegex(const std::string& text) {
  if (text.empty() || text.size() > kMaxRegexBytes) {
    return Status::InvalidInput(fmt::format("regex: has {} bytes, expected 1 to {}", text.size(), kMaxRegexBytes));
  }
  HW_RETURN_IF_ERROR(CheckRepetition(text, "regex"));
  return text;
}

// What the engine compiles.
Result<std::string> Prepare(const GrammarSource& source) {
  if (FindInvalidUtf8(source.text)) return Status::InvalidInput("the grammar is not valid UTF-8");
  switch (source.kind) {
    case GrammarKind::kJson:
      return std::string(R"({"type":"object","additionalProperties":true})");
    case GrammarKind::kJsonSchema:
      return NormaliseSchema(source.text, source.strict);
    case GrammarKind::kGbnf:
      HW_RETURN_IF_ERROR(CheckGbnf(source.text));
      return source.text;
    case GrammarKind::kRegex:
      return CheckRegex(source.text);
    case GrammarKind::kChoice:
      return GrammarOfChoices(source.choices);
  }
  return Status::InvalidInput("grammar: of no kind that is known");
}

}  // namespace

Status CheckGrammar(const GrammarSource& source) {
  return CatchNoMemory("checking a grammar", [&] { return Prepare(source).status(); });
}

bool GrammarCompiler::IsBuilt() {
  return HasGrammarEngine();
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<GrammarEngine> engine) : engine_(std::move(engine)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& tokenizer, int64_t vocab_size) {
  using Created = Result<std::unique_ptr<GrammarCompiler>>;
  return CatchNoMemory("a vocabulary of grammars", [&]() -> Created {
    HW_ASSIGN_OR_RETURN(std::unique_ptr<GrammarEngine> engine, MakeGrammarEngine(tokenizer, vocab_size));
    return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(engine)));
  });
}

Result<Constraint> GrammarCompiler::Compile(const GrammarSource& source) const {
  return CatchNoMemory(kCompiling, [&]() -> Result<Constraint> {
    HW_ASSIGN_OR_RETURN(const std::string text, Prepare(source));
    return engine_->Compile(source.kind, text);
  });
}

Result<Constraint> GrammarCompiler::Compile(const CallGrammar& calls) const {
  return CatchNoMemory(kCompiling, [&]() -> Result<Constraint> {
    if (calls.text != CallGrammar::Text::kForm) return engine_->Compile(calls);
    CallGrammar prepared = calls;
    HW_ASSIGN_OR_RETURN(prepared.form.text, Prepare(calls.form));
    return engine_->Compile(prepared);
  });
}

}  // namespace headwise
