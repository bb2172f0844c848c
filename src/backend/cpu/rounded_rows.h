// Rows of x rounded for products on tile registers, in the order in which these read them.
#ifndef HEADWISE_BACKEND_CPU_ROUNDED_ROWS_H_
#define HEADWISE_BACKEND_CPU_ROUNDED_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/matmul_kernels.h"
#include "base/round_up.h"
#include "base/scratch_memory.h"

namespace headwise::cpu {

// Rows that one register has.
inline constexpr int64_t kTileRangeUnit = 16;

// Rows of x in steps (TileArgs): one behind the other, or in blocks of K in the order of tile registers.
struct StepRows {
  const float* first = nullptr;
  int64_t stride = 0;        // steps of a row
  int64_t block_stride = 0;  // of the order of tile registers

  // Requires: in that order a multiple of kTileRangeUnit.
  const float* Row(int64_t row) const {
    return first + row * (block_stride == 0 ? stride : std::min(stride, kAmxBlockSteps));
  }
};

// Registers of 16 rows and 16 steps, 1 KiB each, in the order of tile registers.
class RegisterOrder {
 public:
  static constexpr int64_t kSteps = kTileRangeUnit;
  static constexpr int64_t kFloats = kTileRangeUnit * kSteps;

  RegisterOrder(int64_t num_rows, int64_t num_steps)
      : row_registers_(CeilDiv(num_rows, kTileRangeUnit)),
        registers_(CeilDiv(num_steps, kSteps)),
        block_registers_(std::clamp<int64_t>(registers_, 1, kAmxBlockSteps / kSteps)) {}
  int64_t num_floats() const { return CeilDiv(registers_, block_registers_) * block_floats(); }
  // Steps 16 i and on of a row.
  float* At(float* first, int64_t row, int64_t i) const {
    const int64_t row_register = row / kTileRangeUnit * block_registers_ + i % block_registers_;
    return first + i / block_registers_ * block_floats() + row_register * kFloats + row % kTileRangeUnit * kSteps;
  }
  StepRows Rows(const float* first) const {
    return {.first = first, .stride = registers_ * kSteps, .block_stride = block_floats()};
  }

 private:
  int64_t block_floats() const { return row_registers_ * block_registers_ * kFloats; }

  int64_t row_registers_, registers_, block_registers_;
};

// Memory of rounded rows that is kept between products.
class RoundedMemory {
 public:
  float* Steps(size_t count) { return reinterpret_cast<float*>(steps_.Reserve(count * sizeof(float))); }
  float* Scales(size_t count) { return reinterpret_cast<float*>(scales_.Reserve(count * sizeof(float))); }

 private:
  static constexpr const char* kPurpose = "the inputs of a matrix product";
  ScratchMemory steps_{kPurpose};
  ScratchMemory scales_{kPurpose};
};

// Such rows in the making, each group of K of a row by itself, whoever comes first: to bf16, or to bytes with a scale
// for each group.
class RoundedRows {
 public:
  // `type` is kBF16Pair or kByteQuad; x is [num_rows, depth].
  RoundedRows(StepType type, int64_t num_rows, int64_t depth, RoundedMemory& memory);
  // Elements [group * kGroupElements, ...) of a row, from `x` on, as many as K has there.
  void RoundGroup(const MatMulKernels& kernels, int64_t row, int64_t group, const float* x) const;
  void Round(const MatMulKernels& kernels, int64_t row, const float* x) const;

  StepType type() const { return type_; }
  StepRows steps() const { return order_.Rows(steps_); }
  // Of bytes: [groups of K][scales_stride] f32, and as QuantizedRun::start_128.
  const float* scales() const { return scales_; }
  const int32_t* starts() const { return starts_; }
  int64_t scales_stride() const { return scales_stride_; }

 private:
  int64_t step_elements() const { return type_ == StepType::kByteQuad ? 4 : 2; }

  StepType type_;
  int64_t depth_;  // K
  RegisterOrder order_;
  float* steps_;
  int64_t scales_stride_ = 0;
  float* scales_ = nullptr;
  int32_t* starts_ = nullptr;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_ROUNDED_ROWS_H_
