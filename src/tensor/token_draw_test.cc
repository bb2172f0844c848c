#include "tensor/token_draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tensor/draw_weight.h"

namespace headwise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(DrawWeight, IsAPowerOfTwo) {
  EXPECT_EQ(DrawWeight(0), uint64_t{1} << kDrawWeightBits);
  EXPECT_EQ(DrawWeight(kNotDrawn), 0U);
  EXPECT_EQ(DrawWeight(UINT32_MAX), 0U);
  EXPECT_GE(DrawWeight(kNotDrawn - 1), 1U);
  std::mt19937 rng(1);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t distance = rng() % kNotDrawn;
    const double expected = std::exp2(kDrawWeightBits - std::ldexp(distance, -kDrawDistanceBits));
    const auto weight = static_cast<double>(DrawWeight(distance));
    ASSERT_LE(weight, expected * (1 + 3e-7)) << distance;
    ASSERT_GE(weight, expected * (1 - 3e-7) - 1) << distance;
  }
}

TEST(DrawWeight, DistancesOfWhatIsFar) {
  EXPECT_EQ(DrawDistance(3, 3, 1), 0U);
  EXPECT_EQ(DrawDistance(2, 3, 1), 1U << kDrawDistanceBits);
  EXPECT_EQ(DrawDistance(-kInf, 3, 1), kNotDrawn);
  EXPECT_EQ(DrawDistance(std::nanf(""), 3, 1), kNotDrawn);
  EXPECT_EQ(DrawDistance(-1e30F, 3, 1), kNotDrawn);
  EXPECT_EQ(DrawDistance(3, 3, kInf), 0U);  // of a temperature near 0 the highest is left
  EXPECT_EQ(DrawDistance(2.9F, 3, kInf), kNotDrawn);
  EXPECT_EQ(DrawDistance(2, 3, 0), 0U);  // of a huge one all are alike
}

TEST(DrawShare, IsTheHighHalfOfAProduct) {
  std::mt19937_64 rng(2);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t a = i % 3 == 0 ? UINT64_MAX - rng() % 3 : rng() >> rng() % 64;
    const uint64_t b = i % 5 == 0 ? UINT64_MAX - rng() % 3 : rng() >> rng() % 64;
    ASSERT_EQ(DrawShare(a, b), static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64));
  }
}

// The definition once more, by sorting, in numbers of 128 bits.
int32_t DrawBySorting(const std::vector<float>& logits, const TokenDraw& draw) {
  const auto best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float scale = DrawScale(draw.temperature);
  std::vector<uint64_t> weights;
  for (const float logit : logits) weights.push_back(DrawWeight(DrawDistance(logit, logits[best], scale)));
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  // Distances, not weights: of two that share one the nearer comes first.
  const auto distance = [&](int32_t id) { return DrawDistance(logits[static_cast<size_t>(id)], logits[best], scale); };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return distance(a) < distance(b); });
  std::erase_if(order, [&](int32_t id) { return weights[static_cast<size_t>(id)] == 0; });
  if (draw.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(draw.top_k)));
  const auto sum = [&] {
    unsigned __int128 total = 0;
    for (const int32_t id : order) total += weights[static_cast<size_t>(id)];
    return total;
  };
  if (draw.top_p < 1) {
    const auto share = static_cast<uint64_t>(std::ldexp(double{draw.top_p}, 64));
    const auto enough = std::max<uint64_t>(1, static_cast<uint64_t>((sum() * share) >> 64));
    uint64_t so_far = 0;
    size_t num = 0;
    while (so_far < enough) so_far += weights[static_cast<size_t>(order[num++])];
    order.resize(num);
  }
  const double least = std::ldexp(double{draw.min_p}, kDrawWeightBits);
  std::erase_if(order, [&](int32_t id) { return static_cast<double>(weights[static_cast<size_t>(id)]) < least; });
  std::sort(order.begin(), order.end());
  auto left = static_cast<uint64_t>((sum() * draw.word) >> 64);
  for (const int32_t id : order) {
    if (left < weights[static_cast<size_t>(id)]) return id;
    left -= weights[static_cast<size_t>(id)];
  }
  return -1;
}

TEST(DrawToken, IsTheDefinition) {
  std::mt19937_64 rng(3);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(1 + rng() % (round % 10 == 0 ? 5000 : 60));
    const float spread = std::exp2(static_cast<float>(rng() % 8) - 2);
    for (float& logit : logits) logit = spread * normal(rng);
    // Ties, and what weighs nothing.
    for (float& logit : logits) {
      if (round % 3 == 0) logit = std::round(logit);
      if (round % 7 == 0 && rng() % 4 == 0) logit = -kInf;
    }
    logits[rng() % logits.size()] = 1;
    TokenDraw draw{.temperature = std::exp2(static_cast<float>(rng() % 9) - 5), .word = rng()};
    if (rng() % 2 == 0) draw.top_k = static_cast<int64_t>(1 + rng() % (logits.size() + 3));
    if (rng() % 2 == 0) draw.top_p = static_cast<float>(1 + rng() % 1000) / 1001;
    if (rng() % 3 == 0) draw.min_p = static_cast<float>(rng() % 1001) / 1000;
    ASSERT_EQ(DrawToken(logits, draw), DrawBySorting(logits, draw)) << "round " << round;
  }
}

TEST(EditLogits, WhatIsForbiddenStaysSo) {
  std::vector<float> logits{-kInf, -kInf, 1, 2, -1};
  const std::vector<LogitEdit> edits{{.id = 0, .bias = kInf},
                                     {.id = 1, .bias = 5, .penalty = 2, .minus = 1},
                                     {.id = 2, .bias = kInf},
                                     {.id = 3, .bias = -1, .penalty = 2, .minus = 0.25F},
                                     {.id = 4, .penalty = 2}};
  EditLogits(logits, edits);
  EXPECT_EQ(logits, (std::vector<float>{-kInf, -kInf, kInf, 0.25F, -2}));
}

TEST(DrawToken, TheEndsOfTheWord) {
  const std::vector<float> logits = {1, 1, 1, 1};
  EXPECT_EQ(DrawToken(logits, {.temperature = 1, .word = 0}), 0);
  EXPECT_EQ(DrawToken(logits, {.temperature = 1, .word = UINT64_MAX}), 3);
  EXPECT_EQ(DrawToken(logits, {.temperature = 1, .word = uint64_t{1} << 63}), 2);
  EXPECT_EQ(DrawToken(logits, {.temperature = 1, .word = (uint64_t{1} << 63) - 1}), 1);
}

}  // namespace
}  // namespace headwise
