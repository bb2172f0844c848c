// The matmul kernels of one instruction set: dispatch on the weights' type.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/matmul_few_rows-inl.h"
#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/matmul_tile-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

template <typename Steps>
void TileBy(const TileArgs& args) {
  switch (args.type) {
    case WeightType::kF32:
      return TileOf<Steps, WeightType::kF32>(args);
    case WeightType::kF16:
      return TileOf<Steps, WeightType::kF16>(args);
    case WeightType::kBF16:
      return TileOf<Steps, WeightType::kBF16>(args);
  }
}

}  // namespace

void FewRows(const FewRowsArgs& args) {
  switch (args.type) {
    case WeightType::kF32:
      return kFewRowsOf<WeightType::kF32>[args.num_rows - 1](args);
    case WeightType::kF16:
      return kFewRowsOf<WeightType::kF16>[args.num_rows - 1](args);
    case WeightType::kBF16:
      return kFewRowsOf<WeightType::kBF16>[args.num_rows - 1](args);
  }
}

void Tile(const TileArgs& args) {
  if constexpr (kHasBF16Dot) {
    if (args.steps == StepType::kBF16Pair) return TileBy<BF16Steps>(args);
  }
  TileBy<F32Steps>(args);
}

void RoundRow(const float* x, int64_t n, float* pairs) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    hn::StoreU(PackBF16Sequence(hn::LoadU(kDF, x + i), hn::LoadU(kDF, x + i + kLanes)), kDF, pairs + i / 2);
  }
  for (; i < n; i += 2) pairs[i / 2] = PackBF16Pair(x[i], i + 1 < n ? x[i + 1] : 0.0f);
}

}  // namespace headwise::cpu::HW_ISA
