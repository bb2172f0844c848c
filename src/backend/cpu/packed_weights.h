// Making and reading the packed form of block-format matrices (kernels/packed_weights.h): once, when a model is loaded.
#ifndef HEADWISE_BACKEND_CPU_PACKED_WEIGHTS_H_
#define HEADWISE_BACKEND_CPU_PACKED_WEIGHTS_H_

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/packed_weights.h"
#include "base/thread_pool.h"
#include "tensor/weight_matrix.h"

namespace headwise::cpu {

// Requires: a float or block format.
WeightType WeightTypeOf(DType dtype);

// Bytes of a matrix [N, K] in panels. Requires: a block format.
size_t PackedBytes(DType dtype, const Shape& shape);
// From rows of blocks, as in a file, to panels; rows behind the last are 0. `packed` has PackedBytes, 64-byte aligned.
void PackWeights(const ConstTensorView& from, std::byte* packed, ThreadPool& pool);
// What has been made of a matrix since.
struct PackedState {
  bool has_group_scales = false;
};
// The handle of what PackWeights made: all copies share `state`. Without one the matrix stays as it is.
WeightMatrix PackedMatrix(DType dtype, const Shape& shape, const std::byte* packed, PackedState* state = nullptr);
// Whether a matrix is in panels. Requires: one that this backend adopted, so that block formats are.
bool IsPacked(const WeightMatrix& matrix);
// Compute::kW8A8: rounds codes in place so that all runs of kGroupElements of an output have one scale, if registers
// can read what comes of it where it lies: a matrix in q8_0, with a state, whose K is whole registers. Others stay as
// they are, and so does one that has been rounded.
void RoundToGroupScales(const WeightMatrix& packed, ThreadPool& pool);
// Whether that has been done. Requires: one that this backend adopted.
bool HasGroupScales(const WeightMatrix& matrix);
// Row `row` of a packed matrix as f32: [K].
void UnpackRow(const WeightMatrix& matrix, int64_t row, float* values);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_PACKED_WEIGHTS_H_
