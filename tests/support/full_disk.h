// A disk that fills up, for tests of writers.
#ifndef HEADWISE_TESTS_SUPPORT_FULL_DISK_H_
#define HEADWISE_TESTS_SUPPORT_FULL_DISK_H_

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

namespace headwise {

// While it lives, this process can write no file beyond so many bytes: what reaches further fails after what still
// fits, as on a full disk. Check nothing meanwhile: the log of the test may be a file as well.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &limit_), 0);
    const rlimit small = {.rlim_cur = bytes, .rlim_max = limit_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit limit_ = {};
  void (*handler_)(int);
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_FULL_DISK_H_
