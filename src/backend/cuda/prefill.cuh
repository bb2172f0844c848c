// What the kernels of a prompt's attention share: arguments, and which rows and keys a block has.
#ifndef HEADWISE_BACKEND_CUDA_PREFILL_CUH_
#define HEADWISE_BACKEND_CUDA_PREFILL_CUH_

#include <functional>
#include <span>

#include "backend/cuda/attention_cut.h"
#include "backend/cuda/kv_page.cuh"
#include "backend/cuda/softmax.cuh"
#include "backend/ops.h"

namespace headwise::cuda {

struct PrefillParams {
  StepView step;
  const int32_t* ends;  // of blocks, [B * Hkv]
  int layer_idx;
  int num_heads;
  int group;
  float scale;      // times log2 e, above 0
  float score_cap;  // times log2 e, or 0
  const float* q;
  const float* q_sink;  // null: q
  const float* alibi_slopes;
  const float* sink_logits;
  float* out;
  float* lse;  // or null
};

// The block's pairs: [first_pair, first_pair + kPrefillPairs), as many as there are.
struct PrefillBlock {
  int head_idx;
  DeviceHead head;
  int num_pairs;  // of the head
  int first_pair;

  __device__ explicit PrefillBlock(const PrefillParams& p)
      : head_idx(FirstEndAbove(p.ends, p.num_heads, static_cast<int>(blockIdx.x))),
        head(p.step, p.layer_idx, head_idx),
        num_pairs(static_cast<int>(head.rows.num_rows * p.group)),
        // The last rows read most: they go first.
        first_pair((p.ends[head_idx] - 1 - static_cast<int>(blockIdx.x)) * static_cast<int>(kPrefillPairs)) {}

  // Of a pair, or of the last one.
  __device__ int64_t PosOf(int pair, int group) const { return head.rows.first_pos + min(pair, num_pairs - 1) / group; }
};

// Two of a block's pairs, eight apart, which four lanes share.
struct LanePairs {
  int64_t pos[2];  // in the text
  int64_t row[2];  // of q and out [T * Hq, D], and of lse
  int q_head[2];
  bool is_there[2];

  __device__ LanePairs(const PrefillBlock& block, const PrefillParams& p, int first) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int pair = first + r * 8;
      const int last = min(pair, block.num_pairs - 1);
      is_there[r] = pair < block.num_pairs;
      q_head[r] = block.head.kv_head * p.group + last % p.group;
      row[r] = (block.head.rows.first_row + last / p.group) * p.step.num_kv_heads * p.group + q_head[r];
      pos[r] = block.head.rows.first_pos + last / p.group;
    }
  }
};

// One of the two ranges of keys that a block goes through.
struct KeyRange {
  bool is_sink;
  int64_t begin, end;

  __device__ KeyRange(const KeyWindow& window, int part)
      : is_sink(part == 0),
        begin(is_sink ? window.sink_begin : window.recent_begin),
        end(begin + (is_sink ? window.num_sink : window.num_recent)) {}
  __device__ bool empty() const { return begin >= end; }
  // Of one query's keys those in this range.
  __device__ int64_t BeginOf(const KeyRanges& keys) const { return is_sink ? keys.sink_begin : keys.recent_begin; }
  __device__ int64_t EndOf(const KeyRanges& keys) const { return is_sink ? keys.sink_end : keys.recent_end; }
};

// Whether the device has the kernel for Hopper's products, and what it does: D 64 or 128, scores without cap and slope,
// pages of 16, 32, 64 tokens or multiples of 128.
bool HasHopperPrefill(const PrefillParams& params, const KvLayout& layout, const CudaDevice& device);
void HopperPrefill(const PrefillParams& params, const KvLayout& layout, int num_blocks, CudaDevice& device);

// For pages of codes: what the heads of many rows read of a layer as pages of 16-bit numbers, as many heads at a time
// as there is room for. attend(step, is_there) puts the attention of those heads on the device's stream; in `step` they
// are those of layer 0.
void ForWidened(const AttentionArgs& args, const StepTables& tables, const FastPages& pages, CudaDevice& device,
                const std::function<void(const StepView& step, std::span<const bool> is_there)>& attend);

}  // namespace headwise::cuda

#endif  // HEADWISE_BACKEND_CUDA_PREFILL_CUH_
