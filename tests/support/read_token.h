// What a cache holds, seen through an operation that every backend has: the mean of one token is that token.
#ifndef HEADWISE_TESTS_SUPPORT_READ_TOKEN_H_
#define HEADWISE_TESTS_SUPPORT_READ_TOKEN_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_cache.h"
#include "support/head_pages.h"

namespace headwise {

// Folds what the one head of `step` says into a mean of its own, on any backend. [2 * D]
inline std::vector<float> FoldedMean(Backend& backend, KvStep step, int64_t head_dim) {
  std::vector<float> state(static_cast<size_t>(2 * head_dim));
  const DeviceBuffer buffer = DeviceBuffer::Make(backend.device(), state.size() * sizeof(float)).value();
  std::byte* const base = buffer.data();
  std::vector<PageSpace> spaces(step.spaces.begin(), step.spaces.end());
  step.states = static_cast<int32_t>(spaces.size());
  spaces.push_back({.layout = {}, .page_bytes = 64, .extent_shift = 0, .extents = {&base, 1}});
  step.spaces = spaces;
  // Whatever the backend knows of tables is of another step.
  std::vector<uint32_t> all(std::max(step.heads.size(), step.pages.size()));
  std::iota(all.begin(), all.end(), 0u);
  step.changed_heads = std::span(all).first(step.heads.size());
  step.changed_pages = std::span(all).first(step.pages.size());
  backend.BeginStep(step);
  CompensateArgs args;
  args.step = &step;
  backend.Compensate(args);
  backend.device().CopyToHost(state.data(), buffer.data(), state.size() * sizeof(float));
  EXPECT_TRUE(backend.device().Wait().ok());
  return state;
}

// Key [D], then value [D] of token `pos` of a head. Requires: its page is there.
inline std::vector<float> ReadToken(Backend& backend, TestHead head, int64_t pos) {
  head.num_rows = 0;
  const HeadsStep heads({&head, 1});
  StepHead one = heads.step().heads.front();
  one.state = 0;
  one.fold_from = pos;
  one.fold_after = head.first_pos - pos - 1;
  KvStep step = heads.step();
  step.heads = {&one, 1};
  return FoldedMean(backend, step, head.layout.head_dim);
}

// The same of a cache, between steps.
inline std::vector<float> ReadToken(Backend& backend, const KvCache& cache, int64_t layer_idx, int64_t kv_head,
                                    int64_t pos) {
  const KvPools& pools = cache.pools();
  StepRows rows = cache.Rows(0);
  StepHead head =
      pools.tables->heads[rows.first_head + static_cast<size_t>(layer_idx * cache.num_kv_heads() + kv_head)];
  head.state = 0;
  head.fold_from = pos;
  head.fold_before = kNoLimit;
  head.fold_after = cache.num_tokens() - pos - 1;
  rows.first_head = 0;
  rows.first_selection = kNoSelections;  // slots are asked for by their number
  std::vector<PageSpace> spaces;
  pools.set->GetSpaces(spaces);
  KvStep step{.num_layers = 1, .num_kv_heads = 1};
  step.sequences = {&rows, 1};
  step.heads = {&head, 1};
  step.pages = pools.tables->pages.entries();
  step.spaces = spaces;
  return FoldedMean(backend, step, cache.head_dim());
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_READ_TOKEN_H_
