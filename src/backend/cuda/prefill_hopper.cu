// Attention of a prompt's rows on Hopper: as prefill_attention.cu, with the products of warpgroups. A block takes 128
// (row, query head) pairs of one KV head, two warpgroups 64 each; a warp of a third one brings keys and values, 128
// tokens at a time, page by page as they lie, by bulk copies. Scores of the next keys are multiplied while weights of
// these are; the softmax of one warpgroup runs beside the products of the other. [flash-attention 3 §3.1, §3.2, arXiv
// 2407.08608] Bound by the products, 4 D flops a pair and key.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/prefill.cuh"
#include "backend/cuda/wgmma.cuh"

namespace headwise::cuda {
namespace {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kPairsOfGroup = 64;
static_assert(kConsumers * kPairsOfGroup == kPrefillPairs);
constexpr int kKeys = 128;  // at a time
constexpr int kRowBytes = 128;
constexpr int kHalfBytes = kKeys * kRowBytes;  // 64 numbers of as many tokens

template <int kDim>
struct Ring {
  static constexpr int kStages = kDim == 64 ? 4 : 2;
  static constexpr int kTileBytes = kDim / 64 * kHalfBytes;
  static constexpr int kBytes = 2 * kStages * kTileBytes;
  // Of the barriers behind: keys full, keys empty, values full, values empty.
  static constexpr int kAllBytes = kBytes + 4 * kStages * static_cast<int>(sizeof(uint64_t));
};

// A place in a ring, and how often it came round.
template <int kStages>
struct Place {
  int stage = 0;
  int parity = 0;

  __device__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

#if HW_HAS_WGMMA

// A multiprocessor's registers, shared out.
constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 224;
// Barriers of threads, of each consumer; 0 is __syncthreads.
constexpr int kGroupBarrier = 1;  // and the next

struct Barriers {
  uint64_t *full, *empty;  // [stages]
};

// Tiles of a range begin with a page, or within a long one.
__device__ inline int64_t FirstKey(const KeyRange& range, int page_tokens) {
  const int unit = min(page_tokens, kKeys);
  return range.begin / unit * unit;
}
__device__ inline int TilesOf(const KeyRange& range, int page_tokens) {
  return static_cast<int>((range.end - FirstKey(range, page_tokens) + kKeys - 1) / kKeys);
}

// One warp brings a block's keys and values, tile after tile: the first keys, then keys a tile ahead of values.
template <int kDim>
class Producer {
 public:
  static constexpr int kStages = Ring<kDim>::kStages;
  static constexpr int kTileBytes = Ring<kDim>::kTileBytes;

  __device__ Producer(const DeviceHead& head, char* keys, char* values, Barriers key_barriers, Barriers value_barriers)
      : head_(head),
        page_tokens_(head.newest.page_tokens),
        rows_(min(page_tokens_, kKeys)),
        keys_(keys),
        values_(values),
        key_barriers_(key_barriers),
        value_barriers_(value_barriers) {}

  __device__ void Bring(const KeyRange& range) {
    const int num_tiles = TilesOf(range, page_tokens_);
    const int64_t first = FirstKey(range, page_tokens_);
    Piece values = PieceOf(range, first);
    Copy(values, 0, keys_, key_barriers_, key_place_);
    for (int tile = 0; tile < num_tiles; ++tile) {
      const Piece current = values;
      if (tile + 1 < num_tiles) {
        values = PieceOf(range, first + static_cast<int64_t>(tile + 1) * kKeys);
        Copy(values, 0, keys_, key_barriers_, key_place_);
      }
      Copy(current, page_tokens_ * kDim * 2, values_, value_barriers_, value_place_);
    }
  }

 private:
  // What a lane copies of a tile: a page's part in it, or nothing.
  struct Piece {
    const std::byte* from;  // null: nothing
    int num_pieces;         // of all lanes
  };

