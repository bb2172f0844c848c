// Attention of a tile of query rows: keys go by in tiles, converted once into the order and format of the products and
// then used by every row in blocks of 64, with an online softmax. Sinks and window enter as groups of 16 tokens, so a
// streaming head's cost is its window's, wherever in the text the tile is.
//
// Both products (attention_products-inl.h) are over 32-bit steps: a step is one f32, or a pair of bf16 that are
// multiplied and added at once.
//   scores [rows, 64]  = q [rows, Dp]  . k block [steps of Dp][64]
//   out    [rows, Dp] += p [rows, 64]  . v block [steps of 64][Dp]
//
// Where partial results are asked for, every sum is that of the decode kernel (attention_decode.cc), in its order:
// scores of even and of odd dimensions by themselves, probabilities vector by vector, and tiles of keys cut where
// decoding cuts its blocks.
#include "backend/cpu/kernels/attention_convert-inl.h"
#include "backend/cpu/kernels/attention_products-inl.h"
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/kv_page-inl.h"
#include "backend/cpu/kernels/native-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

template <typename Steps>
class QueryTile {
  using Products = ProductsOf<Steps>;
  static constexpr int64_t kBlockGroups = kPrefillKeys / kGroupTokens;

 public:
  explicit QueryTile(const PrefillArgs& args) : args_(args), padded_dim_(args.pages.padded_dim) {
    num_rows_ = args.num_tokens * args.num_q;
    q_steps_ = Products::WholeSteps(padded_dim_ / Steps::kPerStep);
    // Whole blocks.
    const int64_t rows = all_rows_ = (num_rows_ + Products::kRows - 1) / Products::kRows * Products::kRows;
    float* memory = reinterpret_cast<float*>(args.scratch);
    const auto take = [&memory](int64_t floats) {
      float* taken = memory;
      memory += (floats + 15) / 16 * 16;
      return taken;
    };
    q_ = {take(rows * q_steps_), q_steps_};
    q_sink_ = {take(rows * q_steps_), q_steps_};
    out_ = {take(rows * padded_dim_), padded_dim_};
    k_tile_ = take(Products::kTileKeys * q_steps_);
    v_tile_ = take(Products::kTileKeys / Steps::kPerStep * padded_dim_);
    for (int i = 0; i < (Products::kBesideVectors ? 2 : 1); ++i) {
      scores_[i] = {take(kPrefillBlockRows * kPrefillKeys), kPrefillKeys};
      p_[i] = {take(kPrefillBlockRows * kPrefillKeys / Steps::kPerStep), kPrefillKeys / Steps::kPerStep};
    }
    max_ = take(rows);
    sum_ = take(rows * kLanes);
    for (int64_t i = 0; i < rows * padded_dim_; ++i) out_.data[i] = 0.0f;
    for (int64_t i = 0; i < rows; ++i) max_[i] = kLowest;
    for (int64_t i = 0; i < rows * kLanes; ++i) sum_[i] = 0.0f;
    // Steps behind Dp, which no key is written to.
    if (q_steps_ != padded_dim_ / Steps::kPerStep) {
      for (int64_t i = 0; i < Products::kTileKeys * q_steps_; ++i) k_tile_[i] = 0.0f;
    }
  }

  void Run() {
    LoadQueries(args_.q, q_);
    const bool own_sink_query = args_.q_sink != nullptr;
    if (own_sink_query) LoadQueries(args_.q_sink, q_sink_);
    const Matrix& sink_query = own_sink_query ? q_sink_ : q_;
    AddRun(args_.keys.sink_begin, args_.keys.sink_end, /*is_sink=*/true, sink_query);
    if (own_sink_query || Steps::kAsDecode) AddTile(sink_query);
    AddRun(args_.keys.recent_begin, args_.keys.recent_end, /*is_sink=*/false, q_);
    AddTile(q_);
    if constexpr (Steps::kAsDecode) {
      FinishPartial();
    } else {
      Finish();
    }
  }

