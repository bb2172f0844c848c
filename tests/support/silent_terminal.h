// A terminal in the place of this process' outputs, for tests of who writes there.
#ifndef HEADWISE_TESTS_SUPPORT_SILENT_TERMINAL_H_
#define HEADWISE_TESTS_SUPPORT_SILENT_TERMINAL_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace headwise {

// While it lives, stdout and stderr are a terminal that nobody sees. Check nothing meanwhile: failures are reported
// there too.
class SilentTerminal {
 public:
  SilentTerminal() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    EXPECT_EQ(::grantpt(master_), 0);
    EXPECT_EQ(::unlockpt(master_), 0);
    const int terminal = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    EXPECT_GE(terminal, 0);
    Flush();
    ::dup2(terminal, STDOUT_FILENO);
    ::dup2(terminal, STDERR_FILENO);
    ::close(terminal);
  }
  SilentTerminal(const SilentTerminal&) = delete;
  SilentTerminal& operator=(const SilentTerminal&) = delete;
  ~SilentTerminal() { Restore(); }

  // Gives the outputs back; what was written meanwhile, up to a few KB.
  std::string Restore() {
    if (master_ < 0) return "";
    Flush();
    char buffer[4096];
    const ssize_t num_read = ::read(master_, buffer, sizeof(buffer));
    ::dup2(stdout_, STDOUT_FILENO);
    ::dup2(stderr_, STDERR_FILENO);
    for (const int fd : {stdout_, stderr_, master_}) ::close(fd);
    master_ = -1;
    return num_read > 0 ? std::string(buffer, static_cast<size_t>(num_read)) : "";
  }

 private:
  static void Flush() {
    std::fflush(stdout);
    std::fflush(stderr);
  }

  int stdout_ = ::dup(STDOUT_FILENO);
  int stderr_ = ::dup(STDERR_FILENO);
  int master_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_SILENT_TERMINAL_H_
