#include "backend/cpu/matmul.h"

#include <algorithm>

#include "backend/cpu/for_rows.h"
#include "backend/cpu/matmul_input.h"
#include "backend/cpu/packed_weights.h"
#include "base/check.h"

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

// At most so many outputs of a task that has a gate, of x in bytes: what comes out of it, 256 KiB, stays in the
// second-level cache with what the products keep there. x in bf16 is twice as large, and its passing by once more for
// as many outputs costs what that gains.
constexpr int64_t kGatedOutputs = 128;
// As Activation::Row wants its pieces.
static_assert(kGatedOutputs % kTileOutputs == 0 && kTileOutputs % 16 == 0);

// Rows of a task that rounds what it makes (RunTileTaskToBytes): kGroupElements outputs of each, a group of the next
// product's x. They, 528 KiB, and gates, 144 KiB, stay in the second-level cache with what the products keep there.
constexpr int64_t kRoundedRows = 256;
// Floats from row to row, and from a gate's to the next: a power of two would make them push each other out.
constexpr int64_t kRoundedStride = kGroupElements + 16;
constexpr int64_t kGateStride = kGatedOutputs + 16;
constexpr int64_t kRoundedBytes = kRoundedRows * (kRoundedStride + kGateStride) * static_cast<int64_t>(sizeof(float));
static_assert(kGroupElements % kGatedOutputs == 0);

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
PartPointers PointersOf(const MatMulJob& job, const MatMulTask& task) {
  const MatMulPart& part = job.args.parts[task.part_idx];
  const int64_t out_row = task.first_row - job.RowsOf(task.part_idx).first;
  const int64_t depth = part.weight.shape[1];
  const int64_t out_stride = part.out.shape[1];
  const WeightType type = WeightTypeOf(part.weight.dtype);
  const int64_t offset = IsPacked(type) ? task.first_output / kPanelRows * PanelBytes(type, depth)
                                        : task.first_output * BytesOf(part.weight.dtype, depth);
  return {.weight = static_cast<const std::byte*>(part.weight.planes[0]) + offset,
          .bias = part.bias.present() ? static_cast<const float*>(part.bias.data) + task.first_output : nullptr,
          .out = static_cast<float*>(part.out.data) + out_row * out_stride + task.first_output,
          .out_stride = out_stride};
}

bool Adds(const MatMulArgs& args) {
  return args.write == MatMulArgs::Write::kAdd;
}

// All but x and its rows.
PackedArgs PackedArgsOf(const MatMulJob& job, const MatMulTask& task, const PartPointers& pointers) {
  const MatMulPart& part = job.args.parts[task.part_idx];
  PackedArgs packed = {};
  packed.weight = pointers.weight;
  packed.type = WeightTypeOf(part.weight.dtype);
  packed.depth = job.args.x.shape[1];
  packed.num_outputs = task.num_outputs;
  packed.bias = pointers.bias;
  packed.out = pointers.out;
  packed.out_stride = pointers.out_stride;
  packed.add = Adds(job.args);
  return packed;
}

// Tasks of a part in units of panels, where it has some; of all its rows each.
void AddFewRowsTasks(const MatMulPart& part, size_t part_idx, const RowRange& rows, std::vector<MatMulTask>& tasks) {
  const int64_t unit = IsPacked(part.weight) ? kPanelRows : 1;
  const int64_t num_outputs = part.weight.shape[0];
  const int64_t num_units = CeilDiv(num_outputs, unit);
  const int64_t num_pieces =
      std::max<int64_t>(1, std::min(part.weight.size_bytes() / kTaskBytes, num_outputs / kMinTaskOutputs));
  for (int64_t piece = 0; piece < num_pieces; ++piece) {
    const int64_t begin = piece * num_units / num_pieces * unit;
    const int64_t end = std::min(num_outputs, (piece + 1) * num_units / num_pieces * unit);
    tasks.push_back({.part_idx = part_idx,
                     .first_output = begin,
                     .num_outputs = end - begin,
                     .first_row = rows.first,
                     .num_rows = rows.count});
  }
}

