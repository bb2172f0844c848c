// The most that blocks of keys could give a query; and what queries give the tokens of a head that selects by score:
// probabilities once more, from queries, keys and the log-sum-exp that attention left, added up token by token.
//
// Keys of a block of groups become f32 once, and then serve all rows. A token's sum grows row by row, in order, so that
// it does not depend on how rows were cut into steps.
#include "backend/cpu/kernels/isa_functions.h"
#include "backend/cpu/kernels/kv_page-inl.h"

namespace headwise::cpu::HW_ISA {
namespace {

// As many accumulators as hide the latency of a fused multiply-add: 8 vectors where the machine has registers for them.
constexpr int64_t kGroups = kSub >= 4 ? 2 : kSelectGroups;
constexpr int64_t kRows = kSub == 1 ? 2 : 1;
constexpr int64_t kVecs = kGroups * kSub;  // of a block of slots

template <KvType kType>
HWY_INLINE void WidenKeys(const Group& group, int64_t padded_dim, float* tile) {
  for (int64_t pair = 0; pair < padded_dim / 2; ++pair) {
    HW_UNROLL
    for (int64_t s = 0; s < kSub; ++s) {
      VF even, odd;
      LoadRowPair<kType>(group.k, pair, kGroupTokens, s, even, odd);
      hn::Store(even, kDF, tile + 2 * pair * kGroupTokens + s * kLanes);
      hn::Store(odd, kDF, tile + (2 * pair + 1) * kGroupTokens + s * kLanes);
    }
  }
}

// A lane is a token, with its scale; its four bytes are neighbouring dimensions.
HWY_INLINE void WidenQ8Keys(const Group& group, int64_t padded_dim, float* tile) {
  const DU du;
  const DI di;
  alignas(64) float scales[kGroupTokens];
  LoadScales(group.k_scales, scales);
  for (int64_t quad = 0; quad < padded_dim / 4; ++quad) {
    HW_UNROLL
    for (int64_t s = 0; s < kSub; ++s) {
      const VF scale = hn::Load(kDF, scales + s * kLanes);
      VU codes = hn::LoadU(du, reinterpret_cast<const uint32_t*>(group.k) + quad * kGroupTokens + s * kLanes);
      for (int64_t i = 0; i < 4; ++i) {
        const auto code = hn::Sub(hn::BitCast(di, hn::And(codes, hn::Set(du, 0xFFu))), hn::Set(di, 128));
        hn::Store(hn::Mul(hn::ConvertTo(kDF, code), scale), kDF, tile + (4 * quad + i) * kGroupTokens + s * kLanes);
        codes = hn::ShiftRight<8>(codes);
      }
    }
  }
}

HWY_INLINE void WidenGroup(const Group& group, int64_t padded_dim, float* tile) {
  if (group.type == KvType::kQ8) return WidenQ8Keys(group, padded_dim, tile);
  HW_WITH_FLOAT_KV_TYPE(group.type, WidenKeys<kType>(group, padded_dim, tile));
}

// dots[r][vector of the block] = q[r] . k
template <int64_t kNumRows>
HWY_INLINE void Dots(const float* tile, int64_t group_floats, int64_t dim, const float* const* q, VF (*dots)[kVecs]) {
  VF sum[kNumRows][kVecs];
  HW_UNROLL
  for (int64_t r = 0; r < kNumRows; ++r) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) sum[r][i] = hn::Zero(kDF);
  }
  for (int64_t d = 0; d < dim; ++d) {
    VF query[kNumRows];
    HW_UNROLL
    for (int64_t r = 0; r < kNumRows; ++r) query[r] = hn::Set(kDF, q[r][d]);
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) {
      const VF key = hn::Load(kDF, tile + i / kSub * group_floats + d * kGroupTokens + i % kSub * kLanes);
      HW_UNROLL
      for (int64_t r = 0; r < kNumRows; ++r) sum[r][i] = hn::MulAdd(key, query[r], sum[r][i]);
    }
  }
  HW_UNROLL
  for (int64_t r = 0; r < kNumRows; ++r) {
    HW_UNROLL
    for (int64_t i = 0; i < kVecs; ++i) dots[r][i] = sum[r][i];
  }
}

