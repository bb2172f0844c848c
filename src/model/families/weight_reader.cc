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
  HW_ASSIGN_OR_RETURN(norm.weight, Vector(name + ".weight", config_.model_dim));
  if (bias == Bias::kPresent) {
    HW_ASSIGN_OR_RETURN(norm.bias, Vector(name + ".bias", config_.model_dim));
  }
  return Status::Ok();
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

Status WeightReader::Output(const std::string& name) {
  if (config_.tied_embeddings) {
    weights_.output.weight = weights_.embedding;
    return Status::Ok();
  }
  return Linear(name, config_.vocab_size, config_.model_dim, Bias::kNone, weights_.output);
}

}  // namespace headwise