// So many rows that it is worth to have plain weights in f32 once for all of them.
bool AreMany(int64_t num_rows) {
  return num_rows >= 3 * kMaxFewRows;
}

// Blocks of whole groups of rows of one tile of outputs are neighbours.
void AddManyRowsTasks(const MatMulPart& part, size_t part_idx, const RowRange& rows, std::vector<MatMulTask>& tasks) {
  const int64_t num_outputs = part.weight.shape[0];
  for (int64_t output = 0; output < num_outputs; output += kManyRowsOutputs) {
    for (int64_t row = 0; row < rows.count; row += kTaskRows) {
      tasks.push_back({.part_idx = part_idx,
                       .first_output = output,
                       .num_outputs = std::min(kManyRowsOutputs, num_outputs - output),
                       .first_row = rows.first + row,
                       .num_rows = std::min(kTaskRows, rows.count - row)});
    }
  }
}

// One group of rows; of plain weights, with scratch, any number of groups.
void RunFewRows(const MatMulJob& job, const MatMulKernels& kernels, const FewRowsInput& input, const MatMulTask& task,
                float* scratch) {
  const MatMulPart& part = job.args.parts[task.part_idx];
  if (IsPacked(part.weight)) {
    PackedArgs packed = PackedArgsOf(job, task, PointersOf(job, task));
    packed.x_int8 = HasWholeCodes(part) ? input.Int8Group(task.first_row) : nullptr;
    packed.x_f32 = input.FloatGroup(task.first_row);
    packed.x_row_stride = 1;
    packed.x_run_stride = task.num_rows;
    packed.num_rows = task.num_rows;
    return kernels.packed_few_rows(packed);
  }
  const PartPointers pointers = PointersOf(job, task);
  kernels.few_rows({.x = input.InterleavedGroup(task.first_row),
                    .num_rows = task.num_rows,
                    .weight = pointers.weight,
                    .type = WeightTypeOf(part.weight.dtype),
                    .depth = job.args.x.shape[1],
                    .num_outputs = task.num_outputs,
                    .bias = pointers.bias,
                    .out = pointers.out,
                    .out_stride = pointers.out_stride,
                    .add = Adds(job.args),
                    .scratch = scratch});
}

// One group of rows after the other, while the task's weights are in the second-level cache.
void RunFewRowsTask(const MatMulJob& job, const MatMulKernels& kernels, const FewRowsInput& input,
                    const MatMulTask& task, float* scratch) {
  if (scratch != nullptr && !IsPacked(job.args.parts[task.part_idx].weight)) {
    return RunFewRows(job, kernels, input, task, scratch);
  }
  MatMulTask group = task;
  for (int64_t row = 0; row < task.num_rows; row += kMaxFewRows) {
    group.first_row = task.first_row + row;
    group.num_rows = std::min(kMaxFewRows, task.num_rows - row);
    RunFewRows(job, kernels, input, group, nullptr);
  }
}

void RunAllFewRows(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch) {
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  int64_t bytes = 0;
  int64_t most_rows = 0;
  for (size_t part_idx = 0; part_idx < job.args.parts.size(); ++part_idx) {
    const MatMulPart& part = job.args.parts[part_idx];
    const RowRange rows = job.RowsOf(part_idx);
    most_rows = std::max(most_rows, rows.count);
    bytes += part.weight.size_bytes();
    if (AreMany(rows.count) && !IsPacked(part.weight)) {
      AddManyRowsTasks(part, part_idx, rows, tasks);
    } else {
      AddFewRowsTasks(part, part_idx, rows, tasks);
    }
  }
  const FewRowsInput input = FewRowsInputOf(job, kernels, pool, scratch);
  const bool any_many = AreMany(most_rows);
  if (any_many) {
    const int64_t task_rows = std::min(most_rows, kTaskRows);
    scratch.ReserveTiles(pool.num_threads(), static_cast<size_t>(ManyRowsFloats(task_rows)) * sizeof(float));
  }
  const Spread spread = bytes < kMinParallelBytes && !any_many ? Spread::kCaller : Spread::kPool;
  ForTasks(static_cast<int64_t>(tasks.size()), spread, pool, [&](int64_t task_idx, int thread_idx) {
    const MatMulTask& task = tasks[static_cast<size_t>(task_idx)];
    float* memory = AreMany(job.RowsOf(task.part_idx).count) ? scratch.TileOfThread(thread_idx) : nullptr;
    RunFewRowsTask(job, kernels, input, task, memory);
  });
}

