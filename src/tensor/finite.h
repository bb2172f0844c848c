// Numbers that are none: a NaN or an infinity among weights or in what a model computes.
#ifndef HEADWISE_TENSOR_FINITE_H_
#define HEADWISE_TENSOR_FINITE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tensor/tensor.h"

namespace headwise {

bool AllFinite(std::span<const float> values);

// Where the first of them stands, and what it is: "nan at [3, 17]". Nothing where all are finite. Requires: a float or
// block format of rank 1 or 2, in host memory.
std::optional<std::string> FindNonFinite(const ConstTensorView& tensor);

}  // namespace headwise

#endif  // HEADWISE_TENSOR_FINITE_H_
