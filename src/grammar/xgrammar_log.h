// What xgrammar says while it compiles: a warning means that something is not held to, and is an error here.
#ifndef HEADWISE_GRAMMAR_XGRAMMAR_LOG_H_
#define HEADWISE_GRAMMAR_XGRAMMAR_LOG_H_

#include <string>

namespace headwise {

// Collects the warnings of this thread for as long as it lives. Not two at once.
class XgrammarWarnings {
 public:
  XgrammarWarnings();
  XgrammarWarnings(const XgrammarWarnings&) = delete;
  ~XgrammarWarnings();

  // The first; empty where there was none.
  const std::string& first() const { return first_; }
  void Add(const std::string& message);

 private:
  std::string first_;
};

}  // namespace headwise

#endif  // HEADWISE_GRAMMAR_XGRAMMAR_LOG_H_
