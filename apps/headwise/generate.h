// Runs one request and lets Ctrl-C end it early: the first ends the text, a second one ends the program.
#ifndef HEADWISE_APPS_GENERATE_H_
#define HEADWISE_APPS_GENERATE_H_

#include <headwise/engine.h>
#include <headwise/status.h>

namespace headwise {

// While one lives, the first Ctrl-C is only noted; the second has its usual effect. One at a time.
class InterruptGuard {
 public:
  // SIGTERM: what service managers send is as good as Ctrl-C, in either place.
  enum class Signals { kInterrupt, kInterruptAndTermination };
  explicit InterruptGuard(Signals signals = Signals::kInterrupt);
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();

  bool interrupted() const;
  // The next Ctrl-C is the first again.
  void Forget();
  // Can be read from the first Ctrl-C on, until Forget: for who waits for something else too. -1 where the system had
  // none.
  int fd() const { return pipe_[0]; }

 private:
  void Await();

  Signals signals_;
  int pipe_[2] = {-1, -1};
};

// Engine::Run, ended with kCancelled by Ctrl-C.
Result<RequestResult> Generate(Engine& engine, Request request, const InterruptGuard& guard);

}  // namespace headwise

#endif  // HEADWISE_APPS_GENERATE_H_
