// Making one matrix of a block format of the tensors that a published folder has for it. Private to
// weights/published_weights.cc.
#ifndef HEADWISE_WEIGHTS_PUBLISHED_MATRIX_H_
#define HEADWISE_WEIGHTS_PUBLISHED_MATRIX_H_

#include <headwise/status.h>

#include <cstddef>
#include <memory>
#include <string>

#include "tensor/tensor.h"
#include "weights/published_weights.h"
#include "weights/weight_source.h"

namespace headwise {

struct PublishedMatrix {
  std::unique_ptr<std::byte[]> bytes;
  DType dtype = DType::kF32;
  Shape shape;
};

// `stem` is what the names of the tensors have in common. Errors name the tensor. Formats and exactness:
//   kFp8     f8_e4m3, exact
//   kAwq, kGptq, kPacked   q4_0 where every zero point is 8, else u4: exact where f16 holds the scales. Else f32; and
//            where columns of a group are apart (act-order) f16, to its nearest
//   kMxfp4   mxfp4, exact
//   kNf4     nf4, exact
Result<PublishedMatrix> MakePublishedMatrix(const WeightSource& folder, const PublishedFormat& format,
                                            const std::string& stem);

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_PUBLISHED_MATRIX_H_