// What all tasks of a product of tiles share.
struct TileProduct {
  const MatMulJob& job;
  const MatMulKernels& kernels;
  RowSums sums;
  TileInput input;

  TileX XOf(size_t part_idx) const { return TileXOf(job, job.args.parts[part_idx], kernels, sums); }
};

// `pointers` are the task's, or have another place for what comes out.
void RunTile(const TileProduct& product, const MatMulTask& task, const PartPointers& pointers, float* scratch) {
  const auto& [job, kernels, sums, input] = product;
  const MatMulPart& part = job.args.parts[task.part_idx];
  const TileX task_x = product.XOf(task.part_idx);
  if (task_x == TileX::kRuns) {
    PackedArgs packed = PackedArgsOf(job, task, pointers);
    packed.x_int8 = input.runs + task.first_row * input.runs_stride;
    packed.x_row_stride = input.runs_stride;
    packed.x_run_stride = 1;
    packed.num_rows = task.num_rows;
    return kernels.packed_tile(packed, scratch);
  }
  const bool in_bytes = task_x == TileX::kBytes;
  const StepRows& x = in_bytes ? input.bytes : input.steps;
  kernels.tile({.x = x.Row(task.first_row),
                .num_rows = task.num_rows,
                .x_stride = x.stride,
                .x_block_stride = x.block_stride,
                .steps = in_bytes ? StepType::kByteQuad : input.step_type,
                .x_scales = in_bytes ? input.byte_scales + task.first_row : nullptr,
                .x_scales_stride = in_bytes ? input.byte_scales_stride : 0,
                .x_starts = in_bytes && HasGroupScales(part.weight) ? input.byte_starts + task.first_row : nullptr,
                .weight = pointers.weight,
                .type = WeightTypeOf(part.weight.dtype),
                .depth = job.args.x.shape[1],
                .num_outputs = task.num_outputs,
                .bias = pointers.bias,
                .out = pointers.out,
                .out_stride = pointers.out_stride,
                .add = Adds(job.args),
                .scratch = scratch});
}

// The outputs of a part, or of two and their activation. A gate's stay side by side in `gates`, in the second-level
// cache: rows of a wide matrix, which lie a power of two apart, would push each other out of there.
void RunTileTask(const TileProduct& product, const MatMulTask& task, float* scratch, float* gates) {
  const MatMulJob& job = product.job;
  const Activation* const activation = job.activation;
  MatMulTask x_task = task;
  const float* gate = nullptr;
  if (activation != nullptr && activation->is_gated()) {
    PartPointers pointers = PointersOf(job, task);
    pointers.out = gates;
    pointers.out_stride = task.num_outputs;
    RunTile(product, task, pointers, scratch);
    ++x_task.part_idx;
    gate = gates;
  }
  const PartPointers pointers = PointersOf(job, x_task);
  RunTile(product, x_task, pointers, scratch);
  if (activation == nullptr) return;
  for (int64_t row = 0; row < task.num_rows; ++row) {
    activation->Row(gate != nullptr ? gate + row * task.num_outputs : nullptr, pointers.out + row * pointers.out_stride,
                    task.num_outputs);
  }
}