 private:
  int64_t TokenOf(int64_t row) const { return row / args_.num_q; }

  // Rows times scale * log2(e), as steps along D.
  void LoadQueries(const float* q, const Matrix& to) {
    const float factor = InLog2(args_.scale);
    const int64_t dim = args_.pages.dim;
    for (int64_t row = 0; row < all_rows_; ++row) {
      const bool exists = row < num_rows_;
      const float* from = q + TokenOf(exists ? row : 0) * args_.stride + row % args_.num_q * dim;
      float* const steps = to.data + row * q_steps_;
      int64_t step = 0;
      for (; exists && (step + kLanes) * Steps::kPerStep <= dim; step += kLanes) {
        const auto scaled = [&](int64_t vec) HW_INLINE_LAMBDA {
          return hn::Mul(hn::LoadU(kDF, from + step * Steps::kPerStep + vec * kLanes), hn::Set(kDF, factor));
        };
        if constexpr (Steps::kPerStep == 2) {
          hn::StoreU(PackBF16Sequence(scaled(0), scaled(1)), kDF, steps + step);
        } else {
          hn::StoreU(scaled(0), kDF, steps + step);
        }
      }
      for (; step < q_steps_; ++step) {
        float pair[2];
        for (int64_t i = 0; i < Steps::kPerStep; ++i) {
          const int64_t d = step * Steps::kPerStep + i;
          pair[i] = exists && d < dim ? from[d] * factor : 0.0f;
        }
        steps[step] = Steps::kPerStep == 2 ? PackBF16Pair(pair[0], pair[1]) : pair[0];
      }
    }
  }

  // Adds the groups of the keys [begin, end) to the tile, working the tile off whenever it is full.
  void AddRun(int64_t begin, int64_t end, bool is_sink, const Matrix& q) {
    if (begin >= end) return;
    for (int64_t pos = begin / kGroupTokens * kGroupTokens; pos < end; pos += kGroupTokens) {
      const Group group = GroupAt(args_.pages, pos);
      float* k_tile =
          k_tile_ + num_groups_ / kBlockGroups * q_steps_ * kPrefillKeys + num_groups_ % kBlockGroups * kGroupTokens;
      float* v_tile = v_tile_ + num_groups_ * kGroupTokens / Steps::kPerStep * padded_dim_;
      if (group.type == KvType::kQ4) {
        ConvertQ4Group<Steps>(group, begin, end, args_.pages.page_tokens, padded_dim_, k_tile, v_tile);
      }
      if (group.type == KvType::kQ8) ConvertQ8Group<Steps>(group, begin, end, padded_dim_, k_tile, v_tile);
      HW_WITH_FLOAT_KV_TYPE(group.type, (ConvertGroup<Steps, kType>(group, begin, end, padded_dim_, k_tile, v_tile)));
      tile_[num_groups_++] = {pos, begin, end, is_sink};
      const bool ends_block = Steps::kAsDecode && (pos / kGroupTokens + 1) % kBlockGroups == 0;
      if (num_groups_ == Products::kTileKeys / kGroupTokens || ends_block) AddTile(q);
    }
  }

  // Scores, softmax and values of the keys in the tile, for all rows.
  void AddTile(const Matrix& q) {
    if (num_groups_ == 0) return;
    // What pads the values of an odd number of groups to whole steps is multiplied by zeros, and must be numbers.
    const int64_t num_steps = num_groups_ * kGroupTokens / Steps::kPerStep;
    for (int64_t i = num_steps * padded_dim_; i < Products::WholeSteps(num_steps) * padded_dim_; ++i) v_tile_[i] = 0.0f;
    // Most of a long text is, and need not be looked at block by block.
    tile_is_visible_ = VisibleTo(0, args_.num_tokens - 1, 0, num_groups_) == Visible::kEverything;
    if constexpr (Products::kBesideVectors) {
      AddBlocksInTurns(q);
    } else {
      for (int64_t row = 0; row < num_rows_; row += Products::kRows) {
        for (int64_t first = 0; first < num_groups_; first += kBlockGroups) {
          const Block block = BlockAt(row, first, /*buffer=*/0);
          if (block.visible == Visible::kNothing) continue;
          ForScores(q, block);
          ScoresToProbabilities(block, 0, block.num_rows);
          ForValues(block);
        }
      }
    }
    num_groups_ = 0;
  }

