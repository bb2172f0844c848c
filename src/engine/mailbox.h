// Work that other threads hand to the one that reads the box.
#ifndef HEADWISE_ENGINE_MAILBOX_H_
#define HEADWISE_ENGINE_MAILBOX_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace headwise {

// Thread-safety: everything from any thread, but RunAll and Wait from the reader's.
class Mailbox {
 public:
  using Work = std::function<void()>;

  // False, and nothing happens, where the box is closed. What was taken will be run, in order.
  bool Post(Work work) {
    const std::lock_guard lock(mutex_);
    if (is_closing_) return false;
    work_.push_back(std::move(work));
    changed_.notify_one();
    return true;
  }
  // The reader looks again.
  void Wake() {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    changed_.notify_one();
  }
  // Takes no more.
  void Close() {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    is_woken_ = true;
    changed_.notify_one();
  }

  void RunAll() {
    std::vector<Work> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(work_);
      is_woken_ = false;
    }
    for (const Work& each : work) each();
  }
  // Until there is a reason to look again. False: the box is closed and empty while `is_idle`.
  bool Wait(bool is_idle) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !work_.empty() || is_woken_ || (is_closing_ && is_idle); });
    return !work_.empty() || is_woken_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Work> work_;
  bool is_woken_ = false;
  bool is_closing_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_MAILBOX_H_