  __device__ Piece PieceOf(const KeyRange& range, int64_t first) const {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int64_t pos = first + lane * rows_;
    const bool is_there = lane * rows_ < kKeys && pos < range.end;
    Piece piece{nullptr, __popc(__ballot_sync(kAllLanes, is_there))};
    if (is_there) {
      KvFormat format;
      piece.from = head_.Page(pos / page_tokens_, format) + pos % page_tokens_ * kRowBytes;
    }
    return piece;
  }
  __device__ void Copy(const Piece& piece, int offset, char* ring, const Barriers& barriers, Place<kStages>& place) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    WaitFor(&barriers.empty[place.stage], place.parity ^ 1);
    uint64_t* const full = &barriers.full[place.stage];
    if (lane == 0) ExpectBytes(full, piece.num_pieces * rows_ * kDim * 2);
    __syncwarp();
    if (piece.from != nullptr) {
      char* const to = ring + place.stage * kTileBytes + lane * rows_ * kRowBytes;
#pragma unroll
      for (int half = 0; half < kDim / 64; ++half) {
        BulkCopy(to + half * kHalfBytes, piece.from + offset + half * page_tokens_ * kRowBytes, rows_ * kRowBytes,
                 full);
      }
    }
    place.Advance();
  }

  const DeviceHead& head_;
  int page_tokens_, rows_;
  char *keys_, *values_;
  Barriers key_barriers_, value_barriers_;
  Place<kStages> key_place_, value_place_;
};

// What a thread of a warpgroup has of its rows lane / 4 and lane / 4 + 8 of its warp's 16.
template <typename T, int kDim>
struct State {
  uint32_t queries[kDim / 4];
  float scores[kKeys / 2];
  uint32_t weights[kKeys / 4];
  float outputs[kDim / 2];
  // Times log2 e, kWeightBits below the running maximum, which scores exceed by kMaxSlack at most.
  float max[2] = {kNoScore, kNoScore};
  float sum[2] = {0, 0};  // over the lane's keys

  // Weights from scores; outputs are to be multiplied with `factor`, where it says true. Of a tile that all rows read
  // whole `is_inner`; else row r reads keys [begin[r], end[r]), counted from the lane's first.
  __device__ bool Soften(float scale, bool is_inner, const int (&begin)[2], const int (&end)[2], float (&factor)[2]) {
    if (!is_inner) {
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) {
        const int key = i / 4 * 8 + i % 2;
        const int r = i / 2 % 2;
        if (key < begin[r] || key >= end[r]) scores[i] = -INFINITY;
      }
    }
    const bool has_new_max = RaiseMax(scale, factor);
    // Sums of four chains: a warp has no others to wait with.
    float more[4] = {};
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      scores[i] = Exp2(fmaf(scores[i], scale, -max[i / 2 % 2]));
      more[i % 4] += scores[i];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += more[2 * r] + more[2 * r + 1];
    return has_new_max;
  }
  __device__ void TakeWeights() {
#pragma unroll
    for (int i = 0; i < kKeys / 4; ++i) weights[i] = Pack<T>(scores[2 * i], scores[2 * i + 1]);
  }
  __device__ void ScaleOutputs(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) outputs[i] *= factor[i / 2 % 2];
  }

 private:
  // A maximum that is a little too small does no harm, so that most tiles change nothing. False: none of the warp's
  // rows did.
  __device__ bool RaiseMax(float scale, float (&factor)[2]) {
    float larger[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
    for (int i = 4; i < kKeys / 2; ++i) larger[i % 4] = fmaxf(larger[i % 4], scores[i]);
    constexpr float kMost = kMaxSlack + kWeightBits;
    float of_row[2];
    bool is_higher = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_row[r] = fmaxf(larger[2 * r], larger[2 * r + 1]) * scale;
      is_higher = is_higher || of_row[r] > max[r] + kMost;
    }
    if (!__any_sync(kAllLanes, is_higher)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_row[r] = fmaxf(of_row[r], __shfl_xor_sync(kAllLanes, of_row[r], 1));
      of_row[r] = fmaxf(of_row[r], __shfl_xor_sync(kAllLanes, of_row[r], 2));
      of_row[r] = of_row[r] > max[r] + kMost ? of_row[r] - kWeightBits : max[r];
      factor[r] = Exp2(max[r] - of_row[r]);
      max[r] = of_row[r];
      sum[r] *= factor[r];
    }
    return true;
  }
};