  enum class Visible { kNothing, kSome, kEverything };

  // Rows and groups of the tile that are worked on together: the scores of a row's keys, up to 64, lie side by side.
  struct Block {
    int64_t row;
    int64_t num_rows;
    int64_t first_group;
    int64_t num_groups;
    Visible visible;
    int buffer;  // of scores and probabilities
    int64_t num_keys() const { return num_groups * kGroupTokens; }
    int64_t first_key() const { return first_group * kGroupTokens; }
  };
  Block BlockAt(int64_t row, int64_t first_group, int buffer) const {
    Block block = {.row = row,
                   .num_rows = num_rows_ - row < Products::kRows ? num_rows_ - row : Products::kRows,
                   .first_group = first_group,
                   .num_groups = num_groups_ - first_group < kBlockGroups ? num_groups_ - first_group : kBlockGroups,
                   .visible = Visible::kNothing,
                   .buffer = buffer};
    if (tile_is_visible_) {
      block.visible = Visible::kEverything;
    } else {
      const int64_t last_token = TokenOf(row + block.num_rows - 1);
      block.visible = VisibleTo(TokenOf(row), last_token, block.first_group, block.num_groups);
    }
    return block;
  }

  // The two products of a block, or their parts at a column.
  template <typename... Column>
  HWY_INLINE void ForScores(const Matrix& q, const Block& block, Column... column) {
    products_.template Multiply<Start::kZero>(
        {q.data + block.row * q.stride, q.stride}, {k_tile_ + block.first_key() * q_steps_, kPrefillKeys},
        scores_[block.buffer], block.num_rows, q_steps_, block.num_keys(), column...);
  }
  template <typename... Column>
  HWY_INLINE void ForValues(const Block& block, Column... column) {
    products_.template Multiply<Start::kLoad>(
        p_[block.buffer], {v_tile_ + block.first_key() / Steps::kPerStep * padded_dim_, padded_dim_},
        {out_.data + block.row * padded_dim_, padded_dim_}, block.num_rows,
        Products::WholeSteps(block.num_keys() / Steps::kPerStep), padded_dim_, column...);
  }

  // Of rows [begin, end) of the block.
  HWY_INLINE void ScoresToProbabilities(const Block& block, int64_t begin, int64_t end) {
    const Matrix& scores = scores_[block.buffer];
    const Matrix& p = p_[block.buffer];
    for (int64_t r = begin; r < end && args_.score_cap != 0.0f; ++r) {
      CapScores(scores.data + r * scores.stride, block.num_keys());
    }
    for (int64_t r = begin; r < end && args_.slopes != nullptr; ++r) {
      AddAlibi(block.row + r, scores.data + r * scores.stride, block);
    }
    const bool is_whole = kHasWholeRows && block.num_keys() == kPrefillKeys;
    for (int64_t r = begin; r < end; ++r) {
      float* const row_scores = scores.data + r * scores.stride;
      float* const row_p = p.data + r * p.stride;
      const bool masked = block.visible == Visible::kSome && MaskRow(block.row + r, row_scores, block);
      if (!is_whole) {
        SoftmaxRow(block.row + r, row_scores, row_p, block.num_keys(), masked);
      } else if (masked) {
        SoftmaxWholeRow<true>(block.row + r, row_scores, row_p);
      } else {
        SoftmaxWholeRow<false>(block.row + r, row_scores, row_p);
      }
    }
  }

