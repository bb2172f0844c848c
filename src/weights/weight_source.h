// Where weights come from: names to read-only views in host memory. Safetensors and GGUF; a new format implements this.
#ifndef HEADWISE_WEIGHTS_WEIGHT_SOURCE_H_
#define HEADWISE_WEIGHTS_WEIGHT_SOURCE_H_

#include <headwise/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/tensor.h"

namespace headwise {

// A tensor as it lies in a file, of whatever type, at any address.
struct RawTensor {
  std::string_view dtype;  // in the file's words: "F8_E4M3", "U8", ...
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t num_bytes = 0;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // The file or folder, for messages.
  virtual const std::string& origin() const = 0;
  // Sorted.
  virtual std::vector<std::string> Names() const = 0;
  virtual bool Has(std::string_view name) const = 0;
  // A view into the mapped file; lives as long as the source. An error that names the tensor when it is missing, of a
  // dtype or rank that has no view, or not aligned to its elements.
  virtual Result<ConstTensorView> Get(std::string_view name) const = 0;

  // The bytes of a view that Get gave are not needed for now: memory that a mapped file takes for them may go, and they
  // can still be read; memory that a source made for them goes when all of a tensor is released, and Get makes it
  // again.
  virtual void Release(const ConstTensorView& /*view*/) const {}

  // Whether the bytes of a view lie in a file, so that they cost memory only while they are read. Not those that a
  // source made.
  virtual bool LiesInFile(const ConstTensorView& /*view*/) const { return true; }

  // Get, and an error unless the shape is `shape` and the dtype a float format. Matrices (rank 2) and
  // stacks of them (rank 3) may have a block format; vectors are always plain floats.
  Result<ConstTensorView> Get(std::string_view name, const Shape& shape) const;

  // Where the rows of a tensor are in another order than in the family's own checkpoints: row i of what Get gives is
  // row [i] of the checkpoint's. Empty where both have the same.
  virtual std::vector<int64_t> RowOrder(std::string_view /*name*/) const { return {}; }
  // What every number of a tensor has more than in the family's own checkpoints: 1 where these hold norms less one.
  virtual double Offset(std::string_view /*name*/) const { return 0.0; }
  // Whether a matrix is the transpose of the one in the family's own checkpoints.
  virtual bool IsTransposed(std::string_view /*name*/) const { return false; }
  // The hash of the checkpoint that these weights were made of, where they say; else empty.
  virtual std::string RecordedHash() const { return {}; }
  // A tensor that Get may refuse for its type. Nothing where it is missing, and of sources whose types all have views.
  virtual std::optional<RawTensor> FindRaw(std::string_view /*name*/) const { return std::nullopt; }
};

// A Hugging Face folder: model.safetensors, or model.safetensors.index.json with its shards. Memory-mapped.
// The first wins where both are there. An index may only name files beside itself; a tensor of theirs that it leaves
// out is there too.
Result<std::unique_ptr<WeightSource>> OpenSafetensorsFolder(const std::string& folder,
                                                            FileAccess access = FileAccess::kMap);
// One .safetensors file.
Result<std::unique_ptr<WeightSource>> OpenSafetensorsFile(const std::string& path,
                                                          FileAccess access = FileAccess::kMap);

// sha256 (hex) over names, shapes and the first 4 KiB of each tensor, in name order: tells which model a plan was made
// on (docs/head-plan.md). Per tensor, the text "NAME [D0, D1]\n" and then the bytes. Tensors that Get refuses
// (masks and counters of other dtypes) are not weights and are left out. A recorded hash comes first: a plan goes with
// every copy of the weights that it was made on.
std::string SourceHash(const WeightSource& source);

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_WEIGHT_SOURCE_H_
