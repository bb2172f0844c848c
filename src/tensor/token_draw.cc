#include "tensor/token_draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/check.h"
#include "tensor/arg_max.h"
#include "tensor/draw_weight.h"

namespace headwise {
namespace {

// An id in the order of weights.
struct Place {
  uint32_t distance = kNotDrawn;
  int32_t id = 0;

  bool operator<(const Place& other) const {
    return distance != other.distance ? distance < other.distance : id < other.id;
  }
};

// Bins of distances, fine enough that few ids share one with the last that is kept.
constexpr int kBinBits = 16;
constexpr size_t kNumBins = kNotDrawn >> kBinBits;

// The last id of the order that is kept where the ids before it are fewer than `count` and weigh less than `enough`.
// `distances` [V]; those behind `last` are not there.
Place LastKept(std::span<const uint32_t> distances, const Place& last, uint64_t count, uint64_t enough) {
  const auto is_there = [&](size_t id) {
    return distances[id] < kNotDrawn && !(last < Place{distances[id], static_cast<int32_t>(id)});
  };
  std::vector<uint64_t> weights(kNumBins);
  std::vector<uint32_t> counts(kNumBins);
  for (size_t id = 0; id < distances.size(); ++id) {
    if (!is_there(id)) continue;
    weights[distances[id] >> kBinBits] += DrawWeight(distances[id]);
    ++counts[distances[id] >> kBinBits];
  }
  uint64_t num_before = 0;
  uint64_t weight_before = 0;
  size_t bin = 0;
  while (bin < kNumBins && num_before + counts[bin] < count && weight_before + weights[bin] < enough) {
    num_before += counts[bin];
    weight_before += weights[bin];
    ++bin;
  }
  if (bin == kNumBins) return last;
  std::vector<Place> places;
  for (size_t id = 0; id < distances.size(); ++id) {
    if (distances[id] >> kBinBits == bin && is_there(id)) places.push_back({distances[id], static_cast<int32_t>(id)});
  }
  std::sort(places.begin(), places.end());
  for (const Place& place : places) {
    ++num_before;
    weight_before += DrawWeight(place.distance);
    if (num_before >= count || weight_before >= enough) return place;
  }
  return places.back();
}

}  // namespace

DrawLimits LimitsOf(const TokenDraw& draw) {
  DrawLimits limits;
  if (draw.temperature == 0) return limits;
  limits.scale = DrawScale(draw.temperature);
  if (draw.top_k > 0) limits.count = draw.top_k;
  // At least a sliver, as 0 stands for all.
  if (draw.top_p < 1) limits.share = std::max<uint64_t>(1, static_cast<uint64_t>(std::ldexp(double{draw.top_p}, 64)));
  const double least = std::ceil(std::ldexp(double{draw.min_p}, kDrawWeightBits));
  limits.least = std::max<uint64_t>(1, static_cast<uint64_t>(least));
  return limits;
}

void EditLogits(std::span<float> logits, std::span<const LogitEdit> edits) {
  for (const LogitEdit& edit : edits) {
    HW_CHECK(edit.id >= 0 && static_cast<size_t>(edit.id) < logits.size(), "id {} of {}", edit.id, logits.size());
    float& logit = logits[static_cast<size_t>(edit.id)];
    // What is forbidden stays so whatever the bias: infinity and its opposite are no number.
    if (logit == -std::numeric_limits<float>::infinity()) continue;
    logit += edit.bias;
    logit = logit > 0 ? logit / edit.penalty : logit * edit.penalty;
    logit -= edit.minus;
  }
}

int32_t DrawToken(std::span<const float> logits, const TokenDraw& draw) {
  HW_CHECK(!logits.empty());
  const int32_t best = ArgMax(logits);
  const float highest = logits[static_cast<size_t>(best)];
  const DrawLimits limits = LimitsOf(draw);
  // An infinite or NaN maximum has no softmax; the argmax is the limit of one.
  if (limits.scale == 0 || !std::isfinite(highest)) return best;
  HW_CHECK(static_cast<int64_t>(logits.size()) <= kMaxDrawIds, "{} logits", logits.size());

  std::vector<uint32_t> distances(logits.size());
  for (size_t id = 0; id < logits.size(); ++id) distances[id] = DrawDistance(logits[id], highest, limits.scale);
  Place last{kNotDrawn - 1, INT32_MAX};
  const auto weight_of = [&](size_t id) {
    if (last < Place{distances[id], static_cast<int32_t>(id)}) return uint64_t{0};
    const uint64_t weight = DrawWeight(distances[id]);
    return weight < limits.least ? 0 : weight;
  };
  if (limits.count < static_cast<int64_t>(logits.size())) {
    last = LastKept(distances, last, static_cast<uint64_t>(limits.count), UINT64_MAX);
  }
  uint64_t total = 0;
  if (limits.share > 0) {
    for (size_t id = 0; id < logits.size(); ++id) {
      if (!(last < Place{distances[id], static_cast<int32_t>(id)})) total += DrawWeight(distances[id]);
    }
    last = LastKept(distances, last, UINT64_MAX, std::max<uint64_t>(1, DrawShare(total, limits.share)));
  }
  total = 0;
  for (size_t id = 0; id < logits.size(); ++id) total += weight_of(id);
  uint64_t left = DrawShare(total, draw.word);
  for (size_t id = 0;; ++id) {
    const uint64_t weight = weight_of(id);
    if (left < weight) return static_cast<int32_t>(id);
    left -= weight;
  }
}

}  // namespace headwise
