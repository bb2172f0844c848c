#include "grammar/xgrammar_log.h"

#include <stdexcept>

namespace headwise {
namespace {

thread_local XgrammarWarnings* collecting = nullptr;

}  // namespace

XgrammarWarnings::XgrammarWarnings() {
  collecting = this;
}
XgrammarWarnings::~XgrammarWarnings() {
  collecting = nullptr;
}
void XgrammarWarnings::Add(const std::string& message) {
  if (first_.empty()) first_ = message;
}

}  // namespace headwise

// xgrammar calls these in place of a log of its own (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && headwise::collecting != nullptr) headwise::collecting->Add(message);
}

}  // namespace xgrammar
