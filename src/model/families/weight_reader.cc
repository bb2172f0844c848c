#include "model/families/weight_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/finite.h"

namespace headwise {

TensorView WeightReader::Own(DType dtype, const Shape& shape) {
  TensorView view{.data = nullptr, .dtype = dtype, .shape = shape};
  weights_.owned.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(view.size_bytes())));
  view.data = weights_.owned.back().get();
  return view;
}

Result<ConstTensorView> WeightReader::InOrder(const std::string& name, const Shape& shape) {
  HW_ASSIGN_OR_RETURN(const ConstTensorView view, source_.Get(name, shape));
  const std::vector<int64_t> order = source_.RowOrder(name);
  if (order.empty()) return view;
  HW_CHECK(static_cast<int64_t>(order.size()) == shape[0], "{} of {}", order.size(), shape[0]);
  std::vector<int64_t> rows(order.size());
  for (size_t i = 0; i < order.size(); ++i) rows[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const ConstTensorView copy = GatherRows(view, rows);
  source_.Release(view);
  return copy;
}

Status WeightReader::CheckFinite(const std::string& name, const ConstTensorView& view) const {
  const auto found = FindNonFinite(view);
  if (!found) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: tensor \"{}\" holds {}, expected finite numbers", source_.origin(), name, *found));
}

Result<ConstTensorView> WeightReader::Matrix(const std::string& name, int64_t rows, int64_t columns) {
  return InOrder(name, {rows, columns});
}

Result<ConstTensorView> WeightReader::Vector(const std::string& name, int64_t size) {
  HW_ASSIGN_OR_RETURN(const ConstTensorView view, InOrder(name, {size}));
  HW_RETURN_IF_ERROR(CheckFinite(name, view));
  return Widened(view);
}

Status WeightReader::Linear(const std::string& name, int64_t rows, int64_t columns, Bias bias, LinearWeights& linear) {
  HW_ASSIGN_OR_RETURN(linear.weight, Matrix(name + ".weight", rows, columns));
  if (bias == Bias::kPresent) {
    HW_ASSIGN_OR_RETURN(linear.bias, Vector(name + ".bias", rows));
  }
  return Status::Ok();
}

Status WeightReader::Norm(const std::string& name, Bias bias, NormWeights& norm) {
  return Norm(name, {config_.model_dim}, bias, norm);
}

Status WeightReader::Norm(const std::string& name, const Shape& shape, Bias bias, NormWeights& norm) {
  const auto read = [&](const std::string& full_name, ConstTensorView& view) -> Status {
    HW_ASSIGN_OR_RETURN(view, source_.Get(full_name, shape));
    if (IsBlockFormat(view.dtype)) {  // which those of heads, a row for each, could have
      return Status::Unsupported(fmt::format("{}: tensor \"{}\" has the block format {}, expected plain numbers",
                                             source_.origin(), full_name, NameOf(view.dtype)));
    }
    HW_RETURN_IF_ERROR(CheckFinite(full_name, view));
    view = Widened(view);
    return Status::Ok();
  };
  const std::string weight_name = name + ".weight";
  HW_RETURN_IF_ERROR(read(weight_name, norm.weight));
  const double lacking = (adds_one_ ? 1.0 : 0.0) - source_.Offset(weight_name);
  if (lacking != 0.0) {
    const TensorView whole = Copied(norm.weight);
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      float& weight = static_cast<float*>(whole.data)[i];
      weight = static_cast<float>(weight + lacking);
    }
    norm.weight = whole;
  }
  return bias == Bias::kPresent ? read(name + ".bias", norm.bias) : Status::Ok();
}

Status WeightReader::NormOfHeads(const std::string& name, const Shape& shape, NormWeights& norm) {
  const size_t at = name.find("{}");
  HW_CHECK(at != std::string::npos, "{}", name);
  // GGUF files have what stands before the number, once.
  const std::string whole = name.substr(0, name.rfind('.', at));
  if (source_.Has(whole + ".weight")) return Norm(whole, shape, Bias::kNone, norm);
  const TensorView all = Own(DType::kF32, shape);
  for (int64_t head = 0; head < shape[0]; ++head) {
    std::string name_of_head = name;
    name_of_head.replace(at, 2, std::to_string(head));
    NormWeights one;
    HW_RETURN_IF_ERROR(Norm(name_of_head, {shape[1]}, Bias::kNone, one));
    std::memcpy(static_cast<float*>(all.data) + head * shape[1], one.weight.data,
                static_cast<size_t>(one.weight.size_bytes()));
  }
  norm.weight = all;
  return Status::Ok();
}

