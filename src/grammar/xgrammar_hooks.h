// Where xgrammar calls back: what it says while it compiles, and that it goes on working.
#ifndef HEADWISE_GRAMMAR_XGRAMMAR_HOOKS_H_
#define HEADWISE_GRAMMAR_XGRAMMAR_HOOKS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace headwise {

// On this thread, for as long as it lives; not two at once. Collects warnings: something is not held to. And ends work
// that takes the processor longer than `limit`, by an exception: nothing else does, and some grammars would take hours.
class XgrammarWork {
 public:
  explicit XgrammarWork(std::chrono::milliseconds limit);
  XgrammarWork(const XgrammarWork&) = delete;
  ~XgrammarWork();

  // The first; empty where there was none.
  const std::string& warning() const { return warning_; }
  void AddWarning(const std::string& message);
  void CheckTime();

 private:
  std::string warning_;
  std::chrono::milliseconds limit_;
  std::chrono::nanoseconds deadline_;
  uint32_t num_checks_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_XGRAMMAR_HOOKS_H_
