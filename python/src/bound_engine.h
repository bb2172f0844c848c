// The engine as Python holds it: a service, which may be closed while others still ask it.
#ifndef HEADWISE_PYTHON_BOUND_ENGINE_H_
#define HEADWISE_PYTHON_BOUND_ENGINE_H_

#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/grammar.h>
#include <headwise/service.h>
#include <headwise/token_constraint.h>

#include <sys/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "bindings.h"
#include "engine/sequence.h"

namespace headwise::python {

// What an open engine has. Each call holds it for as long as it works, so that closing takes nothing away from under
// others: their calls end with an error of their own.
struct OpenedEngine {
  std::shared_ptr<Warnings> warnings;  // first: the service's threads write to it until they end
  std::unique_ptr<Service> service;
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

  // Throws where it is closed, or was opened by the process that this one was forked from, whose threads are not here.
  std::shared_ptr<OpenedEngine> Get() const;
  bool is_closed() const { return opened_ == nullptr; }
  // Ends what runs. Again: nothing.
  void Close();

 private:
  std::shared_ptr<OpenedEngine> opened_;
  pid_t process_;
};

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_BOUND_ENGINE_H_
