#include "backend/cpu/matmul_input.h"

#include <algorithm>
#include <numeric>

#include "backend/cpu/packed_weights.h"
#include "base/check.h"

namespace headwise::cpu {
namespace {

// Elements of x that one task rounds or copies.
constexpr int64_t kCopyTaskElements = 64 << 10;

// Floats: 2 KiB, half of what separates two addresses of one set in the usual first-level cache.
constexpr int64_t kBadStride = 512;

// body(row, its numbers) for all rows that somebody takes, several to a task where they are short.
template <typename Body>
void ForRows(const MatMulJob& job, ThreadPool& pool, const Body& body) {
  const int64_t num_rows = job.num_rows();
  const int64_t rows_per_task = std::max<int64_t>(1, kCopyTaskElements / std::max<int64_t>(1, job.args.x.shape[1]));
  pool.ParallelFor(CeilDiv(num_rows, rows_per_task), [&](int64_t task_idx, int) {
    const int64_t end = std::min(num_rows, (task_idx + 1) * rows_per_task);
    for (int64_t row = task_idx * rows_per_task; row < end; ++row) {
      if (const float* const from = job.ReadRow(row)) body(row, from);
    }
  });
}

// Where a row of x is among groups of kMaxFewRows.
struct FewRowsPlace {
  int64_t first_row;  // of its group
  int64_t row;        // in its group
  int64_t num_rows;   // of its group
};
// body(row of x, its place) for all rows; a few of them are not worth a thread.
template <typename Body>
void ForFewRows(const MatMulJob& job, ThreadPool& pool, const Body& body) {
  const int64_t num_rows = job.num_rows();
  const auto run = [&](int64_t row, const float* from) {
    const RowRange range = job.RangeOf(row);
    const int64_t first = range.first + (row - range.first) / kMaxFewRows * kMaxFewRows;
    body(from, FewRowsPlace{first, row - first, std::min(kMaxFewRows, range.end() - first)});
  };
  if (num_rows > kMaxFewRows) return ForRows(job, pool, run);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (const float* const from = job.ReadRow(row)) run(row, from);
  }
}

const float* InterleavedRows(const MatMulJob& job, ThreadPool& pool, MatMulScratch& scratch) {
  const int64_t depth = job.args.x.shape[1];
  const int64_t num_blocks = CeilDiv(depth, kFewRowsBlock);
  float* const blocks = scratch.Floats(static_cast<size_t>(num_blocks * job.num_rows() * kFewRowsBlock));
  ForFewRows(job, pool, [&](const float* from, const FewRowsPlace& place) {
    float* to = blocks + (place.first_row * num_blocks + place.row) * kFewRowsBlock;
    for (int64_t block = 0; block < num_blocks; ++block) {
      const int64_t num = std::min(kFewRowsBlock, depth - block * kFewRowsBlock);
      std::copy_n(from, num, to);
      std::fill_n(to + num, kFewRowsBlock - num, 0.0f);
      from += kFewRowsBlock;
      to += place.num_rows * kFewRowsBlock;
    }
  });
  return blocks;
}

const FloatRun* FloatRuns(const MatMulJob& job, ThreadPool& pool, MatMulScratch& scratch) {
  const int64_t num_runs = job.args.x.shape[1] / kRunElements;
  auto* const runs = scratch.Runs<FloatRun>(static_cast<size_t>(num_runs * job.num_rows()));
  ForFewRows(job, pool, [&](const float* from, const FewRowsPlace& place) {
    FloatRun* to = runs + place.first_row * num_runs + place.row;
    for (int64_t run = 0; run < num_runs; ++run, from += kRunElements, to += place.num_rows) {
      std::copy_n(from, kRunElements, to->values);
      to->sum = std::accumulate(from, from + kRunElements, 0.0f);
    }
  });
  return runs;
}

const QuantizedRun* QuantizedRuns(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool,
                                  MatMulScratch& scratch) {
  const int64_t num_runs = job.args.x.shape[1] / kRunElements;
  auto* const runs = scratch.Runs<QuantizedRun>(static_cast<size_t>(num_runs * job.num_rows()));
  ForFewRows(job, pool, [&](const float* from, const FewRowsPlace& place) {
    kernels.quantize_row(from, job.args.x.shape[1], runs + place.first_row * num_runs + place.row, place.num_rows);
  });
  return runs;
}

void MakeRounded(StepType type, const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool,
                 MatMulScratch& scratch, TileInput& input) {
  const RoundedRows rows(type, job.num_rows(), job.args.x.shape[1], scratch.rounded(type));
  input.Take(rows);
  ForRows(job, pool, [&](int64_t row, const float* x) { rows.Round(kernels, row, x); });
}

// x rounded to bf16 in scratch, or itself, or a copy. Rows in scratch have whole cache lines and one more: the
// micro-kernel reads 6 rows side by side and asks for the next 6, which, a multiple of 2 KiB apart, would push each
// other out of the first-level cache.
void MakeSteps(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
               TileInput& input) {
  const int64_t depth = job.args.x.shape[1];
  const bool rounds = job.args.compute != Compute::kF32 && kernels.has_bf16_dot;
  if (rounds && kernels.has_tiles) return MakeRounded(StepType::kBF16Pair, job, kernels, pool, scratch, input);
  input.step_type = rounds ? StepType::kBF16Pair : StepType::kF32;
  if (!rounds && depth % kBadStride != 0 && job.gathered.empty() && job.norm == nullptr) {
    input.steps = {.first = static_cast<const float*>(job.args.x.data), .stride = depth};
    return;
  }
  const int64_t num_steps = rounds ? CeilDiv(depth, 2) : depth;
  const int64_t stride = CeilDiv(num_steps, 16) * 16 + 16;
  float* const rows = scratch.Floats(static_cast<size_t>(job.num_rows() * stride));
  input.steps = {.first = rows, .stride = stride};
  ForRows(job, pool, [&](int64_t row, const float* x) {
    float* to = rows + row * stride;
    if (rounds) {
      kernels.round_row(x, depth, to);
    } else {
      std::copy_n(x, depth, to);
    }
  });
}

// A run more than a row has, for the same reason.
void MakeRuns(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
              TileInput& input) {
  const int64_t depth = job.args.x.shape[1];
  input.runs_stride = depth / kRunElements + 1;
  auto* const runs = scratch.Runs<QuantizedRun>(static_cast<size_t>(job.num_rows() * input.runs_stride));
  input.runs = runs;
  ForRows(job, pool, [&](int64_t row, const float* x) {
    kernels.quantize_row(x, depth, runs + row * input.runs_stride, /*stride=*/1);
  });
}

}  // namespace

