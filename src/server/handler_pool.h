// Threads that handlers run on: started as they are needed, up to a number, and kept.
#ifndef HEADWISE_SERVER_HANDLER_POOL_H_
#define HEADWISE_SERVER_HANDLER_POOL_H_

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headwise {

class HandlerPool {
 public:
  explicit HandlerPool(int max_threads) : max_threads_(static_cast<size_t>(max_threads)) {}
  HandlerPool(const HandlerPool&) = delete;
  ~HandlerPool() { Finish(); }

  // A task, which throws nothing, waits where all threads are taken. False where there is not one thread, and the
  // system gives none.
  bool Run(std::function<void()> task);
  // Runs what waits, then ends. No task comes any more. Not from a task.
  void Finish();

 private:
  void Loop();

  const size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t num_idle_ = 0;
  bool is_finishing_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HANDLER_POOL_H_
