// Grammars, JSON schemas and regular expressions as constraints of what a model may say: every text that a request ends
// by itself is one that the grammar has. Special tokens never stand for text.
//
//   HW_ASSIGN_OR_RETURN(const auto compiler, GrammarCompiler::Create(engine->tokenizer(), engine->info().vocab_size));
//   HW_ASSIGN_OR_RETURN(request.constraint, compiler->Compile({.kind = GrammarKind::kJsonSchema, .text = schema}));
//
// Built on xgrammar. A build without it (GrammarCompiler::IsBuilt) refuses them all with kUnsupported.
#ifndef HEADWISE_GRAMMAR_H_
#define HEADWISE_GRAMMAR_H_

#include <headwise/status.h>
#include <headwise/token_constraint.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headwise {

class Tokenizer;      // headwise/tokenizer.h
class GrammarEngine;  // grammar/grammar_engine.h
struct CallGrammar;   // grammar/call_grammar.h

enum class GrammarKind {
  kJson,        // any JSON object
  kJsonSchema,  // JSON that a schema accepts
  kGbnf,        // a grammar as llama.cpp has them, of rules with the root "root"
  kRegex,       // a regular expression that the whole text matches
  kChoice,      // one of several texts
};

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJson;
  std::string text = {};                  // of the schema, the grammar or the expression
  std::vector<std::string> choices = {};  // of kChoice: at least one, none empty
  // Of kJsonSchema: as OpenAI's strict schemas, in which every object requires all of its properties and allows no
  // others; a schema that is not so is an error.
  bool strict = false;
};

// What is wrong with it, or beyond what is supported, found without a model and in little time and memory: what is no
// JSON or no schema, keywords that could not be held to, schemas that no finite text satisfies, and whatever is too
// large: schemas of more than 256 KiB, 4,096 parts, 32 levels, 2,048 values or 16 different lengths of strings;
// grammars of more than 64 KiB. The message says where, as a JSON pointer. OK does not promise that it compiles.
Status CheckGrammar(const GrammarSource& source);

// Compiles for one vocabulary. Safe to use from several threads at once: who compiles waits for others who do. What was
// compiled is kept, up to 256 MiB, and rules that are alike are shared.
class GrammarCompiler {
 public:
  static bool IsBuilt();

  // Borrows nothing. `vocab_size`: of the model, at least the tokenizer's. kUnsupported in a build without grammars.
  static Result<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer, int64_t vocab_size);
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;
  ~GrammarCompiler();

  // CheckGrammar's errors, and what else cannot be compiled: what takes longer than 20 s among it. Most take
  // milliseconds; strings of bounded length over large vocabularies seconds, the first time.
  Result<std::shared_ptr<const TokenConstraint>> Compile(const GrammarSource& source) const;
  // An answer that calls functions.
  Result<std::shared_ptr<const TokenConstraint>> Compile(const CallGrammar& calls) const;

 private:
  explicit GrammarCompiler(std::unique_ptr<GrammarEngine> engine);

  std::unique_ptr<GrammarEngine> engine_;
};

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_H_
