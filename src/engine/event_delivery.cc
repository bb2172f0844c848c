#include "engine/event_delivery.h"

#include <utility>

namespace headwise {

void EventDelivery::Notify(const std::shared_ptr<Client>& client) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(client->is_listed, true)) return;
  listed_.push_back(client);
  changed_.notify_one();
}

void EventDelivery::Finish() {
  {
    const std::lock_guard lock(mutex_);
    is_finishing_ = true;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void EventDelivery::Loop() {
  while (true) {
    std::shared_ptr<Client> client;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !listed_.empty() || is_finishing_; });
      if (listed_.empty()) return;
      client = std::move(listed_.front());
      listed_.pop_front();
      client->is_listed = false;
    }
    DeliverOne(*client);
    // One event each in turn.
    if (!client->events->is_empty()) Notify(client);
  }
}

void EventDelivery::DeliverOne(Client& client) {
  const std::optional<RequestEvent> event = client.events->Take(RequestStream::Clock::time_point{});
  if (!event) return;
  bool go_on = false;
  try {
    go_on = client.on_event(*event);
  } catch (...) {
    // Nobody is there to tell; the final event says that it was cancelled.
  }
  if (go_on || event->result || std::exchange(client.is_cancelled, true)) return;
  client.cancel();
}

}  // namespace headwise
