// The shape and dtype checks of every op, in one place: backends only compute. And the names of number formats.
#include <algorithm>
#include <utility>

#include "backend/backend.h"
#include "backend/ops.h"
#include "backend/step_checker.h"
#include "tensor/draw_weight.h"

namespace headwise {
namespace {

// Of a plain float format, or of whole blocks.
bool IsMatrix(const WeightMatrix& matrix) {
  return matrix.present() && matrix.shape.rank() == 2 && matrix.dtype != DType::kI32 &&
         matrix.shape[1] % BlockElements(matrix.dtype) == 0;
}

void CheckF32(const ConstTensorView& view, const Shape& shape, const char* what) {
  HW_CHECK(view.present() || shape.num_elements() == 0, "{} is absent", what);
  HW_CHECK(view.dtype == DType::kF32 && view.shape == shape, "{}: {} {}, expected f32 {}", what, NameOf(view.dtype),
           view.shape.ToString(), shape.ToString());
}

void CheckOptionalF32(const ConstTensorView& view, const Shape& shape, const char* what) {
  if (view.present()) CheckF32(view, shape, what);
}

void CheckLayout(const KvLayout& layout) {
  HW_CHECK(layout.head_dim > 0 && layout.page_tokens > 0 && layout.page_tokens % 16 == 0, "D {} P {}", layout.head_dim,
           layout.page_tokens);
}

// Places in the tables are there, and pages reach as far as tokens do.
void CheckHead(const HeadWork& work) {
  const KvStep& step = *work.step;
  const StepHead& head = *work.head;
  HW_CHECK(head.newest >= 0 && static_cast<size_t>(head.newest) < step.spaces.size(), "space {}", head.newest);
  CheckLayout(work.layout());
  HW_CHECK(work.mask().sink >= 0 && work.mask().recent >= 1 && work.first_pos >= 0, "pos {} sink {} recent {}",
           work.first_pos, work.mask().sink, work.mask().recent);
  HW_CHECK(head.ring_first >= head.sink_pages && head.ring_pages >= 1);
  if (work.Selects()) {
    const KvSelection& selection = *work.selection;
    // Slots have no sinks, no window and no ring.
    HW_CHECK(work.mask() == KeyMask{} && head.sink_pages == 0 && head.ring_pages == kNoLimit && head.aged < 0);
    HW_CHECK(head.state == kNoPage || !selection.shares);
    HW_CHECK(work.newest().page_bytes > KvNotesBytes(work.page_tokens()), "pages of {}", work.newest().page_bytes);
    HW_CHECK(selection.most >= 1 && selection.keep_first + selection.keep_newest <= selection.most, "{} and {} of {}",
             selection.keep_first, selection.keep_newest, selection.most);
    HW_CHECK(selection.kernel >= 1 && selection.kernel % 2 == 1, "kernel {}", selection.kernel);
  } else {
    HW_CHECK(work.first_pos == work.text_pos, "slot {} at {}", work.first_pos, work.text_pos);
  }
  if (work.blocks != nullptr) {
    const KvBlockReads& blocks = *work.blocks;
    // All keys that a choice leaves out could be read, and those of a page are bounded once.
    HW_CHECK(!work.Selects() && work.mask() == KeyMask{} && head.sink_pages == 0 && head.ring_pages == kNoLimit &&
             head.aged < 0 && head.state == kNoPage);
    HW_CHECK(blocks.block_tokens % 16 == 0 && work.page_tokens() % blocks.block_tokens == 0,
             "blocks of {} in pages of {}", blocks.block_tokens, work.page_tokens());
    HW_CHECK(blocks.first >= 0 && blocks.newest >= 1 && blocks.most >= blocks.newest, "{} and {} blocks, {} newest",
             blocks.first, blocks.most, blocks.newest);
    HW_CHECK(blocks.representatives >= 0 && blocks.representatives <= blocks.block_tokens &&
                 (blocks.representatives == 0 || (blocks.newest >= 2 && blocks.block_tokens >= 32)),
             "{} representatives", blocks.representatives);
    HW_CHECK(work.newest().page_bytes > KeyBoundsBytes(work.layout().head_dim, work.page_tokens()), "pages of {}",
             work.newest().page_bytes);
  }
  if (head.aged >= 0) {
    HW_CHECK(static_cast<size_t>(head.aged) < step.spaces.size() && head.aged_begin >= 0);
    const KvLayout& aged = step.spaces[static_cast<size_t>(head.aged)].layout;
    HW_CHECK(work.layout().format == KvFormat::kQ8 && aged.format == KvFormat::kQ4 &&
                 aged.page_tokens == work.page_tokens() && aged.head_dim == work.layout().head_dim,
             "{} pages beside {}", NameOf(aged.format), NameOf(work.layout().format));
  }
  if (work.num_rows == 0) return;
  for (int64_t page = work.first_pos / work.page_tokens();
       page <= (work.first_pos + work.num_rows - 1) / work.page_tokens(); ++page) {
    HW_CHECK(work.EntryOf(page) < step.pages.size() && step.pages[work.EntryOf(page)] != kNoPage, "no page {}", page);
  }
}

// Rows of `num_heads` heads each, as many as the step has. What the step itself says was checked when it began.
void CheckRows(const KvStep* step, int64_t layer_idx, const Shape& shape, int64_t num_heads) {
  HW_CHECK(step != nullptr && layer_idx >= 0 && layer_idx < step->num_layers, "layer {}", layer_idx);
  HW_CHECK(step->num_kv_heads > 0 && num_heads % step->num_kv_heads == 0, "{} heads, {} KV heads", num_heads,
           step->num_kv_heads);
  HW_CHECK(step->num_rows() <= shape[0], "{} rows of {}", step->num_rows(), shape[0]);
  if (step->num_heads() == 0) return;
  const int64_t head_dim = step->Head(layer_idx, 0).layout().head_dim;
  HW_CHECK(shape[1] == num_heads * head_dim, "rows of {}, {} heads of {}", shape[1], num_heads, head_dim);
}

void CheckMoves(const KvStep& step, std::span<const PageMove> moves) {
  for (const PageMove& move : moves) {
    const auto is_space = [&](int32_t space) { return space >= 0 && static_cast<size_t>(space) < step.spaces.size(); };
    HW_CHECK(is_space(move.from_space) && is_space(move.to_space), "from space {} to {} of {}", move.from_space,
             move.to_space, step.spaces.size());
    HW_CHECK(move.from != kNoPage && move.to != kNoPage);
  }
}

// Heads that share do so alike, and there is room to say how.
void CheckShares(const KvStep& step, int64_t layer_idx, int64_t idx) {
  HW_CHECK(static_cast<int64_t>(step.gained.size()) == step.num_heads() * step.num_layers, "{} shares",
           step.gained.size());
  const HeadWork work = step.Head(layer_idx, idx);
  HW_CHECK(work.selection->floor >= 0 && work.selection->floor <= 1, "floor {}", work.selection->floor);
  for (int64_t other = idx - work.kv_head; other < idx; ++other) {
    const HeadWork before = step.Head(layer_idx, other);
    HW_CHECK(!before.SharesNow() || *before.selection == *work.selection, "KV heads {} and {}", before.kv_head,
             work.kv_head);
  }
}

// What all sequences of a step share.
void CheckShape(const KvStep& step) {
  HW_CHECK(step.num_layers > 0 && step.num_kv_heads > 0, "{} layers of {}", step.num_layers, step.num_kv_heads);
  CheckMoves(step, step.copies);
  CheckMoves(step, step.ages);
}

// All heads of one sequence.
void CheckHeads(const KvStep& step, int64_t sequence_idx) {
  for (int64_t layer_idx = 0; layer_idx < step.num_layers; ++layer_idx) {
    for (int64_t kv_head = 0; kv_head < step.num_kv_heads; ++kv_head) {
      const int64_t idx = sequence_idx * step.num_kv_heads + kv_head;
      const HeadWork work = step.Head(layer_idx, idx);
      CheckHead(work);
      HW_CHECK(work.layout().head_dim == step.spaces[0].layout.head_dim, "D {}", work.layout().head_dim);
      if (work.SharesNow()) CheckShares(step, layer_idx, idx);
      HW_CHECK(
          work.head->state == kNoPage || (step.states >= 0 && static_cast<size_t>(step.states) < step.spaces.size()),
          "states in space {}", step.states);
    }
  }
}

}  // namespace

std::string_view NameOf(Compute compute) {
  switch (compute) {
    case Compute::kF32:
      return "f32";
    case Compute::kBF16:
      return "bf16";
    case Compute::kInt8:
      return "int8";
    case Compute::kFp8:
      return "fp8";
    case Compute::kW8A8:
      return "w8a8";
  }
  return "unknown";
}

std::optional<Compute> ComputeByName(std::string_view name) {
  for (const Compute compute : {Compute::kF32, Compute::kBF16, Compute::kInt8, Compute::kFp8, Compute::kW8A8}) {
    if (NameOf(compute) == name) return compute;
  }
  return std::nullopt;
}

std::string_view NameOf(Feature feature) {
  switch (feature) {
    case Feature::kGatedGelu:
      return "gated GELU";
    case Feature::kLearnedPositions:
      return "learned positions";
    case Feature::kNormAdded:
      return "norms behind attention and MLP";
    case Feature::kNormsByHead:
      return "norms of queries and keys that differ by head";
    case Feature::kScaledEmbedding:
      return "scaled embeddings";
    case Feature::kSelection:
      return "heads that select tokens by attention score";
    case Feature::kSoftCaps:
      return "soft caps of scores and logits";
    case Feature::kExperts:
      return "mixtures of experts";
  }
  HW_CHECK(false, "feature {}", static_cast<int>(feature));
}

void Validate(const EmbedArgs& args) {
  HW_CHECK(IsMatrix(args.table), "table {} {}", NameOf(args.table.dtype), args.table.shape.ToString());
  CheckF32(args.out, {static_cast<int64_t>(args.ids.size()), args.table.shape[1]}, "out");
  const bool has_chosen = args.chosen.present();
  HW_CHECK(!has_chosen || (args.chosen.dtype == DType::kI32 && args.chosen.shape.rank() == 1), "chosen {} {}",
           NameOf(args.chosen.dtype), args.chosen.shape.ToString());
  const int64_t end = has_chosen ? args.chosen.shape[0] : args.table.shape[0];
  for (const int32_t id : args.ids) HW_CHECK(id >= 0 && id < end, "id {} of {}", id, end);
  HW_CHECK(args.position_ids.size() == (args.positions.present() ? args.ids.size() : 0), "{} positions of {} ids",
           args.position_ids.size(), args.ids.size());
  if (!args.positions.present()) return;
  HW_CHECK(IsMatrix(args.positions) && args.positions.shape[1] == args.table.shape[1], "positions {} {}",
           NameOf(args.positions.dtype), args.positions.shape.ToString());
  for (const int32_t id : args.position_ids) HW_CHECK(id >= 0 && id < args.positions.shape[0], "position {}", id);
}

void Validate(const NormArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2);
  CheckF32(args.x, args.x.shape, "x");
  CheckF32(args.out, args.x.shape, "out");
  const int64_t dim = args.x.shape[1];
  const bool has_rows = args.weight.shape.rank() == 2;
  HW_CHECK(args.weight.shape.num_elements() % dim == 0 && args.x.shape[0] % args.num_weights() == 0,
           "weight {} for x {}", args.weight.shape.ToString(), args.x.shape.ToString());
  CheckF32(args.weight, has_rows ? Shape{args.num_weights(), dim} : Shape{dim}, "weight");
  CheckOptionalF32(args.bias, args.weight.shape, "bias");
  HW_CHECK(args.write == NormArgs::Write::kStore || args.x.data != args.out.data, "x is added to its own norm");
}

