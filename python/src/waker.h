// Tells one waiting thread, or an event loop, which of many requests have something new.
#ifndef HEADWISE_PYTHON_WAKER_H_
#define HEADWISE_PYTHON_WAKER_H_

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headwise::python {

class Waker {
 public:
  Waker() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  ~Waker() {
    if (fd_ >= 0) ::close(fd_);
  }

  // Can be read from while somebody is ready; -1 where the system had none.
  int fd() const { return fd_; }
  // From any thread.
  void Notify(int64_t key) {
    {
      const std::lock_guard lock(mutex_);
      ready_.push_back(key);
    }
    const uint64_t one = 1;
    [[maybe_unused]] const auto num_written = ::write(fd_, &one, sizeof one);
  }
  // Keys in the order of Notify, a key as often as it was given.
  std::vector<int64_t> Take() {
    uint64_t count = 0;
    [[maybe_unused]] const auto num_read = ::read(fd_, &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return std::exchange(ready_, {});
  }
  // Until somebody is ready, or for so long.
  void Wait(int timeout_ms) {
    pollfd file{.fd = fd_, .events = POLLIN, .revents = 0};
    ::poll(&file, 1, timeout_ms);
  }

 private:
  int fd_;
  std::mutex mutex_;
  std::vector<int64_t> ready_;  // guarded by mutex_
};

// As Python holds it: what requests hold of it is C++'s alone, so that the last of them, on a thread of the library,
// lets go of it without the GIL.
struct BoundWaker {
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
};

}  // namespace headwise::python

#endif  // HEADWISE_PYTHON_WAKER_H_