// Makes kGroupElements outputs of some rows, piece by piece, and rounds each row's to the bytes of the next product's
// x, of which they are a group. `memory` has kRoundedBytes.
void RunTileTaskToBytes(const TileProduct& product, const MatMulTask& task, float* scratch, float* memory,
                        const RoundedRows& bytes) {
  const MatMulJob& job = product.job;
  const size_t x_idx = task.part_idx + job.parts_per_task() - 1;
  float* const gates = memory + kRoundedRows * kRoundedStride;
  MatMulTask piece = task;
  const auto run = [&](size_t part_idx, float* out, int64_t stride) {
    piece.part_idx = part_idx;
    PartPointers pointers = PointersOf(job, piece);
    pointers.out = out;
    pointers.out_stride = stride;
    RunTile(product, piece, pointers, scratch);
  };
  const bool is_gated = x_idx != task.part_idx;
  for (int64_t output = 0; output < task.num_outputs; output += kGatedOutputs) {
    piece.first_output = task.first_output + output;
    piece.num_outputs = std::min(kGatedOutputs, task.num_outputs - output);
    if (is_gated) run(task.part_idx, gates, kGateStride);
    run(x_idx, memory + output, kRoundedStride);
    for (int64_t row = 0; row < task.num_rows; ++row) {
      job.activation->Row(is_gated ? gates + row * kGateStride : nullptr, memory + row * kRoundedStride + output,
                          piece.num_outputs);
    }
  }
  for (int64_t row = 0; row < task.num_rows; ++row) {
    bytes.RoundGroup(product.kernels, task.first_row + row, task.first_output / kGroupElements,
                     memory + row * kRoundedStride);
  }
}

// Even blocks of rows, each of which begins with a tile register.
int64_t RowBlockBegin(int64_t block, int64_t num_blocks, int64_t num_rows) {
  constexpr int64_t kUnit = 32;
  return block == num_blocks ? num_rows : block * CeilDiv(num_rows, kUnit) / num_blocks * kUnit;
}

// Outputs of a task on tile registers: as many as the kernel takes, or half of that and so on where threads would wait
// for each other. What the smaller ones read more of x costs about as much as is said here.
int64_t TaskOutputs(const MatMulJob& job, const TileLimits& limits, int num_threads) {
  int64_t best = limits.num_outputs;
  double best_share = 0;
  double cost = 1;
  for (int64_t outputs = limits.num_outputs; outputs >= kTileOutputs; outputs /= 2) {
    int64_t num_tasks = 0;
    for (size_t part_idx = 0; part_idx < job.args.parts.size(); part_idx += job.parts_per_task()) {
      num_tasks += CeilDiv(job.args.parts[part_idx].weight.shape[0], outputs) *
                   CeilDiv(job.RowsOf(part_idx).count, limits.num_rows);
    }
    const double share = static_cast<double>(num_tasks) / static_cast<double>(CeilDiv(num_tasks, num_threads)) / cost;
    if (share > best_share) best = outputs;
    best_share = std::max(best_share, share);
    cost *= 1.1;
  }
  return best;
}

// Of a part, or of two that a task takes together.
void AddTileTasks(const MatMulJob& job, size_t part_idx, const TileLimits& limits, std::vector<MatMulTask>& tasks) {
  const int64_t num_outputs = job.args.parts[part_idx].weight.shape[0];
  const RowRange rows = job.RowsOf(part_idx);
  const int64_t num_row_blocks = CeilDiv(rows.count, limits.num_rows);
  for (int64_t output = 0; output < num_outputs; output += limits.num_outputs) {
    // The blocks of rows of one tile are neighbours: its weights come from memory once.
    for (int64_t block = 0; block < num_row_blocks; ++block) {
      const int64_t begin = RowBlockBegin(block, num_row_blocks, rows.count);
      tasks.push_back({.part_idx = part_idx,
                       .first_output = output,
                       .num_outputs = std::min(limits.num_outputs, num_outputs - output),
                       .first_row = rows.first + begin,
                       .num_rows = RowBlockBegin(block + 1, num_row_blocks, rows.count) - begin});
    }
  }
}

