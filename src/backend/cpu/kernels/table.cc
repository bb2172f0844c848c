// This instruction set's kernels as one table.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/native-inl.h"
#include "backend/cpu/kernels/tiles-inl.h"

#define HW_STRINGIFY_INNER(x) #x
#define HW_STRINGIFY(x) HW_STRINGIFY_INNER(x)

namespace headwise::cpu::HW_ISA {

// constexpr: filled in by the compiler, not by code at program start.
extern const KernelTable kKernelTable;
constexpr KernelTable kKernelTable = {
    .isa = HW_STRINGIFY(HW_ISA),
    .matmul = {.few_rows = FewRows,
               .tile = Tile,
               .packed_few_rows = PackedFewRows,
               .packed_tile = PackedTile,
               .quantize_row = QuantizeRow,
               .quantize_group = QuantizeGroup,
               .round_row = RoundRow,
               .register_tile_limits = kHasTiles ? kAmxTileLimits : kVectorTileLimits,
               .has_tiles = kHasTiles,
               .has_bf16_dot = kMultipliesBF16,
               .has_int8_dot = kHasInt8Dot},
    .attention = {.append = Append,
                  .bound_keys = BoundKeys,
                  .score_blocks = ScoreBlocks,
                  .age = Age,
                  .decode = Decode,
                  .prefill = Prefill,
                  .fold = Fold,
                  .select_score = SelectScore,
                  .select_norm = SelectNorm,
                  .select_directions = SelectDirections,
                  .select_cosine = SelectCosine,
                  .move_slots = MoveSlots,
                  .has_bf16_dot = kMultipliesBF16},
    .elementwise = {.norm_row = NormRow,
                    .rope_row = RopeRow,
                    .gated_silu = GatedSilu,
                    .gated_gelu_tanh = GatedGeluTanh,
                    .gated_silu_clamped = GatedSiluClamped,
                    .gelu = Gelu,
                    .gelu_tanh = GeluTanh,
                    .scale_by_sigmoid = ScaleBySigmoid,
                    .clamp = ClampRow,
                    .soft_cap = SoftCapRow,
                    .add_scaled = AddScaledRow},
    .softmax = {.max = MaxRow, .exp = ExpRow, .gradient = SoftmaxGradRow},
    .peak = {.f32_multiply_add = PeakF32,
             .bf16_dot = PeakBF16Dot,
             .int8_dot = PeakInt8Dot,
             .int8_tiles = PeakInt8Tiles,
             .read_sum = ReadSum},
};

}  // namespace headwise::cpu::HW_ISA
