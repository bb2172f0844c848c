#include "grammar/xgrammar_hooks.h"

#include <fmt/format.h>
#include <time.h>

#include <stdexcept>

namespace headwise {
namespace {

thread_local XgrammarWork* current = nullptr;

// What this thread had of a processor: a machine that is busy with other things ends nothing.
std::chrono::nanoseconds ThreadTime() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

XgrammarWork::XgrammarWork(std::chrono::milliseconds limit) : limit_(limit), deadline_(ThreadTime() + limit) {
  current = this;
}
XgrammarWork::~XgrammarWork() {
  current = nullptr;
}
void XgrammarWork::AddWarning(const std::string& message) {
  if (warning_.empty()) warning_ = message;
}
void XgrammarWork::CheckTime() {
  constexpr uint32_t kInterval = 64;  // a clock takes longer than what is timed
  if (++num_checks_ % kInterval != 0 || ThreadTime() < deadline_) return;
  throw std::runtime_error(
      fmt::format("takes longer than {} s, expected a simpler one", static_cast<double>(limit_.count()) / 1000));
}

}  // namespace headwise

// xgrammar calls these: a log in place of its own (XGRAMMAR_LOG_CUSTOMIZE), and what tools/install_xgrammar.sh puts in.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && headwise::current != nullptr) headwise::current->AddWarning(message);
}

void OnXgrammarWork();
void OnXgrammarWork() {
  if (headwise::current != nullptr) headwise::current->CheckTime();
}

}  // namespace xgrammar