  // While vectors make probabilities of a block's scores, tile registers multiply, part by part, the queries of the
  // next block with its keys and those of the block before with its values. Blocks follow each other along the keys of
  // some rows: scores, probabilities, queries and outputs stay in the first-level cache, keys and values go by.
  void AddBlocksInTurns(const Matrix& q) {
    const int64_t num_key_blocks = (num_groups_ + kBlockGroups - 1) / kBlockGroups;
    int64_t row = 0;
    int64_t key_block = 0;
    int buffer = 0;
    // The next block that somebody reads; without rows: there is none.
    const auto next_block = [&]() HW_INLINE_LAMBDA {
      while (row < num_rows_) {
        const Block block = BlockAt(row, key_block * kBlockGroups, buffer);
        if (++key_block == num_key_blocks) {
          key_block = 0;
          row += Products::kRows;
        }
        if (block.visible == Visible::kNothing) continue;
        buffer ^= 1;
        return block;
      }
      return Block{};
    };
    Block before = {};
    Block block = next_block();
    if (block.num_rows > 0) AllScores(q, block);
    while (block.num_rows > 0) {
      const Block next = next_block();
      RunBeside(q, before, block, next);
      before = block;
      block = next;
    }
    waiting_ = {before, 0};
    FinishValues();
  }

  int64_t ValueParts(const Block& block) const {
    return block.num_rows > 0 ? (padded_dim_ + Products::kPartColumns - 1) / Products::kPartColumns : 0;
  }
  static int64_t ScoreParts(const Block& block) {
    return block.num_rows > 0 ? (block.num_keys() + Products::kPartColumns - 1) / Products::kPartColumns : 0;
  }
  HWY_NOINLINE void AllScores(const Matrix& q, const Block& block) {
    for (int64_t part = 0; part < ScoreParts(block); ++part) ForScores(q, block, part * Products::kPartColumns);
    products_.Finish();
  }
  HWY_NOINLINE void FinishValues() {
    for (; waiting_.part < ValueParts(waiting_.block); ++waiting_.part) {
      ForValues(waiting_.block, waiting_.part * Products::kPartColumns);
    }
    products_.Finish();
  }

  HWY_INLINE void RunBeside(const Matrix& q, const Block& before, const Block& block, const Block& next) {
    waiting_ = {before, 0};
    const int64_t score_parts = ScoreParts(next);
    const int64_t num_parts = score_parts + ValueParts(before);
    if (num_parts == 0) ScoresToProbabilities(block, 0, block.num_rows);
    // Evenly, the first before the first row: this block's last scores may be in registers yet.
    for (int64_t part = 0; part < num_parts; ++part) {
      if (part < score_parts) {
        ForScores(q, next, part * Products::kPartColumns);
      } else if (waiting_.part < ValueParts(waiting_.block)) {
        ForValues(before, waiting_.part++ * Products::kPartColumns);
      }
      ScoresToProbabilities(block, part * block.num_rows / num_parts, (part + 1) * block.num_rows / num_parts);
    }
  }

  struct TileGroup {
    int64_t pos;
    int64_t begin, end;  // of its run
    bool is_sink;
  };

  // Keys [begin, end) of the group that the query at `pos` reads.
  void VisibleKeys(const TileGroup& group, int64_t pos, int64_t& begin, int64_t& end) const {
    begin = group.is_sink ? args_.mask.SinkBegin(pos) : args_.mask.RecentBegin(pos);
    end = pos + 1 < group.end ? pos + 1 : group.end;
  }

  // What the queries from token_begin to token_end read of some groups: most of a causal tile's upper right is read by
  // none of them, most of the rest by all.
  Visible VisibleTo(int64_t token_begin, int64_t token_end, int64_t first_group, int64_t num_groups) const {
    bool any = false;
    bool all = true;
    for (int64_t i = first_group; i < first_group + num_groups; ++i) {
      const TileGroup& group = tile_[i];
      int64_t first_begin, first_end, last_begin, last_end;
      VisibleKeys(group, args_.first_pos + token_begin, first_begin, first_end);
      VisibleKeys(group, args_.first_pos + token_end, last_begin, last_end);
      any |= first_begin < group.pos + kGroupTokens && last_end > group.pos;
      all &= last_begin <= group.pos && first_end >= group.pos + kGroupTokens;
    }
    return all ? Visible::kEverything : any ? Visible::kSome : Visible::kNothing;
  }

