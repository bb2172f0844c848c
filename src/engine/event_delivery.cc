#include "engine/event_delivery.h"

#include <new>
#include <utility>

namespace headwise {

void EventDelivery::Notify(const std::shared_ptr<Client>& client) {
  const std::lock_guard lock(mutex_);
  if (client->place.empty()) return;
  client->place.front() = client;
  listed_.splice(listed_.end(), client->place);
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
      client->place.splice(client->place.end(), listed_, listed_.begin());
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
  if (go_on || event->result || client.is_cancelled) return;
  try {
    client.cancel();
    client.is_cancelled = true;
  } catch (const std::bad_alloc&) {  // at the next event
  }
}

}  // namespace headwise