// e^(score - lse), at most 1 but for rounding; NaN stays NaN.
HWY_INLINE VF Probability(const SelectScoreArgs& args, VF dot, float lse) {
  VF score = hn::Mul(dot, hn::Set(kDF, args.scale));
  if (args.score_cap != 0.0f) {
    const VF cap = hn::Set(kDF, args.score_cap);
    score = hn::Mul(cap, Tanh(hn::Div(score, cap)));
  }
  const VF exponent = hn::Mul(hn::Sub(score, hn::Set(kDF, lse)), hn::Set(kDF, InLog2(1.0f)));
  const VF lowest = hn::Set(kDF, -126.0f);
  // Far below it is 0, as in exact arithmetic: tokens that got nothing are equal.
  const VF p = Exp2InRange(hn::Min(hn::Max(lowest, exponent), hn::Set(kDF, 126.0f)));
  return hn::IfThenZeroElse(hn::Lt(exponent, lowest), p);
}

HWY_INLINE VF Exponent(const SelectScoreArgs& args, int64_t row, VF dot) {
  const VF score = hn::Mul(dot, hn::Set(kDF, args.scale));
  if (row == 0) return score;
  return hn::Mul(hn::Mul(score, score), hn::Set(kDF, 0.5f / static_cast<float>(args.num_tokens - 1)));
}

// Keys of a group as plain numbers: where they are, or, of q8, widened into `tile`, whose rows are those of an f32
// page.
struct PlainKeys {
  KvType type;
  const std::byte* rows;
};
HWY_INLINE PlainKeys PlainKeysOf(const Group& group, int64_t padded_dim, float* tile) {
  if (group.type != KvType::kQ8) return {group.type, group.k};
  WidenQ8Keys(group, padded_dim, tile);
  return {KvType::kF32, reinterpret_cast<const std::byte*>(tile)};
}

// Of a group's tokens s kLanes and on: products of their keys, added up by Add(d, key, sum) over all dimensions; even
// and odd ones of two pairs each by themselves, so that no addition waits for the one before it.
template <KvType kType, typename Add>
HWY_INLINE VF SumOverDims(const std::byte* rows, int64_t dim, int64_t s, const Add& add) {
  VF sums[4] = {hn::Zero(kDF), hn::Zero(kDF), hn::Zero(kDF), hn::Zero(kDF)};
  VF even, odd;
  int64_t pair = 0;
  for (; pair + 2 <= dim / 2; pair += 2) {
    HW_UNROLL
    for (int64_t i = 0; i < 2; ++i) {
      LoadRowPair<kType>(rows, pair + i, kGroupTokens, s, even, odd);
      sums[2 * i] = add(2 * (pair + i), even, sums[2 * i]);
      sums[2 * i + 1] = add(2 * (pair + i) + 1, odd, sums[2 * i + 1]);
    }
  }
  for (int64_t d = 2 * pair; d < dim; d += 2) {
    LoadRowPair<kType>(rows, d / 2, kGroupTokens, s, even, odd);
    sums[0] = add(d, even, sums[0]);
    if (d + 1 < dim) sums[1] = add(d + 1, odd, sums[1]);
  }
  return hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
}
// The squares of their lengths.
template <KvType kType>
HWY_INLINE VF SquaredLengths(const std::byte* rows, int64_t dim, int64_t s) {
  const auto add = [](int64_t, VF key, VF sum) HW_INLINE_LAMBDA { return hn::MulAdd(key, key, sum); };
  return SumOverDims<kType>(rows, dim, s, add);
}

// 1 / sqrt, and 0 of 0.
HWY_INLINE VF InverseLength(VF squared) {
  const VF inverse = hn::Div(hn::Set(kDF, 1.0f), hn::Sqrt(squared));
  return hn::IfThenZeroElse(hn::Eq(squared, hn::Zero(kDF)), inverse);
}

// Where the scores of the group at `slot` are noted.
float* NotedScores(const KvPages& pages, int64_t slot) {
  const uint32_t page = pages.table[slot / pages.page_tokens];
  const uint32_t in_extent = page & ((uint32_t{1} << pages.newest.extent_shift) - 1);
  std::byte* end = pages.newest.extents[page >> pages.newest.extent_shift] +
                   static_cast<int64_t>(in_extent + 1) * pages.newest.page_bytes;
  return reinterpret_cast<float*>(end) - pages.page_tokens + slot % pages.page_tokens;
}

