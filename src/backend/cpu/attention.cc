#include "backend/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "base/no_memory.h"

namespace headwise::cpu {
namespace {

constexpr double kLog2E = 1.44269504088896340736;

// A parallel region costs a few microseconds; below this many bytes of keys and values one thread is as fast.
constexpr int64_t kMinTaskBytes = 48 << 10;
constexpr int64_t kTasksPerThread = 16;
// Below this many floats of results one thread merges them as fast.
constexpr int64_t kMinParallelMerge = 16 << 10;

// Query rows per prefill tile: converting a tile of keys then costs a few percent of using it. Streaming heads take
// fewer tokens at a time, because a tile of T tokens reads T keys more than its window.
constexpr int64_t kTileRows = 256;
constexpr int64_t kStreamTileTokens = 64;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

KvType TypeOf(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return KvType::kF32;
    case KvFormat::kF16:
      return KvType::kF16;
    case KvFormat::kBF16:
      return KvType::kBF16;
    case KvFormat::kQ8:
      return KvType::kQ8;
    case KvFormat::kQ4:  // written as kQ8: a layout of pages, not of heads
      break;
  }
  HW_CHECK(false, "format {}", static_cast<int>(format));
}

KvSpace SpaceOf(const PageSpace& space) {
  return {.extents = space.extents.data(), .page_bytes = space.page_bytes, .extent_shift = space.extent_shift};
}

KvPages PagesOf(const HeadWork& work) {
  const StepHead& head = *work.head;
  const KvLayout& layout = work.layout();
  const KvSpace newest = SpaceOf(work.newest());
  return {.table = work.step->pages.data() + head.table,
          .num_sink = head.sink_pages,
          .ring_first = head.ring_first,
          .ring_pages = head.ring_pages,
          .page_tokens = layout.page_tokens,
          .dim = layout.head_dim,
          .padded_dim = RoundUp(layout.head_dim, 16),
          .type = TypeOf(layout.format),
          .aged_begin = work.aged_begin(),
          .aged_end = work.aged_end(),
          .newest = newest,
          .aged = head.aged < 0 ? newest : SpaceOf(work.step->spaces[static_cast<size_t>(head.aged)])};
}

const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}
float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}

// ---- decode: one query row of one head against up to 1024 of its keys ----------------------------------------------

struct DecodePiece {
  size_t query_idx;                                        // into the list of decode heads
  KvFormat format;                                         // of all pages it reads
  int64_t sink_begin, sink_end, recent_begin, recent_end;  // as in KeyRanges
  int64_t num_keys() const { return sink_end - sink_begin + recent_end - recent_begin; }
};

// One decoding head and its pieces [first_piece, first_piece + num_pieces).
struct DecodeHead {
  HeadWork work;
  size_t first_piece;
  size_t num_pieces;
};

// Those of `keys` at positions [begin, end).
DecodePiece KeysWithin(const DecodePiece& keys, int64_t begin, int64_t end, KvFormat format) {
  DecodePiece within = keys;
  within.format = format;
  within.sink_begin = std::clamp(begin, keys.sink_begin, keys.sink_end);
  within.sink_end = std::clamp(end, keys.sink_begin, keys.sink_end);
  within.recent_begin = std::clamp(begin, keys.recent_begin, keys.recent_end);
  within.recent_end = std::clamp(end, keys.recent_begin, keys.recent_end);
  return within;
}

