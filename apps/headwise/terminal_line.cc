#include "terminal_line.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

#include "text/escape.h"

namespace headwise {
namespace {

constexpr int kDefaultColumns = 80;

}  // namespace

TerminalLine::TerminalLine() : is_terminal_(::isatty(STDERR_FILENO) == 1) {}

int TerminalLine::Columns() {
  if (!is_terminal_) return 0;
  winsize size{};
  const bool is_known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // The last column stays free: writing to it makes some terminals begin a new line.
  return (is_known ? size.ws_col : kDefaultColumns) - 1;
}

void TerminalLine::Draw(std::string_view text) {
  fmt::print(stderr, "\r{}\x1b[K", EscapeControls(text));
  std::fflush(stderr);
}

void TerminalLine::Wipe() {
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace headwise