  void CapScores(float* scores, int64_t num_keys) const {
    const float score_cap = InLog2(args_.score_cap);
    const VF cap = hn::Set(kDF, score_cap);
    const VF inverse = hn::Set(kDF, 1.0f / score_cap);
    for (int64_t i = 0; i < num_keys; i += kLanes) {
      hn::Store(hn::Mul(cap, Tanh(hn::Mul(hn::Load(kDF, scores + i), inverse))), kDF, scores + i);
    }
  }

  void AddAlibi(int64_t row, float* scores, const Block& block) {
    const int64_t pos = args_.first_pos + TokenOf(row);
    const VF slope = hn::Set(kDF, InLog2(args_.slopes[row % args_.num_q]));
    for (int64_t i = 0; i < block.num_groups; ++i) {
      const TileGroup& group = tile_[block.first_group + i];
      const int64_t distance = group.pos - (group.is_sink ? args_.mask.SinkPos(pos) : pos);
      for (int64_t s = 0; s < kSub; ++s) {
        float* to = scores + i * kGroupTokens + s * kLanes;
        const VF offset = hn::Iota(kDF, static_cast<float>(distance + s * kLanes));
        hn::Store(hn::MulAdd(offset, slope, hn::Load(kDF, to)), kDF, to);
      }
    }
  }

  // Hidden keys of the group become kLowest. True if there are any.
  bool Mask(float* scores, const TileGroup& group, int64_t pos) {
    int64_t begin, end;
    VisibleKeys(group, pos, begin, end);
    if (begin <= group.pos && end >= group.pos + kGroupTokens) return false;
    // Positions relative to the group are small enough to be exact as floats.
    const int64_t low = begin - group.pos < 0 ? 0 : begin - group.pos > 16 ? 16 : begin - group.pos;
    const int64_t high = end - group.pos < 0 ? 0 : end - group.pos > 16 ? 16 : end - group.pos;
    for (int64_t s = 0; s < kSub; ++s) {
      const VF lane = hn::Iota(kDF, static_cast<float>(s * kLanes));
      const auto visible = hn::And(hn::Ge(lane, hn::Set(kDF, static_cast<float>(low))),
                                   hn::Lt(lane, hn::Set(kDF, static_cast<float>(high))));
      hn::Store(hn::IfThenElse(visible, hn::Load(kDF, scores + s * kLanes), hn::Set(kDF, kLowest)), kDF,
                scores + s * kLanes);
    }
    return true;
  }

  // Hidden keys of one row's scores become kLowest. True if there are any.
  bool MaskRow(int64_t row, float* scores, const Block& block) {
    bool masked = false;
    for (int64_t i = 0; i < block.num_groups; ++i) {
      masked |= Mask(scores + i * kGroupTokens, tile_[block.first_group + i], args_.first_pos + TokenOf(row));
    }
    return masked;
  }