void Validate(const MatMulArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2);
  CheckF32(args.x, args.x.shape, "x");
  for (const MatMulPart& part : args.parts) {
    HW_CHECK(IsMatrix(part.weight) && part.weight.shape[1] == args.x.shape[1], "weight {} {} for x {}",
             NameOf(part.weight.dtype), part.weight.shape.ToString(), args.x.shape.ToString());
    CheckOptionalF32(part.bias, {part.weight.shape[0]}, "bias");
    CheckF32(part.out, {args.x.shape[0], part.weight.shape[0]}, "out");
  }
}

void Validate(const RopeArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2 && args.x.shape[1] == args.num_heads * args.head_dim, "x {}",
           args.x.shape.ToString());
  CheckF32(args.x, args.x.shape, "x");
  CheckF32(args.out, args.x.shape, "out");
  HW_CHECK(args.angles.shape.rank() == 3 && args.angles.shape[2] == 2 && 2 * args.angles.shape[1] <= args.head_dim,
           "angles {}", args.angles.shape.ToString());
  HW_CHECK(args.rows_per_token >= 1 && args.num_heads % args.rows_per_token == 0);
  HW_CHECK(static_cast<int64_t>(args.rows.size()) == args.x.shape[0] * args.rows_per_token);
  for (const int32_t row : args.rows) HW_CHECK(row >= 0 && row < args.angles.shape[0], "row {}", row);
}

