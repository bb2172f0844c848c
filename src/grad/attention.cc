#include "grad/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/check.h"
#include "grad/gemm.h"
#include "grad/rows.h"

namespace headwise {
namespace {

// A tile of scores in f32 is 128 KiB: it stays in the second-level cache between its two products, and is large
// enough that a product's packing costs little.
constexpr int64_t kTileQueries = 128;
constexpr int64_t kTileKeys = 256;
// Keys per slab are a multiple of this, so that no block of influence belongs to two slabs.
constexpr int64_t kSlabAlignment = 256;

// A run of keys that some query of a tile reads: sinks, or the window. Within it the query at t reads a single
// interval, j <= t and t - j < reach.
struct KeyRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t reach = kNoLimit;

  int64_t FirstKey(int64_t query_pos, int64_t begin_key) const {
    return reach >= kNoLimit ? begin_key : std::max(begin_key, query_pos - reach + 1);
  }
  static int64_t EndKey(int64_t query_pos, int64_t end_key) { return std::min(end_key, query_pos + 1); }
};

struct KeyRuns {
  KeyRun run[2];
};

// The runs for queries [first_query, end_query); empty ones have begin >= end.
KeyRuns RunsOf(const ResolvedRule& rule, int64_t first_query, int64_t end_query) {
  const auto reach_begin = [&](int64_t reach) {
    return reach >= kNoLimit ? int64_t{0} : std::max(int64_t{0}, first_query - reach + 1);
  };
  KeyRuns runs;
  runs.run[0] = {reach_begin(rule.sink_reach), std::min(rule.sink, end_query), rule.sink_reach};
  runs.run[1] = {std::max(rule.sink, reach_begin(rule.recent)), end_query, rule.recent};
  return runs;
}

// Scores of queries [query, query + num_queries) against keys [key, key + num_keys) of one query head.
struct Tile {
  int64_t query = 0;
  int64_t num_queries = 0;
  int64_t key = 0;
  int64_t num_keys = 0;
  const KeyRun* run = nullptr;

  int64_t FirstKey(int64_t row) const { return run->FirstKey(query + row, key) - key; }
  int64_t EndKey(int64_t row) const { return KeyRun::EndKey(query + row, key + num_keys) - key; }
};

template <typename Real>
struct HeadView {
  int64_t q_head = 0;
  int64_t kv_head = 0;
  int64_t q_stride = 0;   // Hq * D
  int64_t kv_stride = 0;  // Hkv * D
  int64_t dim = 0;
  Real scale = 1;
  Real cap = 0;
  Real slope = 0;

  HeadView(const AttentionShape<Real>& shape, int64_t head)
      : q_head(head),
        kv_head(head / (shape.num_q_heads / shape.num_kv_heads)),
        q_stride(shape.num_q_heads * shape.head_dim),
        kv_stride(shape.num_kv_heads * shape.head_dim),
        dim(shape.head_dim),
        scale(shape.scale),
        cap(shape.score_cap),
        slope(shape.alibi_slopes.empty() ? Real{0} : Real{shape.alibi_slopes[static_cast<size_t>(head)]}) {}

