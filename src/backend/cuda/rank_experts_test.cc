// The choice of experts as kernels make it where scores are equal, looked at on the host: that of ChooseExperts.
#include "backend/cuda/rank_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/choose_experts.h"

namespace headwise::cuda {
namespace {

std::vector<int32_t> RankedOf(const std::vector<float>& logits, size_t num) {
  std::vector<RankedExpert> ranked;
  for (size_t i = 0; i < logits.size(); ++i) {
    ranked.push_back({.score = logits[i], .expert = static_cast<int32_t>(i)});
  }
  RankHighest(ranked.data(), static_cast<int>(ranked.size()), static_cast<int>(num));
  std::vector<int32_t> found;
  for (size_t i = 0; i < num; ++i) found.push_back(ranked[i].expert);
  return found;
}

std::vector<int32_t> ChosenOf(const std::vector<float>& logits, size_t num) {
  const std::vector<ExpertWeights> experts(logits.size());
  ExpertsArgs args;
  args.logits = ConstTensorView(logits.data(), DType::kF32, {1, static_cast<int64_t>(logits.size())});
  args.routing.num_chosen = static_cast<int64_t>(num);
  args.experts = experts;
  std::vector<ChosenExpert> chosen(num);
  ChooseExperts(args, 0, chosen);
  std::vector<int32_t> found;
  for (const ChosenExpert& each : chosen) found.push_back(each.expert);
  return found;
}

// From no two that are equal to all of them; some that are no numbers; all ways of choosing, sorted falling and rising
// too, where parting at the middle of three is at its best and its worst.
TEST(RankHighest, ChoosesAsOthersDo) {
  std::mt19937 rng(1);
  for (int i = 0; i < 20000; ++i) {
    const size_t size = 1 + rng() % (i % 10 == 0 ? 700 : 140);
    const size_t num = 1 + rng() % (i % 3 == 0 ? size : std::min<size_t>(size, 10));
    const uint32_t num_values = i % 4 == 0 ? 100000 : 1 + rng() % (2 * size);
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = static_cast<float>(rng() % num_values);
      if (i % 7 == 0 && rng() % 50 == 0) logit = std::numeric_limits<float>::quiet_NaN();
    }
    if (i % 5 == 1) std::sort(logits.begin(), logits.end());
    if (i % 5 == 2) std::sort(logits.rbegin(), logits.rend());
    ASSERT_EQ(RankedOf(logits, num), ChosenOf(logits, num)) << "case " << i << ": " << num << " of " << size;
  }
}

// Numbers that make a range fall apart into one and the rest, again and again, until it is sorted as a heap: of each
// length the order that the partition meets worst, found by letting it decide late which numbers are the larger ones.
TEST(RankHighest, ChoosesAsOthersDoWherePartingGoesBadly) {
  for (const size_t size : {40, 129, 512, 640}) {
    std::vector<float> logits(size);
    for (size_t i = 0; i < size / 2; ++i) {
      logits[i] = -static_cast<float>(i % 2 == 0 ? i + 1 : size / 2 + i + (size / 2) % 2);
      logits[size / 2 + i] = -static_cast<float>(2 * (i + 1));
    }
    for (const size_t num : {size_t{1}, size / 40 + 1, size / 2, size - 1, size}) {
      ASSERT_EQ(RankedOf(logits, num), ChosenOf(logits, num)) << num << " of " << size;
    }
  }
}

}  // namespace
}  // namespace headwise::cuda