void Validate(const ActivateArgs& args) {
  CheckF32(args.x, args.x.shape, "x");
  if (IsGated(args.kind)) CheckF32(args.gate, args.x.shape, "gate");
}

void Validate(const ExpertsArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2 && IsGated(args.activation));
  const auto num_experts = static_cast<int64_t>(args.experts.size());
  const int64_t model_dim = args.x.shape[1];
  CheckF32(args.x, args.x.shape, "x");
  CheckF32(args.logits, {args.x.shape[0], num_experts}, "logits");
  CheckF32(args.out, args.x.shape, "out");
  HW_CHECK(args.out.data != args.x.data, "x is written to while it is read");
  HW_CHECK(args.routing.num_chosen >= 1 && args.routing.num_chosen <= num_experts, "{} of {} experts",
           args.routing.num_chosen, num_experts);
  CheckOptionalF32(args.routing.selection_bias, {num_experts}, "selection_bias");
  const Shape up_shape{args.ffn_dim(), model_dim};
  const Shape down_shape{model_dim, args.ffn_dim()};
  for (const ExpertWeights& expert : args.experts) {
    for (const auto& [linear, shape] :
         {std::pair{&expert.gate, &up_shape}, {&expert.up, &up_shape}, {&expert.down, &down_shape}}) {
      HW_CHECK(IsMatrix(linear->weight) && linear->weight.shape == *shape, "weight {} {}, expected {}",
               NameOf(linear->weight.dtype), linear->weight.shape.ToString(), shape->ToString());
      CheckOptionalF32(linear->bias, {(*shape)[0]}, "bias");
    }
  }
}

