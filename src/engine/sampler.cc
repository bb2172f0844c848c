#include "engine/sampler.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "tensor/draw_weight.h"

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
  if (options.temperature > 0 && vocab_size > kMaxDrawIds) {
    return Status::Unsupported(fmt::format("sampling: temperature is {} over {} token ids, expected at most {} ids",
                                           options.temperature, vocab_size, kMaxDrawIds));
  }
  return ValidateBiases(options.logit_bias, vocab_size);
}

int32_t Sampler::Sample(std::span<float> logits, const TokenSet& seen) {
  const TokenDraw draw = Next(seen);
  EditLogits(logits, draw.edits);
  const int32_t id = DrawToken(logits, draw);
  Take(id);
  return id;
}

TokenDraw Sampler::Next(const TokenSet& seen) {
  FillEdits(seen);
  return {.temperature = options_.temperature,
          .top_k = options_.top_k,
          .top_p = options_.top_p,
          .min_p = options_.min_p,
          .word = options_.temperature > 0 ? rng_.Word() : 0,
          .edits = edits_};
}

void Sampler::Take(int32_t id) {
  if (Counts()) ++counts_[id];
}

LogitEdit& Sampler::EditOf(int32_t id) {
  const auto at = static_cast<size_t>(id);
  if (at >= edit_of_.size()) edit_of_.resize(at + 1, -1);
  if (edit_of_[at] < 0) {
    edits_.push_back({.id = id});
    edit_of_[at] = static_cast<int32_t>(edits_.size()) - 1;
  }
  return edits_[static_cast<size_t>(edit_of_[at])];
}

void Sampler::FillEdits(const TokenSet& seen) {
  if (!FollowsText() && (options_.logit_bias.empty() || !edits_.empty())) return;  // they stay as they are
  for (const LogitEdit& edit : edits_) edit_of_[static_cast<size_t>(edit.id)] = -1;
  edits_.clear();
  for (const auto& [id, bias] : options_.logit_bias) EditOf(id).bias = bias;
  if (options_.repetition_penalty != 1) {
    for (const int32_t id : seen.ids()) EditOf(id).penalty = options_.repetition_penalty;
  }
  for (const auto& [id, count] : counts_) {
    EditOf(id).minus = static_cast<float>(count) * options_.frequency_penalty + options_.presence_penalty;
  }
}

}  // namespace headwise
