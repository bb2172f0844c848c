#include "bench/op_work.h"

#include <algorithm>

#include "backend/cpu/kernels/matmul_kernels.h"
#include "backend/kv_format.h"
#include "bench/work_counts.h"

namespace headwise {
namespace {

constexpr int64_t kFloatBytes = 4;

double AsDouble(int64_t value) {
  return static_cast<double>(value);
}

int64_t QDim(const ModelConfig& config) {
  return config.num_q_heads * config.head_dim;
}
int64_t KvDim(const ModelConfig& config) {
  return config.num_kv_heads * config.head_dim;
}

// Of a token's key and value as they are written.
int64_t NewestBytes(const KvLayout& layout) {
  return TokensBytes(NewestFormat(layout.format), layout.head_dim, 1);
}

// Keys that some query of [depth, depth + num_rows) reads. Requires: positions in the text.
int64_t KeysOfChunk(const ResolvedRule& rule, int64_t depth, int64_t num_rows) {
  const int64_t end = depth + num_rows;
  const int64_t sink_end = std::min(rule.sink, end);
  const int64_t sink_begin = std::clamp<int64_t>(depth - rule.sink_reach + 1, 0, sink_end);
  const int64_t recent_begin = std::max(sink_end, depth - rule.recent + 1);
  return sink_end - sink_begin + (end - recent_begin);
}

}  // namespace

OpWork MatMulWork(std::span<const LinearWeights> parts, MatMulArgs::Write write, int64_t num_rows) {
  OpWork work;
  const int64_t depth = parts.front().weight.shape[1];
  work.bytes_read = AsDouble(num_rows * depth * kFloatBytes);
  for (const LinearWeights& part : parts) {
    const int64_t num_outputs = part.weight.shape[0];
    const int64_t out_bytes = num_rows * num_outputs * kFloatBytes;
    work.bytes_read += AsDouble(part.weight.size_bytes());
    if (part.bias.present()) work.bytes_read += AsDouble(part.bias.size_bytes());
    if (write == MatMulArgs::Write::kAdd) work.bytes_read += AsDouble(out_bytes);
    work.bytes_written += AsDouble(out_bytes);
    work.multiply_adds += AsDouble(num_rows) * AsDouble(depth) * AsDouble(num_outputs);
  }
  return work;
}

OpWork AttentionWork(const ModelConfig& config, std::span<const ResolvedRule> rules, const KvLayout& layout,
                     int64_t depth, int64_t num_rows) {
  const double row_bytes = AsDouble(num_rows * QDim(config) * kFloatBytes);
  OpWork work = {.bytes_read = row_bytes, .bytes_written = row_bytes, .multiply_adds = 0};
  for (int64_t head = 0; head < config.num_kv_heads; ++head) {
    // What the first query reads, and the keys that join it.
    ResolvedRule kept = rules[static_cast<size_t>(head) % rules.size()];
    kept.compensate = false;
    const int64_t num_joining = KeysOfChunk(kept, depth, num_rows) - KeysOfChunk(kept, depth, 1);
    work.bytes_read += KvReadBytes(kept, layout, depth) + AsDouble(num_joining * NewestBytes(layout));
    // Per pair and query head of the group, D for the score and D for the output.
    const double pairs = AsDouble(CountPairs(kept, depth, depth + num_rows));
    work.multiply_adds += pairs * AsDouble(2 * QDim(config) / config.num_kv_heads);
  }
  return work;
}

OpWork AppendWork(const ModelConfig& config, const KvLayout& layout, int64_t num_rows) {
  return {.bytes_read = AsDouble(2 * num_rows * KvDim(config) * kFloatBytes),
          .bytes_written = AsDouble(num_rows * config.num_kv_heads * NewestBytes(layout)),
          .multiply_adds = 0};
}

OpWork AgeWork(const ModelConfig& config, const KvLayout& layout, int64_t num_pages) {
  const int64_t num_tokens = num_pages * layout.page_tokens * config.num_kv_heads;
  return {.bytes_read = AsDouble(num_tokens * NewestBytes(layout)),
          .bytes_written = AsDouble(num_tokens) * BytesPerToken(layout),
          .multiply_adds = 0};
}

OpWork CompensateWork(const ModelConfig& config, const ResolvedRule& rule, const KvLayout& layout, int64_t depth,
                      int64_t num_rows) {
  const TokenRange before = FoldedRange(rule, depth);
  const TokenRange after = FoldedRange(rule, depth + num_rows);
  const int64_t num_folded = after.end - before.end;
  // A query reads the mean once there is one.
  const int64_t num_merged = std::min(num_rows, std::max<int64_t>(0, after.end - after.begin));
  const int64_t state_bytes = config.num_kv_heads * 2 * config.head_dim * kFloatBytes;
  const int64_t q_bytes = num_merged * QDim(config) * kFloatBytes;
  const int64_t lse_bytes = num_merged * config.num_q_heads * kFloatBytes;
  OpWork work;
  work.bytes_read = AsDouble(num_folded * config.num_kv_heads) * BytesPerToken(layout) +
                    AsDouble(state_bytes + 2 * q_bytes + lse_bytes);
  work.bytes_written = AsDouble(state_bytes + q_bytes + lse_bytes);
  // Folding: key and value move towards the token. Merging: a score, and an output of two products.
  work.multiply_adds = AsDouble(num_folded * 2 * KvDim(config) + num_merged * 3 * QDim(config));
  return work;
}

OpWork NormWork(const ModelConfig& config, int64_t num_rows) {
  const int64_t num_elements = num_rows * config.model_dim;
  const int64_t num_vectors = config.norm_bias ? 2 : 1;
  // Squares, then scale and weight; a layer norm's mean, and its difference from it, are one more.
  const int64_t per_element = config.norm == NormKind::kRms ? 2 : 3;
  return {.bytes_read = AsDouble((num_elements + num_vectors * config.model_dim) * kFloatBytes),
          .bytes_written = AsDouble(num_elements * kFloatBytes),
          .multiply_adds = AsDouble(num_elements * per_element)};
}

OpWork RopeWork(const ModelConfig& config, int64_t num_rows) {
  const int64_t num_heads = config.num_q_heads + config.num_kv_heads;
  const int64_t x_bytes = num_rows * num_heads * config.head_dim * kFloatBytes;
  const int64_t angle_bytes = num_rows * config.ropes.front().rotary_dims * kFloatBytes;
  // x cos -+ y sin: a product and a multiply-add.
  return {.bytes_read = AsDouble(x_bytes + angle_bytes),
          .bytes_written = AsDouble(x_bytes),
          .multiply_adds = AsDouble(num_rows * num_heads * config.ropes.front().rotary_dims * 2)};
}

OpWork ActivateWork(const ModelConfig& config, int64_t num_rows) {
  const int64_t num_elements = num_rows * config.ffn_dim;
  const int64_t num_inputs = IsGated(config.mlp) ? 2 : 1;
  return {.bytes_read = AsDouble(num_inputs * num_elements * kFloatBytes),
          .bytes_written = AsDouble(num_elements * kFloatBytes),
          .multiply_adds = AsDouble(num_elements)};
}

OpWork EmbedWork(const ModelConfig& config, DType table, int64_t num_rows) {
  return {.bytes_read = AsDouble(num_rows * BytesOf(table, config.model_dim)),
          .bytes_written = AsDouble(num_rows * config.model_dim * kFloatBytes),
          .multiply_adds = 0};
}

OpWork DrawWork(const ModelConfig& config, int64_t num_rows) {
  return {.bytes_read = AsDouble(num_rows * config.vocab_size * kFloatBytes), .bytes_written = 0, .multiply_adds = 0};
}

Compute NumbersOf(Compute compute, std::span<const DType> weights, int64_t num_rows, bool are_rounded) {
  if (compute != Compute::kInt8 && compute != Compute::kW8A8) return compute;
  const auto has_whole_codes = [](DType dtype) { return IsBlockFormat(dtype) && !HasFloatCodes(dtype); };
  if (std::ranges::none_of(weights, has_whole_codes)) return Compute::kBF16;
  const int64_t least = compute == Compute::kW8A8 && are_rounded ? cpu::kMaxFewRows + 1 : cpu::kMinRegisterRows;
  return num_rows < least ? Compute::kInt8 : compute;
}

OpBound BoundOf(const OpWork& work, Compute numbers, bool is_cached, const OpPeaks& peaks) {
  const double compute_seconds = work.flops() / peaks.flops(numbers);
  const double memory_seconds = work.bytes() / peaks.bytes;
  const bool memory_binds = work.multiply_adds == 0 || (!is_cached && memory_seconds >= compute_seconds);
  if (memory_binds) return {.seconds = memory_seconds, .by = OpBound::By::kMemory};
  return {.seconds = compute_seconds, .by = OpBound::By::kCompute};
}

}  // namespace headwise
