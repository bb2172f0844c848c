// Which requests somebody wants ended. Asking takes no memory: who has none can still let go of what holds it.
#ifndef HEADWISE_ENGINE_CANCELLATIONS_H_
#define HEADWISE_ENGINE_CANCELLATIONS_H_

#include <headwise/engine.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace headwise {

// Thread-safety: everything from any thread. May outlive the engine.
class Cancellations {
 public:
  // A request's place here, as long as it lives.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(std::shared_ptr<Cancellations> of, RequestId id) : of_(std::move(of)), id_(id) {
      const std::lock_guard lock(of_->mutex_);
      of_->is_wanted_.emplace(id_, false);
    }
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Ticket() {
      if (of_ == nullptr) return;
      const std::lock_guard lock(of_->mutex_);
      of_->is_wanted_.erase(id_);
    }

   private:
    std::shared_ptr<Cancellations> of_;
    RequestId id_ = 0;
  };

  // Unknown ids are passed over.
  void Cancel(RequestId id) noexcept {
    const std::lock_guard lock(mutex_);
    const auto it = is_wanted_.find(id);
    if (it == is_wanted_.end()) return;
    it->second = true;
    has_new_ = true;
  }
  // A request may have been cancelled before it arrived: TakeNew has a look at it.
  void NoteArrival() noexcept {
    const std::lock_guard lock(mutex_);
    has_new_ = true;
  }
  // All that are wanted, unless nothing has changed since the last look. Those that are over are among them.
  std::vector<RequestId> TakeNew() {
    const std::lock_guard lock(mutex_);
    std::vector<RequestId> wanted;
    if (!has_new_) return wanted;
    for (const auto& [id, is_wanted] : is_wanted_) {
      if (is_wanted) wanted.push_back(id);
    }
    has_new_ = false;  // not where there was no memory for the list
    return wanted;
  }

 private:
  std::mutex mutex_;
  std::map<RequestId, bool> is_wanted_;
  bool has_new_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_CANCELLATIONS_H_