void CutIntoPieces(const DecodePiece& keys, std::vector<DecodePiece>& pieces) {
  DecodePiece rest = keys;
  while (rest.num_keys() > 0) {
    DecodePiece piece = rest;
    piece.sink_end = std::min(rest.sink_end, rest.sink_begin + kDecodePieceTokens);
    const int64_t room = kDecodePieceTokens - (piece.sink_end - piece.sink_begin);
    // Cuts lie at multiples of the piece, so that no group of 16 tokens is read twice.
    int64_t cut = std::min(rest.recent_end, rest.recent_begin + room);
    if (cut < rest.recent_end) cut = std::max(cut / kDecodePieceTokens * kDecodePieceTokens, rest.recent_begin);
    if (cut == rest.recent_begin && cut < rest.recent_end && piece.sink_end == piece.sink_begin) {
      cut = std::min(rest.recent_end, rest.recent_begin + room);
    }
    piece.recent_end = piece.sink_end == rest.sink_end ? cut : rest.recent_begin;
    rest.sink_begin = piece.sink_end;
    rest.recent_begin = piece.recent_end;
    pieces.push_back(piece);
  }
}

class DecodeBatch {
 public:
  DecodeBatch(const AttentionArgs& args, const KernelTable& kernels, AttentionScratch& scratch)
      : args_(args),
        kernels_(kernels),
        scratch_(scratch),
        group_(args.group()),
        padded_dim_(RoundUp(args.head_dim(), 16)),
        result_floats_(RoundUp(group_ * (padded_dim_ + 2), 16)) {
    for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
      const HeadWork work = args.step->Head(args.layer_idx, idx);
      if (work.num_rows != 1) continue;
      const size_t first_piece = pieces_.size();
      const KvFormat format = work.layout().format;
      const KeyRanges ranges = work.mask().KeysOf(work.first_pos);
      const DecodePiece keys{.query_idx = heads_.size(),
                             .format = format,
                             .sink_begin = ranges.sink_begin,
                             .sink_end = ranges.sink_end,
                             .recent_begin = ranges.recent_begin,
                             .recent_end = ranges.recent_end};
      const int64_t aged_begin = work.aged_begin() * work.page_tokens();
      const int64_t aged_end = work.aged_end() * work.page_tokens();
      CutIntoPieces(KeysWithin(keys, 0, aged_begin, format), pieces_);
      CutIntoPieces(KeysWithin(keys, aged_begin, aged_end, KvFormat::kQ4), pieces_);
      CutIntoPieces(KeysWithin(keys, aged_end, kNoLimit, format), pieces_);
      heads_.push_back({work, first_piece, pieces_.size() - first_piece});
    }
  }

  bool empty() const { return heads_.empty(); }

  void Run(ThreadPool& pool) {
    const auto num_heads = static_cast<int64_t>(heads_.size());
    const auto num_pieces = static_cast<int64_t>(pieces_.size());
    const int64_t q_floats = num_heads * group_ * padded_dim_;
    float* memory = scratch_.Shared(
        static_cast<size_t>(2 * q_floats + RoundUp(args_.num_q_heads, 16) + num_pieces * result_floats_));
    q_ = memory;
    q_sink_ = q_ + q_floats;
    slopes_ = q_sink_ + q_floats;
    results_ = slopes_ + RoundUp(args_.num_q_heads, 16);
    scratch_.ReservePerThread(pool.num_threads(),
                              static_cast<size_t>(DecodeScratchFloats(group_, padded_dim_)) * sizeof(float));
    PrepareQueries();

    const std::vector<int64_t> task_ends = TaskEnds(pool.num_threads());
    pool.ParallelFor(static_cast<int64_t>(task_ends.size()), [&](int64_t task_idx, int thread_idx) {
      const int64_t begin = task_idx == 0 ? 0 : task_ends[static_cast<size_t>(task_idx - 1)];
      RunPieces(begin, task_ends[static_cast<size_t>(task_idx)], thread_idx);
    });
    const auto merge = [&](int64_t head_idx, int) { Merge(static_cast<size_t>(head_idx)); };
    if (num_pieces * result_floats_ > kMinParallelMerge) return pool.ParallelFor(num_heads, merge);
    for (int64_t i = 0; i < num_heads; ++i) merge(i, 0);
  }

 private:
  int64_t BytesOf(const DecodePiece& piece) const {
    const KvLayout& layout = heads_[piece.query_idx].work.layout();
    return piece.num_keys() * TokensBytes(piece.format, layout.head_dim, layout.page_tokens) / layout.page_tokens;
  }

  // Tasks of neighbouring pieces: large enough to be worth a thread, small enough that threads end together.
  std::vector<int64_t> TaskEnds(int num_threads) const {
    int64_t all_bytes = 0;
    for (const DecodePiece& piece : pieces_) all_bytes += BytesOf(piece);
    const int64_t task_bytes = std::max(kMinTaskBytes, all_bytes / (num_threads * kTasksPerThread));
    std::vector<int64_t> ends;
    int64_t bytes = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      bytes += BytesOf(pieces_[i]);
      if (bytes < task_bytes && i + 1 < pieces_.size()) continue;
      ends.push_back(static_cast<int64_t>(i + 1));
      bytes = 0;
    }
    return ends;
  }

  float* Result(int64_t piece_idx) const { return results_ + piece_idx * result_floats_; }

  // Queries times scale * log2(e), zero-padded, one block per head.
  void PrepareQueries() {
    const auto factor = static_cast<float>(args_.scale * kLog2E);
    for (size_t i = 0; i < heads_.size(); ++i) {
      const HeadWork& work = heads_[i].work;
      const bool has_sink_query = args_.q_sink.present() && work.mask().sink > 0;
      for (int64_t g = 0; g < group_; ++g) {
        const int64_t from = (work.first_row * args_.num_q_heads + work.kv_head * group_ + g) * args_.head_dim();
        const int64_t to = (static_cast<int64_t>(i) * group_ + g) * padded_dim_;
        for (int64_t d = 0; d < padded_dim_; ++d) {
          const bool exists = d < args_.head_dim();
          q_[to + d] = exists ? F32(args_.q)[from + d] * factor : 0.0f;
          q_sink_[to + d] = exists && has_sink_query ? F32(args_.q_sink)[from + d] * factor : q_[to + d];
        }
      }
    }
    for (int64_t h = 0; h < args_.num_q_heads && args_.alibi_slopes.present(); ++h) {
      slopes_[h] = static_cast<float>(F32(args_.alibi_slopes)[h] * kLog2E);
    }
  }

  // Everything but where it is computed.
  DecodeArgs ArgsOf(int64_t piece_idx) const {
    const DecodePiece& piece = pieces_[static_cast<size_t>(piece_idx)];
    const HeadWork& work = heads_[piece.query_idx].work;
    const int64_t q_offset = static_cast<int64_t>(piece.query_idx) * group_ * padded_dim_;
    float* result = Result(piece_idx);
    return {.pages = PagesOf(work),
            .num_q = group_,
            .q = q_ + q_offset,
            .q_sink = q_sink_ + q_offset,
            .slopes = args_.alibi_slopes.present() ? slopes_ + work.kv_head * group_ : nullptr,
            .score_cap = static_cast<float>(args_.score_cap * kLog2E),
            .query_pos = work.first_pos,
            .sink_query_pos = work.mask().SinkPos(work.first_pos),
            .sink_begin = piece.sink_begin,
            .sink_end = piece.sink_end,
            .recent_begin = piece.recent_begin,
            .recent_end = piece.recent_end,
            .next = nullptr,
            .scratch = nullptr,
            .out = result,
            .max = result + group_ * padded_dim_,
            .sum = result + group_ * (padded_dim_ + 1)};
  }

  void RunPieces(int64_t begin, int64_t end, int thread_idx) {
    DecodeArgs args = ArgsOf(begin);
    for (int64_t i = begin; i < end; ++i) {
      // The piece behind this task's last one is most often this thread's, too.
      const bool is_last = i + 1 == static_cast<int64_t>(pieces_.size());
      const DecodeArgs next = is_last ? DecodeArgs{} : ArgsOf(i + 1);
      args.next = is_last ? nullptr : &next;
      args.scratch = reinterpret_cast<float*>(scratch_.OfThread(thread_idx));
      kernels_.attention.decode(args);
      args = next;
    }
  }

  // The pieces of one head, in order: out = sum of 2^(max_i - max) out_i over the same sum of denominators.
  void Merge(size_t head_idx) {
    const DecodeHead& head = heads_[head_idx];
    const int64_t dim = args_.head_dim();
    for (int64_t g = 0; g < group_; ++g) {
      const int64_t q_head = head.work.kv_head * group_ + g;
      const int64_t row = head.work.first_row * args_.num_q_heads + q_head;
      const float* sink_logit = args_.sink_logits.present() ? F32(args_.sink_logits) + q_head : nullptr;
      double max = sink_logit != nullptr ? *sink_logit * kLog2E : -1e30;
      for (size_t i = 0; i < head.num_pieces; ++i) {
        max = std::max<double>(max, Result(static_cast<int64_t>(head.first_piece + i))[group_ * padded_dim_ + g]);
      }
      double sum = sink_logit != nullptr ? std::exp2(*sink_logit * kLog2E - max) : 0.0;
      float* out = F32(args_.out) + row * dim;
      std::memset(out, 0, static_cast<size_t>(dim) * sizeof(float));
      for (size_t i = 0; i < head.num_pieces; ++i) {
        const float* result = Result(static_cast<int64_t>(head.first_piece + i));
        const double weight = std::exp2(result[group_ * padded_dim_ + g] - max);
        sum += weight * result[group_ * (padded_dim_ + 1) + g];
        kernels_.elementwise.add_scaled(result + g * padded_dim_, static_cast<float>(weight), out, dim);
      }
      const auto inverse = static_cast<float>(1.0 / sum);
      for (int64_t d = 0; d < dim; ++d) out[d] *= inverse;
      if (args_.lse.present()) F32(args_.lse)[row] = static_cast<float>((max + std::log2(sum)) / kLog2E);
    }
  }

  const AttentionArgs& args_;
  const KernelTable& kernels_;
  AttentionScratch& scratch_;
  const int64_t group_;
  const int64_t padded_dim_;
  const int64_t result_floats_;  // whole cache lines
  std::vector<DecodeHead> heads_;
  std::vector<DecodePiece> pieces_;
  float* q_ = nullptr;        // [heads, G, Dp]
  float* q_sink_ = nullptr;   // [heads, G, Dp]
  float* slopes_ = nullptr;   // [Hq] times log2(e)
  float* results_ = nullptr;  // [pieces][result_floats_]: G * Dp out, G max, G sum
};

