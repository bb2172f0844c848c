// What a request has said and nobody has read yet: the way from the engine's thread to a client's.
#ifndef HEADWISE_ENGINE_EVENT_QUEUE_H_
#define HEADWISE_ENGINE_EVENT_QUEUE_H_

#include <headwise/service.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/running_request.h"

namespace headwise {

// Nothing is lost and memory is bounded: a full queue pauses its request. Thread-safety: the observer's half belongs to
// the engine's thread, Take to one client thread at a time.
class EventQueue : public RequestObserver {
 public:
  struct Options {
    size_t max_events = 1;
    // Set while a service shuts down: nobody may be there to read.
    std::shared_ptr<const std::atomic<bool>> is_unbounded;
    std::function<void()> on_event;  // on the engine's thread; may be empty
    std::function<void()> on_room;   // on the client's, when a full queue has room again
  };
  explicit EventQueue(Options options) : options_(std::move(options)) {}

  bool HasRoom() override {
    const std::lock_guard lock(mutex_);
    return events_.size() < options_.max_events || *options_.is_unbounded;
  }
  void OnToken(int32_t id, std::string text, std::optional<TokenLogprobs> logprobs) override {
    Push({.token = id, .logprobs = std::move(logprobs), .text = std::move(text), .result = std::nullopt});
  }
  void OnFinish(std::string rest, RequestResult result) override {
    {
      const std::lock_guard lock(mutex_);
      last_ = {.token = std::nullopt, .text = std::move(rest), .result = std::move(result)};
      changed_.notify_one();
    }
    if (options_.on_event) options_.on_event();
  }

  // Waits for an event until the deadline; none: for ever. Nothing once the final one was taken.
  std::optional<RequestEvent> Take(std::optional<RequestStream::Clock::time_point> deadline) {
    std::unique_lock lock(mutex_);
    const auto has_news = [&] { return !events_.empty() || last_ || is_over_; };
    if (deadline) {
      changed_.wait_until(lock, *deadline, has_news);
    } else {
      changed_.wait(lock, has_news);
    }
    if (events_.empty()) {
      is_over_ = is_over_ || last_;
      return std::exchange(last_, std::nullopt);
    }
    const bool was_full = events_.size() >= options_.max_events;
    std::optional<RequestEvent> event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    if (was_full) options_.on_room();
    return event;
  }
  bool is_over() const {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }
  bool is_empty() const {
    const std::lock_guard lock(mutex_);
    return events_.empty() && !last_;
  }

 private:
  void Push(RequestEvent event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_one();
    }
    if (options_.on_event) options_.on_event();
  }

  Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RequestEvent> events_;
  std::optional<RequestEvent> last_;  // the final one: that a request is over must be said without more memory
  bool is_over_ = false;              // the final event was taken
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_EVENT_QUEUE_H_
