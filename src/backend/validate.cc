// The shape and dtype checks of every op, in one place: backends only compute. And the names of number formats.
#include <algorithm>

#include "backend/ops.h"

namespace headwise {
namespace {

// Rows of numbers: a plain float format, or whole blocks.
bool IsMatrix(const ConstTensorView& view) {
  return view.present() && view.shape.rank() == 2 && view.dtype != DType::kI32 &&
         view.shape[1] % BlockElements(view.dtype) == 0;
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

// `row_elements` is [Hkv*D] or [Hq*D] of `num_heads` heads.
void CheckWork(const HeadWork& work, int64_t num_tokens, int64_t num_kv_heads, int64_t row_elements,
               int64_t num_heads) {
  const KvLayout& layout = work.layout;
  CheckLayout(layout);
  HW_CHECK(row_elements == num_heads * layout.head_dim, "rows of {}, {} heads of {}", row_elements, num_heads,
           layout.head_dim);
  HW_CHECK(work.kv_head >= 0 && work.kv_head < num_kv_heads, "kv head {} of {}", work.kv_head, num_kv_heads);
  HW_CHECK(work.first_row >= 0 && work.num_rows >= 0 && work.first_row + work.num_rows <= num_tokens,
           "rows {}+{} of {}", work.first_row, work.num_rows, num_tokens);
  HW_CHECK(work.first_pos >= 0 && work.sink >= 0 && work.recent >= 1, "pos {} sink {} recent {}", work.first_pos,
           work.sink, work.recent);
  const int64_t num_sink_pages = static_cast<int64_t>(work.pages.sink.size());
  const int64_t end_page = work.pages.recent_first + static_cast<int64_t>(work.pages.recent.size());
  HW_CHECK(work.pages.recent.empty() || work.pages.recent_first >= num_sink_pages);
  HW_CHECK(work.aged_begin >= 0 && (work.aged_begin == work.aged_end || layout.format == KvFormat::kQ8),
           "aged pages {} to {} beside {}", work.aged_begin, work.aged_end, NameOf(layout.format));
  HW_CHECK(work.aged_begin == work.aged_end || work.aged_end * layout.page_tokens <= work.first_pos,
           "aged pages up to {}, new tokens from {}", work.aged_end, work.first_pos);
  const int64_t end_pos = work.first_pos + work.num_rows;
  HW_CHECK(work.num_rows == 0 || std::max(end_page, num_sink_pages) * layout.page_tokens >= end_pos,
           "pages end at {}, tokens at {}", end_page * layout.page_tokens, end_pos);
}

}  // namespace

std::string_view NameOf(Compute compute) {
  return compute == Compute::kF32 ? "f32" : compute == Compute::kBF16 ? "bf16" : "int8";
}

std::optional<Compute> ComputeByName(std::string_view name) {
  for (const Compute compute : {Compute::kF32, Compute::kBF16, Compute::kInt8}) {
    if (NameOf(compute) == name) return compute;
  }
  return std::nullopt;
}

void Validate(const EmbedArgs& args) {
  HW_CHECK(IsMatrix(args.table), "table {} {}", NameOf(args.table.dtype), args.table.shape.ToString());
  CheckF32(args.out, {static_cast<int64_t>(args.ids.size()), args.table.shape[1]}, "out");
  for (const int32_t id : args.ids) HW_CHECK(id >= 0 && id < args.table.shape[0], "id {}", id);
}

void Validate(const NormArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2);
  CheckF32(args.x, args.x.shape, "x");
  CheckF32(args.out, args.x.shape, "out");
  CheckF32(args.weight, {args.x.shape[1]}, "weight");
  CheckOptionalF32(args.bias, {args.x.shape[1]}, "bias");
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
  if (args.kind == ActivateArgs::Kind::kGatedSilu) CheckF32(args.gate, args.x.shape, "gate");
}

void Validate(const ClampArgs& args) {
  CheckF32(args.x, args.x.shape, "x");
  HW_CHECK(args.limit > 0, "limit {}", args.limit);
}

void Validate(const GatherRowsArgs& args) {
  HW_CHECK(args.x.shape.rank() == 2);
  CheckF32(args.out, {static_cast<int64_t>(args.rows.size()), args.x.shape[1]}, "out");
  for (const int32_t row : args.rows) HW_CHECK(row >= 0 && row < args.x.shape[0], "row {}", row);
}

void Validate(const AppendKvArgs& args) {
  HW_CHECK(args.k.shape.rank() == 2);
  CheckF32(args.k, args.k.shape, "k");
  CheckF32(args.v, args.k.shape, "v");
  for (const HeadWork& work : args.heads) {
    const int64_t num_kv_heads = args.k.shape[1] / work.layout.head_dim;
    CheckWork(work, args.k.shape[0], num_kv_heads, args.k.shape[1], num_kv_heads);
  }
}

void Validate(const AgeKvArgs& args) {
  CheckLayout(args.layout);
  HW_CHECK(args.layout.format == KvFormat::kQ8, "from {}", NameOf(args.layout.format));
  HW_CHECK(args.from.size() == args.to.size(), "{} pages from, {} to", args.from.size(), args.to.size());
  for (size_t i = 0; i < args.from.size(); ++i) HW_CHECK(args.from[i] != nullptr && args.to[i] != nullptr);
}

void Validate(const AttentionArgs& args) {
  HW_CHECK(args.num_kv_heads > 0 && args.num_q_heads > 0 && args.num_q_heads % args.num_kv_heads == 0);
  HW_CHECK(args.q.shape.rank() == 2);
  const Shape q_shape = args.q.shape;
  CheckF32(args.q, q_shape, "q");
  CheckOptionalF32(args.q_sink, q_shape, "q_sink");
  CheckF32(args.out, q_shape, "out");
  CheckOptionalF32(args.lse, {q_shape[0], args.num_q_heads}, "lse");
  CheckOptionalF32(args.alibi_slopes, {args.num_q_heads}, "alibi_slopes");
  CheckOptionalF32(args.sink_logits, {args.num_q_heads}, "sink_logits");
  for (const HeadWork& work : args.heads) {
    CheckWork(work, q_shape[0], args.num_kv_heads, q_shape[1], args.num_q_heads);
    HW_CHECK(!work.uses_sink_query || args.q_sink.present());
  }
}

void Validate(const CompensateArgs& args) {
  HW_CHECK(args.num_kv_heads > 0 && args.num_q_heads % args.num_kv_heads == 0);
  CheckOptionalF32(args.alibi_slopes, {args.num_q_heads}, "alibi_slopes");
  for (const HeadFold& fold : args.heads) {
    if (fold.work.num_rows > 0) {
      const Shape q_shape{args.q.shape[0], args.num_q_heads * fold.work.layout.head_dim};
      CheckF32(args.q, q_shape, "q");
      CheckF32(args.out, q_shape, "out");
      CheckF32(args.lse, {q_shape[0], args.num_q_heads}, "lse");
      CheckWork(fold.work, q_shape[0], args.num_kv_heads, q_shape[1], args.num_q_heads);
    }
    CheckLayout(fold.work.layout);
    HW_CHECK(fold.state != nullptr && fold.num_folded >= 0);
  }
}

}  // namespace headwise