  int64_t Q(int64_t token) const { return token * q_stride + q_head * dim; }
  int64_t Kv(int64_t token) const { return token * kv_stride + kv_head * dim; }
};

// scores [num_queries, kTileKeys] = scale * q k^T, capped where the model caps them, + slope * (j - t), unmasked.
// cap_slopes, of the same shape or null: by how much a capped score follows an uncapped one; written where there is a
// cap.
template <typename Real>
void Scores(const HeadView<Real>& head, const Tile& tile, const Real* q, const Real* k, Real* scores,
            Real* cap_slopes) {
  Gemm(GemmArgs<Real>{.transpose_b = Transpose::kYes,
                      .m = tile.num_queries,
                      .n = tile.num_keys,
                      .k = head.dim,
                      .alpha = head.scale,
                      .a = q + head.Q(tile.query),
                      .a_stride = head.q_stride,
                      .b = k + head.Kv(tile.key),
                      .b_stride = head.kv_stride,
                      .c = scores,
                      .c_stride = kTileKeys});
  for (int64_t row = 0; head.cap > 0 && row < tile.num_queries; ++row) {
    Real* capped = scores + row * kTileKeys;
    CapRow(capped, tile.num_keys, head.cap);
    if (cap_slopes == nullptr) continue;
    for (int64_t j = 0; j < tile.num_keys; ++j) cap_slopes[row * kTileKeys + j] = CapSlope(capped[j], head.cap);
  }
  if (head.slope == 0) return;
  for (int64_t row = 0; row < tile.num_queries; ++row) {
    for (int64_t j = 0; j < tile.num_keys; ++j) {
      scores[row * kTileKeys + j] += head.slope * static_cast<Real>(tile.key + j - tile.query - row);
    }
  }
}

// The softmax of one row as it grows: entries relative to the largest seen.
template <typename Real>
struct RowState {
  Real max = -std::numeric_limits<Real>::infinity();
  Real sum = 0;    // of all entries
  Real other = 0;  // of all but the largest
};

// Turns the row's scores in [first, end) into e^(score - new max), everything else into 0, and returns what the output
// so far must be multiplied by.
template <typename Real>
Real AdvanceRow(Real* scores, int64_t num_keys, int64_t first, int64_t end, bool wants_other, RowState<Real>& state) {
  std::fill(scores, scores + std::min(first, num_keys), Real{0});
  if (first >= end) {
    std::fill(scores + std::min(first, num_keys), scores + num_keys, Real{0});
    return 1;
  }
  std::fill(scores + end, scores + num_keys, Real{0});
  const int64_t at = wants_other ? std::max_element(scores + first, scores + end) - scores : first;
  const Real tile_max = wants_other ? scores[at] : MaxOfRow(scores + first, end - first);
  const Real new_max = std::max(state.max, tile_max);
  const Real shrink = std::exp(state.max - new_max);  // 0 for the first tile
  Real tile_sum;
  if (wants_other) {
    scores[at] = -std::numeric_limits<Real>::infinity();
    const Real tile_other = ExpOfRow(scores + first, end - first, new_max);
    scores[at] = std::exp(tile_max - new_max);
    tile_sum = tile_other + scores[at];
    const bool holds_max = state.max >= tile_max;
    state.other = holds_max ? state.other + tile_sum : state.sum * shrink + tile_other;
  } else {
    tile_sum = ExpOfRow(scores + first, end - first, new_max);
  }
  state.sum = state.sum * shrink + tile_sum;
  state.max = new_max;
  return shrink;
}

template <typename Real>
struct ForwardScratch {
  std::vector<Real> scores = std::vector<Real>(static_cast<size_t>(kTileQueries * kTileKeys));
  std::vector<RowState<Real>> rows = std::vector<RowState<Real>>(static_cast<size_t>(kTileQueries));
};

template <typename Real>
void ForwardTile(const AttentionForwardArgs<Real>& args, int64_t q_head, int64_t first_query,
                 ForwardScratch<Real>& scratch) {
  const AttentionShape<Real>& shape = args.shape;
  const HeadView<Real> head(shape, q_head);
  const int64_t num_queries = std::min(kTileQueries, shape.num_tokens - first_query);
  std::fill(scratch.rows.begin(), scratch.rows.end(), RowState<Real>{});
  Real* out = args.out + head.Q(first_query);
  for (int64_t row = 0; row < num_queries; ++row) {
    std::fill(out + row * head.q_stride, out + row * head.q_stride + head.dim, Real{0});
  }
  const KeyRuns runs = RunsOf(shape.rule, first_query, first_query + num_queries);
  for (const KeyRun& run : runs.run) {
    for (int64_t key = run.begin; key < run.end; key += kTileKeys) {
      const Tile tile{first_query, num_queries, key, std::min(kTileKeys, run.end - key), &run};
      Scores<Real>(head, tile, args.q, args.k, scratch.scores.data(), /*cap_slopes=*/nullptr);
      for (int64_t row = 0; row < num_queries; ++row) {
        const Real shrink =
            AdvanceRow(scratch.scores.data() + row * kTileKeys, tile.num_keys, tile.FirstKey(row), tile.EndKey(row),
                       args.other_mass != nullptr, scratch.rows[static_cast<size_t>(row)]);
        if (shrink == 1) continue;
        for (int64_t d = 0; d < head.dim; ++d) out[row * head.q_stride + d] *= shrink;
      }
      Gemm(GemmArgs<Real>{.m = num_queries,
                          .n = head.dim,
                          .k = tile.num_keys,
                          .a = scratch.scores.data(),
                          .a_stride = kTileKeys,
                          .b = args.v + head.Kv(tile.key),
                          .b_stride = head.kv_stride,
                          .beta = 1,
                          .c = out,
                          .c_stride = head.q_stride});
    }
  }
  for (int64_t row = 0; row < num_queries; ++row) {
    const RowState<Real>& state = scratch.rows[static_cast<size_t>(row)];
    Real max = state.max;
    Real sum = state.sum;
    Real other = state.other;
    Real factor = 1;
    if (!shape.sink_logits.empty()) {
      const Real sink = Real{shape.sink_logits[static_cast<size_t>(q_head)]};
      max = std::max(state.max, sink);
      factor = std::exp(state.max - max);
      other = (sink > state.max ? state.sum * factor : other * factor + std::exp(sink - max));
      sum = sum * factor + std::exp(sink - max);
    }
    for (int64_t d = 0; d < head.dim; ++d) out[row * head.q_stride + d] *= factor / sum;
    const int64_t at = (first_query + row) * shape.num_q_heads + q_head;
    args.lse[at] = max + std::log(sum);
    if (args.other_mass != nullptr) args.other_mass[at] = other / sum;
  }
}

template <typename Real>
bool IsActive(const AttentionShape<Real>& shape, int64_t kv_head) {
  return shape.active.empty() || shape.active[static_cast<size_t>(kv_head)];
}

template <typename Real>
struct BackwardScratch {
  std::vector<Real> probabilities = std::vector<Real>(static_cast<size_t>(kTileQueries * kTileKeys));
  std::vector<Real> gradients = std::vector<Real>(static_cast<size_t>(kTileQueries * kTileKeys));
  std::vector<Real> cap_slopes;  // only where scores are capped
};

// Where E_ij = A_ij / (1 - A_ij) * (r_i - G_ij) [moa §4.1 eq.3 rearranged] is collected, r_i = sum over n of A_in G_in.
//
// At most one entry of a row is large, and two that share it evenly are not. As it nears 1, r_i nears its own G_ij, and
// their difference is all rounding; so it waits until the row's other entries are known: r_i - G_ij = sum over the
// others of A_in G_in less (1 - A_ij) G_ij, where nothing of size cancels. 1 - A_ij comes from `other_mass` for the
// same reason.
//
// Slabs of keys run at the same time. Each has sums of its own, merged in order at the end.
template <typename Real>
class InfluenceCollector {
 public:
  InfluenceCollector(const AttentionBackwardArgs<Real>& args, int64_t num_slabs)
      : args_(args),
        influence_(*args.influence),
        rows_(static_cast<size_t>(args.shape.num_tokens * args.shape.num_q_heads)),
        slab_sums_(static_cast<size_t>(num_slabs)),
        others_(static_cast<size_t>(num_slabs)) {
    for (std::vector<double>& others : others_) others.resize(rows_.size());
    // Blocks of keys belong to one slab each, distances to all.
    if (influence_.by == Influence::By::kDistance) {
      for (std::vector<double>& sums : slab_sums_) sums.resize(influence_.sums.size());
    }
  }

