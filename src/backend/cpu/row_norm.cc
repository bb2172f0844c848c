#include "backend/cpu/row_norm.h"

namespace headwise::cpu {

void RowNorm::Row(int64_t row, float* out) const {
  const int64_t dim = args.x.shape[1];
  const auto of_row = [&](const ConstTensorView& weights) {
    return static_cast<const float*>(weights.data) + row % args.num_weights() * dim;
  };
  kernels.norm_row({.x = static_cast<const float*>(args.x.data) + row * dim,
                    .weight = of_row(args.weight),
                    .bias = args.bias.present() ? of_row(args.bias) : nullptr,
                    .out = out,
                    .n = dim,
                    .eps = args.eps,
                    .subtract_mean = args.kind == NormArgs::Kind::kLayer,
                    .adds = args.write == NormArgs::Write::kAdd});
}

}  // namespace headwise::cpu