// Sums of one block of slots, which begins at `begin`.
class BlockSums {
 public:
  BlockSums(const SelectScoreArgs& args, int64_t begin, int64_t num_groups) : args_(args), begin_(begin) {
    const KvPages& pages = args.pages;
    group_floats_ = pages.padded_dim * kGroupTokens;
    num_vecs_ = num_groups * kSub;
    for (int64_t i = 0; i < num_groups; ++i) {
      const int64_t slot = begin + i * kGroupTokens;
      WidenGroup(GroupAt(pages, slot), pages.padded_dim, args.tile + i * group_floats_);
      scores_[i] = args.exponents == nullptr ? NotedScores(pages, slot) : args.exponents + slot;
      for (int64_t s = 0; s < kSub; ++s) {
        sums_[i * kSub + s] = args.resets ? hn::Zero(kDF) : hn::LoadU(kDF, scores_[i] + s * kLanes);
      }
    }
    // Blocks are of kGroups groups always; of those behind the end nothing is kept.
    for (int64_t i = num_groups; i < kGroups; ++i) {
      for (int64_t j = 0; j < group_floats_; j += kLanes) {
        hn::Store(hn::Zero(kDF), kDF, args.tile + i * group_floats_ + j);
      }
    }
  }

  void AddRows() {
    // Rows before it see none of these slots.
    const int64_t first_token = begin_ > args_.first_slot ? begin_ - args_.first_slot : 0;
    const int64_t end = args_.num_tokens * args_.num_q;
    VF dots[kRows][kVecs];
    const float* q[kRows];
    int64_t row = first_token * args_.num_q;
    for (; row + kRows <= end; row += kRows) {
      for (int64_t r = 0; r < kRows; ++r) q[r] = QueryOf(row + r);
      Dots<kRows>(args_.tile, group_floats_, args_.pages.dim, q, dots);
      for (int64_t r = 0; r < kRows; ++r) AddRow(row + r, dots[r]);
    }
    for (; row < end; ++row) {
      q[0] = QueryOf(row);
      Dots<1>(args_.tile, group_floats_, args_.pages.dim, q, dots);
      AddRow(row, dots[0]);
    }
  }

  void Store() const {
    for (int64_t i = 0; i < num_vecs_; ++i) hn::StoreU(sums_[i], kDF, scores_[i / kSub] + i % kSub * kLanes);
  }

 private:
  const float* QueryOf(int64_t row) const {
    return args_.q + row / args_.num_q * args_.stride + row % args_.num_q * args_.pages.dim;
  }

  void AddRow(int64_t row, const VF* dots) {
    const int64_t token = row / args_.num_q;
    const int64_t q_idx = row % args_.num_q;
    const float lse = args_.exponents == nullptr ? args_.lse[token * args_.lse_stride + q_idx] : 0.0f;
    const int64_t num_seen = args_.first_slot + token + 1 - begin_;  // slots of the block, which may be fewer
    for (int64_t i = 0; i < num_vecs_; ++i) {
      VF p = args_.exponents == nullptr ? Probability(args_, dots[i], lse) : Exponent(args_, row, dots[i]);
      if (num_seen < (i + 1) * kLanes) {
        const VF lane = hn::Iota(kDF, static_cast<float>(i * kLanes));
        p = hn::IfThenElseZero(hn::Lt(lane, hn::Set(kDF, static_cast<float>(num_seen))), p);
      }
      group_[i] = q_idx == 0 ? p : hn::Add(group_[i], p);
      if (q_idx + 1 == args_.num_q) sums_[i] = hn::Add(sums_[i], group_[i]);
    }
  }

  const SelectScoreArgs& args_;
  const int64_t begin_;
  int64_t group_floats_;
  int64_t num_vecs_;
  float* scores_[kGroups];
  VF sums_[kVecs];
  VF group_[kVecs];  // of the query heads of one token so far
};

}  // namespace

void SelectScore(const SelectScoreArgs& args) {
  constexpr int64_t kBlockSlots = kGroups * kGroupTokens;
  for (int64_t slot = args.begin; slot < args.end; slot += kBlockSlots) {
    const int64_t num_groups = (args.end - slot + kGroupTokens - 1) / kGroupTokens;
    BlockSums sums(args, slot, num_groups < kGroups ? num_groups : kGroups);
    sums.AddRows();
    sums.Store();
  }
}

