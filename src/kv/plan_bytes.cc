#include "kv/plan_bytes.h"

#include "kv/kv_bytes.h"

namespace headwise {
namespace {

constexpr int64_t kBytesPerNumber = 2;  // f16

HeadPlan PlanOf(const HeadRule& rule, const ModelShape& shape) {
  HeadPlan one;
  one.shape = shape;
  one.shape.num_layers = one.shape.num_kv_heads = 1;
  one.rules = {rule};
  return one;
}

KvBytes BytesAt(const HeadPlan& plan, int64_t num_tokens, const LayerWindows& windows) {
  const int64_t page_bytes = 2 * kPlanBytesPageTokens * plan.shape.head_dim * kBytesPerNumber;
  const KvBytesArgs args{
      .plan = &plan,
      .limits = {.prompt_tokens = num_tokens, .max_tokens = num_tokens},
      .windows = windows,
      .page_tokens = kPlanBytesPageTokens,
      .full_pages = {.newest = page_bytes},
      .bounded_pages = {.newest = page_bytes},
  };
  return PlanKvBytes(args, num_tokens);
}

}  // namespace

int64_t RuleBytesAt(const HeadRule& rule, const ModelShape& shape, int64_t num_tokens, int64_t layer_window) {
  return PlanBytesAt(PlanOf(rule, shape), num_tokens, {.tokens = {layer_window}});
}

int64_t PlanBytesAt(const HeadPlan& plan, int64_t num_tokens, const LayerWindows& windows) {
  return BytesAt(plan, num_tokens, windows).total();
}

int64_t RuleReadBytesAt(const HeadRule& rule, const ModelShape& shape, int64_t num_tokens) {
  return PlanReadBytesAt(PlanOf(rule, shape), num_tokens, /*windows=*/{});
}

int64_t PlanReadBytesAt(const HeadPlan& plan, int64_t num_tokens, const LayerWindows& windows) {
  return BytesAt(plan, num_tokens, windows).read;
}

}  // namespace headwise
