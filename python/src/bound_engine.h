// The engine as Python holds it: a service, which may be closed while others still ask it.
#ifndef HEADWISE_PYTHON_BOUND_ENGINE_H_
#define HEADWISE_PYTHON_BOUND_ENGINE_H_

#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/grammar.h>
#include <headwise/service.h>
#include <headwise/token_constraint.h>

#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "engine/sequence.h"
#include "engine/sequence_maker.h"

namespace headwise::python {

// The process that opened an engine: a fork has none of its threads, and to wait for them would be for ever.
class OwnProcess {
 public:
  bool is_here() const { return process_ == ::getpid(); }
  // Throws in another.
  void Require() const;

 private:
  pid_t process_ = ::getpid();
};

// What an open engine has. Each call holds it for as long as it works, so that closing takes nothing away from under
// others: their calls end with an error of their own.
struct OpenedEngine {
  std::shared_ptr<Warnings> warnings;  // first: the service's threads write to it until they end
  std::unique_ptr<Service> service;
  // Of what texts could ever fit, as the service has them; none where not even one without a token fits.
  std::optional<const SequenceMaker> checks;
  std::mutex mutex;                           // of what follows, which is made when it is first asked for
  std::unique_ptr<GrammarCompiler> compiler;  // guarded by mutex
  std::map<std::string, ChatFormat> formats;  // guarded by mutex

  const Engine& engine() const { return service->engine(); }
};

struct BoundSequence {
  std::shared_ptr<Sequence> sequence;
};

struct BoundConstraint {
  std::shared_ptr<const TokenConstraint> constraint;
};

// Requires of all: the GIL.
class BoundEngine {
 public:
  explicit BoundEngine(const EngineOptions& options);
  BoundEngine(const BoundEngine&) = delete;
  BoundEngine& operator=(const BoundEngine&) = delete;
  ~BoundEngine();

  // Throws where it is closed, or was opened by the process that this one was forked from.
  std::shared_ptr<OpenedEngine> Get() const;
  bool is_closed() const { return opened_ == nullptr; }
  // Ends what runs. Again: nothing.
  void Close();
  // Those that are open.
  static void CloseAll();

 private:
  std::shared_ptr<OpenedEngine> opened_;
  OwnProcess process_;
};

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_BOUND_ENGINE_H_