  // Online softmax of one row: scores -> p, and the row's sum. p is 2^(score - max) for a max that may lag behind the
  // largest score by kMaxSlack: most tiles then neither look for a maximum nor rescale what they add to.
  void SoftmaxRow(int64_t row, const float* scores, float* probabilities, int64_t num_keys, bool masked) {
    VF highest = hn::Load(kDF, scores);
    for (int64_t i = kLanes; i < num_keys; i += kLanes) highest = hn::Max(highest, hn::Load(kDF, scores + i));
    if (!hn::AllFalse(kDF, hn::Gt(highest, hn::Set(kDF, max_[row] + kMaxSlack)))) {
      RaiseMax(row, hn::GetLane(hn::MaxOfLanes(kDF, highest)));
    }
    const VF max = hn::Set(kDF, max_[row]);
    const VF lowest = hn::Set(kDF, kLowest / 2);
    [[maybe_unused]] const VF ones = hn::Set(kDF, PackBF16Pair(1.0f, 1.0f));
    VF sum = hn::Load(kDF, sum_ + row * kLanes);
    for (int64_t i = 0; i < num_keys; i += 2 * kLanes) {
      VF p[2];
      HW_UNROLL
      for (int64_t v = 0; v < 2; ++v) {
        // An odd number of vectors only occurs when a vector is a whole group: the last half is then zero.
        if (kSub == 1 && i + v * kLanes >= num_keys) {
          p[v] = hn::Zero(kDF);
          continue;
        }
        const VF score = hn::Load(kDF, scores + i + v * kLanes);
        p[v] = Steps::Probability(hn::Sub(score, max));
        // A row that has seen no key yet has max kLowest, and 2^(kLowest - kLowest) is 1.
        // What is no number stays so.
        if (masked) p[v] = hn::IfThenZeroElse(hn::Le(score, lowest), p[v]);
      }
      if constexpr (Steps::kPerStep == 2) {
        // The sum is of what the values are multiplied with, rounded: a row that looks at one key gets just its value.
        const VF pairs = PackBF16Sequence(p[0], p[1]);
        sum = Steps::Dot(pairs, ones, sum);
        hn::Store(pairs, kDF, probabilities + i / 2);
      } else {
        sum = Steps::kAsDecode ? hn::Add(hn::Add(sum, p[0]), p[1]) : hn::Add(sum, hn::Add(p[0], p[1]));
        hn::Store(p[0], kDF, probabilities + i);
        if (i + kLanes < num_keys) hn::Store(p[1], kDF, probabilities + i + kLanes);
      }
    }
    hn::Store(sum, kDF, sum_ + row * kLanes);
    const int64_t num_steps = num_keys / Steps::kPerStep;
    for (int64_t i = num_steps; i < Products::WholeSteps(num_steps); ++i) probabilities[i] = 0.0f;
  }

