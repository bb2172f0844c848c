// Every kernel function of one instruction set, declared in that set's namespace: kernels/table.cc makes a table of
// them.
#ifndef HEADWISE_BACKEND_CPU_KERNELS_ISA_FUNCTIONS_H_
#define HEADWISE_BACKEND_CPU_KERNELS_ISA_FUNCTIONS_H_

#include "backend/cpu/kernels/attention_kernels.h"
#include "backend/cpu/kernels/elementwise_kernels.h"
#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/kernels/peak_kernels.h"
#include "backend/cpu/kernels/softmax_kernels.h"

namespace headwise::cpu::HW_ISA {

void Append(const AppendArgs& args);
void Age(const AgeArgs& args);
void Decode(const DecodeArgs& args);
void DecodeQ8(const DecodeArgs& args);  // the part of Decode for q8 pages
void DecodeQ4(const DecodeArgs& args);  // the part of Decode for q4 pages
void Prefill(const PrefillArgs& args);
void Fold(const FoldArgs& args);
void SelectScore(const SelectScoreArgs& args);
void SelectNorm(const SelectNormArgs& args);
void SelectDirections(const SelectDirectionsArgs& args);
void SelectCosine(const SelectCosineArgs& args);
void BoundKeys(const BoundKeysArgs& args);
void ScoreBlocks(const ScoreBlocksArgs& args);
void MoveSlots(const MoveSlotsArgs& args);

void FewRows(const FewRowsArgs& args);
void Tile(const TileArgs& args);
void PackedFewRows(const PackedArgs& args);
void PackedTile(const PackedArgs& args, void* scratch);
void QuantizeRow(const float* x, int64_t n, QuantizedRun* to, int64_t stride);
GroupSummary QuantizeGroup(const float* x, int64_t n, int8_t* to, int64_t stride);
void RoundRow(const float* x, int64_t n, float* pairs);

void NormRow(const NormRowArgs& args);
void RopeRow(const RopeRowArgs& args);
void GatedSilu(const float* gate, float* x, int64_t n);
void GatedSiluClamped(const float* gate, float* x, int64_t n, float limit, float slope);
void ScaleBySigmoid(float gate, float* x, int64_t n);
void GatedGeluTanh(const float* gate, float* x, int64_t n);
void Gelu(float* x, int64_t n);
void GeluTanh(float* x, int64_t n);
void ClampRow(float* x, int64_t n, float limit);
void SoftCapRow(float* x, int64_t n, float cap);
void AddScaledRow(const float* x, float factor, float* sum, int64_t n);

float MaxRow(const float* x, int64_t n);
float ExpRow(float* x, int64_t n, float shift);
void SoftmaxGradRow(const float* p, float* g, int64_t n, float delta, float scale);

double PeakF32(int64_t num_iterations, float* sink);
double PeakBF16Dot(int64_t num_iterations, float* sink);
double PeakInt8Dot(int64_t num_iterations, float* sink);
double PeakInt8Tiles(int64_t num_iterations, float* sink);
float ReadSum(const float* x, int64_t n);

}  // namespace headwise::cpu::HW_ISA

#endif  // HEADWISE_BACKEND_CPU_KERNELS_ISA_FUNCTIONS_H_