// Values of tokens outside [begin, end) of the tile: whatever memory held there, no weight may make it a number.
template <int kDim>
__device__ void ClearValues(char* tile, int begin, int end) {
  const int row = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (row >= begin && row < end) return;
#pragma unroll
  for (int half = 0; half < kDim / 64; ++half) {
    auto* const chunks = reinterpret_cast<uint4*>(tile + half * kHalfBytes + row * kRowBytes);
#pragma unroll
    for (int i = 0; i < kRowBytes / 16; ++i) chunks[i] = {0, 0, 0, 0};
  }
}

// A range of keys as a thread of a consumer sees it, counted from the range's first tile.
struct TileRange {
  int begin, end;
  int inner_begin, inner_end;    // what all rows of the warpgroup read
  int row_begin[2], row_end[2];  // what the thread's two rows read

  __device__ TileRange(const KeyRange& range, int page_tokens, const KeyMask& mask, int64_t first_pos, int64_t last_pos,
                       const int64_t (&pos)[2]) {
    const int64_t first = FirstKey(range, page_tokens);
    const auto from_first = [&](int64_t key) { return static_cast<int>(key - first); };
    begin = from_first(range.begin);
    end = from_first(range.end);
    inner_begin = from_first(range.BeginOf(mask.KeysOf(last_pos)));
    inner_end = from_first(range.EndOf(mask.KeysOf(first_pos)));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const KeyRanges of_row = mask.KeysOf(pos[r]);
      row_begin[r] = from_first(range.BeginOf(of_row));
      row_end[r] = from_first(range.EndOf(of_row));
    }
  }
};

// A warpgroup's way through a block's keys.
template <typename T, int kDim>
class Consumer {
 public:
  static constexpr int kStages = Ring<kDim>::kStages;
  static constexpr int kTileBytes = Ring<kDim>::kTileBytes;

  __device__ Consumer(int group_idx, char* keys, char* values, Barriers key_barriers, Barriers value_barriers)
      : group_idx_(group_idx),
        keys_(SharedAddress(keys)),
        values_(values),
        key_barriers_(key_barriers),
        value_barriers_(value_barriers) {
#pragma unroll
    for (float& x : state_.outputs) x = 0;
  }

