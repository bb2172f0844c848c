// One request on its way through the engine.
#ifndef HEADWISE_ENGINE_REQUEST_STATE_H_
#define HEADWISE_ENGINE_REQUEST_STATE_H_

#include <headwise/engine.h>
#include <headwise/tokenizer.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "engine/sampler.h"
#include "engine/sequence.h"
#include "engine/stop_matcher.h"

namespace headwise {

struct RequestState {
  using Clock = std::chrono::steady_clock;

  RequestId id = 0;
  Request request;
  std::shared_ptr<Sequence> sequence;  // null while it waits for memory
  std::vector<int32_t> unread;         // tokens not yet in the cache: the rest of the prompt, then the last sample
  size_t num_read = 0;                 // of `unread`
  std::optional<Sampler> sampler;
  std::optional<StreamDecoder> decoder;  // absent without a tokenizer
  std::optional<StopMatcher> stops;
  RequestResult result;
  Clock::time_point admitted;
  Clock::time_point first_token;
  bool cancel = false;

  bool running() const { return result.finish == FinishReason::kRunning; }
  std::span<const int32_t> Unread() const { return std::span(unread).subspan(num_read); }
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_REQUEST_STATE_H_