// ---- prefill: a tile of query rows against all its keys ------------------------------------------------------------

struct PrefillTile {
  HeadWork work;
  int64_t first_token;
  int64_t num_tokens;
  int64_t cost;  // keys read, summed over queries
};

std::vector<PrefillTile> PrefillTiles(const AttentionArgs& args) {
  std::vector<PrefillTile> tiles;
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (work.num_rows <= 1) continue;
    const KeyMask& mask = work.mask();
    int64_t tile_tokens = std::max<int64_t>(1, kTileRows / args.group());
    if (mask.recent < 4 * tile_tokens) tile_tokens = std::min(tile_tokens, kStreamTileTokens);
    for (int64_t first = 0; first < work.num_rows; first += tile_tokens) {
      const int64_t num = std::min(tile_tokens, work.num_rows - first);
      const int64_t last_pos = work.first_pos + first + num;
      tiles.push_back({work, first, num, num * std::min(last_pos, mask.recent + num + mask.sink)});
    }
  }
  // Largest first, as ThreadPool::InTurns wants them.
  std::stable_sort(tiles.begin(), tiles.end(),
                   [](const PrefillTile& a, const PrefillTile& b) { return a.cost > b.cost; });
  return tiles;
}

void RunPrefill(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch) {
  const std::vector<PrefillTile> tiles = PrefillTiles(args);
  if (tiles.empty()) return;
  const int64_t group = args.group();
  const int64_t dim = args.head_dim();
  int64_t max_rows = 0;
  for (const PrefillTile& tile : tiles) max_rows = std::max(max_rows, tile.num_tokens * group);
  scratch.ReservePerThread(pool.num_threads(), static_cast<size_t>(PrefillScratchBytes(max_rows, RoundUp(dim, 16))));
  pool.ParallelFor(static_cast<int64_t>(tiles.size()), [&](int64_t tile_idx, int thread_idx) {
    const int64_t turn = pool.InTurns(tile_idx, static_cast<int64_t>(tiles.size()));
    const PrefillTile& tile = tiles[static_cast<size_t>(turn)];
    const HeadWork& work = tile.work;
    const bool has_sink_query = args.q_sink.present() && work.mask().sink > 0;
    const int64_t row = work.first_row + tile.first_token;
    const int64_t q_head = work.kv_head * group;
    const int64_t offset = (row * args.num_q_heads + q_head) * dim;
    kernels.attention.prefill({.pages = PagesOf(work),
                               .num_tokens = tile.num_tokens,
                               .num_q = group,
                               .first_pos = work.first_pos + tile.first_token,
                               .q = F32(args.q) + offset,
                               .q_sink = has_sink_query ? F32(args.q_sink) + offset : nullptr,
                               .out = F32(args.out) + offset,
                               .stride = args.num_q_heads * dim,
                               .lse = args.lse.present() ? F32(args.lse) + row * args.num_q_heads + q_head : nullptr,
                               .lse_stride = args.num_q_heads,
                               .slopes = args.alibi_slopes.present() ? F32(args.alibi_slopes) + q_head : nullptr,
                               .sink_logits = args.sink_logits.present() ? F32(args.sink_logits) + q_head : nullptr,
                               .scale = args.scale,
                               .score_cap = args.score_cap,
                               .mask = work.mask(),
                               .use_bf16 = args.compute != Compute::kF32,
                               .scratch = scratch.OfThread(thread_idx)});
  });
}

