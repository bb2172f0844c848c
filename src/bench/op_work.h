// How many bytes and multiply-adds one call of an operation cannot do without, and how fast it could be for them: what
// the bounds of `bench op` rest on. Counted from shapes and rules alone, nothing here runs or measures.
//
// A byte counts once, however often a tile comes back to it: a cache can hold it meanwhile. Softmax, exponentials and
// the rounding of numbers are left out.
#ifndef HEADWISE_BENCH_OP_WORK_H_
#define HEADWISE_BENCH_OP_WORK_H_

#include <cstdint>
#include <span>

#include "backend/ops.h"
#include "kv/rule.h"
#include "model/model_config.h"
#include "model/model_weights.h"

namespace headwise {

struct OpWork {
  double bytes_read = 0;
  double bytes_written = 0;
  double multiply_adds = 0;
  double bytes() const { return bytes_read + bytes_written; }
  double flops() const { return 2 * multiply_adds; }  // as in the measured ceilings
};

// `parts` share x; only shapes and formats are looked at. All products below are of T = num_rows tokens.
OpWork MatMulWork(std::span<const LinearWeights> parts, MatMulArgs::Write write, int64_t num_rows);
// Every head of one layer, KV head h under rules[h % size], queries at depth, depth + 1, ... `layout` names the heads'
// format.
OpWork AttentionWork(const ModelConfig& config, std::span<const ResolvedRule> rules, const KvLayout& layout,
                     int64_t depth, int64_t num_rows);
OpWork AppendWork(const ModelConfig& config, const KvLayout& layout, int64_t num_rows);
// `num_pages` complete pages of each head; `layout` names a format that ages.
OpWork AgeWork(const ModelConfig& config, const KvLayout& layout, int64_t num_pages);
OpWork CompensateWork(const ModelConfig& config, const ResolvedRule& rule, const KvLayout& layout, int64_t depth,
                      int64_t num_rows);
OpWork NormWork(const ModelConfig& config, int64_t num_rows);
OpWork RopeWork(const ModelConfig& config, int64_t num_rows);  // q and k
OpWork ActivateWork(const ModelConfig& config, int64_t num_rows);
OpWork EmbedWork(const ModelConfig& config, DType table, int64_t num_rows);
OpWork DrawWork(const ModelConfig& config, int64_t num_rows);  // of logits that are read once

// In what products of `num_rows` rows with these formats are computed, those with the fastest of them, as Compute in
// backend/ops.h says: in bytes with block formats of whole codes alone, and few rows of kW8A8 as kInt8, which are fewer
// with weights that a backend has rounded already.
Compute NumbersOf(Compute compute, std::span<const DType> weights, int64_t num_rows, bool are_rounded = false);

// A machine's measured ceilings, per second.
struct OpPeaks {
  double bytes = 0;
  double f32_flops = 0;
  double bf16_flops = 0;
  double int8_flops = 0;
  double w8a8_flops = 0;
  double flops(Compute numbers) const {
    if (numbers == Compute::kW8A8) return w8a8_flops;
    return numbers == Compute::kF32 ? f32_flops : numbers == Compute::kBF16 ? bf16_flops : int8_flops;
  }
};

struct OpBound {
  enum class By { kMemory, kCompute };
  double seconds = 0;
  By by = By::kMemory;
};
// The larger of what memory and what arithmetic take. No ceiling of the caches is measured: for data that stays in one
// only arithmetic binds, and where there is none, memory stands in.
OpBound BoundOf(const OpWork& work, Compute numbers, bool is_cached, const OpPeaks& peaks);

}  // namespace headwise

#endif  // HEADWISE_BENCH_OP_WORK_H_
