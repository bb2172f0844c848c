// Pages of codes as pages of 16-bit numbers, for the kernels of a prompt's attention: what the rows of a layer read is
// written out once, beside the cache, and read by every tile of them. 3 P D bytes read and 4 P D written of 4 D P flops
// for each of a chunk's rows: below a hundredth of the attention where a chunk has thousands. The heads of a layer go
// one after the other in parts, so that what is written out stays bounded however long the texts are.
#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/async_copy.cuh"
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/prefill.cuh"

namespace headwise::cuda {
namespace {

constexpr int kThreads = 256;
// At a time; or one head, where it takes more.
constexpr int64_t kWidenBytes = int64_t{512} << 20;

struct WidenParams {
  StepView step;
  int layer_idx;
  int num_heads;
  const int32_t* ends;            // of the widened heads' pages, [B * Hkv]
  const StepHead* widened_heads;  // [B * Hkv]: where each page goes
  KvFormat format;                // of what is written, 16 bits
  std::byte* pages;
  int64_t page_bytes;
  uint32_t* table;  // entry i is page i
};

template <typename T>
__device__ void WidenPage(KvFormat format, const std::byte* from, const SpaceView& space, KvFormat to_format,
                          std::byte* to) {
  const int dim = space.head_dim;
  const int num_tokens = space.page_tokens;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * num_tokens * dim / 8; i += kThreads) {
    const int row = i / (dim / 8);
    const int first = i % (dim / 8) * 8;
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) x[j] = LoadKv(format, from, dim, num_tokens, row, first + j);
    uint4& chunk = *reinterpret_cast<uint4*>(to + 2 * PlainIndex(to_format, dim, num_tokens, row, first));
    chunk = {Pack<T>(x[0], x[1]), Pack<T>(x[2], x[3]), Pack<T>(x[4], x[5]), Pack<T>(x[6], x[7])};
  }
}

// Whether the step's rows read a page: those between sinks and window, or of sinks that are too far back, may be gone.
__device__ bool IsRead(const DeviceHead& head, int64_t page_idx) {
  const int64_t first_pos = head.rows.first_pos;
  const KeyWindow window = WindowOf(head.head.mask, first_pos, first_pos + head.rows.num_rows - 1);
  const int64_t begin = page_idx * head.newest.page_tokens;
  const int64_t end = begin + head.newest.page_tokens;
  const auto touches = [&](int64_t first, int64_t count) { return count > 0 && begin < first + count && end > first; };
  return touches(window.sink_begin, window.num_sink) || touches(window.recent_begin, window.num_recent);
}

// A block a page.
__global__ void __launch_bounds__(kThreads) WidenKernel(WidenParams p) {
  const int page = static_cast<int>(blockIdx.x);
  const int head_idx = FirstEndAbove(p.ends, p.num_heads, page);
  const DeviceHead head(p.step, p.layer_idx, head_idx);
  const StepHead& widened = p.widened_heads[head_idx];
  const int64_t in_head = page - (head_idx > 0 ? p.ends[head_idx - 1] : 0);
  const int64_t page_idx = in_head < widened.sink_pages ? in_head : widened.ring_first + in_head - widened.sink_pages;
  if (threadIdx.x == 0) p.table[page] = static_cast<uint32_t>(page);
  if (!IsRead(head, page_idx)) return;
  KvFormat format;
  const std::byte* const from = head.Page(page_idx, format);
  std::byte* const to = p.pages + page * p.page_bytes;
  if (p.format == KvFormat::kF16) {
    WidenPage<__half>(format, from, head.newest, p.format, to);
  } else {
    WidenPage<__nv_bfloat16>(format, from, head.newest, p.format, to);
  }
}