  void AddRow(int64_t slab, const Tile& tile, int64_t q_head, int64_t row, const Real* probabilities,
              const Real* gradients) {
    const int64_t query = tile.query + row;
    const int64_t at = query * args_.shape.num_q_heads + q_head;
    const Real mean = args_.delta[at];
    std::vector<double>& sums =
        influence_.by == Influence::By::kDistance ? slab_sums_[static_cast<size_t>(slab)] : influence_.sums;
    double other = 0;
    const int64_t end = tile.EndKey(row);
    for (int64_t j = tile.FirstKey(row); j < end;) {
      const int64_t idx = IndexOf(q_head, query, tile.key + j);
      const int64_t run_end = std::min(end, EndOfBlock(query, tile.key + j) - tile.key);
      double sum = 0;
      for (; j < run_end; ++j) {
        const Real p = probabilities[j];
        if (p > kLarge) {
          rows_[static_cast<size_t>(at)] = {.key = tile.key + j, .probability = p, .gradient = gradients[j]};
          continue;
        }
        other += static_cast<double>(p * gradients[j]);
        sum += static_cast<double>(p / (1 - p) * (mean - gradients[j]));
      }
      if (idx >= 0) sums[static_cast<size_t>(idx)] += sum;
    }
    others_[static_cast<size_t>(slab)][static_cast<size_t>(at)] += other;
  }

