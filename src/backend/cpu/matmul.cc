#include "backend/cpu/matmul.h"

#include <algorithm>
#include <new>

#include "base/check.h"

namespace headwise::cpu {
namespace {

constexpr size_t kAlignment = 64;

// Weights of one task of few rows. 128 KiB take some 6 us from memory, long against the 0.1 us of claiming a task and
// short against a matrix, so that threads finish together. The kernel asks for weights one group of 3 or 4 outputs
// ahead, so a task of few outputs would wait for most of its memory.
constexpr int64_t kTaskBytes = 128 << 10;
constexpr int64_t kMinTaskOutputs = 32;

// Rows of x of one tile task. Reordering the tile's weights costs as much as 7 to 12 rows; more rows a task would leave
// a machine of many cores without work in a narrow matrix.
constexpr int64_t kTaskRows = 256;

// Below this much work another thread would come too late: waking one takes a few microseconds.
constexpr int64_t kMinParallelBytes = 64 << 10;
constexpr int64_t kMinParallelProducts = 1 << 20;

// Elements of x that one task rounds or copies.
constexpr int64_t kCopyTaskElements = 64 << 10;

// Floats: 2 KiB, half of what separates two addresses of one set in the usual first-level cache.
constexpr int64_t kBadStride = 512;

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

WeightType WeightTypeOf(DType dtype) {
  return dtype == DType::kF32 ? WeightType::kF32 : dtype == DType::kF16 ? WeightType::kF16 : WeightType::kBF16;
}

enum class Spread { kCaller, kPool };

template <typename Body>
void ForTasks(int64_t num_tasks, Spread spread, ThreadPool& pool, const Body& body) {
  if (spread == Spread::kPool) return pool.ParallelFor(num_tasks, body);
  for (int64_t task_idx = 0; task_idx < num_tasks; ++task_idx) body(task_idx, 0);
}

// What a task needs of its part.
struct PartPointers {
  const void* weight;
  const float* bias;
  float* out;
  int64_t out_stride;
};

PartPointers PointersOf(const MatMulPart& part, const MatMulTask& task) {
  const int64_t depth = part.weight.shape[1];
  const int64_t out_stride = part.out.shape[1];
  return {
      .weight = static_cast<const std::byte*>(part.weight.data) + task.first_output * depth * SizeOf(part.weight.dtype),
      .bias = part.bias.present() ? static_cast<const float*>(part.bias.data) + task.first_output : nullptr,
      .out = static_cast<float*>(part.out.data) + task.first_row * out_stride + task.first_output,
      .out_stride = out_stride};
}

// x in the order in which `few_rows` reads it.
const float* InterleavedRows(const ConstTensorView& x, MatMulScratch& scratch) {
  const int64_t num_rows = x.shape[0];
  const int64_t depth = x.shape[1];
  const int64_t num_blocks = CeilDiv(depth, kFewRowsBlock);
  float* const blocks = scratch.Shared(static_cast<size_t>(num_blocks * num_rows * kFewRowsBlock));
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* from = static_cast<const float*>(x.data) + row * depth;
    for (int64_t block = 0; block < num_blocks; ++block, from += kFewRowsBlock) {
      float* to = blocks + (block * num_rows + row) * kFewRowsBlock;
      const int64_t num = std::min(kFewRowsBlock, depth - block * kFewRowsBlock);
      std::copy_n(from, num, to);
      std::fill_n(to + num, kFewRowsBlock - num, 0.0f);
    }
  }
  return blocks;
}

void RunFewRows(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch) {
  const int64_t depth = args.x.shape[1];
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  int64_t bytes = 0;
  for (size_t part_idx = 0; part_idx < args.parts.size(); ++part_idx) {
    const ConstTensorView& weight = args.parts[part_idx].weight;
    bytes += weight.size_bytes();
    const int64_t num_outputs = weight.shape[0];
    const int64_t num_pieces =
        std::max<int64_t>(1, std::min(weight.size_bytes() / kTaskBytes, num_outputs / kMinTaskOutputs));
    for (int64_t piece = 0; piece < num_pieces; ++piece) {
      const int64_t begin = piece * num_outputs / num_pieces;
      const int64_t end = (piece + 1) * num_outputs / num_pieces;
      tasks.push_back({.part_idx = part_idx, .first_output = begin, .num_outputs = end - begin});
    }
  }
  const float* const x = InterleavedRows(args.x, scratch);
  const Spread spread = bytes < kMinParallelBytes ? Spread::kCaller : Spread::kPool;
  ForTasks(static_cast<int64_t>(tasks.size()), spread, pool, [&](int64_t task_idx, int) {
    const MatMulTask& task = tasks[static_cast<size_t>(task_idx)];
    const MatMulPart& part = args.parts[task.part_idx];
    const PartPointers pointers = PointersOf(part, task);
    kernels.few_rows({.x = x,
                      .num_rows = args.x.shape[0],
                      .weight = pointers.weight,
                      .type = WeightTypeOf(part.weight.dtype),
                      .depth = depth,
                      .num_outputs = task.num_outputs,
                      .bias = pointers.bias,
                      .out = pointers.out,
                      .out_stride = pointers.out_stride,
                      .add = args.write == MatMulArgs::Write::kAdd});
  });
}

struct Steps {
  const float* data;  // [T, stride]
  int64_t stride;
  StepType type;
};

// x as the tiles read it: rounded to bf16 in scratch, or itself, or a copy. Rows in scratch have whole cache lines and
// one more: the micro-kernel reads 6 rows side by side and asks for the next 6, which, a multiple of 2 KiB apart, would
// push each other out of the first-level cache.
Steps StepsOf(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch) {
  const int64_t num_rows = args.x.shape[0];
  const int64_t depth = args.x.shape[1];
  const auto* x = static_cast<const float*>(args.x.data);
  const bool rounds = args.compute == Compute::kBF16 && kernels.has_bf16_dot;
  if (!rounds && depth % kBadStride != 0) return {x, depth, StepType::kF32};

  const int64_t num_steps = rounds ? CeilDiv(depth, 2) : depth;
  const int64_t stride = CeilDiv(num_steps, 16) * 16 + 16;
  float* const rows = scratch.Shared(static_cast<size_t>(num_rows * stride));
  const int64_t rows_per_task = std::max<int64_t>(1, kCopyTaskElements / std::max<int64_t>(1, depth));
  pool.ParallelFor(CeilDiv(num_rows, rows_per_task), [&](int64_t task_idx, int) {
    const int64_t end = std::min(num_rows, (task_idx + 1) * rows_per_task);
    for (int64_t row = task_idx * rows_per_task; row < end; ++row) {
      if (rounds) {
        kernels.round_row(x + row * depth, depth, rows + row * stride);
      } else {
        std::copy_n(x + row * depth, depth, rows + row * stride);
      }
    }
  });
  return {rows, stride, rounds ? StepType::kBF16Pair : StepType::kF32};
}

void RunTiles(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch) {
  const int64_t num_rows = args.x.shape[0];
  const int64_t depth = args.x.shape[1];
  const Steps x = StepsOf(args, kernels, pool, scratch);
  const int64_t num_row_blocks = CeilDiv(num_rows, kTaskRows);
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  int64_t products = 0;
  for (size_t part_idx = 0; part_idx < args.parts.size(); ++part_idx) {
    const int64_t num_outputs = args.parts[part_idx].weight.shape[0];
    products += num_rows * depth * num_outputs;
    for (int64_t output = 0; output < num_outputs; output += kTileOutputs) {
      // The blocks of rows of one tile are neighbours: its weights come from memory once.
      for (int64_t block = 0; block < num_row_blocks; ++block) {
        const int64_t begin = block * num_rows / num_row_blocks;
        tasks.push_back({.part_idx = part_idx,
                         .first_output = output,
                         .num_outputs = std::min(kTileOutputs, num_outputs - output),
                         .first_row = begin,
                         .num_rows = (block + 1) * num_rows / num_row_blocks - begin});
      }
    }
  }
  scratch.ReserveTiles(pool.num_threads());
  const Spread spread = products < kMinParallelProducts ? Spread::kCaller : Spread::kPool;
  ForTasks(static_cast<int64_t>(tasks.size()), spread, pool, [&](int64_t task_idx, int thread_idx) {
    const MatMulTask& task = tasks[static_cast<size_t>(task_idx)];
    const MatMulPart& part = args.parts[task.part_idx];
    const PartPointers pointers = PointersOf(part, task);
    kernels.tile({.x = x.data + task.first_row * x.stride,
                  .num_rows = task.num_rows,
                  .x_stride = x.stride,
                  .steps = x.type,
                  .weight = pointers.weight,
                  .type = WeightTypeOf(part.weight.dtype),
                  .depth = depth,
                  .num_outputs = task.num_outputs,
                  .bias = pointers.bias,
                  .out = pointers.out,
                  .out_stride = pointers.out_stride,
                  .add = args.write == MatMulArgs::Write::kAdd,
                  .scratch = scratch.TileOfThread(thread_idx)});
  });
}

}  // namespace

void MatMulScratch::AlignedDelete::operator()(float* memory) const {
  ::operator delete[](memory, std::align_val_t{kAlignment});
}

MatMulScratch::Block MatMulScratch::NewBlock(size_t bytes) {
  void* memory = ::operator new[](bytes, std::align_val_t{kAlignment}, std::nothrow);
  HW_CHECK(memory != nullptr, "no memory for {} bytes", bytes);
  return Block(static_cast<float*>(memory));
}

void MatMulScratch::ReserveTiles(int num_threads) {
  while (tiles_.size() < static_cast<size_t>(num_threads)) tiles_.push_back(NewBlock(kTileScratchBytes));
}

float* MatMulScratch::Shared(size_t floats) {
  const size_t bytes = floats * sizeof(float);
  if (bytes > shared_bytes_) {
    shared_.reset();
    shared_ = NewBlock(bytes);
    shared_bytes_ = bytes;
  }
  return shared_.get();
}

void RunMatMul(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch) {
  if (args.x.shape[0] == 0) return;
  if (args.x.shape[0] <= kMaxFewRows) {
    RunFewRows(args, kernels, pool, scratch);
  } else {
    RunTiles(args, kernels, pool, scratch);
  }
}

}  // namespace headwise::cpu