void RunTiles(const TileProduct& product, ThreadPool& pool, MatMulScratch& scratch) {
  const auto& [job, kernels, sums, input] = product;
  const size_t parts_per_task = job.parts_per_task();
  const bool in_registers = input.step_type == StepType::kBF16Pair || input.bytes.first != nullptr;
  TileLimits step_limits = in_registers ? kernels.register_tile_limits : kVectorTileLimits;
  if (step_limits.num_outputs > kTileOutputs) {
    const bool has_small_x = input.bytes.first != nullptr && input.step_type != StepType::kBF16Pair;
    if (parts_per_task == 2 && has_small_x) step_limits.num_outputs = std::min(step_limits.num_outputs, kGatedOutputs);
    step_limits.num_outputs = TaskOutputs(job, step_limits, pool.num_threads());
  }
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  int64_t products = 0;
  for (size_t part_idx = 0; part_idx < job.args.parts.size(); part_idx += parts_per_task) {
    bool in_runs = false;
    for (size_t i = part_idx; i < part_idx + parts_per_task; ++i) {
      in_runs |= product.XOf(i) == TileX::kRuns;
      products += job.RowsOf(i).count * job.args.x.shape[1] * job.args.parts[i].weight.shape[0];
    }
    AddTileTasks(job, part_idx, in_runs ? kVectorTileLimits : step_limits, tasks);
  }
  const int64_t kernel_bytes = std::max(step_limits.scratch_bytes, kVectorTileLimits.scratch_bytes);
  const int64_t most_gates = std::max(step_limits.num_rows * step_limits.num_outputs,
                                      kVectorTileLimits.num_rows * kVectorTileLimits.num_outputs);
  const int64_t gate_bytes = parts_per_task == 2 ? most_gates * static_cast<int64_t>(sizeof(float)) : 0;
  scratch.ReserveTiles(pool.num_threads(), static_cast<size_t>(kernel_bytes + gate_bytes));
  const Spread spread = products < kMinParallelProducts ? Spread::kCaller : Spread::kPool;
  ForTasks(static_cast<int64_t>(tasks.size()), spread, pool, [&](int64_t task_idx, int thread_idx) {
    float* const memory = scratch.TileOfThread(thread_idx);
    RunTileTask(product, tasks[static_cast<size_t>(task_idx)], memory, memory + kernel_bytes / 4);
  });
}

// Requires: LeavesBytes.
void RunTilesToBytes(const TileProduct& product, ThreadPool& pool, MatMulScratch& scratch, const RoundedRows& bytes) {
  std::vector<MatMulTask>& tasks = scratch.tasks();
  tasks.clear();
  const MatMulJob& job = product.job;
  HW_CHECK(job.args.parts.size() == job.parts_per_task(), "{} parts", job.args.parts.size());
  AddTileTasks(job, 0, {.num_outputs = kGroupElements, .num_rows = kRoundedRows, .scratch_bytes = 0}, tasks);
  const int64_t kernel_bytes = product.kernels.register_tile_limits.scratch_bytes;
  scratch.ReserveTiles(pool.num_threads(), static_cast<size_t>(kernel_bytes + kRoundedBytes));
  pool.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t task_idx, int thread_idx) {
    float* const memory = scratch.TileOfThread(thread_idx);
    RunTileTaskToBytes(product, tasks[static_cast<size_t>(task_idx)], memory, memory + kernel_bytes / 4, bytes);
  });
}

// Of products by the way of few rows.
void Activate(const MatMulJob& job, ThreadPool& pool) {
  const auto& parts = job.args.parts;
  const Activation& activation = *job.activation;
  const size_t parts_per_task = job.parts_per_task();
  int64_t most_rows = 0;
  int64_t most_elements = 1;
  for (const MatMulPart& part : parts) {
    most_rows = std::max(most_rows, part.out.shape[0]);
    most_elements = std::max(most_elements, part.out.shape[1]);
  }
  const int64_t num_rows = most_rows * static_cast<int64_t>(parts.size() / parts_per_task);
  ForRows(num_rows, most_elements, pool, [&](int64_t i) {
    const size_t gate_idx = static_cast<size_t>(i / most_rows) * parts_per_task;
    const TensorView& x = parts[gate_idx + parts_per_task - 1].out;
    if (i % most_rows >= x.shape[0]) return;
    const int64_t at = i % most_rows * x.shape[1];
    const auto* const gate = activation.is_gated() ? static_cast<const float*>(parts[gate_idx].out.data) : nullptr;
    activation.Row(gate != nullptr ? gate + at : nullptr, static_cast<float*>(x.data) + at, x.shape[1]);
  });
}