  void Finish() {
    for (const std::vector<double>& sums : slab_sums_) {
      for (size_t i = 0; i < sums.size(); ++i) influence_.sums[i] += sums[i];
    }
    for (size_t at = 0; at < rows_.size(); ++at) {
      const LargeEntry& large = rows_[at];
      const double rest = args_.other_mass[at];
      // A row with a single key has nothing to give its mass to: masking it means nothing.
      if (large.key < 0 || rest <= 0) continue;
      double other = 0;
      for (const std::vector<double>& others : others_) other += others[at];
      const auto query = static_cast<int64_t>(at) / args_.shape.num_q_heads;
      const auto q_head = static_cast<int64_t>(at) % args_.shape.num_q_heads;
      if (const int64_t idx = IndexOf(q_head, query, large.key); idx >= 0) {
        influence_.sums[static_cast<size_t>(idx)] += large.probability / rest * (other - rest * large.gradient);
      }
    }
  }

 private:
  static constexpr Real kLarge = Real{0.75};  // well above a half, which two entries can both exceed by rounding

  struct LargeEntry {
    int64_t key = -1;
    double probability = 0;
    double gradient = 0;
  };

  // Into the sums; -1: not counted.
  int64_t IndexOf(int64_t q_head, int64_t query, int64_t key) const {
    const int64_t tokens = influence_.block_tokens;
    if (influence_.by == Influence::By::kDistance) {
      return key < tokens ? -1 : q_head * influence_.num_blocks + (query - key) / tokens;
    }
    return (q_head * influence_.num_blocks + query / tokens) * influence_.num_blocks + key / tokens;
  }

  // The first key after `key` with another index.
  int64_t EndOfBlock(int64_t query, int64_t key) const {
    const int64_t tokens = influence_.block_tokens;
    if (influence_.by == Influence::By::kDistance && key >= tokens) {
      return query - (query - key) / tokens * tokens + 1;
    }
    return (key / tokens + 1) * tokens;
  }

