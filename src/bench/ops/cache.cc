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
// "full", or of several "4 full, 4 of 64+256".
std::string HeadsText(const std::vector<ResolvedRule>& rules) {
  std::string text;
  size_t end = 0;
  for (size_t begin = 0; begin < rules.size(); begin = end) {
    const std::string heads = HeadsText(rules[begin]);
    while (end < rules.size() && HeadsText(rules[end]) == heads) ++end;
    if (end - begin == rules.size()) return heads;
    text += fmt::format("{}{} {}{}", begin == 0 ? "" : ", ", end - begin, rules[begin].Bounded() ? "of " : "", heads);
  }
  return text;
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

// Pages of so many layers that a call finds its own in memory. `rules`: [Hkv].
Result<RandomPages> PagesOf(const OpRun& run, const KvLayout& layout, const std::vector<ResolvedRule>& rules,
                            int64_t depth, int64_t num_rows) {
  int64_t tokens_kept = 0;
  for (const ResolvedRule& rule : rules) {
    tokens_kept += std::min(depth + num_rows, rule.Bounded() ? rule.sink + rule.recent + num_rows : kNoLimit);
  }
  const auto kv_bytes =
      static_cast<int64_t>(BytesPerToken(layout) * static_cast<double>(run.config().num_layers * tokens_kept));
  const RandomPages::Wanted wanted = {.layout = layout, .rules = rules, .first_pos = depth, .num_rows = num_rows};
  return RandomPages::Make(run.backend(), wanted, run.CycleBytes(run.WeightFormats().front(), kv_bytes),
                           run.options().seed);
}
// The same rule for every head.
Result<RandomPages> PagesOf(const OpRun& run, const KvLayout& layout, const ResolvedRule& rule, int64_t depth,
                            int64_t num_rows) {
  return PagesOf(run, layout, std::vector(static_cast<size_t>(run.config().num_kv_heads), rule), depth, num_rows);
}

// Of a case whose calls are one operation of the step's layers in turn.
void RunsInSteps(const OpRun& run, const KvStep& step, OpCase& op_case) {
  op_case.period = step.num_layers;
  op_case.begin_step = [&backend = run.backend(), &step] { backend.BeginStep(step); };
}

// One line: `num_rows` queries of one sequence.
Status MeasureAttention(const OpRun& run, const RandomPages& pages, OpPoint point, Compute compute) {
  const ModelConfig& config = run.config();
  HW_ASSIGN_OR_RETURN(const RandomTensor q,
                      RandomTensor::Make(run.backend(), {point.rows, QDim(config)}, run.options().seed));
  HW_ASSIGN_OR_RETURN(const RandomTensor out,
                      RandomTensor::Make(run.backend(), {point.rows, QDim(config)}, run.options().seed));
  const StepRows rows = pages.Rows(point.rows);
  KvStep step = pages.Step({&rows, 1});
  HW_RETURN_IF_ERROR(TakeTables(run.backend(), step));
  const ConstTensorView slopes = run.subject().model == nullptr ? ConstTensorView{} : run.subject().model->alibi_slopes;
  OpCase op_case;
  op_case.point = std::move(point);
  op_case.point.cycled_bytes = pages.bytes() + q.view().size_bytes() + out.view().size_bytes();
  RunsInSteps(run, step, op_case);
  op_case.call = [&](int64_t call_idx) {
    run.backend().Attention({.step = &step,
                             .layer_idx = call_idx % step.num_layers,
                             .q = q.view(),
                             .q_sink = {},
                             .out = out.view(),
                             .lse = {},
                             .alibi_slopes = slopes,
                             .sink_logits = {},
                             .num_q_heads = config.num_q_heads,
                             .scale = static_cast<float>(config.softmax_scale),
                             .score_cap = static_cast<float>(config.score_cap.value_or(0.0)),
                             .compute = compute});
  };
  return run.Measure(op_case);
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
      const std::vector<ResolvedRule> rules = run.Rules(depth);
      HW_ASSIGN_OR_RETURN(const RandomPages pages, PagesOf(run, LayoutOf(run, format), rules, depth, most_rows));
      for (const int64_t num_rows : rows) {
        // A chunk's keys are converted for tiles of products in f32 or bf16, whatever the cache holds.
        const Compute chunk = compute == Compute::kF32 ? Compute::kF32 : Compute::kBF16;
        HW_RETURN_IF_ERROR(
            MeasureAttention(run, pages,
                             {.shape = ShapeText(run.config()),
                              .format = std::string(NameOf(format)),
                              .heads = HeadsText(rules),
                              .rows = num_rows,
                              .depth = depth,
                              .work = AttentionWork(run.config(), rules, LayoutOf(run, format), depth, num_rows),
                              .numbers = num_rows == 1 ? DecodeNumbers(format) : chunk},
                             compute));
      }
    }
  }
  return Status::Ok();
}

