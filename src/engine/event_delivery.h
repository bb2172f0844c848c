// The thread that hands events to callbacks, so that no callback runs on the engine's.
#ifndef HEADWISE_ENGINE_EVENT_DELIVERY_H_
#define HEADWISE_ENGINE_EVENT_DELIVERY_H_

#include <headwise/service.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/event_queue.h"

namespace headwise {

class EventDelivery {
 public:
  // One request's events and who is called with them.
  struct Client {
    std::unique_ptr<EventQueue> events;
    Service::OnEvent on_event;
    std::function<void()> cancel;
    // Its place in the delivery's list, empty while it is in there: to list a client takes no memory. Guarded by the
    // delivery's mutex.
    std::list<std::shared_ptr<Client>> place = std::list<std::shared_ptr<Client>>(1);
    bool is_cancelled = false;  // the delivery thread's
  };

  EventDelivery() : thread_([this] { Loop(); }) {}
  EventDelivery(const EventDelivery&) = delete;
  ~EventDelivery() { Finish(); }

  // It has an event. From any thread.
  void Notify(const std::shared_ptr<Client>& client);
  // Delivers what is listed, then ends. Requires: nobody notifies any more.
  void Finish();
  bool IsOwnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Loop();
  void DeliverOne(Client& client);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<std::shared_ptr<Client>> listed_;
  bool is_finishing_ = false;
  std::thread thread_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_EVENT_DELIVERY_H_
