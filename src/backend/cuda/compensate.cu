// The compensation token [razor §3.3 eq.4-5], as CompensateArgs says: a block a head, which goes through the step's
// rows in order, because the mean that a query reads is that of its position. Once a prompt is read a head folds one
// token a step; at the end of a prompt all that it drops, each a division behind the other, D of them side by side.
#include "backend/cuda/activation.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kv_page.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 128;

struct CompensateParams {
  StepView step;
  int layer_idx;
  int group;
  int dim;
  float scale;
  float score_cap;  // or 0
  const float* q;   // null: only folding
  const float* alibi_slopes;
  float* out;
  float* lse;
};

// The mean of dropped tokens as one more key of weight n, merged by one warp into what the kept keys gave.
__device__ void MergeMean(const CompensateParams& p, const DeviceHead& head, const float* state, int64_t num_folded,
                          int64_t row, int q_head) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t pair = row * p.step.num_kv_heads * p.group + q_head;
  const float* query = p.q + pair * p.dim;
  float dot = 0;
  for (int d = lane; d < p.dim; d += kWarp) dot = fmaf(query[d], state[d], dot);
  float score = SumOfWarp(dot) * p.scale;
  if (p.score_cap != 0) score = SoftCapped(score, p.score_cap);
  score += logf(static_cast<float>(num_folded));
  if (p.alibi_slopes != nullptr) {
    const int64_t pos = head.rows.first_pos + row - head.rows.first_row;
    const float mean_lag = static_cast<float>(num_folded - 1) / 2 - static_cast<float>(pos - head.head.fold_from);
    score += p.alibi_slopes[q_head] * mean_lag;
  }
  const float kept = p.lse[pair];
  const float larger = fmaxf(score, kept);
  const float kept_weight = expf(kept - larger);
  const float mean_weight = expf(score - larger);
  const float all = kept_weight + mean_weight;
  for (int d = lane; d < p.dim; d += kWarp) {
    float& out = p.out[pair * p.dim + d];
    out = (kept_weight * out + mean_weight * state[p.dim + d]) / all;
  }
  __syncwarp();
  if (lane == 0) p.lse[pair] = larger + logf(all);
}

__global__ void CompensateKernel(CompensateParams p) {
  LetLaterBegin();
  WaitForEarlier();
  const DeviceHead head(p.step, p.layer_idx, static_cast<int>(blockIdx.x));
  const int64_t first_pos = head.rows.first_pos;
  if (!head.head.Folds(first_pos, head.rows.num_rows)) return;
  float* state = head.State();
  int64_t num_folded = head.head.FoldBegin(first_pos) - head.head.fold_from;
  const int page_tokens = head.newest.page_tokens;
  // mean += (x - mean) / n, with n counting the new token.
  const auto fold_up_to = [&](int64_t end) {
    const int64_t begin = head.head.fold_from + num_folded;
    if (end <= begin) return;
    for (int i = static_cast<int>(threadIdx.x); i < 2 * p.dim; i += kThreads) {
      float mean = state[i];
      for (int64_t j = begin; j < end; ++j) {
        KvFormat format;
        const std::byte* page = head.Page(j / page_tokens, format);
        const int row = (i < p.dim ? 0 : page_tokens) + static_cast<int>(j % page_tokens);
        const float x = LoadKv(format, page, p.dim, page_tokens, row, i % p.dim);
        const int64_t count = j - head.head.fold_from + 1;
        mean = count == 1 ? x : mean + (x - mean) / static_cast<float>(count);
      }
      state[i] = mean;
    }
    num_folded += end - begin;
  };
  if (head.head.reads_mean && p.q != nullptr) {
    for (int64_t i = 0; i < head.rows.num_rows; ++i) {
      fold_up_to(first_pos + i - head.head.mask.recent + 1);
      __syncthreads();
      if (num_folded > 0) {
        for (int g = static_cast<int>(threadIdx.x / kWarp); g < p.group; g += kThreads / static_cast<int>(kWarp)) {
          MergeMean(p, head, state, num_folded, head.rows.first_row + i, head.kv_head * p.group + g);
        }
      }
      __syncthreads();
    }
  }
  fold_up_to(head.head.FoldEnd(first_pos, head.rows.num_rows));
}

}  // namespace

void Compensate(const CompensateArgs& args, const StepTables& tables, CudaDevice& device) {
  if (!device.ok() || args.step->num_heads() == 0) return;
  const KvStep& step = *args.step;
  const CompensateParams params{.step = tables.view(),
                                .layer_idx = static_cast<int>(args.layer_idx),
                                .group = static_cast<int>(args.group()),
                                .dim = static_cast<int>(step.Head(args.layer_idx, 0).layout().head_dim),
                                .scale = args.scale,
                                .score_cap = args.score_cap,
                                .q = F32(args.q),
                                .alibi_slopes = F32(args.alibi_slopes),
                                .out = F32(args.out),
                                .lse = F32(args.lse)};
  Launch(device, "Compensate", Overlapping(step.num_heads(), kThreads), CompensateKernel, params);
}

}  // namespace headwise::cuda