  __device__ void Attend(const TileRange& range, float scale) {
    int first = 0;
    float factor[2];
    const auto soften = [&] {
      const bool is_inner = first >= range.inner_begin && first + kKeys <= range.inner_end;
      const int lane_first = first + static_cast<int>(threadIdx.x) % 4 * 2;
      const int begin[2] = {range.row_begin[0] - lane_first, range.row_begin[1] - lane_first};
      const int end[2] = {range.row_end[0] - lane_first, range.row_end[1] - lane_first};
      return state_.Soften(scale, is_inner, begin, end, factor);
    };
    WaitFor(&key_barriers_.full[key_place_.stage], key_place_.parity);
    MultiplyKeys();
    WaitForProducts<0>();
    KeepInPlace(state_.scores);
    Leave(key_barriers_, key_place_);
    if (soften()) state_.ScaleOutputs(factor);
    state_.TakeWeights();
    while (first + kKeys < range.end) {
      WaitFor(&key_barriers_.full[key_place_.stage], key_place_.parity);
      MultiplyKeys();
      AwaitValues(range, first);
      MultiplyValues();
      first += kKeys;
      WaitForProducts<1>();
      KeepInPlace(state_.scores);
      Leave(key_barriers_, key_place_);
      const bool has_new_max = soften();
      Await(state_.sum[0] + state_.sum[1]);
      WaitForProducts<0>();
      KeepInPlace(state_.outputs);
      KeepInPlace(state_.weights);
      Leave(value_barriers_, value_place_);
      if (has_new_max) state_.ScaleOutputs(factor);
      state_.TakeWeights();
    }
    AwaitValues(range, first);
    MultiplyValues();
    WaitForProducts<0>();
    KeepInPlace(state_.outputs);
    Leave(value_barriers_, value_place_);
  }
  // The warp's 16 rows of queries, rounded; zeros for pairs that are not there.
  __device__ void TakeQueries(const LanePairs& pairs, const float* q) {
    const int first = 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) {
      float2 x = {0, 0};
      const float* const row = q + pairs.row[i % 2] * kDim;
      if (pairs.is_there[i % 2]) x = *reinterpret_cast<const float2*>(row + i / 4 * 16 + i / 2 % 2 * 8 + first);
      state_.queries[i] = Pack<T>(x.x, x.y);
    }
  }
  __device__ const State<T, kDim>& state() const {
    return state_;
  }

 private:
  __device__ void MultiplyKeys() {
    const uint64_t keys = DescribeRows(keys_ + key_place_.stage * kTileBytes);
    KeepInPlace(state_.scores);
    KeepInPlace(state_.queries);
    BeginProducts();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      MultiplyRows<T>(state_.scores, &state_.queries[4 * k], keys + (k / 4 * kHalfBytes >> 4) + k % 4 * 2,
                      k == 0 ? 0 : 1);
    }
    CommitProducts();
  }
  __device__ void MultiplyValues() {
    const uint64_t values = DescribeColumns(SharedAddress(values_ + value_place_.stage * kTileBytes), kHalfBytes);
    KeepInPlace(state_.outputs);
    KeepInPlace(state_.weights);
    BeginProducts();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) MultiplyColumns<T>(state_.outputs, &state_.weights[4 * k], values + k * 128);
    CommitProducts();
  }
  // Values of the tile at `first`.
  __device__ void AwaitValues(const TileRange& range, int first) {
    WaitFor(&value_barriers_.full[value_place_.stage], value_place_.parity);
    if (first >= range.begin && first + kKeys <= range.end) return;
    ClearValues<kDim>(values_ + value_place_.stage * kTileBytes, range.begin - first, range.end - first);
    FenceSharedWrites();
    SyncThreads(kGroupBarrier + group_idx_, kWarpgroup);
  }
  // The warp has read the stage.
  __device__ void Leave(const Barriers& barriers, Place<kStages>& place) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) Arrive(&barriers.empty[place.stage]);
    place.Advance();
  }

  int group_idx_;
  uint32_t keys_;
  char* values_;
  Barriers key_barriers_, value_barriers_;
  Place<kStages> key_place_, value_place_;
  State<T, kDim> state_;
};

#endif  // HW_HAS_WGMMA

