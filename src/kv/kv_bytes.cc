#include "kv/kv_bytes.h"

#include <algorithm>

#include "base/round_up.h"

namespace headwise {
namespace {

// Pages that n consecutive tokens can touch, wherever they start.
int64_t PagesOfRun(int64_t num_tokens, int64_t page_tokens) {
  return num_tokens <= 0 ? 0 : RingPages(num_tokens, /*compensate=*/false, page_tokens);
}

// The most pages a head owns after a step at any length up to num_tokens.
int64_t PagesUpTo(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens, bool holds) {
  const int64_t all = CeilDiv(num_tokens, page_tokens);
  if (rule.SelectsByScore()) return holds ? CeilDiv(NumOwnedSlots(rule, num_tokens), page_tokens) : all;
  const int64_t ring = RingPages(holds ? rule.recent : rule.recent_before, rule.compensate, page_tokens);
  // Before a rule holds, pages of its sinks stay only while the model's window reads them.
  const int64_t sink_pages = holds ? CeilDiv(rule.sink, page_tokens) : 0;
  return std::min(all, sink_pages + ring);
}

int64_t StateBytes(const HeadPlan& plan, const ResolvedRule& rule) {
  return rule.compensate && rule.Bounded() ? StatePageBytes(plan.shape.head_dim) : 0;
}

// Of `total` pages at most `newest` have not aged; these are the larger ones.
PageCounts AtMostNewest(int64_t total, int64_t newest) {
  return {.newest = std::min(total, newest), .aged = std::max<int64_t>(0, total - newest)};
}

// Of a head whose pages take `of_pages`: what the query behind `num_tokens` tokens reads. Where it reads every block it
// does not look at bounds, nor where those that it always reads are as many as it may.
int64_t ReadBytes(const KvBytesArgs& args, const ResolvedRule& rule, int64_t num_tokens, int64_t of_pages) {
  if (!rule.ReadsBlocks()) return of_pages;
  const KvBlockReads& blocks = rule.blocks;
  if (blocks.ReadsAll(num_tokens)) {
    return MultiplySizes(CeilDiv(num_tokens, args.page_tokens), args.full_pages.newest);
  }
  const int64_t bounds_bytes = KeyBoundsBytes(args.plan->shape.head_dim, /*page_tokens=*/16);  // of a block
  const int64_t block_bytes = args.full_pages.newest * blocks.block_tokens / args.page_tokens;
  const int64_t num_looked_at = blocks.most > blocks.newest ? CeilDiv(num_tokens, blocks.block_tokens) : 0;
  return AddSizes(MultiplySizes(blocks.NumRead(num_tokens), block_bytes), MultiplySizes(num_looked_at, bounds_bytes));
}

struct HeadPeak {
  int64_t between_steps = 0;
  int64_t in_step = 0;  // while its layer is computed
};

// At worst while the text grows to num_tokens by steps of up to step_tokens.
HeadPeak PeakOfHead(const KvBytesArgs& args, const ResolvedRule& rule, int64_t num_tokens, int64_t step_tokens,
                    bool holds) {
  const PageSizes sizes = args.PagesOf(rule);
  const int64_t owned = PagesUpTo(rule, num_tokens, args.page_tokens, holds);
  const int64_t joining = PagesOfRun(step_tokens, args.page_tokens);
  const int64_t in_step = std::min(CeilDiv(num_tokens, args.page_tokens), owned + joining);
  // Below the first that ages, the newest complete page and the growing one.
  const PageRange aged = AgedPages(rule, num_tokens, args.page_tokens);
  const int64_t newest = aged.begin + 2;
  HeadPeak peak{.between_steps = sizes.BytesOf(AtMostNewest(owned, newest)),
                .in_step = sizes.BytesOf(AtMostNewest(in_step, newest + joining))};
  // As many pages become complete in a step as it can touch.
  if (sizes.ages()) {
    peak.in_step = AddSizes(peak.in_step, MultiplySizes(std::min(joining, aged.end - aged.begin), sizes.aged));
  }
  return peak;
}

int64_t PeakOfPhase(const KvBytesArgs& args, int64_t num_tokens, int64_t step_tokens, bool in_prompt) {
  const HeadPlan& plan = *args.plan;
  int64_t bytes = 0;
  int64_t largest_layer_extra = 0;
  for (int64_t layer_idx = 0; layer_idx < plan.shape.num_layers; ++layer_idx) {
    int64_t layer_extra = 0;
    for (int64_t kv_head = 0; kv_head < plan.shape.num_kv_heads; ++kv_head) {
      const ResolvedRule rule = ResolveRule(plan.At(layer_idx, kv_head), args.limits, args.windows.At(layer_idx));
      const bool holds = !in_prompt || rule.holds_from == 0;
      const HeadPeak peak = PeakOfHead(args, rule, num_tokens, step_tokens, holds);
      bytes = AddSizes(bytes, AddSizes(peak.between_steps, StateBytes(plan, rule)));
      layer_extra = AddSizes(layer_extra, peak.in_step - peak.between_steps);
    }
    largest_layer_extra = std::max(largest_layer_extra, layer_extra);
  }
  return AddSizes(bytes, largest_layer_extra);
}

}  // namespace

int64_t StatePageBytes(int64_t head_dim) {
  return CeilDiv(2 * head_dim * static_cast<int64_t>(sizeof(float)), 64) * 64;
}

PageCounts KvPages(const ResolvedRule& rule, int64_t num_tokens, int64_t page_tokens) {
  if (rule.SelectsByScore()) return {.newest = CeilDiv(NumOwnedSlots(rule, num_tokens), page_tokens)};
  const PageRange aged = AgedPages(rule, num_tokens, page_tokens);
  const int64_t end = CeilDiv(num_tokens, page_tokens);
  const int64_t sink_end = std::min(end, CeilDiv(rule.sink, page_tokens));
  PageCounts pages;
  int64_t counted = 0;  // sink pages below this index are counted
  for (const TokenRange& range : KeptRanges(rule, num_tokens)) {
    const int64_t first = std::max(counted, range.begin / page_tokens);
    counted = std::max(counted, std::min(sink_end, CeilDiv(range.end, page_tokens)));
    pages.newest += std::max<int64_t>(0, counted - first);
  }
  const int64_t recent = num_tokens < rule.holds_from ? rule.recent_before : rule.recent;
  const int64_t ring_begin =
      std::max(CeilDiv(rule.sink, page_tokens), end - RingPages(recent, rule.compensate, page_tokens));
  const int64_t num_ring = std::max<int64_t>(0, end - ring_begin);
  const int64_t num_aged = std::max<int64_t>(0, std::min(end, aged.end) - std::max(ring_begin, aged.begin));
  pages.aged += num_aged;
  pages.newest += num_ring - num_aged;
  return pages;
}

PageSizes PageSizesOf(const Backend& backend, const KvLayout& layout) {
  const auto bytes_in = [&](KvFormat format) {
    KvLayout page = layout;
    page.format = format;
    return static_cast<int64_t>(backend.PageBytes(page));
  };
  const KvFormat newest = NewestFormat(layout.format);
  return {.newest = bytes_in(newest), .aged = newest == layout.format ? 0 : bytes_in(layout.format)};
}

KvBytes PlanKvBytes(const KvBytesArgs& args, int64_t num_tokens) {
  const HeadPlan& plan = *args.plan;
  KvBytes bytes;
  for (const ResolvedRule& rule : ResolveRules(plan, args.limits, args.windows)) {
    int64_t& sum = rule.Bounded() ? bytes.bounded : bytes.full;
    const int64_t of_pages = args.PagesOf(rule).BytesOf(KvPages(rule, num_tokens, args.page_tokens));
    sum = AddSizes(sum, AddSizes(of_pages, StateBytes(plan, rule)));
    bytes.read = AddSizes(bytes.read, AddSizes(ReadBytes(args, rule, num_tokens, of_pages), StateBytes(plan, rule)));
    bytes.kept_tokens = AddSizes(bytes.kept_tokens, NumKeptTokens(rule, num_tokens));
  }
  return bytes;
}

int64_t PeakKvBytes(const KvBytesArgs& args) {
  const int64_t all = args.limits.max_tokens;
  const int64_t most_tokens = args.most_tokens > 0 ? std::min(args.most_tokens, all) : all;
  const int64_t prompt_tokens = std::min(args.limits.prompt_tokens, most_tokens);
  return std::max(PeakOfPhase(args, prompt_tokens, std::min(args.chunk_tokens, prompt_tokens), /*in_prompt=*/true),
                  PeakOfPhase(args, most_tokens, std::min(args.chunk_tokens, most_tokens), /*in_prompt=*/false));
}

int64_t TokensThatFit(KvBytesArgs args, int64_t bytes, int64_t most_tokens) {
  args.most_tokens = 0;
  int64_t fits = 0;
  int64_t too_many = most_tokens + 1;
  while (too_many - fits > 1) {
    const int64_t tokens = fits + (too_many - fits) / 2;
    args.limits = {.prompt_tokens = tokens, .max_tokens = tokens};
    (PeakKvBytes(args) <= bytes ? fits : too_many) = tokens;
  }
  return fits;
}

}  // namespace headwise