Result<ConstTensorView> WeightReader::Stack(const std::string& name, int64_t num, int64_t rows, int64_t columns) {
  HW_ASSIGN_OR_RETURN(ConstTensorView view, source_.Get(name, {num, rows, columns}));
  view.shape = {num * rows, columns};
  return view;
}

Result<std::vector<LinearWeights>> WeightReader::Stacked(const std::string& name, int64_t num, int64_t rows,
                                                         int64_t columns, Bias bias) {
  HW_ASSIGN_OR_RETURN(const ConstTensorView matrices, Stack(name + ".weight", num, rows, columns));
  ConstTensorView biases;
  if (bias == Bias::kPresent) {
    HW_ASSIGN_OR_RETURN(const ConstTensorView all, source_.Get(name + ".bias", {num, rows}));
    HW_RETURN_IF_ERROR(CheckFinite(name + ".bias", all));
    biases = Widened(all);
    biases.shape = {num * rows};
  }
  std::vector<LinearWeights> linears(static_cast<size_t>(num));
  for (int64_t i = 0; i < num; ++i) {
    LinearWeights& linear = linears[static_cast<size_t>(i)];
    linear.weight = matrices.Rows(i * rows, rows);
    if (biases.present()) linear.bias = biases.Rows(i * rows, rows);
  }
  return linears;
}

Status WeightReader::TransposedStack(const std::string& name, int64_t num, int64_t columns, int64_t rows, Bias bias,
                                     const std::vector<std::vector<LinearWeights>*>& stacks) {
  const auto num_turns = static_cast<int64_t>(stacks.size());
  const int64_t all_rows = rows * num_turns;
  HW_ASSIGN_OR_RETURN(const ConstTensorView found, source_.Get(name));
  // Blocks lie along rows, and cannot be turned.
  const bool is_usual = IsBlockFormat(found.dtype);
  HW_ASSIGN_OR_RETURN(const ConstTensorView from,
                      source_.Get(name, is_usual ? Shape{num, all_rows, columns} : Shape{num, columns, all_rows}));
  ConstTensorView biases;
  if (bias == Bias::kPresent) {
    HW_ASSIGN_OR_RETURN(const ConstTensorView view, source_.Get(name + "_bias", {num, all_rows}));
    HW_RETURN_IF_ERROR(CheckFinite(name + "_bias", view));
    biases = Widened(view);
  }
  for (int64_t i = 0; i < num; ++i) {
    ConstTensorView matrix = from.Rows(i, 1);
    matrix.shape = is_usual ? Shape{all_rows, columns} : Shape{columns, all_rows};
    const ConstTensorView turned = is_usual ? matrix : Transposed(matrix, 0, all_rows);
    for (int64_t turn = 0; turn < num_turns; ++turn) {
      std::vector<int64_t> taken;
      for (int64_t row = 0; row < rows; ++row) taken.push_back(row * num_turns + turn);
      LinearWeights linear;
      linear.weight = is_usual && num_turns == 1 ? turned : GatherRows(turned, taken);
      if (biases.present()) {
        const ConstTensorView all = biases.Rows(i, 1);
        linear.bias = GatherRows(ConstTensorView(all.data, DType::kF32, {all_rows}), taken);
      }
      stacks[static_cast<size_t>(turn)]->push_back(linear);
    }
    if (is_usual) continue;
    weights_.owned.erase(
        std::ranges::find(weights_.owned, turned.data, [](const auto& memory) { return memory.get(); }));
  }
  if (!is_usual || num_turns > 1) source_.Release(from);
  return Status::Ok();
}

Status WeightReader::RowMatrix(const std::string& name, int64_t columns, LinearWeights& linear) {
  const std::string weight_name = name + ".weight";
  HW_ASSIGN_OR_RETURN(ConstTensorView row, source_.Get(weight_name));
  if (row.shape.rank() == 1) {
    HW_ASSIGN_OR_RETURN(row, source_.Get(weight_name, {columns}));
    row.shape = {1, columns};
    linear.weight = row;
    return Status::Ok();
  }
  return Linear(name, 1, columns, Bias::kNone, linear);
}

Status WeightReader::TransposedLinear(const std::string& name, int64_t rows, int64_t columns, LinearWeights& linear) {
  LinearWeights* const one[] = {&linear};
  return TransposedLinears(name, rows, columns, one);
}

