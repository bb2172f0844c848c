// x of a matrix product in the forms in which the kernels read it, and the memory for them.
#ifndef HEADWISE_BACKEND_CPU_MATMUL_INPUT_H_
#define HEADWISE_BACKEND_CPU_MATMUL_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/activation.h"
#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/cpu/rounded_rows.h"
#include "backend/cpu/row_norm.h"
#include "backend/cpu/row_sums.h"
#include "backend/ops.h"
#include "base/round_up.h"
#include "base/scratch_memory.h"
#include "base/thread_pool.h"

namespace headwise::cpu {

// Rows [first, first + count).
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;

  int64_t end() const { return first + count; }
};

// A product whose parts may take rows of their own: the experts of a mixture. `args.x` has the rows that it is made of.
struct MatMulJob {
  const MatMulArgs& args;
  // Null, or what makes each row of x when it is read: then nothing is in args.x. Not with `gathered`.
  const RowNorm* norm = nullptr;
  // Of each part the rows that it takes, of which its `out` has the first in front; empty: all rows. Sorted by their
  // first rows, and disjoint or the same.
  std::span<const RowRange> ranges = {};
  // Row r is row [r] of args.x, -1 one that nobody takes; empty: it is row r.
  std::span<const int32_t> gathered = {};
  // Null, or what becomes of the outputs: of parts 2i and 2i + 1, gate and x, alike but for their weights, x gets what
  // it makes of both, and what stands in gate afterwards is not said; where it isn't gated each part is an x. Nothing
  // is added to what stood there.
  const Activation* activation = nullptr;

  size_t parts_per_task() const { return activation != nullptr && activation->is_gated() ? 2 : 1; }
  int64_t num_rows() const { return gathered.empty() ? args.x.shape[0] : static_cast<int64_t>(gathered.size()); }
  RowRange RowsOf(size_t part_idx) const { return ranges.empty() ? RowRange{0, num_rows()} : ranges[part_idx]; }
  // Of x, made where there is a norm, until this thread reads another one; null where nobody takes it.
  const float* ReadRow(int64_t row) const;
  // The range that a row is in. Requires: one that somebody takes.
  RowRange RangeOf(int64_t row) const;
};

// What a tile of weights is multiplied with.
enum class TileX : uint8_t { kSteps, kRuns, kBytes };

// Outputs [first_output, first_output + num_outputs) of a part, for rows [first_row, first_row + num_rows) of x.
struct MatMulTask {
  size_t part_idx = 0;  // of tiles the first of parts_per_task
  int64_t first_output = 0;
  int64_t num_outputs = 0;
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

// Memory that matrix products keep between calls.
class MatMulScratch {
 public:
  // So many bytes for each of `num_threads`.
  void ReserveTiles(int num_threads, size_t bytes) { tiles_.Reserve(num_threads, bytes); }
  float* TileOfThread(int thread_idx) { return reinterpret_cast<float*>(tiles_.OfThread(thread_idx)); }
  // Room for that many floats, or runs of one kind, each shared by all threads.
  float* Floats(size_t count) { return reinterpret_cast<float*>(floats_.Reserve(count * sizeof(float))); }
  template <typename Run>
  Run* Runs(size_t count) {
    return reinterpret_cast<Run*>(runs_.Reserve(count * sizeof(Run)));
  }
  // In the order of tile registers: of a product, and of the one behind it, whose x is made meanwhile.
  RoundedMemory& rounded(StepType type) { return type == StepType::kByteQuad ? bytes_ : bf16_; }
  RoundedMemory& then_bytes() { return then_bytes_; }
  std::vector<MatMulTask>& tasks() { return tasks_; }

 private:
  static constexpr const char* kPurpose = "the inputs of a matrix product";
  ThreadScratchMemory tiles_{kPurpose};
  ScratchMemory floats_{kPurpose};
  ScratchMemory runs_{kPurpose};
  RoundedMemory bf16_, bytes_, then_bytes_;
  std::vector<MatMulTask> tasks_;
};

// Groups of kMaxFewRows rows of a range, and of what is left, one behind the other. What is not needed is not made:
// plain weights need the first, packed ones one of the others.
struct FewRowsInput {
  const float* interleaved = nullptr;       // of a group: [K / kFewRowsBlock, rounded up][rows][kFewRowsBlock]
  const QuantizedRun* runs_int8 = nullptr;  // of a group: [K / 32][rows]
  const FloatRun* runs_f32 = nullptr;       // likewise
  int64_t depth = 0;                        // K

  // The group that begins with `row`.
  const float* InterleavedGroup(int64_t row) const {
    return interleaved + row * CeilDiv(depth, kFewRowsBlock) * kFewRowsBlock;
  }
  const QuantizedRun* Int8Group(int64_t row) const {
    return runs_int8 == nullptr ? nullptr : runs_int8 + row * (depth / kRunElements);
  }
  const FloatRun* FloatGroup(int64_t row) const {
    return runs_f32 == nullptr ? nullptr : runs_f32 + row * (depth / kRunElements);
  }
};
FewRowsInput FewRowsInputOf(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool,
                            MatMulScratch& scratch);

// Whether any part's weights lie in panels, or as in the file.
bool HasPacked(const MatMulArgs& args);
bool HasPlain(const MatMulArgs& args);
// Whether a part can be multiplied in int8, and whether all can.
bool HasWholeCodes(const MatMulPart& part);
bool AllHaveWholeCodes(const MatMulArgs& args);

// On tile registers block formats are bf16 steps in int8 too, and bytes in w8a8, unless all rows are to have the sums
// of few; less than kMinRegisterRows are runs there, and bytes if their weights have group scales.
TileX TileXOf(const MatMulJob& job, const MatMulPart& part, const MatMulKernels& kernels, RowSums sums);

// What any part of a job takes.
struct TileInput {
  StepRows steps;
  StepType step_type = StepType::kF32;
  const QuantizedRun* runs = nullptr;  // [rows, runs_stride]
  int64_t runs_stride = 0;
  StepRows bytes;                        // StepType::kByteQuad
  const float* byte_scales = nullptr;    // [groups of K][byte_scales_stride]
  const int32_t* byte_starts = nullptr;  // likewise, as QuantizedRun::start_128
  int64_t byte_scales_stride = 0;

  void Take(const RoundedRows& rows);
};

// Requires: ranges begin with multiples of kTileRangeUnit rows, and have all kMinRegisterRows rows or none.
TileInput TileInputOf(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
                      RowSums sums);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_MATMUL_INPUT_H_