// body(idx, thread) for every head of a layer of the step.
enum class Spread { kThreads, kCaller };
template <typename Body>
void ForHeads(const KvStep& step, Spread spread, ThreadPool& pool, const Body& body) {
  if (spread == Spread::kThreads) return pool.ParallelFor(step.num_heads(), body);
  for (int64_t i = 0; i < step.num_heads(); ++i) body(i, 0);
}

}  // namespace

void AttentionScratch::AlignedDelete::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{64});
}

AttentionScratch::Block AttentionScratch::NewBlock(size_t bytes) {
  void* memory = ::operator new[](bytes, std::align_val_t{64}, std::nothrow);
  if (memory == nullptr) throw NoMemory(bytes, "the scores of attention");
  return Block(static_cast<std::byte*>(memory));
}

void AttentionScratch::ReservePerThread(int num_threads, size_t bytes) {
  if (per_thread_.size() >= static_cast<size_t>(num_threads) && per_thread_bytes_ >= bytes) return;
  per_thread_.clear();
  per_thread_bytes_ = 0;
  for (int i = 0; i < num_threads; ++i) per_thread_.push_back(NewBlock(bytes));
  per_thread_bytes_ = bytes;
}

float* AttentionScratch::Shared(size_t floats) {
  const size_t bytes = floats * sizeof(float);
  if (shared_bytes_ < bytes) {
    shared_ = nullptr;
    shared_bytes_ = 0;
    shared_ = NewBlock(bytes);
    shared_bytes_ = bytes;
  }
  return reinterpret_cast<float*>(shared_.get());
}

