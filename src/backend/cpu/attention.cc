#include "backend/cpu/attention.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

#include "backend/cpu/block_choice.h"
#include "backend/cpu/key_pieces.h"
#include "base/round_up.h"

namespace headwise::cpu {
namespace {

constexpr double kLog2E = 1.44269504088896340736;

// A parallel region costs a few microseconds; below this many bytes of keys and values one thread is as fast.
constexpr int64_t kMinTaskBytes = 48 << 10;
constexpr int64_t kTasksPerThread = 16;
// Below this many floats of results one thread merges them as fast.
constexpr int64_t kMinParallelMerge = 16 << 10;

// Floats of results of the rows of a chunk that go through the decode kernels together: 4 MiB.
constexpr int64_t kMaxChunkResults = 1 << 20;

// Query rows per prefill tile: converting a tile of keys then costs a few percent of using it. Streaming heads take
// fewer tokens at a time, because a tile of T tokens reads T keys more than its window.
constexpr int64_t kTileRows = 256;
constexpr int64_t kStreamTileTokens = 64;

const float* F32(const ConstTensorView& view) {
  return static_cast<const float*>(view.data);
}
float* F32(const TensorView& view) {
  return static_cast<float*>(view.data);
}

// Sinks are read with queries of their own.
bool HasSinkQuery(const AttentionArgs& args, const HeadWork& work) {
  return args.q_sink.present() && work.mask().sink > 0;
}

// The sink logit of a query head in log 2, if there are any.
std::optional<double> SinkLogit(const AttentionArgs& args, int64_t q_head) {
  if (!args.sink_logits.present()) return std::nullopt;
  return F32(args.sink_logits)[q_head] * kLog2E;
}

// ---- decode: one query row of one head against up to 1024 of its keys ----------------------------------------------

// One query row of one head and its pieces [first_piece, first_piece + num_pieces).
struct DecodeRow {
  HeadWork work;
  int64_t row_idx;  // of the work's rows
  size_t first_piece;
  size_t num_pieces;

  int64_t pos() const { return work.first_pos + row_idx; }
  int64_t row() const { return work.first_row + row_idx; }
};

struct DecodePiece {
  size_t row_idx;  // into the list of rows
  KeyPiece part;
  std::span<const int64_t> chosen = {};  // groups of it, where not all are read

  int64_t num_keys() const {
    return chosen.empty() ? part.num_keys() : static_cast<int64_t>(chosen.size()) * kGroupTokens;
  }
};

class DecodeBatch {
 public:
  DecodeBatch(const AttentionArgs& args, RowSums sums, const KernelTable& kernels, AttentionScratch& scratch)
      : args_(args),
        sums_(sums),
        kernels_(kernels),
        scratch_(scratch),
        group_(args.group()),
        padded_dim_(RoundUp(args.head_dim(), 16)),
        result_floats_(RoundUp(group_ * (padded_dim_ + 2), 16)) {}

  // `chosen`: groups that the row reads, ascending and there until it was worked off; none: whatever its mask says.
  void Add(const HeadWork& work, int64_t row_idx, std::span<const int64_t> chosen) {
    const size_t first_piece = pieces_.size();
    if (chosen.empty()) {
      parts_.clear();
      AppendPieces(work.mask().KeysOf(work.first_pos + row_idx), work, sums_, parts_);
      for (const KeyPiece& part : parts_) pieces_.push_back({rows_.size(), part});
    }
    constexpr size_t kMostGroups = kDecodePieceTokens / kGroupTokens;
    for (; !chosen.empty(); chosen = chosen.subspan(std::min(kMostGroups, chosen.size()))) {
      const std::span<const int64_t> of_piece = chosen.first(std::min(kMostGroups, chosen.size()));
      const int64_t begin = of_piece.front();
      const int64_t end = std::min(of_piece.back() + kGroupTokens, work.first_pos + row_idx + 1);
      pieces_.push_back({rows_.size(), {{begin, begin, begin, end}, work.layout().format}, of_piece});
    }
    rows_.push_back({work, row_idx, first_piece, pieces_.size() - first_piece});
    has_chunks_ |= work.num_rows > 1;
  }

