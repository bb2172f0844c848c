// Threads for what waits for an engine or works for long: neither those that carry requests nor the one that hands out
// events may.
#ifndef HEADWISE_SERVER_WORKER_THREADS_H_
#define HEADWISE_SERVER_WORKER_THREADS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headwise {

class WorkerThreads {
 public:
  explicit WorkerThreads(int num_threads);
  WorkerThreads(const WorkerThreads&) = delete;
  // Stop.
  ~WorkerThreads();

  // False after Stop: nothing will run it. Work may not throw.
  bool Post(std::function<void()> work);
  // What has not begun.
  int64_t num_waiting();
  // Lets what is under way end, and drops what has not begun.
  void Stop();

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool is_stopped_ = false;
  std::mutex join_mutex_;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_WORKER_THREADS_H_