size_t PageBytes(const KvLayout& layout) {
  return static_cast<size_t>(RoundUp(TokensBytes(layout.format, RoundUp(layout.head_dim, 16), layout.page_tokens), 64));
}

void AppendKv(const AppendKvArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const int64_t stride = args.k.shape[1];
  const auto append = [&](int64_t idx, int) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    const int64_t offset = work.first_row * stride + work.kv_head * work.layout().head_dim;
    kernels.attention.append({.pages = PagesOf(work),
                              .first_pos = work.first_pos,
                              .num_tokens = work.num_rows,
                              .k = F32(args.k) + offset,
                              .v = F32(args.v) + offset,
                              .stride = stride});
  };
  const bool small = args.k.shape.num_elements() < (int64_t{8} << 10);
  ForHeads(*args.step, small ? Spread::kCaller : Spread::kThreads, pool, append);
}

void CopyPages(const CopyPagesArgs& args, ThreadPool& pool) {
  const std::span<const PageMove> moves = args.step->copies;
  pool.ParallelFor(static_cast<int64_t>(moves.size()), [&](int64_t idx, int) {
    const PageMove& move = moves[static_cast<size_t>(idx)];
    const PageSpace& space = args.step->spaces[static_cast<size_t>(move.from_space)];
    std::memcpy(space.Page(move.to), space.Page(move.from), static_cast<size_t>(space.page_bytes));
  });
}