  // More rows of a chunk would take more memory for their results than is worth it.
  bool IsFull() const { return static_cast<int64_t>(pieces_.size()) * result_floats_ > kMaxChunkResults; }

  // Works off what was added.
  void Run(ThreadPool& pool) {
    if (rows_.empty()) return;
    OrderPieces();
    const auto num_rows = static_cast<int64_t>(rows_.size());
    const auto num_pieces = static_cast<int64_t>(pieces_.size());
    const int64_t q_floats = num_rows * group_ * padded_dim_;
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
    const auto merge = [&](int64_t row_idx, int) { Merge(rows_[static_cast<size_t>(row_idx)]); };
    if (num_pieces * result_floats_ > kMinParallelMerge) {
      pool.ParallelFor(num_rows, merge);
    } else {
      for (int64_t i = 0; i < num_rows; ++i) merge(i, 0);
    }
    rows_.clear();
    pieces_.clear();
    has_chunks_ = false;
  }

 private:
  // In which pieces are computed: as they come, but of the rows of a chunk those of the same keys one behind the other.
  void OrderPieces() {
    order_.resize(pieces_.size());
    std::iota(order_.begin(), order_.end(), size_t{0});
    if (!has_chunks_) return;
    const auto key_of = [&](size_t idx) {
      const DecodePiece& piece = pieces_[idx];
      const HeadWork& work = rows_[piece.row_idx].work;
      return std::tuple(work.head, piece.part.keys.recent_begin / kDecodePieceTokens, idx);
    };
    std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return key_of(a) < key_of(b); });
  }
  const DecodePiece& InOrder(int64_t place) const { return pieces_[order_[static_cast<size_t>(place)]]; }

  int64_t BytesOf(const DecodePiece& piece) const {
    const KvLayout& layout = rows_[piece.row_idx].work.layout();
    return piece.num_keys() * TokensBytes(piece.part.format, layout.head_dim, layout.page_tokens) / layout.page_tokens;
  }

