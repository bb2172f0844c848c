// The plan of a decoding step (decode_plan.h), made on the device for all layers at once: its tables are there already,
// and in steady decoding nobody tells it what has grown.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/decode_plan.h"
#include "backend/cuda/kv_page.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;

// One block a layer: plans of its heads of a kind of pages, then the blocks' runs. Threads take as many whole sequences
// at once as they are enough for. Requires: num_kv_heads <= kThreads.
__global__ void PlanKernel(StepView step, int num_blocks, int page_tokens, PageKind kind, HeadPlan* all_heads,
                           RunStart* all_runs) {
  const int num_heads = step.num_sequences * step.num_kv_heads;
  HeadPlan* const heads = all_heads + static_cast<int64_t>(blockIdx.x) * num_heads;
  RunStart* const runs = all_runs + static_cast<int64_t>(blockIdx.x) * (num_blocks + 1);
  __shared__ int cost_of_warp[kWarp], states_of_warp[kWarp], visits_of_layer[kThreads];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  constexpr int num_warps = kThreads / static_cast<int>(kWarp);
  int cost_before = 0;
  int states_before = 0;
  const int heads_at_once = kThreads / step.num_kv_heads * step.num_kv_heads;
  for (int first = 0; first < num_heads; first += heads_at_once) {
    const int thread = static_cast<int>(threadIdx.x);
    const int i = thread < heads_at_once ? first + thread : num_heads;
    HeadPlan plan;
    KeyMask mask;
    int64_t pos = 0;
    bool is_ours = false;
    if (i < num_heads) {
      const StepRows& rows = step.sequences[i / step.num_kv_heads];
      const StepHead& head = step.heads[rows.first_head + blockIdx.x * step.num_kv_heads + i % step.num_kv_heads];
      is_ours = IsPlain(step.spaces[head.newest].format) == (kind == PageKind::kHalves);
      mask = head.mask;
      pos = rows.first_pos;
    }
    // What a sequence's heads make together.
    visits_of_layer[thread] = 0;
    __syncthreads();
    int& of_sequence = visits_of_layer[thread / step.num_kv_heads];
    if (is_ours) atomicAdd(&of_sequence, VisitsOf(mask.KeysOf(pos), page_tokens).num_visits);
    __syncthreads();
    if (is_ours) {
      plan = PlanHead(mask, pos, page_tokens, WorkOfLayer(of_sequence, step.num_kv_heads, num_blocks));
    }
    int cost = plan.num_pieces > 0 ? static_cast<int>(plan.cost()) : 0;
    int states = plan.num_pieces;
    const int own_cost = cost;
    const int own_states = states;
    for (int distance = 1; distance < static_cast<int>(kWarp); distance *= 2) {
      const int other_cost = __shfl_up_sync(kAllLanes, cost, distance);
      const int other_states = __shfl_up_sync(kAllLanes, states, distance);
      if (lane >= distance) {
        cost += other_cost;
        states += other_states;
      }
    }
    if (lane == static_cast<int>(kWarp) - 1) {
      cost_of_warp[warp] = cost;
      states_of_warp[warp] = states;
    }
    __syncthreads();
    int all_cost = 0, all_states = 0, cost_of_earlier = 0, states_of_earlier = 0;
    for (int w = 0; w < num_warps; ++w) {
      if (w == warp) {
        cost_of_earlier = all_cost;
        states_of_earlier = all_states;
      }
      all_cost += cost_of_warp[w];
      all_states += states_of_warp[w];
    }
    if (i < num_heads) {
      plan.cost_before = cost_before + cost_of_earlier + cost - own_cost;
      plan.first_state = states_before + states_of_earlier + states - own_states;
      heads[i] = plan;
    }
    cost_before += all_cost;
    states_before += all_states;
    __syncthreads();
  }
  for (int block = static_cast<int>(threadIdx.x); block <= num_blocks; block += kThreads) {
    const auto target = static_cast<int>(static_cast<int64_t>(cost_before) * block / num_blocks);
    RunStart run = RunFrom(heads, num_heads, target);
    if (block == num_blocks) run = {.head = num_heads, .piece = 0};
    runs[block] = run;
  }
}

}  // namespace

void PlanDecode(const KvStep& all, StepTables& tables, CudaDevice& device) {
  const KvStep step = tables.Decoding(all);
  const FastPages pages = FastPagesOf(all);
  if (device.facts().major < 9 || !pages.present() || step.sequences.empty()) return;
  if ((pages.page_tokens != 32 && pages.page_tokens != 64) || step.num_kv_heads > kThreads) return;
  const int num_blocks = device.facts().num_multiprocessors;
  tables.CountDecodeStates(step, pages.page_tokens);
  for (const PageKind kind : kPageKinds) {
    if (!pages.Has(kind)) continue;
    tables.MakeDecodeTables(step, num_blocks, kind);
    if (!device.ok()) return;
    const LaunchShape shape{.grid = dim3(static_cast<unsigned>(step.num_layers)), .threads = kThreads};
    Launch(device, "Attention: plan", shape, PlanKernel, tables.decoding_view(), num_blocks,
           static_cast<int>(pages.page_tokens), kind, tables.decode(kind).heads, tables.decode(kind).runs);
  }
}

}  // namespace headwise::cuda