void Validate(const GateRowsArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2);
  CheckF32(args.x, args.x.shape, "x");
  CheckF32(args.gate, {args.x.shape[0], 1}, "gate");
}

void Validate(const ClampArgs& args) {
  CheckF32(args.x, args.x.shape, "x");
  HW_CHECK(args.limit > 0, "limit {}", args.limit);
}

void Validate(const SoftCapArgs& args) {
  CheckF32(args.x, args.x.shape, "x");
  HW_CHECK(args.cap > 0, "cap {}", args.cap);
}

void Validate(const GatherRowsArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2);
  CheckF32(args.out, {static_cast<int64_t>(args.rows.size()), args.x.shape[1]}, "out");
  for (const int32_t row : args.rows) HW_CHECK(row >= 0 && row < args.x.shape[0], "row {}", row);
}

void Validate(const DrawTokensArgs& args) {
  HW_CHECK(args.logits.shape.rank() == 2 && args.logits.dtype == DType::kF32 && args.logits.shape[1] > 0);
  const int64_t num_rows = args.logits.shape[0];
  const int64_t num_ids = args.logits.shape[1];
  HW_CHECK(static_cast<int64_t>(args.draws.size()) == num_rows, "{} draws, {} rows", args.draws.size(), num_rows);
  HW_CHECK(args.ids.dtype == DType::kI32 && args.ids.shape == Shape{num_rows}, "ids");
  if (args.arriving_ids.present()) {
    HW_CHECK(args.arriving_ids.dtype == DType::kI32 && args.arriving_ids.shape == Shape{num_rows}, "arriving_ids");
  }
  int64_t num_top = -1;
  for (const TokenDraw& draw : args.draws) {
    num_top = std::max(num_top, draw.num_top);
    HW_CHECK(draw.temperature == 0 || num_ids <= kMaxDrawIds, "{} logits", num_ids);
    HW_CHECK(draw.num_top <= std::min(num_ids, kMaxDrawnTop), "num_top {} of {}", draw.num_top, num_ids);
    for (const LogitEdit& edit : draw.edits) HW_CHECK(edit.id >= 0 && edit.id < num_ids, "id {}", edit.id);
  }
  HW_CHECK(args.logprobs.present() == (num_top >= 0) && args.top_ids.present() == (num_top > 0), "num_top {}", num_top);
  if (num_top >= 0) CheckF32(args.logprobs, {num_rows, 1 + num_top}, "logprobs");
  if (num_top > 0) {
    HW_CHECK(args.top_ids.dtype == DType::kI32 && args.top_ids.shape == Shape({num_rows, num_top}), "top_ids");
  }
}