// The rule that `compensate` runs under: the first bounded one that was asked for, or a fifth of the text as in
// [razor §3.3].
HeadRule CompensatedRule(const OpRun& run) {
  HeadRule rule = {.kind = HeadRule::Kind::kElasticRazor, .sink = 4, .min_recent = 16, .divisor = 5};
  const std::vector<HeadRule>& asked = run.options().rules;
  const auto bounded = std::ranges::find(asked, HeadRule::Kind::kStream, &HeadRule::kind);
  if (bounded != asked.end()) rule = *bounded;
  rule.compensate = true;
  return rule;
}

bool HasDropped(const ResolvedRule& rule, int64_t depth) {
  return depth > rule.sink + rule.recent;
}

// One line.
Status MeasureCompensate(const OpRun& run, const RandomPages& pages, const ResolvedRule& rule, OpPoint point) {
  const ModelConfig& config = run.config();
  const int64_t num_rows = point.rows;
  const Shape states_shape{pages.num_layers() * config.num_kv_heads, 2 * config.head_dim};
  HW_ASSIGN_OR_RETURN(const RandomTensor states, RandomTensor::Make(run.backend(), states_shape, run.options().seed));
  const StepRows rows = pages.Rows(num_rows);
  KvStep step = pages.Step({&rows, 1});
  std::vector<StepHead> heads(step.heads.begin(), step.heads.end());
  for (size_t i = 0; i < heads.size(); ++i) {
    heads[i].state = static_cast<uint32_t>(i);
    heads[i].reads_mean = true;
    heads[i].fold_from = rule.sink;
    heads[i].fold_before = heads[i].fold_after = rule.recent;
  }
  std::byte* const base = static_cast<std::byte*>(states.view().data);
  std::vector<PageSpace> spaces(step.spaces.begin(), step.spaces.end());
  step.states = static_cast<int32_t>(spaces.size());
  spaces.push_back({.layout = spaces[0].layout,
                    .page_bytes = 2 * config.head_dim * static_cast<int64_t>(sizeof(float)),
                    .extent_shift = 31,
                    .extents = {&base, 1}});
  step.heads = heads;
  step.spaces = spaces;
  HW_RETURN_IF_ERROR(TakeTables(run.backend(), step));
  HW_ASSIGN_OR_RETURN(const RandomTensor q,
                      RandomTensor::Make(run.backend(), {num_rows, QDim(config)}, run.options().seed));
  HW_ASSIGN_OR_RETURN(const RandomTensor out,
                      RandomTensor::Make(run.backend(), {num_rows, QDim(config)}, run.options().seed));
  HW_ASSIGN_OR_RETURN(const RandomTensor lse,
                      RandomTensor::Make(run.backend(), {num_rows, config.num_q_heads}, run.options().seed));
  OpCase op_case;
  op_case.point = std::move(point);
  op_case.point.cycled_bytes = pages.bytes() + states.view().size_bytes() + 2 * q.view().size_bytes();
  RunsInSteps(run, step, op_case);
  op_case.call = [&](int64_t call_idx) {
    run.backend().Compensate({.step = &step,
                              .layer_idx = call_idx % step.num_layers,
                              .q = q.view(),
                              .out = out.view(),
                              .lse = lse.view(),
                              .alibi_slopes = {},
                              .num_q_heads = config.num_q_heads,
                              .scale = static_cast<float>(config.softmax_scale),
                              .score_cap = static_cast<float>(config.score_cap.value_or(0.0))});
  };
  return run.Measure(op_case);
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
      const StepRows rows = pages.Rows(num_rows);
      KvStep step = pages.Step({&rows, 1});
      HW_RETURN_IF_ERROR(TakeTables(run.backend(), step));
      const Shape shape{num_rows, config.num_kv_heads * config.head_dim};
      HW_ASSIGN_OR_RETURN(const RandomTensor k, RandomTensor::Make(run.backend(), shape, run.options().seed));
      HW_ASSIGN_OR_RETURN(const RandomTensor v, RandomTensor::Make(run.backend(), shape, run.options().seed + 1));
      OpCase op_case;
      op_case.point = {.shape = fmt::format("{} heads of {}", config.num_kv_heads, config.head_dim),
                       .format = std::string(NameOf(format)),
                       .rows = num_rows,
                       .work = AppendWork(config, LayoutOf(run, format), num_rows),
                       .cycled_bytes = pages.bytes() + 2 * k.view().size_bytes()};
      RunsInSteps(run, step, op_case);
      op_case.call = [&](int64_t call_idx) {
        run.backend().AppendKv({.step = &step, .layer_idx = call_idx % step.num_layers, .k = k.view(), .v = v.view()});
      };
      HW_RETURN_IF_ERROR(run.Measure(op_case));
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
      HW_ASSIGN_OR_RETURN(const RandomPages pages, PagesOf(run, newest, ResolvedRule{}, 0, num_tokens));
      const int64_t call_pages = num_pages * config.num_kv_heads;
      HW_ASSIGN_OR_RETURN(const DeviceBuffer aged,
                          DeviceBuffer::Make(run.backend().device(),
                                             static_cast<size_t>(pages.num_layers() * call_pages * aged_bytes)));
      const StepRows rows = pages.Rows(num_tokens);
      KvStep step = pages.Step({&rows, 1});
      std::byte* const base = aged.data();
      const std::vector<PageSpace> spaces = {
          step.spaces[0], {.layout = layout, .page_bytes = aged_bytes, .extent_shift = 31, .extents = {&base, 1}}};
      std::vector<PageMove> ages;
      std::vector<int64_t> age_ends;
      for (uint32_t page = 0; page < step.pages.size(); ++page)
        ages.push_back({.to_space = 1, .from = page, .to = page});
      for (int64_t layer = 1; layer <= step.num_layers; ++layer) age_ends.push_back(layer * call_pages);
      step.spaces = spaces;
      step.ages = ages;
      step.age_ends = age_ends;
      HW_RETURN_IF_ERROR(TakeTables(run.backend(), step));
      OpCase op_case;
      op_case.point = {.shape = fmt::format("{} heads of {}", config.num_kv_heads, config.head_dim),
                       .format = std::string(NameOf(format)),
                       .rows = num_tokens,
                       .work = AgeWork(config, layout, num_pages),
                       .cycled_bytes = pages.bytes() + step.num_layers * call_pages * aged_bytes};
      RunsInSteps(run, step, op_case);
      op_case.call = [&](int64_t call_idx) {
        run.backend().AgeKv({.step = &step, .layer_idx = call_idx % step.num_layers});
      };
      HW_RETURN_IF_ERROR(run.Measure(op_case));
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
        HW_RETURN_IF_ERROR(
            MeasureCompensate(run, pages, rule,
                              {.shape = ShapeText(run.config()),
                               .format = std::string(NameOf(format)),
                               .heads = HeadsText(rule),
                               .rows = num_rows,
                               .depth = depth,
                               .work = CompensateWork(run.config(), rule, LayoutOf(run, format), depth, num_rows)}));
      }
    }
  }
  return Status::Ok();
}

}  // namespace headwise
