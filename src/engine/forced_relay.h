// A forced run's rows on their way from the engine's thread to the one that asked for them.
#ifndef HEADWISE_ENGINE_FORCED_RELAY_H_
#define HEADWISE_ENGINE_FORCED_RELAY_H_

#include <headwise/engine.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/running_request.h"

namespace headwise {

// Holds one step's rows: the next step of the run waits until they are taken. Thread-safety: the observer's half and
// the callbacks of Wrap belong to the engine's thread, Serve to the caller's.
class ForcedRelay : public RequestObserver {
 public:
  // `on_room`: the rows were taken; on the caller's thread.
  explicit ForcedRelay(std::function<void()> on_room) : on_room_(std::move(on_room)) {}

  bool HasRoom() override;
  void OnToken(int32_t, std::string, std::optional<TokenLogprobs>) override {}
  void OnFinish(std::string rest, RequestResult result) override;

  // `run` with callbacks that hand over to Serve.
  ForcedRun Wrap(const ForcedRun& run);
  // Calls the callbacks of `run` until it is over; `cancel` where one wants it to end.
  RequestResult Serve(const ForcedRun& run, const std::function<void()>& cancel);

 private:
  // A row, or progress.
  struct Item {
    std::optional<int64_t> position;
    int64_t num_read = 0;
    std::vector<float> logits;
    std::vector<float> hidden;
  };

  void Push(Item item);
  // Nothing where the run is over.
  std::optional<Item> Pop();

  std::function<void()> on_room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  std::optional<RequestResult> result_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_FORCED_RELAY_H_