namespace {

template <KvType kType>
HWY_INLINE void NoteNorms(const std::byte* rows, int64_t dim, float* scores) {
  for (int64_t s = 0; s < kSub; ++s) {
    hn::StoreU(hn::Neg(hn::Sqrt(SquaredLengths<kType>(rows, dim, s))), kDF, scores + s * kLanes);
  }
}

// Groups whose directions are added up together, so that sums are loaded and stored once for all of them.
constexpr int64_t kGroupsAtOnce = 4;

// Adds directions to `sums`, [D, 16]. Groups are added one behind the other, so that sums do not depend on kNum.
// scores: each group's. num_in_last: tokens that are there of the last group.
template <KvType kType, int64_t kNum>
HWY_INLINE void AddDirections(const std::byte* const (&rows)[kNum], int64_t dim, int64_t num_in_last,
                              float* const (&scores)[kNum], float* sums) {
  for (int64_t s = 0; s < kSub; ++s) {
    VF inverse[kNum];
    for (int64_t i = 0; i < kNum; ++i) {
      inverse[i] = InverseLength(SquaredLengths<kType>(rows[i], dim, s));
      hn::StoreU(inverse[i], kDF, scores[i] + s * kLanes);
    }
    const VF lane = hn::Iota(kDF, static_cast<float>(s * kLanes));
    const auto is_there = hn::Lt(lane, hn::Set(kDF, static_cast<float>(num_in_last)));
    const bool are_all = num_in_last >= (s + 1) * kLanes;
    const auto with = [&](int64_t i, VF key, VF sum) HW_INLINE_LAMBDA {
      VF direction = hn::Mul(key, inverse[i]);
      if (i == kNum - 1 && !are_all) direction = hn::IfThenElseZero(is_there, direction);
      return hn::Add(sum, direction);
    };
    for (int64_t d = 0; d < dim; d += 2) {
      float* const of_even = sums + d * kGroupTokens + s * kLanes;
      float* const of_odd = of_even + (d + 1 < dim ? kGroupTokens : 0);
      VF sum_even = hn::Load(kDF, of_even), sum_odd = hn::Load(kDF, of_odd);
      HW_UNROLL
      for (int64_t i = 0; i < kNum; ++i) {
        VF even, odd;
        LoadRowPair<kType>(rows[i], d / 2, kGroupTokens, s, even, odd);
        sum_even = with(i, even, sum_even);
        sum_odd = with(i, odd, sum_odd);
      }
      if (d + 1 < dim) hn::Store(sum_odd, kDF, of_odd);
      hn::Store(sum_even, kDF, of_even);
    }
  }
}

template <KvType kType>
HWY_INLINE void NoteCosines(const std::byte* rows, int64_t dim, const float* mean, float* scores) {
  const auto add = [&](int64_t d, VF key, VF sum)
                       HW_INLINE_LAMBDA { return hn::MulAdd(key, hn::Set(kDF, mean[d]), sum); };
  for (int64_t s = 0; s < kSub; ++s) {
    const VF dot = SumOverDims<kType>(rows, dim, s, add);
    hn::StoreU(hn::Neg(hn::Mul(dot, hn::LoadU(kDF, scores + s * kLanes))), kDF, scores + s * kLanes);
  }
}

}  // namespace

// Tokens of a group from before the step are noted again, as they were: their keys are the same.
void SelectNorm(const SelectNormArgs& args) {
  for (int64_t slot = args.begin; slot < args.end; slot += kGroupTokens) {
    const PlainKeys keys = PlainKeysOf(GroupAt(args.pages, slot), args.pages.padded_dim, args.tile);
    float* const scores = NotedScores(args.pages, slot);
    HW_WITH_FLOAT_KV_TYPE(keys.type, NoteNorms<kType>(keys.rows, args.pages.dim, scores));
  }
}

void SelectDirections(const SelectDirectionsArgs& args) {
  const int64_t dim = args.pages.dim;
  float* const sums = args.tile + args.pages.padded_dim * kGroupTokens;
  for (int64_t i = 0; i < dim * kGroupTokens; i += kLanes) hn::Store(hn::Zero(kDF), kDF, sums + i);
  int64_t slot = args.begin;
  for (constexpr int64_t kSlots = kGroupsAtOnce * kGroupTokens; slot + kSlots <= args.end; slot += kSlots) {
    const std::byte* rows[kGroupsAtOnce];
    float* scores[kGroupsAtOnce];
    KvType type = KvType::kQ8;
    for (int64_t i = 0; i < kGroupsAtOnce; ++i) {
      const Group group = GroupAt(args.pages, slot + i * kGroupTokens);
      type = group.type;
      rows[i] = group.k;
      scores[i] = NotedScores(args.pages, slot + i * kGroupTokens);
    }
    if (type == KvType::kQ8) break;  // all of a head are; they become plain in the tile, one by one
    HW_WITH_FLOAT_KV_TYPE(type, AddDirections<kType>(rows, dim, kGroupTokens, scores, sums));
  }
  for (; slot < args.end; slot += kGroupTokens) {
    const PlainKeys keys = PlainKeysOf(GroupAt(args.pages, slot), args.pages.padded_dim, args.tile);
    const std::byte* const rows[] = {keys.rows};
    float* const scores[] = {NotedScores(args.pages, slot)};
    HW_WITH_FLOAT_KV_TYPE(keys.type, AddDirections<kType>(rows, dim, args.end - slot, scores, sums));
  }
  for (int64_t d = 0; d < dim; ++d) {
    args.sums[d] = 0;
    for (int64_t lane = 0; lane < kGroupTokens; ++lane) args.sums[d] += sums[d * kGroupTokens + lane];
  }
}

