#include "engine/forced_relay.h"

#include <exception>
#include <utility>

namespace headwise {

bool ForcedRelay::HasRoom() {
  const std::lock_guard lock(mutex_);
  return items_.empty();
}

void ForcedRelay::OnFinish(std::string, RequestResult result) {
  const std::lock_guard lock(mutex_);
  result_ = std::move(result);
  changed_.notify_one();
}

void ForcedRelay::Push(Item item) {
  const std::lock_guard lock(mutex_);
  items_.push_back(std::move(item));
  changed_.notify_one();
}

std::optional<ForcedRelay::Item> ForcedRelay::Pop() {
  std::optional<Item> item;
  bool has_room = false;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !items_.empty() || result_; });
    if (items_.empty()) return std::nullopt;
    item = std::move(items_.front());
    items_.pop_front();
    has_room = items_.empty();
  }
  if (has_room) on_room_();
  return item;
}

ForcedRun ForcedRelay::Wrap(const ForcedRun& run) {
  ForcedRun wrapped = run;
  if (run.on_row) {
    wrapped.on_row = [this](int64_t position, std::span<const float> logits, std::span<const float> hidden) {
      Push({.position = position,
            .num_read = 0,
            .logits = {logits.begin(), logits.end()},
            .hidden = {hidden.begin(), hidden.end()}});
      return true;
    };
  }
  if (run.on_progress) {
    wrapped.on_progress = [this](int64_t num_read) {
      Push({.position = std::nullopt, .num_read = num_read, .logits = {}, .hidden = {}});
    };
  }
  return wrapped;
}

RequestResult ForcedRelay::Serve(const ForcedRun& run, const std::function<void()>& cancel) {
  bool is_wanted = true;
  Status thrown;
  while (const std::optional<Item> item = Pop()) {
    if (!is_wanted) continue;  // a step was under way
    try {
      if (item->position) {
        is_wanted = run.on_row(*item->position, item->logits, item->hidden);
      } else {
        run.on_progress(item->num_read);
      }
    } catch (const std::exception& exception) {
      is_wanted = false;
      thrown = Status::Cancelled(std::string("a callback threw: ") + exception.what());
    } catch (...) {
      is_wanted = false;
      thrown = Status::Cancelled("a callback threw something that is no std::exception");
    }
    if (!is_wanted) cancel();
  }
  RequestResult result = *std::move(result_);
  // The run itself may have come to its end before it heard.
  if (!is_wanted) result.finish = thrown.ok() ? FinishReason::kCancelled : FinishReason::kError;
  if (!thrown.ok()) result.status = std::move(thrown);
  return result;
}

}  // namespace headwise