  const AttentionBackwardArgs<Real>& args_;
  Influence& influence_;
  std::vector<LargeEntry> rows_;                // [N, Hq] the large entry
  std::vector<std::vector<double>> slab_sums_;  // [slabs], as influence.sums
  std::vector<std::vector<double>> others_;     // [slabs][N, Hq] sum of A G of the other entries
};

// One tile of one query head: adds to d_v, d_k, and to d_q, the slab's partial gradient.
template <typename Real>
void BackwardTile(const AttentionBackwardArgs<Real>& args, const HeadView<Real>& head, const Tile& tile, int64_t slab,
                  Real* d_q, InfluenceCollector<Real>* influence, BackwardScratch<Real>& scratch) {
  Real* probabilities = scratch.probabilities.data();
  Real* gradients = scratch.gradients.data();
  if (head.cap > 0) scratch.cap_slopes.resize(scratch.probabilities.size());
  Scores(head, tile, args.q, args.k, probabilities, scratch.cap_slopes.data());
  // gradients = d_out v^T
  Gemm(GemmArgs<Real>{.transpose_b = Transpose::kYes,
                      .m = tile.num_queries,
                      .n = tile.num_keys,
                      .k = head.dim,
                      .a = args.d_out + head.Q(tile.query),
                      .a_stride = head.q_stride,
                      .b = args.v + head.Kv(tile.key),
                      .b_stride = head.kv_stride,
                      .c = gradients,
                      .c_stride = kTileKeys});
  for (int64_t row = 0; row < tile.num_queries; ++row) {
    Real* p = probabilities + row * kTileKeys;
    Real* g = gradients + row * kTileKeys;
    const int64_t first = std::min(tile.FirstKey(row), tile.num_keys);
    const int64_t end = std::max(first, tile.EndKey(row));
    const int64_t at = (tile.query + row) * args.shape.num_q_heads + head.q_head;
    std::fill(p, p + first, Real{0});
    std::fill(p + end, p + tile.num_keys, Real{0});
    if (end > first) ExpOfRow(p + first, end - first, args.lse[at]);
    if (influence != nullptr && end > first) influence->AddRow(slab, tile, head.q_head, row, p, g);
    // d_score = p (g - sum of p g), and the score is scale * q k, capped or not.
    SoftmaxGradOfRow(p, g, tile.num_keys, args.delta[at], head.scale);
    if (head.cap > 0) {
      const Real* slopes = scratch.cap_slopes.data() + row * kTileKeys;
      for (int64_t j = 0; j < tile.num_keys; ++j) g[j] *= slopes[j];
    }
  }
  Gemm(GemmArgs<Real>{.transpose_a = Transpose::kYes,
                      .m = tile.num_keys,
                      .n = head.dim,
                      .k = tile.num_queries,
                      .a = probabilities,
                      .a_stride = kTileKeys,
                      .b = args.d_out + head.Q(tile.query),
                      .b_stride = head.q_stride,
                      .beta = 1,
                      .c = args.d_v + head.Kv(tile.key),
                      .c_stride = head.kv_stride});
  Gemm(GemmArgs<Real>{.transpose_a = Transpose::kYes,
                      .m = tile.num_keys,
                      .n = head.dim,
                      .k = tile.num_queries,
                      .a = gradients,
                      .a_stride = kTileKeys,
                      .b = args.q + head.Q(tile.query),
                      .b_stride = head.q_stride,
                      .beta = 1,
                      .c = args.d_k + head.Kv(tile.key),
                      .c_stride = head.kv_stride});
  Gemm(GemmArgs<Real>{.m = tile.num_queries,
                      .n = head.dim,
                      .k = tile.num_keys,
                      .a = gradients,
                      .a_stride = kTileKeys,
                      .b = args.k + head.Kv(tile.key),
                      .b_stride = head.kv_stride,
                      .beta = 1,
                      .c = d_q + head.Q(tile.query),
                      .c_stride = head.q_stride});
}

int64_t SlabTokens(int64_t num_tokens) {
  const int64_t even = (num_tokens + kMaxKeySlabs - 1) / kMaxKeySlabs;
  return (even + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment;
}

// The keys of one slab of one KV head, against every query that reads some of them.
template <typename Real>
void BackwardSlab(const AttentionBackwardArgs<Real>& args, int64_t kv_head, int64_t slab, Real* d_q,
                  InfluenceCollector<Real>* influence, BackwardScratch<Real>& scratch) {
  const AttentionShape<Real>& shape = args.shape;
  const int64_t slab_begin = slab * SlabTokens(shape.num_tokens);
  const int64_t slab_end = std::min(slab_begin + SlabTokens(shape.num_tokens), shape.num_tokens);
  const int64_t group = shape.num_q_heads / shape.num_kv_heads;
  const int64_t first_tile = slab_begin / kTileQueries * kTileQueries;
  for (int64_t query = first_tile; query < shape.num_tokens; query += kTileQueries) {
    const int64_t num_queries = std::min(kTileQueries, shape.num_tokens - query);
    const KeyRuns runs = RunsOf(shape.rule, query, query + num_queries);
    for (const KeyRun& run : runs.run) {
      const int64_t end = std::min(run.end, slab_end);
      for (int64_t key = std::max(run.begin, slab_begin); key < end; key += kTileKeys) {
        const Tile tile{query, num_queries, key, std::min(kTileKeys, end - key), &run};
        for (int64_t q_head = kv_head * group; q_head < (kv_head + 1) * group; ++q_head) {
          BackwardTile(args, HeadView<Real>(shape, q_head), tile, slab, d_q, influence, scratch);
        }
      }
    }
  }
}

}  // namespace

int64_t NumKeySlabs(int64_t num_tokens) {
  return (num_tokens + SlabTokens(num_tokens) - 1) / SlabTokens(num_tokens);
}

template <typename Real>
void AttentionForward(const AttentionForwardArgs<Real>& args, ThreadPool& pool) {
  const AttentionShape<Real>& shape = args.shape;
  const int64_t num_tiles = (shape.num_tokens + kTileQueries - 1) / kTileQueries;
  std::vector<ForwardScratch<Real>> scratch(static_cast<size_t>(pool.num_threads()));
  // Late queries read most keys: they go first, so that the threads end together.
  const int64_t num_tasks = num_tiles * shape.num_q_heads;
  pool.ParallelFor(num_tasks, [&](int64_t task_idx, int thread_idx) {
    const int64_t task = pool.InTurns(task_idx, num_tasks);
    const int64_t tile = num_tiles - 1 - task / shape.num_q_heads;
    const int64_t q_head = task % shape.num_q_heads;
    if (!IsActive(shape, q_head / (shape.num_q_heads / shape.num_kv_heads))) return;
    ForwardTile(args, q_head, tile * kTileQueries, scratch[static_cast<size_t>(thread_idx)]);
  });
}

template <typename Real>
void AttentionBackward(const AttentionBackwardArgs<Real>& args, ThreadPool& pool) {
  const AttentionShape<Real>& shape = args.shape;
  HW_CHECK(args.influence == nullptr || kSlabAlignment % args.influence->block_tokens == 0, "influence blocks of {}",
           args.influence->block_tokens);
  const int64_t num_slabs = NumKeySlabs(shape.num_tokens);
  const int64_t d_q_size = shape.num_tokens * shape.num_q_heads * shape.head_dim;
  args.scratch->assign(static_cast<size_t>((num_slabs - 1) * d_q_size), Real{0});
  const auto slab_d_q = [&](int64_t slab) {
    return slab == 0 ? args.d_q : args.scratch->data() + (slab - 1) * d_q_size;
  };
  std::vector<BackwardScratch<Real>> scratch(static_cast<size_t>(pool.num_threads()));
  std::optional<InfluenceCollector<Real>> influence;
  if (args.influence != nullptr) influence.emplace(args, num_slabs);
  pool.ParallelFor(num_slabs * shape.num_kv_heads, [&](int64_t task, int thread_idx) {
    const int64_t slab = task / shape.num_kv_heads;
    const int64_t kv_head = task % shape.num_kv_heads;
    if (!IsActive(shape, kv_head)) return;
    BackwardSlab(args, kv_head, slab, slab_d_q(slab), influence ? &*influence : nullptr,
                 scratch[static_cast<size_t>(thread_idx)]);
  });
  if (influence) influence->Finish();
  constexpr int64_t kMergeRows = 64;
  const int64_t row_size = shape.num_q_heads * shape.head_dim;
  pool.ParallelFor((shape.num_tokens + kMergeRows - 1) / kMergeRows, [&](int64_t task, int) {
    const int64_t begin = task * kMergeRows * row_size;
    const int64_t end = std::min(begin + kMergeRows * row_size, d_q_size);
    for (int64_t slab = 1; slab < num_slabs; ++slab) {
      const Real* partial = slab_d_q(slab);
      for (int64_t i = begin; i < end; ++i) args.d_q[i] += partial[i];
    }
  });
}

template void AttentionForward(const AttentionForwardArgs<float>& args, ThreadPool& pool);
template void AttentionForward(const AttentionForwardArgs<double>& args, ThreadPool& pool);
template void AttentionBackward(const AttentionBackwardArgs<float>& args, ThreadPool& pool);
template void AttentionBackward(const AttentionBackwardArgs<double>& args, ThreadPool& pool);

}  // namespace headwise