void SelectCosine(const SelectCosineArgs& args) {
  for (int64_t slot = args.begin; slot < args.end; slot += kGroupTokens) {
    const PlainKeys keys = PlainKeysOf(GroupAt(args.pages, slot), args.pages.padded_dim, args.tile);
    float* const scores = NotedScores(args.pages, slot);
    HW_WITH_FLOAT_KV_TYPE(keys.type, NoteCosines<kType>(keys.rows, args.pages.dim, args.mean, scores));
  }
}

namespace {

// Bounds of a page lie behind its tokens, so that the next page's are far away: how many pages ahead to ask for them.
constexpr int64_t kPagesAhead = 8;

// The largest of the query heads' products with low [Dp], then high [Dp].
HWY_INLINE float LargestBound(const uint16_t* low_and_high, const float* below, const float* above, int64_t num_q,
                              int64_t padded_dim) {
  const auto* low = reinterpret_cast<const uint8_t*>(low_and_high);
  const uint8_t* high = low + 2 * padded_dim;
  float largest = -__builtin_inff();
  for (int64_t g = 0; g < num_q; ++g, below += padded_dim, above += padded_dim) {
    VF sum_below = hn::Zero(kDF), sum_above = hn::Zero(kDF);
    for (int64_t d = 0; d < padded_dim; d += kLanes) {
      sum_below = hn::MulAdd(HalvesAsF32(low + 2 * d), hn::LoadU(kDF, below + d), sum_below);
      sum_above = hn::MulAdd(HalvesAsF32(high + 2 * d), hn::LoadU(kDF, above + d), sum_above);
    }
    const float bound = hn::GetLane(hn::SumOfLanes(kDF, hn::Add(sum_below, sum_above)));
    if (bound > largest) largest = bound;
    if (bound != bound) return __builtin_inff();
  }
  return largest;
}

}  // namespace

// max(q low, q high) is q low where q is below 0 and q high elsewhere: a product with both, of q cut at 0 from above
// and from below.
void ScoreBlocks(const ScoreBlocksArgs& args) {
  const KvPages& pages = args.pages;
  const int64_t padded_dim = pages.padded_dim;
  float* const below = args.signed_q;
  float* const above = below + args.num_q * padded_dim;
  for (int64_t g = 0; g < args.num_q; ++g) {
    for (int64_t d = 0; d < padded_dim; ++d) {
      const float x = d < pages.dim ? args.q[g * pages.dim + d] : 0.0f;
      below[g * padded_dim + d] = x < 0.0f ? x : 0.0f;
      above[g * padded_dim + d] = x < 0.0f ? 0.0f : x;
    }
  }
  const int64_t per_page = pages.page_tokens / args.block_tokens;
  const int64_t last_page = (args.end - 1) / per_page;
  const auto bounds_of = [&](int64_t page)
                             HW_INLINE_LAMBDA { return BoundsOf(pages, args.block_tokens, page * pages.page_tokens); };
  const auto ask_for = [&](int64_t page) HW_INLINE_LAMBDA {
    if (page > last_page) return;
    const auto* bytes = reinterpret_cast<const std::byte*>(bounds_of(page));
    for (int64_t at = 0; at < 4 * per_page * padded_dim; at += 64) PrefetchToL2(bytes + at);
  };
  if (args.begin >= args.end) return;
  for (int64_t i = 0; i < kPagesAhead; ++i) ask_for(args.begin / per_page + i);
  for (int64_t block = args.begin; block < args.end;) {
    const int64_t page = block / per_page;
    ask_for(page + kPagesAhead);
    const uint16_t* const of_page = bounds_of(page);
    const int64_t end = (page + 1) * per_page < args.end ? (page + 1) * per_page : args.end;
    for (; block < end; ++block) {
      const uint16_t* const of_block = of_page + (block - page * per_page) * 2 * padded_dim;
      args.bounds[block - args.begin] = LargestBound(of_block, below, above, args.num_q, padded_dim);
    }
  }
}

}  // namespace headwise::cpu::HW_ISA
