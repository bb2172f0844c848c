#include "engine/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "tensor/arg_max.h"

namespace headwise {
namespace {

template <typename Number>
Status OutOfRange(const char* name, Number found, const char* expected) {
  return Status::InvalidInput(fmt::format("sampling: {} is {}, expected {}", name, found, expected));
}

Status ValidateBiases(const std::vector<LogitBias>& biases, int64_t vocab_size) {
  std::set<int32_t> ids;
  int64_t num_forbidden = 0;
  for (const auto& [id, bias] : biases) {
    if (id < 0 || id >= vocab_size) {
      return Status::InvalidInput(
          fmt::format("sampling: logit_bias: token id {}, expected 0 to {}", id, vocab_size - 1));
    }
    if (std::isnan(bias)) {
      return Status::InvalidInput(fmt::format("sampling: logit_bias of token {} is {}, expected a number", id, bias));
    }
    if (!ids.insert(id).second) {
      return Status::InvalidInput(fmt::format("sampling: logit_bias of token {} is given twice, expected once", id));
    }
    if (bias == -std::numeric_limits<float>::infinity()) ++num_forbidden;
  }
  if (num_forbidden == 0 || num_forbidden < vocab_size) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("sampling: logit_bias forbids all {} tokens, expected one that is left", vocab_size));
}

}  // namespace

Status ValidateSampling(const SamplingOptions& options, int64_t vocab_size) {
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    return OutOfRange("temperature", options.temperature, "a finite number >= 0");
  }
  if (options.top_k < 0) {
    return OutOfRange("top_k", options.top_k, "a whole number >= 0 (0: off)");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return OutOfRange("top_p", options.top_p, "a number above 0 and at most 1 (1: off)");
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    return OutOfRange("min_p", options.min_p, "a number from 0 (off) to 1");
  }
  if (!std::isfinite(options.repetition_penalty) || options.repetition_penalty <= 0) {
    return OutOfRange("repetition_penalty", options.repetition_penalty, "a finite number above 0 (1: off)");
  }
  for (const auto& [name, penalty] : {std::pair("frequency_penalty", options.frequency_penalty),
                                      std::pair("presence_penalty", options.presence_penalty)}) {
    if (!(penalty >= -2 && penalty <= 2)) return OutOfRange(name, penalty, "a number from -2 to 2 (0: off)");
  }
  return ValidateBiases(options.logit_bias, vocab_size);
}

int32_t Sampler::Sample(std::span<float> logits, const TokenSet& seen) {
  HW_CHECK(!logits.empty());
  for (const auto& [id, bias] : options_.logit_bias) logits[static_cast<size_t>(id)] += bias;
  if (options_.repetition_penalty != 1) PenaliseSeen(logits, seen);
  const bool counts = options_.frequency_penalty != 0 || options_.presence_penalty != 0;
  if (counts) PenaliseGenerated(logits);
  const int32_t id = Choose(logits);
  if (counts) ++counts_[id];
  return id;
}

bool Sampler::TakesHighest() const {
  return options_.temperature == 0 && options_.repetition_penalty == 1 && options_.frequency_penalty == 0 &&
         options_.presence_penalty == 0 && options_.logit_bias.empty();
}

int32_t Sampler::Choose(std::span<const float> logits) {
  const int32_t best = ArgMax(logits);
  const float highest = logits[static_cast<size_t>(best)];
  // An infinite or NaN maximum has no softmax; the argmax is the limit of one.
  if (options_.temperature == 0 || !std::isfinite(highest)) return best;

  CollectCandidates(logits, highest);
  if (options_.top_p < 1) KeepTopP();
  // min-p is relative to the best token, whose weight is 1 by construction.
  if (options_.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < options_.min_p; });
  }
  return Draw();
}

void Sampler::PenaliseSeen(std::span<float> logits, const TokenSet& seen) const {
  for (const int32_t id : seen.ids()) {
    HW_CHECK(static_cast<size_t>(id) < logits.size(), "id {} of {}", id, logits.size());
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
  }
}

void Sampler::PenaliseGenerated(std::span<float> logits) const {
  for (const auto& [id, count] : counts_) {
    logits[static_cast<size_t>(id)] -=
        static_cast<float>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
}

void Sampler::CollectCandidates(std::span<const float> logits, float highest) {
  candidates_.clear();
  candidates_.reserve(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) {
    const double weight = std::exp((static_cast<double>(logits[id]) - highest) / options_.temperature);
    if (weight > 0) candidates_.push_back({weight, static_cast<int32_t>(id)});
  }
  const auto top_k = static_cast<size_t>(options_.top_k);
  if (top_k == 0 || top_k >= candidates_.size()) return;
  // Exactly k stay; of equal ones the lowest ids, so that the set does not depend on the library's partition.
  std::nth_element(
      candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(top_k), candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return a.weight != b.weight ? a.weight > b.weight : a.id < b.id; });
  candidates_.resize(top_k);
  // The partition leaves them in an order of its own; the draw must not depend on that.
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

// The smallest set of the most likely tokens whose probability reaches top_p. A heap, because the set is small against
// the vocabulary.
void Sampler::KeepTopP() {
  const auto is_less_likely = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
  };
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double enough = total * options_.top_p;

  std::make_heap(candidates_.begin(), candidates_.end(), is_less_likely);
  double sum = 0;
  auto heap_end = candidates_.end();
  while (heap_end != candidates_.begin() && sum < enough) {
    std::pop_heap(candidates_.begin(), heap_end, is_less_likely);
    --heap_end;
    sum += heap_end->weight;
  }
  candidates_.erase(candidates_.begin(), heap_end);
  std::reverse(candidates_.begin(), candidates_.end());  // most likely first
}

int32_t Sampler::Draw() {
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double left = rng_.Uniform() * total;
  for (const Candidate& candidate : candidates_) {
    left -= candidate.weight;
    if (left < 0) return candidate.id;
  }
  return candidates_.back().id;  // rounding ate the last sliver
}

}  // namespace headwise