// Where sums are to be alike: products in int8 are, whichever way they go (on tile registers they do not go). Those in
// f32 all go the way of few rows, which costs many of them less than the other way would cost few; those in bf16 are
// the tiles' alone.
bool TakesFewRows(const MatMulJob& job, RowSums sums, const MatMulKernels& kernels) {
  const bool is_few = job.RowsOf(0).count <= kMaxFewRows;
  const Compute compute = job.args.compute;
  const bool in_int8 = compute == Compute::kInt8 || compute == Compute::kW8A8;
  if (sums == RowSums::kFastest || (in_int8 && AllHaveWholeCodes(job.args))) return is_few;
  return compute != Compute::kBF16 || !kernels.has_bf16_dot;
}

// Whether what comes out of `job` is rounded as soon as a task has a group of it, and not written: `then` takes nothing
// but bytes of many rows, and there are tasks enough for all threads.
bool LeavesBytes(const MatMulJob& job, const MatMulJob& then, const MatMulKernels& kernels, RowSums sums,
                 int num_threads) {
  const int64_t num_rows = job.num_rows();
  if (job.activation == nullptr || num_rows < kMinRegisterRows) return false;
  const auto takes_bytes = [&](const MatMulJob& of, const MatMulPart& part) {
    return TileXOf(of, part, kernels, sums) == TileX::kBytes;
  };
  // Others are reordered for each block of rows: twice as often, which takes longer than all this gains.
  for (const MatMulPart& part : job.args.parts) {
    if (!takes_bytes(job, part) || !HasGroupScales(part.weight)) return false;
  }
  for (const MatMulPart& part : then.args.parts) {
    if (!takes_bytes(then, part)) return false;
  }
  const int64_t num_tasks = CeilDiv(then.args.x.shape[1], kGroupElements) * CeilDiv(num_rows, kRoundedRows);
  // Idle threads cost more than it gains.
  return 10 * num_tasks >= 9 * CeilDiv(num_tasks, num_threads) * num_threads;
}

}  // namespace

void RunMatMulJob(const MatMulJob& job, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
                  RowSums sums) {
  if (job.num_rows() == 0) return;
  if (TakesFewRows(job, sums, kernels)) {
    RunAllFewRows(job, kernels, pool, scratch);
    if (job.activation != nullptr) Activate(job, pool);
  } else {
    RunTiles({job, kernels, sums, TileInputOf(job, kernels, pool, scratch, sums)}, pool, scratch);
  }
}

void RunMatMulJobs(const MatMulJob& job, const MatMulJob& then, const MatMulKernels& kernels, ThreadPool& pool,
                   MatMulScratch& scratch, RowSums sums) {
  if (!LeavesBytes(job, then, kernels, sums, pool.num_threads())) {
    RunMatMulJob(job, kernels, pool, scratch, sums);
    return RunMatMulJob(then, kernels, pool, scratch, sums);
  }
  const RoundedRows bytes(StepType::kByteQuad, then.num_rows(), then.args.x.shape[1], scratch.then_bytes());
  RunTilesToBytes({job, kernels, sums, TileInputOf(job, kernels, pool, scratch, sums)}, pool, scratch, bytes);
  TileInput input;
  input.Take(bytes);
  RunTiles({then, kernels, sums, input}, pool, scratch);
}

void RunMatMul(const MatMulArgs& args, const MatMulKernels& kernels, ThreadPool& pool, MatMulScratch& scratch,
               RowSums sums) {
  RunMatMulJob(MatMulJob{args}, kernels, pool, scratch, sums);
}

}  // namespace headwise::cpu