Status WeightReader::TransposedLinears(const std::string& name, int64_t rows, int64_t columns,
                                       std::span<LinearWeights* const> linears) {
  const std::string weight_name = name + ".weight";
  const int64_t all_rows = rows * static_cast<int64_t>(linears.size());
  const bool is_usual = source_.IsTransposed(weight_name);
  HW_ASSIGN_OR_RETURN(const ConstTensorView from, is_usual ? Matrix(weight_name, all_rows, columns)
                                                           : source_.Get(weight_name, {columns, all_rows}));
  if (!is_usual && IsBlockFormat(from.dtype)) {
    return Status::Unsupported(fmt::format("{}: tensor \"{}\" has the block format {}, expected plain numbers",
                                           source_.origin(), weight_name, NameOf(from.dtype)));
  }
  HW_ASSIGN_OR_RETURN(const ConstTensorView bias, Vector(name + ".bias", all_rows));
  for (size_t i = 0; i < linears.size(); ++i) {
    const int64_t first_row = static_cast<int64_t>(i) * rows;
    linears[i]->weight = is_usual ? from.Rows(first_row, rows) : Transposed(from, first_row, rows);
    linears[i]->bias = bias.Rows(first_row, rows);
  }
  if (!is_usual) source_.Release(from);
  return Status::Ok();
}

// Columns [first, first + count) as rows: a block of its own, which may go when a backend has copied it.
ConstTensorView WeightReader::Transposed(const ConstTensorView& from, int64_t first, int64_t count) {
  const int64_t depth = from.shape[0];
  const TensorView to = Own(from.dtype, {count, depth});
  const auto size = static_cast<size_t>(BytesOf(from.dtype, 1));
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = 0; i < depth; ++i) {
      std::memcpy(
          static_cast<std::byte*>(to.data) + static_cast<size_t>(row * depth + i) * size,
          static_cast<const std::byte*>(from.data) + static_cast<size_t>(i * from.shape[1] + first + row) * size, size);
    }
  }
  return to;
}

void WeightReader::Scale(NormWeights& norm, double factor) {
  for (ConstTensorView* view : {&norm.weight, &norm.bias}) {
    if (!view->present() || factor == 1.0) continue;
    const TensorView scaled = Copied(*view);
    for (int64_t i = 0; i < scaled.shape.num_elements(); ++i) {
      float& value = static_cast<float*>(scaled.data)[i];
      value = static_cast<float>(value * factor);
    }
    *view = scaled;
  }
}

Status WeightReader::FusedPair(const std::string& name, int64_t rows, int64_t columns, LinearWeights& first,
                               LinearWeights& second) {
  HW_ASSIGN_OR_RETURN(const ConstTensorView both, Matrix(name + ".weight", 2 * rows, columns));
  first.weight = both.Rows(0, rows);
  second.weight = both.Rows(rows, rows);
  return Status::Ok();
}

namespace {

// Row i of heads in halves is row [i] of heads in pairs.
std::vector<int64_t> RowsOfHalves(int64_t num_heads, int64_t head_dim, int64_t rotary_dims) {
  std::vector<int64_t> rows;
  for (int64_t head_row = 0; head_row < num_heads * head_dim; head_row += head_dim) {
    for (const int64_t odd : {0, 1}) {
      for (int64_t i = 0; i < rotary_dims / 2; ++i) rows.push_back(head_row + 2 * i + odd);
    }
    for (int64_t i = rotary_dims; i < head_dim; ++i) rows.push_back(head_row + i);
  }
  return rows;
}

}  // namespace

void WeightReader::UnpairHeads(int64_t num_heads, int64_t rotary_dims, LinearWeights& linear) {
  const std::vector<int64_t> rows = RowsOfHalves(num_heads, config_.head_dim, rotary_dims);
  const ConstTensorView paired = linear.weight.rows();
  linear.weight = GatherRows(paired, rows);
  source_.Release(paired);
  if (linear.bias.present()) linear.bias = GatherRows(linear.bias, rows);
}

void WeightReader::UnpairNorm(int64_t rotary_dims, NormWeights& norm) {
  const Shape shape = norm.weight.shape;
  const std::vector<int64_t> rows =
      RowsOfHalves(shape.num_elements() / config_.head_dim, config_.head_dim, rotary_dims);
  for (ConstTensorView* view : {&norm.weight, &norm.bias}) {
    if (!view->present()) continue;
    *view = GatherRows(ConstTensorView(view->data, DType::kF32, Shape{shape.num_elements()}), rows);
    view->shape = shape;
  }
}

TensorView WeightReader::Copied(const ConstTensorView& from) {
  const TensorView copy = Own(from.dtype, from.shape);
  std::memcpy(copy.data, from.data, static_cast<size_t>(from.size_bytes()));
  return copy;
}

ConstTensorView WeightReader::Widened(const ConstTensorView& from) {
  if (from.dtype == DType::kF32) return from;
  const TensorView wide = Own(DType::kF32, from.shape);
  const int64_t size = from.shape.num_elements();
  for (int64_t i = 0; i < size; ++i) StoreF32As(DType::kF32, wide.data, i, LoadAsF32(from.dtype, from.data, i));
  return wide;
}