  // Tasks of neighbouring pieces: large enough to be worth a thread, small enough that threads end together.
  std::vector<int64_t> TaskEnds(int num_threads) const {
    int64_t all_bytes = 0;
    for (const DecodePiece& piece : pieces_) all_bytes += BytesOf(piece);
    const int64_t task_bytes = std::max(kMinTaskBytes, all_bytes / (num_threads * kTasksPerThread));
    std::vector<int64_t> ends;
    int64_t bytes = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      bytes += BytesOf(InOrder(static_cast<int64_t>(i)));
      if (bytes < task_bytes && i + 1 < pieces_.size()) continue;
      ends.push_back(static_cast<int64_t>(i + 1));
      bytes = 0;
    }
    return ends;
  }

  float* Result(size_t piece_idx) const { return results_ + static_cast<int64_t>(piece_idx) * result_floats_; }

  // Queries times scale * log2(e), zero-padded, one block per row.
  void PrepareQueries() {
    const auto factor = static_cast<float>(args_.scale * kLog2E);
    const int64_t dim = args_.head_dim();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const HeadWork& work = rows_[i].work;
      const auto prepare = [&](const ConstTensorView& queries, float* blocks) {
        const float* from = F32(queries) + (rows_[i].row() * args_.num_q_heads + work.kv_head * group_) * dim;
        float* to = blocks + static_cast<int64_t>(i) * group_ * padded_dim_;
        for (int64_t g = 0; g < group_; ++g, from += dim, to += padded_dim_) {
          for (int64_t d = 0; d < dim; ++d) to[d] = from[d] * factor;
          std::fill(to + dim, to + padded_dim_, 0.0f);
        }
      };
      prepare(args_.q, q_);
      if (HasSinkQuery(args_, work)) prepare(args_.q_sink, q_sink_);
    }
    for (int64_t h = 0; h < args_.num_q_heads && args_.alibi_slopes.present(); ++h) {
      slopes_[h] = static_cast<float>(F32(args_.alibi_slopes)[h] * kLog2E);
    }
  }

  // Everything but where it is computed.
  DecodeArgs ArgsOf(int64_t place) const {
    const DecodePiece& piece = InOrder(place);
    const DecodeRow& row = rows_[piece.row_idx];
    const HeadWork& work = row.work;
    const KeyRanges& keys = piece.part.keys;
    const int64_t q_offset = static_cast<int64_t>(piece.row_idx) * group_ * padded_dim_;
    float* result = Result(order_[static_cast<size_t>(place)]);
    return {.pages = PagesOf(work),
            .num_q = group_,
            .q = q_ + q_offset,
            .q_sink = (HasSinkQuery(args_, work) ? q_sink_ : q_) + q_offset,
            .slopes = args_.alibi_slopes.present() ? slopes_ + work.kv_head * group_ : nullptr,
            .score_cap = static_cast<float>(args_.score_cap * kLog2E),
            .query_pos = row.pos(),
            .sink_query_pos = work.mask().SinkPos(row.pos()),
            .sink_begin = keys.sink_begin,
            .sink_end = keys.sink_end,
            .recent_begin = keys.recent_begin,
            .recent_end = keys.recent_end,
            .chosen = piece.chosen.empty() ? nullptr : piece.chosen.data(),
            .num_chosen = static_cast<int64_t>(piece.chosen.size()),
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

  // The pieces of one row, in order.
  void Merge(const DecodeRow& row) {
    const int64_t dim = args_.head_dim();
    for (int64_t g = 0; g < group_; ++g) {
      const int64_t q_head = row.work.kv_head * group_ + g;
      const int64_t out_row = row.row() * args_.num_q_heads + q_head;
      PieceMerge merge(SinkLogit(args_, q_head), F32(args_.out) + out_row * dim, dim);
      for (size_t i = 0; i < row.num_pieces; ++i) {
        const float* result = Result(row.first_piece + i);
        merge.Add(result[group_ * padded_dim_ + g], result[group_ * (padded_dim_ + 1) + g], result + g * padded_dim_,
                  kernels_);
      }
      merge.Finish();
      if (args_.lse.present()) F32(args_.lse)[out_row] = merge.Lse();
    }
  }

  const AttentionArgs& args_;
  const RowSums sums_;
  const KernelTable& kernels_;
  AttentionScratch& scratch_;
  const int64_t group_;
  const int64_t padded_dim_;
  const int64_t result_floats_;  // whole cache lines
  std::vector<DecodeRow> rows_;
  std::vector<DecodePiece> pieces_;  // row by row
  std::vector<size_t> order_;        // in which they are computed
  std::vector<KeyPiece> parts_;
  bool has_chunks_ = false;
  float* q_ = nullptr;        // [rows, G, Dp]
  float* q_sink_ = nullptr;   // [rows, G, Dp]
  float* slopes_ = nullptr;   // [Hq] times log2(e)
  float* results_ = nullptr;  // [pieces][result_floats_]: G * Dp out, G max, G sum
};

// Single rows; rows that choose what they read, each by itself; and where sums are to be alike those over pages whose
// decode kernels multiply integers: there is no other kernel that does.
bool GoesThroughDecode(const HeadWork& work, RowSums sums) {
  return work.num_rows <= 1 || work.ChoosesBlocks() ||
         (sums == RowSums::kAlike && NewestFormat(work.layout().format) == KvFormat::kQ8);
}

// ---- prefill: a tile of query rows against all its keys ------------------------------------------------------------

struct PrefillTile {
  HeadWork work;
  int64_t first_token;
  int64_t num_tokens;
  int64_t cost;  // keys read, summed over queries
};

std::vector<PrefillTile> PrefillTiles(const AttentionArgs& args, RowSums sums) {
  std::vector<PrefillTile> tiles;
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (GoesThroughDecode(work, sums)) continue;
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

// All that the tile's rows read between them.
KeyRanges KeysOf(const PrefillTile& tile) {
  const KeyMask& mask = tile.work.mask();
  const int64_t first_pos = tile.work.first_pos + tile.first_token;
  const int64_t last_pos = first_pos + tile.num_tokens - 1;
  const int64_t sink_end = mask.KeysOf(last_pos).sink_end;
  const int64_t recent_begin = std::max(mask.RecentBegin(first_pos), sink_end);
  return {std::min(mask.SinkBegin(first_pos), sink_end), sink_end, recent_begin, std::max(recent_begin, last_pos + 1)};
}

PrefillArgs ArgsOf(const AttentionArgs& args, const PrefillTile& tile, std::byte* scratch) {
  const HeadWork& work = tile.work;
  const bool has_sink_query = HasSinkQuery(args, work);
  const int64_t row = work.first_row + tile.first_token;
  const int64_t q_head = work.kv_head * args.group();
  const int64_t offset = (row * args.num_q_heads + q_head) * args.head_dim();
  return {.pages = PagesOf(work),
          .num_tokens = tile.num_tokens,
          .num_q = args.group(),
          .first_pos = work.first_pos + tile.first_token,
          .keys = KeysOf(tile),
          .q = F32(args.q) + offset,
          .q_sink = has_sink_query ? F32(args.q_sink) + offset : nullptr,
          .out = F32(args.out) + offset,
          .stride = args.num_q_heads * args.head_dim(),
          .lse = args.lse.present() ? F32(args.lse) + row * args.num_q_heads + q_head : nullptr,
          .lse_stride = args.num_q_heads,
          .slopes = args.alibi_slopes.present() ? F32(args.alibi_slopes) + q_head : nullptr,
          .sink_logits = args.sink_logits.present() ? F32(args.sink_logits) + q_head : nullptr,
          .scale = args.scale,
          .score_cap = args.score_cap,
          .mask = work.mask(),
          .use_bf16 = args.compute != Compute::kF32,
          .scratch = scratch,
          .partial = {}};
}

// A tile with the sums that decoding has: piece by piece, and these merged as there.
class AlikeTile {
 public:
  // Of what ArgsOf is handed, [0, PrefillScratchBytes(...)), and behind that what this keeps.
  static size_t ScratchBytes(int64_t num_rows, int64_t dim) {
    return TileBytes(num_rows, dim) + static_cast<size_t>(num_rows) * (2 * sizeof(double) + 2 * sizeof(float)) +
           static_cast<size_t>(num_rows * RoundUp(dim, 16)) * sizeof(float);
  }

  AlikeTile(const AttentionArgs& args, const PrefillTile& tile, const KernelTable& kernels, std::byte* scratch)
      : args_(args), tile_(tile), kernels_(kernels), prefill_(ArgsOf(args, tile, scratch)) {
    num_rows_ = tile.num_tokens * args.group();
    max_ = reinterpret_cast<double*>(scratch + TileBytes(num_rows_, args.head_dim()));
    sum_ = max_ + num_rows_;
    prefill_.partial.out = reinterpret_cast<float*>(sum_ + num_rows_);
    prefill_.partial.max = prefill_.partial.out + num_rows_ * prefill_.pages.padded_dim;
    prefill_.partial.sum = prefill_.partial.max + num_rows_;
    prefill_.use_bf16 = false;
  }

  void Run() {
    for (int64_t row = 0; row < num_rows_; ++row) {
      const std::optional<double> sink_logit = SinkLogit(args_, QueryHeadOf(row));
      Keep(row, PieceMerge(sink_logit, OutOf(row), args_.head_dim()));
    }
    std::vector<KeyPiece> pieces;
    AppendPieces(prefill_.keys, tile_.work, RowSums::kAlike, pieces);
    for (const KeyPiece& piece : pieces) {
      prefill_.keys = piece.keys;
      kernels_.attention.prefill(prefill_);
      for (int64_t row = 0; row < num_rows_; ++row) AddPiece(row);
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      PieceMerge merge = MergeOf(row);
      merge.Finish();
      if (prefill_.lse != nullptr) {
        prefill_.lse[row / args_.group() * prefill_.lse_stride + row % args_.group()] = merge.Lse();
      }
    }
  }

 private:
  static size_t TileBytes(int64_t num_rows, int64_t dim) {
    return static_cast<size_t>(RoundUp(PrefillScratchBytes(num_rows, RoundUp(dim, 16)), 64));
  }

  int64_t QueryHeadOf(int64_t row) const { return tile_.work.kv_head * args_.group() + row % args_.group(); }
  float* OutOf(int64_t row) const {
    return prefill_.out + row / args_.group() * prefill_.stride + row % args_.group() * args_.head_dim();
  }
  PieceMerge MergeOf(int64_t row) const { return PieceMerge(max_[row], sum_[row], OutOf(row), args_.head_dim()); }
  void Keep(int64_t row, const PieceMerge& merge) {
    max_[row] = merge.max();
    sum_[row] = merge.sum();
  }

  // A row that reads none of the piece's keys has no such piece.
  void AddPiece(int64_t row) {
    const PrefillPartial& partial = prefill_.partial;
    if (partial.sum[row] == 0.0f) return;
    PieceMerge merge = MergeOf(row);
    merge.Add(partial.max[row], partial.sum[row], partial.out + row * prefill_.pages.padded_dim, kernels_);
    Keep(row, merge);
  }

  const AttentionArgs& args_;
  const PrefillTile& tile_;
  const KernelTable& kernels_;
  PrefillArgs prefill_;
  int64_t num_rows_ = 0;
  double* max_ = nullptr;  // [rows], as is sum_: of the merged pieces
  double* sum_ = nullptr;
};

void RunPrefill(const AttentionArgs& args, RowSums sums, const KernelTable& kernels, ThreadPool& pool,
                AttentionScratch& scratch) {
  const std::vector<PrefillTile> tiles = PrefillTiles(args, sums);
  if (tiles.empty()) return;
  int64_t max_rows = 0;
  for (const PrefillTile& tile : tiles) max_rows = std::max(max_rows, tile.num_tokens * args.group());
  scratch.ReservePerThread(pool.num_threads(),
                           sums == RowSums::kAlike
                               ? AlikeTile::ScratchBytes(max_rows, args.head_dim())
                               : static_cast<size_t>(PrefillScratchBytes(max_rows, RoundUp(args.head_dim(), 16))));
  pool.ParallelFor(static_cast<int64_t>(tiles.size()), [&](int64_t tile_idx, int thread_idx) {
    const int64_t turn = pool.InTurns(tile_idx, static_cast<int64_t>(tiles.size()));
    const PrefillTile& tile = tiles[static_cast<size_t>(turn)];
    std::byte* memory = scratch.OfThread(thread_idx);
    if (sums == RowSums::kAlike) return AlikeTile(args, tile, kernels, memory).Run();
    kernels.attention.prefill(ArgsOf(args, tile, memory));
  });
}

}  // namespace

void Attention(const AttentionArgs& args, const KernelTable& kernels, ThreadPool& pool, AttentionScratch& scratch,
               RowSums sums) {
  const BlockChoice choice(args, kernels, pool, scratch);
  DecodeBatch decode(args, sums, kernels, scratch);
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (!GoesThroughDecode(work, sums)) continue;
    for (int64_t row_idx = 0; row_idx < work.num_rows; ++row_idx) {
      decode.Add(work, row_idx, choice.Of(idx, row_idx));
      if (work.num_rows > 1 && decode.IsFull()) decode.Run(pool);
    }
  }
  decode.Run(pool);
  RunPrefill(args, sums, kernels, pool, scratch);
}

}  // namespace headwise::cpu