  // The same of kPrefillKeys scores, which are in registers at once: most of a long text.
  static constexpr bool kHasWholeRows = kSub == 1 && !Steps::kAsDecode;
  template <bool kMasked>
  HWY_INLINE void SoftmaxWholeRow(int64_t row, const float* scores, float* probabilities) {
    constexpr int64_t kVecs = kPrefillKeys / kLanes;
    VF x[kVecs];
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) x[v] = hn::Load(kDF, scores + v * kLanes);
    VF highest = hn::Max(x[0], x[1]);
    HW_UNROLL
    for (int64_t v = 2; v < kVecs; v += 2) highest = hn::Max(highest, hn::Max(x[v], x[v + 1]));
    if (HWY_UNLIKELY(!hn::AllFalse(kDF, hn::Gt(highest, hn::Set(kDF, max_[row] + kMaxSlack))))) {
      RaiseMax(row, hn::GetLane(hn::MaxOfLanes(kDF, highest)));
    }
    const VF max = hn::Set(kDF, max_[row]);
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; ++v) {
      const VF p = Steps::Probability(hn::Sub(x[v], max));
      x[v] = kMasked ? hn::IfThenZeroElse(hn::Le(x[v], hn::Set(kDF, kLowest / 2)), p) : p;
    }
    VF sum = hn::Load(kDF, sum_ + row * kLanes);
    HW_UNROLL
    for (int64_t v = 0; v < kVecs; v += 2) {
      if constexpr (Steps::kPerStep == 2) {
        const VF pairs = PackBF16Sequence(x[v], x[v + 1]);
        sum = Steps::Dot(pairs, hn::Set(kDF, PackBF16Pair(1.0f, 1.0f)), sum);
        hn::Store(pairs, kDF, probabilities + v / 2 * kLanes);
      } else {
        sum = hn::Add(sum, hn::Add(x[v], x[v + 1]));
        hn::Store(x[v], kDF, probabilities + v * kLanes);
        hn::Store(x[v + 1], kDF, probabilities + (v + 1) * kLanes);
      }
    }
    hn::Store(sum, kDF, sum_ + row * kLanes);
  }

  // What the row has summed so far, to a new and larger max.
  HWY_NOINLINE void RaiseMax(int64_t row, float max) {
    // What is to be added yet is of the old one.
    if constexpr (Products::kBesideVectors) FinishValues();
    const VF factor = Exp2(hn::Set(kDF, max_[row] - max));
    max_[row] = max;
    const auto scale = [&](float* x) HW_INLINE_LAMBDA { hn::Store(hn::Mul(hn::Load(kDF, x), factor), kDF, x); };
    scale(sum_ + row * kLanes);
    for (int64_t i = 0; i < padded_dim_; i += kLanes) scale(out_.data + row * padded_dim_ + i);
  }

  void Finish() {
    for (int64_t row = 0; row < num_rows_; ++row) {
      const int64_t q_idx = row % args_.num_q;
      float sink = 0.0f;
      if (args_.sink_logits != nullptr) {
        const float logit = InLog2(args_.sink_logits[q_idx]);
        if (logit > max_[row]) RaiseMax(row, logit);
        sink = hn::GetLane(Exp2(hn::Set(kDF, logit - max_[row])));
      }
      const float sum = hn::GetLane(hn::SumOfLanes(kDF, hn::Load(kDF, sum_ + row * kLanes))) + sink;
      const float inverse = 1.0f / sum;
      float* to = args_.out + TokenOf(row) * args_.stride + q_idx * args_.pages.dim;
      const float* const from = out_.data + row * padded_dim_;
      int64_t d = 0;
      for (; d + kLanes <= args_.pages.dim; d += kLanes) {
        hn::StoreU(hn::Mul(hn::Load(kDF, from + d), hn::Set(kDF, inverse)), kDF, to + d);
      }
      for (; d < args_.pages.dim; ++d) to[d] = from[d] * inverse;
      if (args_.lse != nullptr) args_.lse[TokenOf(row) * args_.lse_stride + q_idx] = max_[row] * kLn2 + Log(sum);
    }
  }

  void FinishPartial() {
    const PrefillPartial& partial = args_.partial;
    for (int64_t row = 0; row < num_rows_; ++row) {
      partial.max[row] = max_[row];
      partial.sum[row] = hn::GetLane(hn::SumOfLanes(kDF, hn::Load(kDF, sum_ + row * kLanes)));
    }
    __builtin_memcpy(partial.out, out_.data, static_cast<size_t>(num_rows_ * padded_dim_) * sizeof(float));
  }

  static float Log(float x) { return __builtin_logf(x); }

  const PrefillArgs& args_;
  const int64_t padded_dim_;
  Products products_;
  int64_t num_rows_;
  int64_t all_rows_;  // with those that fill the last block
  int64_t q_steps_;
  Matrix q_, q_sink_;  // [rows, steps of Dp]
  Matrix out_;         // [rows, Dp]
  float* k_tile_;      // [blocks][steps of Dp][64 keys]
  float* v_tile_;      // [steps of keys][Dp]
  Matrix scores_[2];   // [block rows, 64]; two where products run beside
  Matrix p_[2];        // [block rows, steps of 64]
  float* max_;         // [rows]
  float* sum_;         // [rows, lanes]: a row's sum is that of its lanes
  // Values of a block that are to be added, from a part of them on.
  struct {
    Block block;
    int64_t part;
  } waiting_ = {};
  TileGroup tile_[Products::kTileKeys / kGroupTokens];
  int64_t num_groups_ = 0;
  bool tile_is_visible_ = false;  // all of it to all rows
};

}  // namespace

void Prefill(const PrefillArgs& args) {
  if (args.partial.out != nullptr) {
    QueryTile<DecodeSteps>(args).Run();
    return;
  }
  if constexpr (kMultipliesBF16) {
    if (args.use_bf16) {
      QueryTile<BF16Steps>(args).Run();
      return;
    }
  }
  QueryTile<F32Steps>(args).Run();
}

}  // namespace headwise::cpu::HW_ISA