ConstTensorView WeightReader::GatherRows(const ConstTensorView& from, const std::vector<int64_t>& rows) {
  const auto row_bytes = static_cast<size_t>(from.size_bytes() / from.shape[0]);
  const auto num_rows = static_cast<int64_t>(rows.size());
  const TensorView to = Own(from.dtype, from.shape.rank() == 1 ? Shape{num_rows} : Shape{num_rows, from.shape[1]});
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(static_cast<std::byte*>(to.data) + i * row_bytes,
                static_cast<const std::byte*>(from.data) + static_cast<size_t>(rows[i]) * row_bytes, row_bytes);
  }
  return to;
}

ConstTensorView WeightReader::NormalizedRows(const ConstTensorView& from) {
  constexpr double kSmallestLength = 1e-12;  // a row of zeros stays one
  const TensorView to = Own(from.dtype, from.shape);
  const int64_t columns = from.shape[1];
  for (int64_t row = 0; row < from.shape[0]; ++row) {
    double squares = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      const double value = LoadAsF32(from.dtype, from.data, i);
      squares += value * value;
    }
    const double length = std::max(std::sqrt(squares), kSmallestLength);
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      StoreF32As(to.dtype, to.data, i, static_cast<float>(LoadAsF32(from.dtype, from.data, i) / length));
    }
  }
  return to;
}

Status WeightReader::SeparateQkv(const std::string& name, Bias bias, LayerWeights& layer) {
  const int64_t q_rows = config_.num_q_heads * config_.head_dim;
  const int64_t kv_rows = config_.num_kv_heads * config_.head_dim;
  HW_RETURN_IF_ERROR(Linear(name + ".q_proj", q_rows, config_.model_dim, bias, layer.q));
  HW_RETURN_IF_ERROR(Linear(name + ".k_proj", kv_rows, config_.model_dim, bias, layer.k));
  return Linear(name + ".v_proj", kv_rows, config_.model_dim, bias, layer.v);
}

Status WeightReader::FusedQkv(const std::string& name, FusedOrder order, Bias bias, LayerWeights& layer) {
  const int64_t dim = config_.head_dim;
  const int64_t q_rows = config_.num_q_heads * dim;
  const int64_t kv_rows = config_.num_kv_heads * dim;
  HW_ASSIGN_OR_RETURN(const ConstTensorView fused,
                      source_.Get(name + ".weight", {q_rows + 2 * kv_rows, config_.model_dim}));
  ConstTensorView fused_bias;
  if (bias == Bias::kPresent) {
    HW_ASSIGN_OR_RETURN(const ConstTensorView view, source_.Get(name + ".bias", {q_rows + 2 * kv_rows}));
    HW_RETURN_IF_ERROR(CheckFinite(name + ".bias", view));
    fused_bias = Widened(view);
  }
  // The one order that a source may have in place of groups is blocks.
  const bool has_blocks = order == FusedOrder::kBlocks || !source_.RowOrder(name + ".weight").empty();
  const bool one_group = config_.num_kv_heads == 1;  // which is three blocks
  if (has_blocks || one_group) {
    layer.q.weight = fused.Rows(0, q_rows);
    layer.k.weight = fused.Rows(q_rows, kv_rows);
    layer.v.weight = fused.Rows(q_rows + kv_rows, kv_rows);
    if (bias == Bias::kPresent) {
      layer.q.bias = fused_bias.Rows(0, q_rows);
      layer.k.bias = fused_bias.Rows(q_rows, kv_rows);
      layer.v.bias = fused_bias.Rows(q_rows + kv_rows, kv_rows);
    }
    return Status::Ok();
  }
  std::vector<int64_t> rows[3];
  const int64_t group_rows[3] = {config_.q_heads_per_kv_head() * dim, dim, dim};
  int64_t row = 0;
  for (int64_t kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
    for (int part = 0; part < 3; ++part) {
      for (int64_t i = 0; i < group_rows[part]; ++i) rows[part].push_back(row++);
    }
  }
  LinearWeights* parts[3] = {&layer.q, &layer.k, &layer.v};
  for (int part = 0; part < 3; ++part) {
    parts[part]->weight = GatherRows(fused, rows[part]);
    if (bias == Bias::kPresent) parts[part]->bias = GatherRows(fused_bias, rows[part]);
  }
  return Status::Ok();
}

Status WeightReader::Output(const std::string& name, Bias bias) {
  if (!config_.tied_embeddings) {
    return Linear(name, config_.vocab_size, config_.model_dim, bias, weights_.output);
  }
  weights_.output.weight = weights_.embedding;
  if (bias == Bias::kPresent) {
    HW_ASSIGN_OR_RETURN(weights_.output.bias, Vector(name + ".bias", config_.vocab_size));
  }
  return Status::Ok();
}

}  // namespace headwise