// A head's pages that its rows read: those of sinks, and from the first other one on. Sinks may lie in others: where a
// window is longer than the text nothing is a ring yet.
StepHead WidenedHead(const HeadWork& work, int64_t first_page, int64_t& num_pages) {
  const int64_t page_tokens = work.page_tokens();
  const int64_t end_page = CeilDiv(work.first_pos + work.num_rows, page_tokens);
  StepHead head;
  head.mask = work.mask();
  head.table = static_cast<uint32_t>(first_page);
  head.sink_pages = std::min(work.head->sink_pages, end_page);
  const KeyWindow window = WindowOf(head.mask, work.first_pos, work.first_pos + work.num_rows - 1);
  int64_t first = window.recent_begin / page_tokens;
  if (window.sink_begin + window.num_sink > head.sink_pages * page_tokens && window.num_sink > 0) {
    first = std::min(first, window.sink_begin / page_tokens);
  }
  head.ring_first = std::clamp(first, head.sink_pages, end_page);
  num_pages = head.sink_pages + end_page - head.ring_first;
  return head;
}

}  // namespace

void ForWidened(const AttentionArgs& args, const StepTables& tables, const FastPages& pages, CudaDevice& device,
                const std::function<void(const StepView&, std::span<const bool>)>& attend) {
  const KvStep& step = *args.step;
  const auto num_heads = static_cast<size_t>(step.num_heads());
  const KvFormat format = pages.has_halves ? pages.halves : KvFormat::kBF16;
  const int64_t page_bytes = TokensBytes(format, pages.head_dim, pages.page_tokens);
  const int64_t max_pages = kWidenBytes / page_bytes;
  std::vector<StepRows> sequences(step.sequences.begin(), step.sequences.end());
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].first_head = static_cast<uint32_t>(i * static_cast<size_t>(step.num_kv_heads));
  }
  for (size_t begin = 0; begin < num_heads;) {
    // As many heads as there is room for.
    std::vector<StepHead> heads(num_heads);
    std::vector<int32_t> ends(num_heads);
    const auto is_there = std::make_unique<bool[]>(num_heads);
    int64_t all_pages = 0;
    size_t i = 0;
    for (; i < num_heads; ++i) {
      const HeadWork work = step.Head(args.layer_idx, static_cast<int64_t>(i));
      if (i >= begin && work.num_rows > kMaxCutRows) {
        int64_t num_pages = 0;
        heads[i] = WidenedHead(work, all_pages, num_pages);
        if (all_pages > 0 && all_pages + num_pages > max_pages) break;
        all_pages += num_pages;
        is_there[i] = true;
      }
      ends[i] = static_cast<int32_t>(all_pages);
    }
    begin = i;
    std::fill(ends.begin() + static_cast<std::ptrdiff_t>(i), ends.end(), static_cast<int32_t>(all_pages));
    if (all_pages == 0) break;
    const auto table_bytes = static_cast<size_t>(CeilDiv(all_pages * 4, 1024) * 1024);
    std::byte* const memory = device.Scratch(table_bytes + static_cast<size_t>(all_pages * page_bytes));
    if (memory == nullptr) return;
    auto* const table = reinterpret_cast<uint32_t*>(memory);
    std::byte* const first_page = memory + table_bytes;
    std::byte* const* const extents = device.Upload(std::span<std::byte* const>(&first_page, 1));
    const SpaceView space{.format = format,
                          .head_dim = static_cast<int32_t>(pages.head_dim),
                          .page_tokens = static_cast<int32_t>(pages.page_tokens),
                          .extent_shift = 31,
                          .page_bytes = page_bytes,
                          .extents = extents};
    const StepView widened{.heads = device.Upload(std::span<const StepHead>(heads)),
                           .pages = table,
                           .sequences = device.Upload(std::span<const StepRows>(sequences)),
                           .spaces = device.Upload(std::span<const SpaceView>(&space, 1)),
                           .states = -1,
                           .num_sequences = static_cast<int32_t>(sequences.size()),
                           .num_kv_heads = static_cast<int32_t>(step.num_kv_heads)};
    const WidenParams params{.step = tables.view(),
                             .layer_idx = static_cast<int>(args.layer_idx),
                             .num_heads = static_cast<int>(num_heads),
                             .ends = device.Upload(std::span<const int32_t>(ends)),
                             .widened_heads = widened.heads,
                             .format = format,
                             .pages = first_page,
                             .page_bytes = page_bytes,
                             .table = table};
    if (!device.ok()) return;
    Launch(device, "Attention: widen pages", {.grid = dim3(static_cast<unsigned>(all_pages)), .threads = kThreads},
           WidenKernel, params);
    attend(widened, {is_there.get(), num_heads});
  }
}

}  // namespace headwise::cuda
