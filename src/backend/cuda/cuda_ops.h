// The operations as functions: each puts its kernels on the device's stream and returns. Arguments were validated.
#ifndef HEADWISE_BACKEND_CUDA_CUDA_OPS_H_
#define HEADWISE_BACKEND_CUDA_CUDA_OPS_H_

#include <span>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/expert_tables.h"
#include "backend/cuda/step_tables.h"
#include "backend/ops.h"

namespace headwise::cuda {

void Embed(const EmbedArgs& args, CudaDevice& device);
// Rows of a table in a block format's order (block_order.h). `chosen`: null, or what `ids` are places in (EmbedArgs).
struct BlockRows {
  const void* tiles;
  DType dtype;
  bool adds;  // out += row, else out = scale * row
  float scale;
  int64_t num_ids, dim;
  const int32_t* ids;
  const int32_t* chosen;
  float* out;
};
void EmbedBlocks(const BlockRows& rows, int64_t num_rows, CudaDevice& device);
void Norm(const NormArgs& args, CudaDevice& device);
void Rope(const RopeArgs& args, CudaDevice& device);
void Activate(const ActivateArgs& args, CudaDevice& device);
void GateRows(const GateRowsArgs& args, CudaDevice& device);
void Clamp(const ClampArgs& args, CudaDevice& device);
void SoftCap(const SoftCapArgs& args, CudaDevice& device);
void GatherRows(const GatherRowsArgs& args, CudaDevice& device);
void DrawTokens(const DrawTokensArgs& args, CudaDevice& device);

// x, f32 or f16, as bf16, to `rounded`, which has room for a multiple of four numbers.
void RoundToBf16(const ConstTensorView& x, void* rounded, CudaDevice& device);
// The same of what a norm or an activation gives; whether that is written too is left open.
void NormRounded(const NormArgs& args, void* rounded, CudaDevice& device);
void ActivateRounded(const ActivateArgs& args, void* rounded, CudaDevice& device);
// [T, K] e4m3, K a multiple of 16, and [T] f32: rows in FP8 (fp8.cu).
struct Fp8Rows {
  void* codes;
  float* scales;
};
void RowsToFp8(const ConstTensorView& rows, const Fp8Rows& to, CudaDevice& device);  // of a plain format
// The same of what a norm or an activation gives; whether that is written too is left open.
void NormToFp8(const NormArgs& args, const Fp8Rows& to, CudaDevice& device);
void ActivateToFp8(const ActivateArgs& args, const Fp8Rows& to, CudaDevice& device);
// The part's bias to every row of its outputs, or added to them.
void WriteBias(const MatMulPart& part, MatMulArgs::Write write, CudaDevice& device);
// Of plain formats. Rows of `out` are out_stride numbers apart, or as many as there are outputs: 0.
void MatMul(const MatMulArgs& args, CudaDevice& device, int64_t out_stride = 0);
// Outputs [first_output, first_output + num_outputs) of a matrix in a block format's order as rows of `to`, f32 or
// bf16; first_output is a multiple of 16.
void Dequantize(const WeightMatrix& matrix, int64_t first_output, int64_t num_outputs, DType to, void* rows,
                CudaDevice& device);
// Columns that a kernel for few rows multiplies: in f32 a row is three of bf16.
inline constexpr int kMaxFewColumns = 32;
inline constexpr int PartsOfRows(Compute compute) {
  return compute == Compute::kF32 ? 3 : 1;
}
// What an operation has left of its rows for the product that may come right behind it (rounded_columns.cuh): there
// until something else is put on the device.
struct Prepared {
  const void* x = nullptr;             // the rows themselves
  const float* norm_weight = nullptr;  // columns are of x times this, where a norm stands in between
  int64_t num_rows = 0;
  int num_parts = 0;
  bool are_bytes = false;  // columns: of products with block formats
  void* columns = nullptr;
  float* squares = nullptr;  // of x, where a norm stands in between
  int64_t num_put = -1;      // CudaDevice::num_put() behind it
};
// The norm that reads what a product leaves, where one is known to, and where its product's x may be left: in bf16, or
// in bytes, which take less.
struct NormBehind {
  const float* weight = nullptr;
  std::byte* room = nullptr;  // of ColumnsBytes
};
size_t ColumnsBytes(int64_t depth);
// Whether MatMulFewRows can do all of it, faster, but for what comes behind the activation: weights in bf16 or f16.
bool HasFewRows(const LinearArgs& args);
// Whether it does `then` as well.
bool DoesThen(const LinearArgs& args);
// Of one part that is added to, the last product may have a norm `behind` it.
Prepared MatMulFewRows(const LinearArgs& args, const Prepared& prepared, const NormBehind& behind, CudaDevice& device);
// Up to so many rows are multiplied by a kernel of Hopper's that reads weights once (matmul_some_rows.cu).
inline constexpr int64_t kMaxSomeRows = 64;
// Of weights in block formats another one makes them bf16 on the way, once for 128 rows (matmul_some_rows_blocks.cu).
inline constexpr int64_t kMaxSomeRowsInBlocks = 256;
// Whether MatMulSomeRows can do the product, of x in bf16: at most four parts in bf16, K a multiple of 128, or in one
// block format, K whole slices (block_order.h), at most 2^23, on sm_90.
bool HasSomeRows(const MatMulArgs& args, const CudaDevice& device);
bool HasSomeRowsInBlocks(const MatMulArgs& args, const CudaDevice& device);
// Whether it can do the activation too.
bool GatesSomeRows(const LinearArgs& args, const CudaDevice& device);
// The product, of `x` [T, K] in bf16 in place of its own; with `gated` [T, N] bf16 the activation as well: what that
// gives is rounded to there, and the product's outputs are not written. `memory`: of SomeRowsBytes, zeros before the
// first call, of this function alone.
size_t SomeRowsBytes(const CudaDevice& device);
size_t SomeRowsInBlocksBytes(const CudaDevice& device);
void MatMulSomeRows(const ConstTensorView& x, const LinearArgs& args, void* gated, std::byte* memory,
                    CudaDevice& device);
void MatMulSomeRowsInBlocks(const ConstTensorView& x, const LinearArgs& args, void* gated, std::byte* memory,
                            CudaDevice& device);
// Where there is no such kernel: more rows than 32 read the weights once for every 32; from some number on it is faster
// to make them bf16, once, for a library's product.
inline constexpr int64_t kMaxRowsInBlocks = 96;
// Whether MatMulFewRowsInBlocks can do all of it but for what comes behind the activation: weights of one block format,
// in integer products.
bool HasFewRowsInBlocks(const LinearArgs& args, const CudaDevice& device);
// Whether it does `then` as well.
bool DoesThenInBlocks(const LinearArgs& args, const CudaDevice& device);
// As MatMulFewRows.
Prepared MatMulFewRowsInBlocks(const LinearArgs& args, const Prepared& prepared, const NormBehind& behind,
                               CudaDevice& device);
void Experts(const ExpertsArgs& args, ExpertTables& tables, CudaDevice& device);

void CopyPages(const CopyPagesArgs& args, const StepTables& tables, CudaDevice& device);
void AppendKv(const AppendKvArgs& args, const StepTables& tables, CudaDevice& device);
// Up to three rotations of rows of one step, those of keys in place, and AppendKv behind them, as one launch.
bool FusesRopes(std::span<const RopeArgs> ropes, const AppendKvArgs& append);
// Whether the launch for this step follows from more than the step's spaces and rows: from which head has which pages.
bool AppendsByHeads(const KvStep& step);
// What that has put on the device, where attention of one row a sequence, right behind it, may take it back and do it
// on its way.
struct Appended {
  const float* q = nullptr;  // [B, Hq D], k and v [B, Hkv D], as they come; null: attention cannot
  const float* k = nullptr;
  const float* v = nullptr;
  const float* angles = nullptr;        // [A, D / 2] cosines with sines
  const int32_t* angle_rows = nullptr;  // [B]
  const void* rotated_q = nullptr;      // where queries are rotated to
  int64_t layer_idx = 0;
  int64_t num_put = -1;  // CudaDevice::num_put() behind it
};
Appended RopeThenAppendKv(std::span<const RopeArgs> ropes, const AppendKvArgs& append, const StepTables& tables,
                          CudaDevice& device);
void AgeKv(const AgeKvArgs& args, const StepTables& tables, CudaDevice& device);
// Of all rows; with `has_decode` of those that DecodeAttention leaves.
void Attention(const AttentionArgs& args, StepTables& tables, bool has_decode, CudaDevice& device);
// Whether there is a kernel for a prompt's rows, and what it does: the heads of `blocks` that are its.
bool HasPrefillKernel(const AttentionArgs& args);
void PrefillAttention(const AttentionArgs& args, const LayerBlocks& blocks, const StepTables& tables,
                      CudaDevice& device);
// Behind tables.Begin: what DecodeAttention needs of every layer (tables.decode()) for the sequences with one row,
// where there are any, and a kernel for the step's pages.
void PlanDecode(const KvStep& step, StepTables& tables, CudaDevice& device);
// Whether DecodeAttention can take the sequences with one row, and does for them what Attention does.
bool DecodesFast(const AttentionArgs& args, const StepTables& tables, const CudaDevice& device);
// `leaves_bytes`: for a product with weights in block formats, where products in bytes are asked for, else in bf16.
Prepared DecodeAttention(const AttentionArgs& args, const Appended& appended, bool leaves_bytes,
                         const StepTables& tables, CudaDevice& device);
void Compensate(const CompensateArgs& args, const StepTables& tables, CudaDevice& device);

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_CUDA_OPS_H_