template <typename T, int kDim>
__global__ void __launch_bounds__(kThreads, 1) HopperPrefillKernel(PrefillParams p) {
#if HW_HAS_WGMMA
  using Ring = Ring<kDim>;
  extern __shared__ __align__(1024) char shared[];
  char* const keys = shared;
  char* const values = keys + Ring::kStages * Ring::kTileBytes;
  auto* const barriers = reinterpret_cast<uint64_t*>(shared + Ring::kBytes);
  const Barriers key_barriers{barriers, barriers + Ring::kStages};
  const Barriers value_barriers{barriers + 2 * Ring::kStages, barriers + 3 * Ring::kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < Ring::kStages; ++i) {
      for (const Barriers& each : {key_barriers, value_barriers}) {
        InitBarrier(&each.full[i], 1);
        InitBarrier(&each.empty[i], kConsumers * kWarpgroup / static_cast<int>(kWarp));
      }
    }
    FenceBarrierInit();
  }
  const PrefillBlock block(p);
  const KeyMask mask = block.head.head.mask;
  const int last_pair = block.first_pair + static_cast<int>(kPrefillPairs) - 1;
  const KeyWindow window = WindowOf(mask, block.PosOf(block.first_pair, p.group), block.PosOf(last_pair, p.group));
  __syncthreads();

  if (threadIdx.x < kWarpgroup) {
    GiveRegisters<kProducerRegisters>();
    if (threadIdx.x >= kWarp) return;
    Producer<kDim> producer(block.head, keys, values, key_barriers, value_barriers);
    for (int part = 0; part < 2; ++part) {
      const KeyRange range(window, part);
      if (!range.empty()) producer.Bring(range);
    }
    return;
  }

  TakeRegisters<kConsumerRegisters>();
  const int group_idx = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / static_cast<int>(kWarp);
  const int first_pair = block.first_pair + group_idx * kPairsOfGroup;
  const int own_pair = first_pair + warp * 16 + lane / 4;
  const int64_t own_pos[2] = {block.PosOf(own_pair, p.group), block.PosOf(own_pair + 8, p.group)};
  Consumer<T, kDim> consumer(group_idx, keys, values, key_barriers, value_barriers);
  const float* taken = nullptr;
  for (int part = 0; part < 2; ++part) {
    const KeyRange range(window, part);
    if (range.empty()) continue;
    const float* const q = range.is_sink && p.q_sink != nullptr ? p.q_sink : p.q;
    if (q != taken) consumer.TakeQueries(LanePairs(block, p, own_pair), q);
    taken = q;
    const TileRange tiles(range, block.head.newest.page_tokens, mask, block.PosOf(first_pair, p.group),
                          block.PosOf(first_pair + kPairsOfGroup - 1, p.group), own_pos);
    consumer.Attend(tiles, p.scale);
  }

  const LanePairs pairs(block, p, own_pair);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = consumer.state().sum[r];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    if (!pairs.is_there[r]) continue;
    const float factor = FactorOf(p, pairs.row[r], pairs.q_head[r], consumer.state().max[r], sum, lane % 4 == 0);
    float* const out = p.out + pairs.row[r] * kDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      *reinterpret_cast<float2*>(out + i * 8) = {consumer.state().outputs[4 * i + 2 * r] * factor,
                                                 consumer.state().outputs[4 * i + 2 * r + 1] * factor};
    }
  }
#endif  // HW_HAS_WGMMA
}

template <typename T, int kDim>
void LaunchFor(const PrefillParams& params, int num_blocks, CudaDevice& device) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(num_blocks)),
                          .threads = kThreads,
                          .shared_bytes = size_t{Ring<kDim>::kAllBytes}};
  Launch(device, "Attention", shape, HopperPrefillKernel<T, kDim>, params);
}

}  // namespace

bool HasHopperPrefill(const PrefillParams& params, const KvLayout& layout, const CudaDevice& device) {
#if HEADWISE_HAS_SM90A
  const bool is_hopper = device.facts().major == 9 && device.facts().minor == 0;
  const bool is_whole = kKeys % layout.page_tokens == 0 || layout.page_tokens % kKeys == 0;
  return is_hopper && is_whole && (layout.head_dim == 64 || layout.head_dim == 128) && params.score_cap == 0 &&
         params.alibi_slopes == nullptr;
#else
  return false;
#endif
}

void HopperPrefill(const PrefillParams& params, const KvLayout& layout, int num_blocks, CudaDevice& device) {
  const bool is_short = layout.head_dim == 64;
  if (layout.format == KvFormat::kF16) {
    return is_short ? LaunchFor<__half, 64>(params, num_blocks, device)
                    : LaunchFor<__half, 128>(params, num_blocks, device);
  }
  return is_short ? LaunchFor<__nv_bfloat16, 64>(params, num_blocks, device)
                  : LaunchFor<__nv_bfloat16, 128>(params, num_blocks, device);
}

}  // namespace headwise::cuda
