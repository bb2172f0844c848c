#include "kv/kv_bytes.h"

#include <algorithm>

namespace headwise {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Pages that n consecutive tokens can touch, wherever they start.
int64_t PagesOfRun(int64_t num_tokens, int64_t page_tokens) {
  return num_tokens <= 0 ? 0 : CeilDiv(num_tokens - 1, page_tokens) + 1;
}

// The most pages a head owns after a step at any length up to num_tokens.
int64_t PagesUpTo(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens, bool holds) {
  const int64_t all = CeilDiv(num_tokens, page_tokens);
  const int64_t recent = holds ? rule.recent : rule.recent_before;
  const int64_t sink = holds ? rule.sink : 0;
  if (recent >= num_tokens) return all;
  return std::min(all, CeilDiv(sink, page_tokens) + PagesOfRun(recent, page_tokens));
}

int64_t StateBytes(const HeadPlan& plan, const ResolvedRule& rule) {
  return rule.compensate && rule.Bounded() ? 2 * plan.shape.head_dim * 4 : 0;
}

// Bytes at worst while the text grows to num_tokens by steps of up to step_tokens.
int64_t PeakOfPhase(const KvBytesArgs& args, int64_t num_tokens, int64_t step_tokens, bool in_prompt) {
  const HeadPlan& plan = *args.plan;
  int64_t bytes = 0;
  int64_t largest_layer_extra = 0;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    int64_t layer_extra = 0;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const ResolvedRule rule = ResolveRule(plan.At(layer_idx, kv_head), args.limits);
      const bool holds = !in_prompt || rule.holds_from == 0;
      const int64_t owned = PagesUpTo(rule, num_tokens, args.page_tokens, holds);
      bytes += owned * args.PageBytesOf(rule) + StateBytes(plan, rule);
      const int64_t all = CeilDiv(num_tokens, args.page_tokens);
      layer_extra += std::min(all - owned, PagesOfRun(step_tokens, args.page_tokens)) * args.PageBytesOf(rule);
    }
    largest_layer_extra = std::max(largest_layer_extra, layer_extra);
  }
  return bytes + largest_layer_extra;
}

}  // namespace

int64_t KvPages(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens) {
  int64_t pages = 0;
  int64_t counted = 0;  // pages below this index are counted
  for (const TokenRange& range : KeptRanges(rule, num_tokens)) {
    const int64_t first = std::max(counted, range.begin / page_tokens);
    const int64_t end = CeilDiv(range.end, page_tokens);
    pages += std::max<int64_t>(0, end - first);
    counted = std::max(counted, end);
  }
  return pages;
}

KvBytes PlanKvBytes(const KvBytesArgs& args, int64_t num_tokens) {
  const HeadPlan& plan = *args.plan;
  KvBytes bytes;
  for (const HeadRule& head_rule : plan.rules) {
    const ResolvedRule rule = ResolveRule(head_rule, args.limits);
    int64_t& sum = rule.Bounded() ? bytes.bounded : bytes.full;
    sum += KvPages(rule, num_tokens, args.page_tokens) * args.PageBytesOf(rule) + StateBytes(plan, rule);
    bytes.kept_tokens += NumKeptTokens(rule, num_tokens);
  }
  return bytes;
}

int64_t PeakKvBytes(const KvBytesArgs& args) {
  const int64_t prompt_tokens = std::min(args.limits.prompt_tokens, args.limits.max_tokens);
  return std::max(PeakOfPhase(args, prompt_tokens, std::min(args.chunk_tokens, prompt_tokens), /*in_prompt=*/true),
                  PeakOfPhase(args, args.limits.max_tokens, std::min(args.chunk_tokens, args.limits.max_tokens),
                              /*in_prompt=*/false));
}

}  // namespace headwise
