// Operations on the KV cache: attention of one query and of a chunk, appending, ageing, the compensation token. One
// layer's heads at a time, one layer after the other.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "backend/kv_format.h"
#include "bench/op_data.h"
#include "bench/op_method.h"

namespace headwise {
namespace {

std::string HeadsText(const ResolvedRule& rule) {
  if (!rule.Bounded()) return "full";
  return fmt::format("{}+{}", rule.sink, rule.recent);
}

std::string ShapeText(const ModelConfig& config) {
  return fmt::format("{}/{} heads of {}", config.num_q_heads, config.num_kv_heads, config.head_dim);
}

int64_t QDim(const ModelConfig& config) {
  return config.num_q_heads * config.head_dim;
}

bool Ages(KvFormat format) {
  return NewestFormat(format) != format;
}

// In the numbers that a query's products with cached keys are computed in.
Compute DecodeNumbers(KvFormat format) {
  return format == KvFormat::kBF16               ? Compute::kBF16
         : NewestFormat(format) == KvFormat::kQ8 ? Compute::kInt8
                                                 : Compute::kF32;
}

KvLayout LayoutOf(const OpRun& run, KvFormat format) {
  const Result<int64_t> page_tokens = PageTokensFor(run.options().page_tokens, format);
  HW_CHECK(page_tokens.ok(), "{}", page_tokens.status().message());
  return {.head_dim = run.config().head_dim, .page_tokens = *page_tokens, .format = format};
}

// Pages of so many layers that a call finds its own in memory.
Result<RandomPages> PagesOf(const OpRun& run, const KvLayout& layout, const ResolvedRule& rule, int64_t depth,
                            int64_t num_rows) {
  const ModelConfig& config = run.config();
  const int64_t depth_kept = std::min(depth + num_rows, rule.Bounded() ? rule.sink + rule.recent + num_rows : kNoLimit);
  const auto kv_bytes = static_cast<int64_t>(BytesPerToken(layout) *
                                             static_cast<double>(config.num_layers * config.num_kv_heads * depth_kept));
  const RandomPages::Wanted wanted = {
      .layout = layout, .rule = rule, .num_kv_heads = config.num_kv_heads, .first_pos = depth, .num_rows = num_rows};
  return RandomPages::Make(run.backend(), wanted, run.CycleBytes(run.WeightFormats().front(), kv_bytes),
                           run.options().seed);
}

std::vector<std::vector<HeadWork>> WorkOfLayers(const RandomPages& pages, int64_t num_rows) {
  std::vector<std::vector<HeadWork>> work;
  for (int64_t layer_idx = 0; layer_idx < pages.num_layers(); ++layer_idx) {
    work.push_back(pages.Work(layer_idx, num_rows));
  }
  return work;
}

// One line: `num_rows` queries of one sequence.
void MeasureAttention(const OpRun& run, const RandomPages& pages, OpPoint point, Compute compute) {
  const ModelConfig& config = run.config();
  const RandomTensor q(run.backend(), {point.rows, QDim(config)}, run.options().seed);
  const RandomTensor out(run.backend(), {point.rows, QDim(config)}, run.options().seed);
  const std::vector<std::vector<HeadWork>> work = WorkOfLayers(pages, point.rows);
  const ConstTensorView slopes = run.subject().model == nullptr ? ConstTensorView{} : run.subject().model->alibi_slopes;
  OpCase op_case;
  op_case.point = std::move(point);
  op_case.point.cycled_bytes = pages.bytes() + q.view().size_bytes() + out.view().size_bytes();
  op_case.call = [&](int64_t call_idx) {
    run.backend().Attention({.q = q.view(),
                             .q_sink = {},
                             .out = out.view(),
                             .lse = {},
                             .alibi_slopes = slopes,
                             .sink_logits = {},
                             .heads = work[static_cast<size_t>(call_idx) % work.size()],
                             .num_q_heads = config.num_q_heads,
                             .num_kv_heads = config.num_kv_heads,
                             .scale = static_cast<float>(config.softmax_scale),
                             .compute = compute});
  };
  run.Measure(op_case);
}

// One row is a step of decoding.
std::vector<int64_t> ChunkRows(const OpRun& run) {
  std::vector<int64_t> rows;
  std::ranges::copy_if(run.options().rows, std::back_inserter(rows), [](int64_t num_rows) { return num_rows > 1; });
  return rows;
}

// Every format, depth and number of rows.
Status TimeAttention(const OpRun& run, const std::vector<int64_t>& rows) {
  HW_ASSIGN_OR_RETURN(const Compute compute, run.AttentionCompute());
  const int64_t most_rows = *std::ranges::max_element(rows);
  for (const KvFormat format : run.options().kv_formats) {
    for (const int64_t depth : run.options().depths) {
      const ResolvedRule rule = run.Rule(run.options().rule, depth);
      HW_ASSIGN_OR_RETURN(const RandomPages pages, PagesOf(run, LayoutOf(run, format), rule, depth, most_rows));
      for (const int64_t num_rows : rows) {
        // A chunk's keys are converted for tiles of products in f32 or bf16, whatever the cache holds.
        const Compute chunk = compute == Compute::kF32 ? Compute::kF32 : Compute::kBF16;
        MeasureAttention(run, pages,
                         {.shape = ShapeText(run.config()),
                          .format = std::string(NameOf(format)),
                          .heads = HeadsText(rule),
                          .rows = num_rows,
                          .depth = depth,
                          .work = AttentionWork(run.config(), rule, LayoutOf(run, format), depth, num_rows),
                          .numbers = num_rows == 1 ? DecodeNumbers(format) : chunk},
                         compute);
      }
    }
  }
  return Status::Ok();
}

// The rule that `compensate` runs under: the one that was asked for, or a fifth of the text as in [razor §3.3].
HeadRule CompensatedRule(const OpRun& run) {
  HeadRule rule = run.options().rule;
  if (rule.kind == HeadRule::Kind::kFull) {
    rule = {.kind = HeadRule::Kind::kElasticRazor, .sink = 4, .min_recent = 16, .divisor = 5};
  }
  rule.compensate = true;
  return rule;
}

bool HasDropped(const ResolvedRule& rule, int64_t depth) {
  return depth > rule.sink + rule.recent;
}

// One line.
void MeasureCompensate(const OpRun& run, const RandomPages& pages, const ResolvedRule& rule, OpPoint point) {
  const ModelConfig& config = run.config();
  const int64_t depth = *point.depth;
  const int64_t num_rows = point.rows;
  const TokenRange before = FoldedRange(rule, depth);
  const TokenRange after = FoldedRange(rule, depth + num_rows);
  const RandomTensor states(run.backend(), {pages.num_layers() * config.num_kv_heads, 2 * config.head_dim},
                            run.options().seed);
  std::vector<std::vector<HeadFold>> folds;
  auto* state = static_cast<float*>(states.view().data);
  for (const std::vector<HeadWork>& layer : WorkOfLayers(pages, num_rows)) {
    std::vector<HeadFold>& heads = folds.emplace_back();
    for (const HeadWork& work : layer) {
      heads.push_back({.work = work, .state = state, .num_folded = before.end - before.begin, .fold_end = after.end});
      state += 2 * config.head_dim;
    }
  }
  const RandomTensor q(run.backend(), {num_rows, QDim(config)}, run.options().seed);
  const RandomTensor out(run.backend(), {num_rows, QDim(config)}, run.options().seed);
  const RandomTensor lse(run.backend(), {num_rows, config.num_q_heads}, run.options().seed);
  OpCase op_case;
  op_case.point = std::move(point);
  op_case.point.cycled_bytes = pages.bytes() + states.view().size_bytes() + 2 * q.view().size_bytes();
  op_case.call = [&](int64_t call_idx) {
    run.backend().Compensate({.q = q.view(),
                              .out = out.view(),
                              .lse = lse.view(),
                              .alibi_slopes = {},
                              .heads = folds[static_cast<size_t>(call_idx) % folds.size()],
                              .num_q_heads = config.num_q_heads,
                              .num_kv_heads = config.num_kv_heads,
                              .scale = static_cast<float>(config.softmax_scale)});
  };
  run.Measure(op_case);
}

}  // namespace

Status TimeAttentionDecode(const OpRun& run) {
  return TimeAttention(run, {1});
}

Status CheckAttentionPrefill(const OpRun& run) {
  if (!ChunkRows(run).empty()) return Status::Ok();
  return Status::InvalidInput("a chunk has 2 rows or more; one row is attention-decode");
}

Status TimeAttentionPrefill(const OpRun& run) {
  const std::vector<int64_t> rows = ChunkRows(run);
  return rows.empty() ? Status::Ok() : TimeAttention(run, rows);
}

Status TimeAppend(const OpRun& run) {
  const ModelConfig& config = run.config();
  // Only the pages that are written to: how long the text before is does not matter.
  ResolvedRule rule;
  rule.recent = 1;
  for (const KvFormat format : run.options().kv_formats) {
    for (const int64_t num_rows : run.options().rows) {
      HW_ASSIGN_OR_RETURN(const RandomPages pages, PagesOf(run, LayoutOf(run, format), rule, 0, num_rows));
      const std::vector<std::vector<HeadWork>> work = WorkOfLayers(pages, num_rows);
      const Shape shape{num_rows, config.num_kv_heads * config.head_dim};
      const RandomTensor k(run.backend(), shape, run.options().seed);
      const RandomTensor v(run.backend(), shape, run.options().seed + 1);
      OpCase op_case;
      op_case.point = {.shape = fmt::format("{} heads of {}", config.num_kv_heads, config.head_dim),
                       .format = std::string(NameOf(format)),
                       .rows = num_rows,
                       .work = AppendWork(config, LayoutOf(run, format), num_rows),
                       .cycled_bytes = pages.bytes() + 2 * k.view().size_bytes()};
      op_case.call = [&](int64_t call_idx) {
        const std::vector<HeadWork>& heads = work[static_cast<size_t>(call_idx) % work.size()];
        run.backend().AppendKv({.k = k.view(), .v = v.view(), .heads = heads});
      };
      run.Measure(op_case);
    }
  }
  return Status::Ok();
}

Status CheckAge(const OpRun& run) {
  if (std::ranges::any_of(run.options().kv_formats, Ages)) return Status::Ok();
  return Status::InvalidInput("no format of --kv-dtype ages; q4 does");
}

Status TimeAge(const OpRun& run) {
  const ModelConfig& config = run.config();
  for (const KvFormat format : run.options().kv_formats) {
    if (!Ages(format)) continue;
    const KvLayout layout = LayoutOf(run, format);
    KvLayout newest = layout;
    newest.format = NewestFormat(format);
    // A step of a few tokens completes a page now and then.
    std::set<int64_t> page_counts;
    for (const int64_t num_rows : run.options().rows) {
      page_counts.insert(std::max<int64_t>(1, num_rows / layout.page_tokens));
    }
    const int64_t aged_bytes = PageSizesOf(run.backend(), layout).aged;
    for (const int64_t num_pages : page_counts) {
      const int64_t num_tokens = num_pages * layout.page_tokens;
      HW_ASSIGN_OR_RETURN(const RandomPages pages, PagesOf(run, newest, {}, 0, num_tokens));
      const int64_t call_pages = num_pages * config.num_kv_heads;
      const DeviceBuffer aged(run.backend(), static_cast<size_t>(pages.num_layers() * call_pages * aged_bytes));
      // Of every layer.
      std::vector<std::vector<const std::byte*>> from;
      std::vector<std::vector<std::byte*>> to;
      for (const std::vector<HeadWork>& layer : WorkOfLayers(pages, num_tokens)) {
        std::byte* next = aged.data() + static_cast<int64_t>(from.size()) * call_pages * aged_bytes;
        from.emplace_back();
        to.emplace_back();
        for (const HeadWork& work : layer) {
          from.back().insert(from.back().end(), work.pages.recent.begin(), work.pages.recent.end());
        }
        for (int64_t i = 0; i < call_pages; ++i) to.back().push_back(next + i * aged_bytes);
      }
      OpCase op_case;
      op_case.point = {.shape = fmt::format("{} heads of {}", config.num_kv_heads, config.head_dim),
                       .format = std::string(NameOf(format)),
                       .rows = num_tokens,
                       .work = AgeWork(config, layout, num_pages),
                       .cycled_bytes = pages.bytes() + static_cast<int64_t>(from.size()) * call_pages * aged_bytes};
      op_case.call = [&](int64_t call_idx) {
        const size_t layer_idx = static_cast<size_t>(call_idx) % from.size();
        run.backend().AgeKv({.layout = newest, .from = from[layer_idx], .to = to[layer_idx]});
      };
      run.Measure(op_case);
    }
  }
  return Status::Ok();
}

Status CheckCompensate(const OpRun& run) {
  for (const int64_t depth : run.options().depths) {
    const ResolvedRule rule = run.Rule(CompensatedRule(run), depth);
    if (HasDropped(rule, depth)) continue;
    return Status::InvalidInput(
        fmt::format("a head that keeps {} has dropped nothing at depth {}", HeadsText(rule), depth));
  }
  return Status::Ok();
}

Status TimeCompensate(const OpRun& run) {
  const int64_t most_rows = *std::ranges::max_element(run.options().rows);
  for (const KvFormat format : run.options().kv_formats) {
    for (const int64_t depth : run.options().depths) {
      const ResolvedRule rule = run.Rule(CompensatedRule(run), depth);
      if (!HasDropped(rule, depth)) continue;
      HW_ASSIGN_OR_RETURN(const RandomPages pages, PagesOf(run, LayoutOf(run, format), rule, depth, most_rows));
      for (const int64_t num_rows : run.options().rows) {
        MeasureCompensate(run, pages, rule,
                          {.shape = ShapeText(run.config()),
                           .format = std::string(NameOf(format)),
                           .heads = HeadsText(rule),
                           .rows = num_rows,
                           .depth = depth,
                           .work = CompensateWork(run.config(), rule, LayoutOf(run, format), depth, num_rows)});
      }
    }
  }
  return Status::Ok();
}

}  // namespace headwise
