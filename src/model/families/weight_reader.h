// Finding, checking, slicing and unpacking a family's tensors.
#ifndef HEADWISE_MODEL_FAMILIES_WEIGHT_READER_H_
#define HEADWISE_MODEL_FAMILIES_WEIGHT_READER_H_

#include <span>
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
inline Bias BiasIf(bool is_present) {
  return is_present ? Bias::kPresent : Bias::kNone;
}

// Which elements of a head a checkpoint rotates together. Its rows are brought into the order of halves.
enum class RotaryOrder {
  kHalves,  // i and i + R/2
  kPairs,   // 2i and 2i + 1 [cohere, glm 4]
};

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
  // The same of another shape: a head's [D], or all heads' [H, D] or [H*D].
  Status Norm(const std::string& name, const Shape& shape, Bias bias, NormWeights& norm);
  // The same of [H, D] from H tensors [D], whose numbers stand for the {} in `name`. A source may have them in one.
  Status NormOfHeads(const std::string& name, const Shape& shape, NormWeights& norm);
  bool Has(const std::string& name) const { return source_.Has(name); }
  // `name` [num, rows, columns] as matrices one above the other, [num * rows, columns]: a view.
  Result<ConstTensorView> Stack(const std::string& name, int64_t num, int64_t rows, int64_t columns);
  // name.weight [num, rows, columns] and, with a bias, name.bias [num, rows], one by one: views.
  Result<std::vector<LinearWeights>> Stacked(const std::string& name, int64_t num, int64_t rows, int64_t columns,
                                             Bias bias);
  // `name` [num, columns, rows * n] as n matrices [rows, columns] of each of num, whose rows take turns among its
  // columns, and with a bias name_bias [num, rows * n]: copies. In a block format it is
  // [num, rows * n, columns], and the only one of a name a view.
  Status TransposedStack(const std::string& name, int64_t num, int64_t columns, int64_t rows, Bias bias,
                         const std::vector<std::vector<LinearWeights>*>& stacks);
  // name.weight [1, columns], which a source may have as a vector.
  Status RowMatrix(const std::string& name, int64_t columns, LinearWeights& linear);
  // Norms of checkpoints that hold the weights less one [gemma]. Comes first.
  void AddOneToNorms() { adds_one_ = true; }
  // name.{q,k,v}_proj, as most families call them.
  Status SeparateQkv(const std::string& name, Bias bias, LayerWeights& layer);
  // name.weight [(Hq + 2 Hkv) D, E] taken apart. Blocks stay views, also those that a source has in place of groups;
  // groups are copied.
  Status FusedQkv(const std::string& name, FusedOrder order, Bias bias, LayerWeights& layer);
  // name.weight [N1 + N2, columns] as two matrices one above the other: views.
  Status FusedPair(const std::string& name, int64_t rows, int64_t columns, LinearWeights& first, LinearWeights& second);
  // Rows, and a bias, of `num_heads` heads from pairs to halves. Only the first `rotary_dims` of a head are rotated.
  void UnpairHeads(int64_t num_heads, int64_t rotary_dims, LinearWeights& linear);
  // The same of norms of heads [D] or [H, D].
  void UnpairNorm(int64_t rotary_dims, NormWeights& norm);
  // name.weight [columns, rows] as a matrix [rows, columns], and name.bias [rows]: a copy, but where a source has it
  // the usual way round.
  Status TransposedLinear(const std::string& name, int64_t rows, int64_t columns, LinearWeights& linear);
  // The same of several with `rows` each, one above the other.
  Status TransposedLinears(const std::string& name, int64_t rows, int64_t columns,
                           std::span<LinearWeights* const> linears);
  // A copy of a matrix with every row scaled to length 1, in the same dtype.
  ConstTensorView NormalizedRows(const ConstTensorView& from);
  // The output matrix: `name`, or the embedding where they are tied. With a bias, it is there in either case.
  Status Output(const std::string& name, Bias bias = Bias::kNone);
  // All of a norm times `factor`: logits that are scaled have it done here, for nothing. Hidden states show it.
  void Scale(NormWeights& norm, double factor);

 private:
  // Memory of that shape that lives as long as the weights.
  TensorView Own(DType dtype, const Shape& shape);
  ConstTensorView Transposed(const ConstTensorView& from, int64_t first, int64_t count);
  ConstTensorView GatherRows(const ConstTensorView& from, const std::vector<int64_t>& rows);
  // The tensor with its rows in the checkpoint's order.
  Result<ConstTensorView> InOrder(const std::string& name, const Shape& shape);
  Status CheckFinite(const std::string& name, const ConstTensorView& view) const;
  // A copy that may be written to.
  TensorView Copied(const ConstTensorView& from);
  // As f32; the same view where it is.
  ConstTensorView Widened(const ConstTensorView& from);

  const ModelConfig& config_;
  const WeightSource& source_;
  ModelWeights& weights_;
  bool adds_one_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_MODEL_FAMILIES_WEIGHT_READER_H_
