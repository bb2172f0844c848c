// Finding, checking, slicing and unpacking a family's tensors.
#ifndef HEADWISE_MODEL_FAMILIES_WEIGHT_READER_H_
#define HEADWISE_MODEL_FAMILIES_WEIGHT_READER_H_

#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/model_weights.h"
#include "weights/weight_source.h"

namespace headwise {

// How the rows of one fused query-key-value matrix are ordered in the family's checkpoints.
enum class FusedOrder {
  kBlocks,  // all query rows, then all key rows, then all value rows
  kGroups,  // per KV head: its group's query rows, its key rows, its value rows
};

enum class Bias { kNone, kPresent };

// Reads into one ModelWeights; every shape is checked against what the caller names.
class WeightReader {
 public:
  WeightReader(const ModelConfig& config, const WeightSource& source, ModelWeights& weights)
      : config_(config), source_(source), weights_(weights) {}

  // [rows, columns]: a view into the mapped file, or a copy where its rows are in another order there.
  Result<ConstTensorView> Matrix(const std::string& name, int64_t rows, int64_t columns);
  // [size], widened to f32. Vectors are small enough to be looked through: a NaN or an infinity is an error.
  Result<ConstTensorView> Vector(const std::string& name, int64_t size);
  // name.weight [rows, columns] and, with a bias, name.bias [rows].
  Status Linear(const std::string& name, int64_t rows, int64_t columns, Bias bias, LinearWeights& linear);
  // name.weight [E] and, with a bias, name.bias [E].
  Status Norm(const std::string& name, Bias bias, NormWeights& norm);
  // name.weight [(Hq + 2 Hkv) D, E] taken apart. Blocks stay views, also those that a source has in place of groups;
  // groups are copied.
  Status FusedQkv(const std::string& name, FusedOrder order, Bias bias, LayerWeights& layer);
  // A copy of a matrix with every row scaled to length 1, in the same dtype.
  ConstTensorView NormalizedRows(const ConstTensorView& from);
  // The output matrix: `name`, or the embedding where they are tied.
  Status Output(const std::string& name);

 private:
  // Memory of that shape that lives as long as the weights.
  TensorView Own(DType dtype, const Shape& shape);
  ConstTensorView GatherRows(const ConstTensorView& from, const std::vector<int64_t>& rows);
  // The tensor with its rows in the checkpoint's order.
  Result<ConstTensorView> InOrder(const std::string& name, const Shape& shape);
  Status CheckFinite(const std::string& name, const ConstTensorView& view) const;
  // As f32; the same view where it is.
  ConstTensorView Widened(const ConstTensorView& from);

  const ModelConfig& config_;
  const WeightSource& source_;
  ModelWeights& weights_;
};

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_WEIGHT_READER_H_