const float* MatMulJob::ReadRow(int64_t row) const {
  const int64_t depth = args.x.shape[1];
  if (norm != nullptr) {
    HW_CHECK(gathered.empty());
    thread_local std::vector<float> normed;
    normed.resize(static_cast<size_t>(depth));
    norm->Row(row, normed.data());
    return normed.data();
  }
  const int64_t from = gathered.empty() ? row : gathered[static_cast<size_t>(row)];
  return from < 0 ? nullptr : static_cast<const float*>(args.x.data) + from * depth;
}

RowRange MatMulJob::RangeOf(int64_t row) const {
  if (ranges.empty()) return {0, num_rows()};
  const auto behind = std::ranges::upper_bound(ranges, row, {}, &RowRange::first);
  return *(behind - 1);
}

bool HasPacked(const MatMulArgs& args) {
  return std::ranges::any_of(args.parts, [](const MatMulPart& part) { return IsPacked(part.weight); });
}
bool HasPlain(const MatMulArgs& args) {
  return std::ranges::any_of(args.parts, [](const MatMulPart& part) { return !IsPacked(part.weight); });
}
bool HasWholeCodes(const MatMulPart& part) {
  return HasWholeCodes(WeightTypeOf(part.weight.dtype));
}
bool AllHaveWholeCodes(const MatMulArgs& args) {
  return std::ranges::all_of(args.parts, [](const MatMulPart& part) { return HasWholeCodes(part); });
}

FewRowsInput FewRowsInputOf(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool,
                            MatMulScratch& scratch) {
  FewRowsInput input;
  input.depth = job.args.x.shape[1];
  if (HasPlain(job.args)) input.interleaved = InterleavedRows(job, pool, scratch);
  if (!HasPacked(job.args)) return input;
  const auto& parts = job.args.parts;
  const bool in_int8 = job.args.compute == Compute::kInt8 || job.args.compute == Compute::kW8A8;
  if (in_int8 && std::ranges::any_of(parts, [](const MatMulPart& part) { return HasWholeCodes(part); })) {
    input.runs_int8 = QuantizedRuns(job, kernels, pool, scratch);
  }
  const auto takes_floats = [&](const MatMulPart& part) {
    return IsPacked(part.weight) && (!in_int8 || !HasWholeCodes(part));
  };
  if (std::ranges::any_of(parts, takes_floats)) input.runs_f32 = FloatRuns(job, pool, scratch);
  return input;
}

TileX TileXOf(const MatMulJob& job, const MatMulPart& part, const MatMulKernels& kernels, RowSums sums) {
  const Compute compute = job.args.compute;
  if (!HasWholeCodes(part) || (compute != Compute::kInt8 && compute != Compute::kW8A8)) return TileX::kSteps;
  const bool in_registers = kernels.has_tiles && sums == RowSums::kFastest;
  const bool are_many = in_registers && job.RowsOf(0).count >= kMinRegisterRows;
  // Without elements there are no scales.
  if (compute == Compute::kW8A8 && in_registers && job.args.x.shape[1] > 0) {
    if (are_many || HasGroupScales(part.weight)) return TileX::kBytes;
  }
  return are_many ? TileX::kSteps : TileX::kRuns;
}

void TileInput::Take(const RoundedRows& rows) {
  if (rows.type() == StepType::kByteQuad) {
    bytes = rows.steps();
    byte_scales = rows.scales();
    byte_starts = rows.starts();
    byte_scales_stride = rows.scales_stride();
  } else {
    steps = rows.steps();
    step_type = rows.type();
  }
}

TileInput TileInputOf(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
                      RowSums sums) {
  TileInput input;
  const auto any_takes = [&](TileX x) {
    return std::ranges::any_of(job.args.parts,
                               [&](const MatMulPart& part) { return TileXOf(job, part, kernels, sums) == x; });
  };
  if (any_takes(TileX::kSteps)) MakeSteps(job, kernels, pool, scratch, input);
  if (any_takes(TileX::kRuns)) MakeRuns(job, kernels, pool, scratch, input);
  if (any_takes(TileX::kBytes)) MakeRounded(StepType::kByteQuad, job, kernels, pool, scratch, input);
  return input;
}

}  // namespace headwise::cpu