void AgeKv(const AgeKvArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const std::span<const PageMove> moves = args.step->AgesOf(args.layer_idx);
  if (moves.empty()) return;
  const auto age = [&](int64_t idx, int) {
    const PageMove& move = moves[static_cast<size_t>(idx)];
    const PageSpace& from = args.step->spaces[static_cast<size_t>(move.from_space)];
    const PageSpace& to = args.step->spaces[static_cast<size_t>(move.to_space)];
    kernels.attention.age({.from = from.Page(move.from),
                           .to = to.Page(move.to),
                           .page_tokens = from.layout.page_tokens,
                           .dim = from.layout.head_dim,
                           .padded_dim = RoundUp(from.layout.head_dim, 16)});
  };
  const auto num_pages = static_cast<int64_t>(moves.size());
  const KvLayout& layout = args.step->spaces[static_cast<size_t>(moves[0].from_space)].layout;
  const bool small = num_pages * static_cast<int64_t>(PageBytes(layout)) < kMinTaskBytes;
  if (!small) return pool.ParallelFor(num_pages, age);
  for (int64_t i = 0; i < num_pages; ++i) age(i, 0);
}

void Attention(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch) {
  DecodeBatch decode(args, kernels, scratch);
  if (!decode.empty()) decode.Run(pool);
  RunPrefill(args, kernels, pool, scratch);
}

void Compensate(const CompensateArgs& args, const KernelTable& kernels, ThreadPool& pool) {
  const auto fold = [&](int64_t idx, int) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (!work.Folds()) return;
    const int64_t dim = work.layout().head_dim;
    const bool has_rows = work.head->reads_mean && args.q.present();
    const int64_t group = has_rows ? args.group() : 0;
    const int64_t head = work.first_row * args.num_q_heads + work.kv_head * group;
    kernels.attention.fold(
        {.pages = PagesOf(work),
         .sink = work.head->fold_from,
         .recent = work.mask().recent,
         .first_pos = work.first_pos,
         .num_rows = has_rows ? work.num_rows : 0,
         .num_folded = work.fold_begin() - work.head->fold_from,
         .fold_end = work.fold_end(),
         .state = work.State(),
         .q = has_rows ? F32(args.q) + head * dim : nullptr,
         .out = has_rows ? F32(args.out) + head * dim : nullptr,
         .stride = args.num_q_heads * dim,
         .lse = has_rows ? F32(args.lse) + head : nullptr,
         .lse_stride = args.num_q_heads,
         .num_q = group,
         .scale = args.scale,
         .score_cap = args.score_cap,
         .slopes = args.alibi_slopes.present() ? F32(args.alibi_slopes) + work.kv_head * group : nullptr});
  };
  ForHeads(*args.step, Spread::kThreads, pool, fold);
}

}  // namespace headwise::cpu
