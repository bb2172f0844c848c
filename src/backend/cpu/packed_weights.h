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
// The handle of what PackWeights made.
WeightMatrix PackedMatrix(DType dtype, const Shape& shape, const std::byte* packed);
// Whether a matrix is in panels. Requires: one that this backend adopted, so that block formats are.
bool IsPacked(const WeightMatrix& matrix);
// Row `row` of a packed matrix as f32: [K].
void UnpackRow(const WeightMatrix& matrix, int64_t row, float* values);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_PACKED_WEIGHTS_H_
