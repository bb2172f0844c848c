// What limits the tokens that a request may draw: a grammar, a JSON schema, a list of answers. The engine asks before
// every draw which ids may come next; who answers knows the tokenizer, the engine does not. headwise/grammar.h makes
// such constraints from texts; a program may have its own.
#ifndef HEADWISE_TOKEN_CONSTRAINT_H_
#define HEADWISE_TOKEN_CONSTRAINT_H_

#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <span>

namespace headwise {

// How far one text has come. Belongs to one request, on the engine's thread.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;

  // Of `mask` [ceil(V / 32)] sets bit id % 32 of word id / 32 for every id that may come next, and clears all others;
  // those that end a text are the engine's business. The value is whether the text may end here. Where it may not and
  // no id may come, the request ends with an error.
  virtual Result<bool> FillMask(std::span<uint32_t> mask) = 0;

  // The text goes on with `id`. Requires: the last FillMask had set its bit.
  virtual Status Accept(int32_t id) = 0;
};

// What texts there may be. Safe to use from several threads at once.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // V: ids are below it. Has to be the model's.
  virtual int64_t vocab_size() const = 0;

  // At the beginning of a text: once for every request, so that choices of one prompt share what was compiled.
  virtual Result<std::unique_ptr<ConstraintState>> Begin() const = 0;
};

}  // namespace headwise

#endif  // HEADWISE_TOKEN_CONSTRAINT_H_
