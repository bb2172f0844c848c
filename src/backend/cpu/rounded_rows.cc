#include "backend/cpu/rounded_rows.h"

#include "backend/cpu/kernels/packed_weights.h"

namespace headwise::cpu {

// A group's registers are one block's.
static_assert(kAmxBlockSteps * 4 % kGroupElements == 0);

RoundedRows::RoundedRows(StepType type, int64_t num_rows, int64_t depth, RoundedMemory& memory)
    : type_(type),
      depth_(depth),
      order_(num_rows, CeilDiv(depth, step_elements())),
      steps_(memory.Steps(static_cast<size_t>(order_.num_floats()))) {
  if (type != StepType::kByteQuad) return;
  scales_stride_ = CeilDiv(num_rows, kTileRangeUnit) * kTileRangeUnit;
  const int64_t num_scales = CeilDiv(depth, kGroupElements) * scales_stride_;
  scales_ = memory.Scales(static_cast<size_t>(2 * num_scales));
  starts_ = reinterpret_cast<int32_t*>(scales_ + num_scales);
}

void RoundedRows::RoundGroup(const MatMulKernels& kernels, int64_t row, int64_t group, const float* x) const {
  const int64_t register_elements = step_elements() * RegisterOrder::kSteps;
  const int64_t first = group * kGroupElements;
  const int64_t num = std::min(kGroupElements, depth_ - first);
  if (type_ == StepType::kByteQuad) {
    auto* const to = reinterpret_cast<int8_t*>(order_.At(steps_, row, first / register_elements));
    const auto [scale, code_sum] = kernels.quantize_group(x, num, to, RegisterOrder::kFloats * 4);
    scales_[group * scales_stride_ + row] = scale;
    starts_[group * scales_stride_ + row] = -FormatOf(WeightType::kQ8_0).offset * code_sum;
    return;
  }
  for (int64_t i = 0; i < num; i += register_elements) {
    float* const to = order_.At(steps_, row, (first + i) / register_elements);
    const int64_t some = std::min(register_elements, num - i);
    kernels.round_row(x + i, some, to);
    std::fill(to + CeilDiv(some, 2), to + RegisterOrder::kSteps, 0.0f);
  }
}

void RoundedRows::Round(const MatMulKernels& kernels, int64_t row, const float* x) const {
  for (int64_t group = 0; group * kGroupElements < depth_; ++group) {
    RoundGroup(kernels, row, group, x + group * kGroupElements);
  }
}

}  // namespace headwise::cpu
