// Several texts through the decoder at once, as far as threads and memory allow: each lane is a decoder with threads of
// its own. Which lane takes a text changes nothing in its result.
#ifndef HEADWISE_PLANNER_GRAD_LANES_H_
#define HEADWISE_PLANNER_GRAD_LANES_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "grad/grad_decoder.h"

namespace headwise {

class GradLanes {
 public:
  struct Options {
    int num_threads = 1;
    int64_t max_texts = 1;     // texts that ever run at once
    int64_t max_tokens = 0;    // of the longest
    int64_t memory_bytes = 0;  // for activations of all lanes; 0: no limit but one text always runs
    Compute compute = Compute::kF32;
  };

  GradLanes(const Model& model, const Options& options) {
    const int64_t per_text = GradMemoryBytes(model.config, options.max_tokens, sizeof(float), options.compute);
    const int64_t by_memory =
        options.memory_bytes > 0 ? options.memory_bytes / std::max<int64_t>(1, per_text) : options.max_texts;
    const int64_t num_lanes =
        std::clamp<int64_t>(std::min(by_memory, options.max_texts), 1, std::max(1, options.num_threads));
    lanes_ = std::make_unique<ThreadPool>(static_cast<int>(num_lanes));
    for (int64_t lane = 0; lane < num_lanes; ++lane) {
      const auto threads = static_cast<int>((options.num_threads - lane + num_lanes - 1) / num_lanes);
      pools_.push_back(std::make_unique<ThreadPool>(std::max(1, threads)));
      decoders_.push_back(std::make_unique<GradDecoder<float>>(model, *pools_.back(), options.compute));
    }
  }

  int64_t num_lanes() const { return static_cast<int64_t>(decoders_.size()); }
  GradDecoder<float>& first() { return *decoders_.front(); }

  // run(decoder, text_idx) for every text_idx in [0, num_texts). What it throws is thrown here.
  void Run(int64_t num_texts, const std::function<void(GradDecoder<float>&, int64_t)>& run) {
    lanes_->ParallelFor(num_texts, [&](int64_t text, int lane) { run(*decoders_[static_cast<size_t>(lane)], text); });
  }

 private:
  std::unique_ptr<ThreadPool> lanes_;               // a thread for each lane, if the system grants them
  std::vector<std::unique_ptr<ThreadPool>> pools_;  // of each lane
  std::vector<std::unique_ptr<GradDecoder<float>>> decoders_;
};

}  // namespace headwise

#endif  // HEADWISE_PLANNER_GRAD_LANES_H_
