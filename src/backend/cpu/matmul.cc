#include "backend/cpu/matmul.h"

#include <algorithm>

#include "backend/cpu/matmul_input.h"
#include "backend/cpu/packed_weights.h"

namespace headwise::cpu {
namespace {

// Weights of one task of few rows. 128 KiB take some 6 us from memory, long against the 0.1 us of claiming a task and
// short against a matrix, so that threads finish together. A thread's tasks are neighbours (base/thread_pool.h), so
// what a kernel asks for behind the end of one is the next.
constexpr int64_t kTaskBytes = 128 << 10;
constexpr int64_t kMinTaskOutputs = 32;

// Rows of a task of many rows by the sums of few: whole groups.
constexpr int64_t kTaskRows = 256;
static_assert(kTaskRows % kMaxFewRows == 0);

// Below this much work another thread would come too late: waking one takes a few microseconds.
constexpr int64_t kMinParallelBytes = 64 << 10;
constexpr int64_t kMinParallelProducts = 1 << 20;

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

// Requires: tasks of packed weights begin with a panel.
PartPointers PointersOf(const MatMulPart& part, const MatMulTask& task) {
  const int64_t depth = part.weight.shape[1];
  const int64_t out_stride = part.out.shape[1];
  const WeightType type = WeightTypeOf(part.weight.dtype);
  const int64_t offset = IsPacked(type) ? task.first_output / kPanelRows * PanelBytes(type, depth)
                                        : task.first_output * BytesOf(part.weight.dtype, depth);
  return {.weight = static_cast<const std::byte*>(part.weight.planes[0]) + offset,
          .bias = part.bias.present() ? static_cast<const float*>(part.bias.data) + task.first_output : nullptr,
          .out = static_cast<float*>(part.out.data) + task.first_row * out_stride + task.first_output,
          .out_stride = out_stride};
}

bool Adds(const MatMulArgs& args) {
  return args.write == MatMulArgs::Write::kAdd;
}

// All but x and its rows.
PackedArgs PackedArgsOf(const MatMulArgs& args, const MatMulTask& task) {
  const MatMulPart& part = args.parts[task.part_idx];
  const PartPointers pointers = PointersOf(part, task);
  PackedArgs packed = {};
  packed.weight = pointers.weight;
  packed.type = WeightTypeOf(part.weight.dtype);
  packed.depth = args.x.shape[1];
  packed.num_outputs = task.num_outputs;
  packed.bias = pointers.bias;
  packed.out = pointers.out;
  packed.out_stride = pointers.out_stride;
  packed.add = Adds(args);
  return packed;
}

// Tasks of a part in units of panels, where it has some; of all rows each.
void AddFewRowsTasks(const MatMulPart& part, size_t part_idx, int64_t num_rows, std::vector<MatMulTask>& tasks) {
  const int64_t unit = IsPacked(part.weight) ? kPanelRows : 1;
  const int64_t num_outputs = part.weight.shape[0];
  const int64_t num_units = CeilDiv(num_outputs, unit);
  const int64_t num_pieces =
      std::max<int64_t>(1, std::min(part.weight.size_bytes() / kTaskBytes, num_outputs / kMinTaskOutputs));
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const int64_t begin = piece * num_units / num_pieces * unit;
    const int64_t end = std::min(num_outputs, (piece + 1) * num_units / num_pieces * unit);
    tasks.push_back({.part_idx = part_idx, .first_output = begin, .num_outputs = end - begin, .num_rows = num_rows});
  }
}

// So many rows that it is worth to have plain weights in f32 once for all of them.
bool AreMany(int64_t num_rows) {
  return num_rows >= 3 * kMaxFewRows;
}

// Blocks of whole groups of rows of one tile of outputs are neighbours.
void AddManyRowsTasks(const MatMulPart& part, size_t part_idx, int64_t num_rows, std::vector<MatMulTask>& tasks) {
  const int64_t num_outputs = part.weight.shape[0];
  for (int64_t output = 0; output < num_outputs; output += kManyRowsOutputs) {
    for (int64_t row = 0; row < num_rows; row += kTaskRows) {
      tasks.push_back({.part_idx = part_idx,
                       .first_output = output,
                       .num_outputs = std::min(kManyRowsOutputs, num_outputs - output),
                       .first_row = row,
                       .num_rows = std::min(kTaskRows, num_rows - row)});
    }
  }
}

// One group of rows; of plain weights, with scratch, any number of groups.
void RunFewRows(const MatMulArgs& args, const MatMulKernels& kernels, const FewRowsInput& input, const MatMulTask& task,
                float* scratch) {
  const MatMulPart& part = args.parts[task.part_idx];
  if (IsPacked(part.weight)) {
    PackedArgs packed = PackedArgsOf(args, task);
    packed.x_int8 = input.Int8Group(task.first_row);
    packed.x_f32 = input.FloatGroup(task.first_row);
    packed.x_row_stride = 1;
    packed.x_run_stride = task.num_rows;
    packed.num_rows = task.num_rows;
    return kernels.packed_few_rows(packed);
  }
  const PartPointers pointers = PointersOf(part, task);
  kernels.few_rows({.x = input.InterleavedGroup(task.first_row),
                    .num_rows = task.num_rows,
                    .weight = pointers.weight,
                    .type = WeightTypeOf(part.weight.dtype),
                    .depth = args.x.shape[1],
                    .num_outputs = task.num_outputs,
                    .bias = pointers.bias,
                    .out = pointers.out,
                    .out_stride = pointers.out_stride,
                    .add = Adds(args),
                    .scratch = scratch});
}

// One group of rows after the other, while the task's weights are in the second-level cache.
void RunFewRowsTask(const MatMulArgs& args, const MatMulKernels& kernels, const FewRowsInput& input,
                    const MatMulTask& task, float* scratch) {
  if (scratch != nullptr && !IsPacked(args.parts[task.part_idx].weight)) {
    return RunFewRows(args, kernels, input, task, scratch);
  }
  MatMulTask group = task;
  for (int64_t row = 0; row < task.num_rows; row += kMaxFewRows) {
    group.first_row = task.first_row + row;
    group.num_rows = std::min(kMaxFewRows, task.num_rows - row);
    RunFewRows(args, kernels, input, group, nullptr);
  }
}

void RunAllFewRows(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch) {
  const int64_t num_rows = args.x.shape[0];
  const bool are_many = AreMany(num_rows);
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  int64_t bytes = 0;
  for (size_t part_idx = 0; part_idx < args.parts.size(); ++part_idx) {
    const MatMulPart& part = args.parts[part_idx];
    bytes += part.weight.size_bytes();
    if (are_many && !IsPacked(part.weight)) {
      AddManyRowsTasks(part, part_idx, num_rows, tasks);
    } else {
      AddFewRowsTasks(part, part_idx, num_rows, tasks);
    }
  }
  const FewRowsInput input = FewRowsInputOf(args, kernels, pool, scratch);
  if (are_many) {
    const int64_t task_rows = std::min(num_rows, kTaskRows);
    scratch.ReserveTiles(pool.num_threads(), static_cast<size_t>(ManyRowsFloats(task_rows)) * sizeof(float));
  }
  const Spread spread = bytes < kMinParallelBytes && !are_many ? Spread::kCaller : Spread::kPool;
  ForTasks(static_cast<int64_t>(tasks.size()), spread, pool, [&](int64_t task_idx, int thread_idx) {
    float* memory = are_many ? scratch.TileOfThread(thread_idx) : nullptr;
    RunFewRowsTask(args, kernels, input, tasks[static_cast<size_t>(task_idx)], memory);
  });
}

void RunTileTask(const MatMulArgs& args, const MatMulKernels& kernels, const TileInput& input, const MatMulTask& task,
                 float* scratch) {
  const MatMulPart& part = args.parts[task.part_idx];
  if (IsPacked(part.weight) && input.runs != nullptr) {
    PackedArgs packed = PackedArgsOf(args, task);
    packed.x_int8 = input.runs + task.first_row * input.runs_stride;
    packed.x_row_stride = input.runs_stride;
    packed.x_run_stride = 1;
    packed.num_rows = task.num_rows;
    return kernels.packed_tile(packed, scratch);
  }
  const PartPointers pointers = PointersOf(part, task);
  kernels.tile({.x = input.steps + task.first_row * input.steps_stride,
                .num_rows = task.num_rows,
                .x_stride = input.steps_stride,
                .steps = input.step_type,
                .weight = pointers.weight,
                .type = WeightTypeOf(part.weight.dtype),
                .depth = args.x.shape[1],
                .num_outputs = task.num_outputs,
                .bias = pointers.bias,
                .out = pointers.out,
                .out_stride = pointers.out_stride,
                .add = Adds(args),
                .scratch = scratch});
}

// Even blocks of rows, each of which begins with a tile register.
int64_t RowBlockBegin(int64_t block, int64_t num_blocks, int64_t num_rows) {
  constexpr int64_t kUnit = 32;
  return block == num_blocks ? num_rows : block * CeilDiv(num_rows, kUnit) / num_blocks * kUnit;
}

void RunTiles(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
              RowSums sums) {
  const int64_t num_rows = args.x.shape[0];
  const int64_t depth = args.x.shape[1];
  const TileInput input = TileInputOf(args, kernels, pool, scratch, sums);
  const TileLimits& limits = input.step_type == StepType::kBF16Pair ? kernels.bf16_tile_limits : kVectorTileLimits;
  const int64_t num_row_blocks = CeilDiv(num_rows, limits.num_rows);
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  int64_t products = 0;
  for (size_t part_idx = 0; part_idx < args.parts.size(); ++part_idx) {
    const int64_t num_outputs = args.parts[part_idx].weight.shape[0];
    products += num_rows * depth * num_outputs;
    for (int64_t output = 0; output < num_outputs; output += limits.num_outputs) {
      // The blocks of rows of one tile are neighbours: its weights come from memory once.
      for (int64_t block = 0; block < num_row_blocks; ++block) {
        const int64_t begin = RowBlockBegin(block, num_row_blocks, num_rows);
        tasks.push_back({.part_idx = part_idx,
                         .first_output = output,
                         .num_outputs = std::min(limits.num_outputs, num_outputs - output),
                         .first_row = begin,
                         .num_rows = RowBlockBegin(block + 1, num_row_blocks, num_rows) - begin});
      }
    }
  }
  scratch.ReserveTiles(pool.num_threads(), static_cast<size_t>(limits.scratch_bytes));
  const Spread spread = products < kMinParallelProducts ? Spread::kCaller : Spread::kPool;
  ForTasks(static_cast<int64_t>(tasks.size()), spread, pool, [&](int64_t task_idx, int thread_idx) {
    const MatMulTask& task = tasks[static_cast<size_t>(task_idx)];
    RunTileTask(args, kernels, input, task, scratch.TileOfThread(thread_idx));
  });
}

// Where sums are to be alike: products in int8 are, whichever way they go (on tile registers they do not go). Those in
// f32 all go the way of few rows, which costs many of them less than the other way would cost few; those in bf16 are
// the tiles' alone.
bool TakesFewRows(const MatMulArgs& args, RowSums sums, const MatMulKernels& kernels) {
  const bool is_few = args.x.shape[0] <= kMaxFewRows;
  if (sums == RowSums::kFastest || (args.compute == Compute::kInt8 && !HasPlain(args))) return is_few;
  return args.compute != Compute::kBF16 || !kernels.has_bf16_dot;
}

}  // namespace

void RunMatMul(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
               RowSums sums) {
  if (args.x.shape[0] == 0) return;
  if (TakesFewRows(args, sums, kernels)) {
    RunAllFewRows(args, kernels, pool, scratch);
  } else {
    RunTiles(args, kernels, pool, scratch, sums);
  }
}

}  // namespace headwise::cpu
