// What rules and plans cost, in bytes that can be compared across plans: those of the cpu backend's default cache, f16
// in pages of 32 tokens, whatever format a plan then runs in. Other formats scale all plans alike; only q4, whose
// newest pages are q8, favours heads that keep much.
#ifndef HEADWISE_KV_PLAN_BYTES_H_
#define HEADWISE_KV_PLAN_BYTES_H_

#include <headwise/head_plan.h>

#include <cstdint>

#include "kv/layer_windows.h"
#include "kv/rule.h"

namespace headwise {

inline constexpr int64_t kPlanBytesPageTokens = 32;

// One KV head's or one plan's bytes once a prompt of `num_tokens` is in. `layer_window`: the model's own in the head's
// layer, kNoLimit where it has none.
int64_t RuleBytesAt(const HeadRule& rule, const ModelShape& shape, int64_t num_tokens, int64_t layer_window);
int64_t PlanBytesAt(const HeadPlan& plan, int64_t num_tokens, const LayerWindows& windows);

// Of these what the query of the next token reads (KvBytes::read): all, but of heads that read blocks.
int64_t RuleReadBytesAt(const HeadRule& rule, const ModelShape& shape, int64_t num_tokens);
int64_t PlanReadBytesAt(const HeadPlan& plan, int64_t num_tokens, const LayerWindows& windows);

}  // namespace headwise

#endif  // HEADWISE_KV_PLAN_BYTES_H_