void Validate(const KvStep& step) {
  CheckShape(step);
  HW_CHECK(step.marks.empty() || static_cast<int64_t>(step.marks.size()) == step.num_rows(), "{} marks of {} rows",
           step.marks.size(), step.num_rows());
  for (size_t idx = 0; idx < step.sequences.size(); ++idx) CheckHeads(step, static_cast<int64_t>(idx));
}

void StepChecker::Check(const KvStep& step) {
  CheckShape(step);
  const auto goes_on = [&](size_t idx) {
    if (idx >= known_.size() || !step.changed_heads.empty()) return false;
    const StepRows& before = known_[idx];
    const StepRows& rows = step.sequences[idx];
    return rows.first_head == before.first_head && rows.num_rows == 1 && before.num_rows == 1 &&
           rows.first_pos == before.first_pos + 1 && rows.first_pos % step.spaces[0].layout.page_tokens != 0 &&
           rows.first_selection == kNoSelections;
  };
  for (size_t idx = 0; idx < step.sequences.size(); ++idx) {
    if (!goes_on(idx)) CheckHeads(step, static_cast<int64_t>(idx));
  }
  known_.assign(step.sequences.begin(), step.sequences.end());
}

void Validate(const AppendKvArgs& args) {
  HW_CHECK(args.k.shape.rank() == 2 && args.step != nullptr);
  CheckF32(args.k, args.k.shape, "k");
  CheckF32(args.v, args.k.shape, "v");
  CheckRows(args.step, args.layer_idx, args.k.shape, args.step->num_kv_heads);
}

void Validate(const CopyPagesArgs& args) {
  HW_CHECK(args.step != nullptr);
  for (const PageMove& move : args.step->copies) HW_CHECK(move.from_space == move.to_space);
}

void Validate(const AgeKvArgs& args) {
  HW_CHECK(args.step != nullptr && args.layer_idx >= 0 && args.layer_idx < args.step->num_layers);
  for (const PageMove& move : args.step->AgesOf(args.layer_idx)) {
    const KvLayout& from = args.step->spaces[static_cast<size_t>(move.from_space)].layout;
    const KvLayout& to = args.step->spaces[static_cast<size_t>(move.to_space)].layout;
    HW_CHECK(from.format == KvFormat::kQ8 && to.format == KvFormat::kQ4, "from {} to {}", NameOf(from.format),
             NameOf(to.format));
  }
}

void Validate(const AttentionArgs& args) {
  HW_CHECK(args.q.shape.rank() == 2 && args.num_q_heads > 0);
  const Shape q_shape = args.q.shape;
  CheckF32(args.q, q_shape, "q");
  CheckOptionalF32(args.q_sink, q_shape, "q_sink");
  CheckF32(args.out, q_shape, "out");
  CheckOptionalF32(args.lse, {q_shape[0], args.num_q_heads}, "lse");
  CheckOptionalF32(args.alibi_slopes, {args.num_q_heads}, "alibi_slopes");
  CheckOptionalF32(args.sink_logits, {args.num_q_heads}, "sink_logits");
  HW_CHECK(args.score_cap >= 0 && (args.score_cap == 0 || !args.alibi_slopes.present()), "cap {}", args.score_cap);
  CheckRows(args.step, args.layer_idx, q_shape, args.num_q_heads);
}

void Validate(const SelectKvArgs& args) {
  HW_CHECK(args.step != nullptr && args.layer_idx >= 0 && args.layer_idx < args.step->num_layers);
  if (!args.q.present()) return;
  const Shape q_shape = args.q.shape;
  CheckOptionalF32(args.q_ahead, q_shape, "q_ahead");
  CheckF32(args.q, q_shape, "q");
  CheckF32(args.lse, {q_shape[0], args.num_q_heads}, "lse");
  CheckRows(args.step, args.layer_idx, q_shape, args.num_q_heads);
}

void Validate(const CompensateArgs& args) {
  HW_CHECK(args.step != nullptr && args.layer_idx >= 0 && args.layer_idx < args.step->num_layers);
  CheckOptionalF32(args.alibi_slopes, {args.num_q_heads}, "alibi_slopes");
  if (!args.q.present()) return;
  const Shape q_shape = args.q.shape;
  CheckF32(args.q, q_shape, "q");
  CheckF32(args.out, q_shape, "out");
  CheckF32(args.lse, {q_shape[0], args.num_q_heads}, "lse");
  CheckRows(args.step, args.layer_idx, q_shape, args.num_q_heads);
}

}  // namespace headwise
