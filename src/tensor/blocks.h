// Reading and writing tensors of any float format as f32, block formats among them: the definition that kernels are
// held to. Block formats are those of GGUF files and of published folders (docs/gguf.md says what each block holds). No
// state: rows can be
// converted on any number of threads, and every machine writes the same bytes.
#ifndef HEADWISE_TENSOR_BLOCKS_H_
#define HEADWISE_TENSOR_BLOCKS_H_

#include <cstdint>

#include "tensor/dtype.h"

namespace headwise {

// The values that `num_elements` elements at `data` stand for, which may lie at any address if the format is one of
// blocks. Requires: a float or block format; whole blocks.
void ToF32(DType dtype, const void* data, int64_t num_elements, float* values);

// Whether FromF32 can write the format.
bool CanQuantize(DType dtype);
// The elements of the format that stand for `values` best: nearest for plain formats, the format's usual rounding for
// q8_0, q4_0 and mxfp4, least squared error found by a search for q4_k and q6_k. Values must be finite; a block of
// larger ones than its format can hold gets the largest scale there is. Requires: CanQuantize(dtype); whole blocks.
void FromF32(DType dtype, const float* values, int64_t num_elements, void* data);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_BLOCKS_H_
