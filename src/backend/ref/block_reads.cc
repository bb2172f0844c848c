#include "backend/ref/block_reads.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "backend/ref/kv_page.h"
#include "backend/ref/ref_ops.h"
#include "tensor/dtype.h"

namespace headwise::ref {
namespace {

constexpr uint16_t kSign = 0x8000;
constexpr uint16_t kMostHalf = 0x7BFF;  // 65504
constexpr uint16_t kInfinity = 0x7C00;

// The largest f16 that is not above x, or -65504 where there is no finite one.
uint16_t HalfBelow(float x) {
  uint16_t half = F32ToF16(x);
  if (std::isnan(x)) return half;
  if (F16ToF32(half) > x) half = half == 0 ? kSign | 1 : half & kSign ? half + 1 : half - 1;
  if (half == (kSign | kInfinity)) return kSign | kMostHalf;
  return half == kInfinity ? kMostHalf : half;
}

uint16_t HalfAbove(float x) {
  return HalfBelow(-x) ^ kSign;
}

// The most that keys of the block can give one query head.
double BoundOf(const float* q, const uint16_t* low, const uint16_t* high, int64_t dim) {
  double bound = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double a = static_cast<double>(q[d]) * F16ToF32(low[d]);
    const double b = static_cast<double>(q[d]) * F16ToF32(high[d]);
    bound += std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
  }
  return std::isnan(bound) ? INFINITY : bound;
}

// Dimension d of the sum of the group's queries.
float GroupQuery(const AttentionArgs& args, const HeadWork& work, int64_t row_idx, int64_t d) {
  const int64_t q_row = (work.first_row + row_idx) * args.num_q_heads + work.kv_head * args.group();
  float sum = 0;
  for (int64_t g = 0; g < args.group(); ++g) sum += F32(args.q)[(q_row + g) * work.layout().head_dim + d];
  return sum;
}

int64_t PaddedDim(const HeadWork& work) {
  return (work.layout().head_dim + 15) / 16 * 16;
}

// To the nearest f16 that is finite; what is no number stays so.
uint16_t HalfOf(double x) {
  constexpr double kMost = 65504;
  return F32ToF16(static_cast<float>(x > kMost ? kMost : x < -kMost ? -kMost : x));
}

// Of `block`, to where the block `with` has it, which is the last of those whose queries count.
void NoteRepresentatives(const HeadWork& work, int64_t block, int64_t with) {
  const KvBlockReads& blocks = *work.blocks;
  const int64_t dim = work.layout().head_dim;
  const auto key = [&](int64_t pos, int64_t d) {
    return KvPage(work.Page(pos / work.page_tokens()), work.layout()).Key(pos % work.page_tokens(), d);
  };
  std::vector<double> queries(static_cast<size_t>(dim));
  for (int64_t behind = block + 1; behind <= with; ++behind) {
    for (int64_t d = 0; d < dim; ++d) queries[static_cast<size_t>(d)] += work.QuerySums(behind)[d];
  }
  std::vector<std::pair<double, int64_t>> products;
  for (int64_t pos = block * blocks.block_tokens; pos < (block + 1) * blocks.block_tokens; ++pos) {
    double product = 0;
    for (int64_t d = 0; d < dim; ++d) product += queries[static_cast<size_t>(d)] * key(pos, d);
    products.push_back({std::isnan(product) ? INFINITY : product, pos});
  }
  std::ranges::stable_sort(products, std::greater(), &std::pair<double, int64_t>::first);
  uint16_t* const mean = work.Bounds(with);
  std::fill_n(mean, 2 * PaddedDim(work), uint16_t{0});
  for (int64_t d = 0; d < dim; ++d) {
    double sum = 0;
    for (int64_t i = 0; i < blocks.representatives; ++i) sum += key(products[static_cast<size_t>(i)].second, d);
    mean[d] = mean[PaddedDim(work) + d] = HalfOf(sum / static_cast<double>(blocks.representatives));
  }
}

}  // namespace

void NoteQueries(const AttentionArgs& args, const HeadWork& work) {
  const KvBlockReads& blocks = *work.blocks;
  const int64_t dim = work.layout().head_dim;
  for (int64_t row_idx = 0; row_idx < work.num_rows; ++row_idx) {
    const int64_t pos = work.first_pos + row_idx;
    const int64_t block = pos / blocks.block_tokens;
    float* const sums = work.QuerySums(block);
    if (pos % blocks.block_tokens == 0) std::fill_n(sums, PaddedDim(work), 0.0f);
    for (int64_t d = 0; d < dim; ++d) sums[d] += GroupQuery(args, work, row_idx, d);
    const bool is_complete = (pos + 1) % blocks.block_tokens == 0;
    if (is_complete && block + 1 >= blocks.newest) NoteRepresentatives(work, block + 1 - blocks.newest, block);
  }
}

void BoundKeys(const HeadWork& work) {
  const int64_t block_tokens = work.blocks->block_tokens;
  const int64_t padded_dim = PaddedDim(work);
  const int64_t end = work.first_pos + work.num_rows;
  for (int64_t block = work.first_pos / block_tokens; block * block_tokens < end; ++block) {
    uint16_t* const low = work.Bounds(block);
    uint16_t* const high = low + padded_dim;
    std::fill_n(low, 2 * padded_dim, uint16_t{0});
    for (int64_t d = 0; d < work.layout().head_dim; ++d) {
      float least = INFINITY, largest = -INFINITY;
      for (int64_t pos = block * block_tokens; pos < std::min(end, (block + 1) * block_tokens); ++pos) {
        const float key = KvPage(work.Page(pos / work.page_tokens()), work.layout()).Key(pos % work.page_tokens(), d);
        if (std::isnan(least)) continue;
        least = std::isnan(key) ? key : std::min(least, key);
        largest = std::isnan(key) ? key : std::max(largest, key);
      }
      low[d] = HalfBelow(least);
      high[d] = HalfAbove(largest);
    }
  }
}

std::vector<bool> BlocksRead(const AttentionArgs& args, const HeadWork& work, int64_t row_idx) {
  const int64_t pos = work.first_pos + row_idx;
  if (!work.ChoosesBlocks() || work.blocks->ReadsAll(pos)) return {};
  const KvBlockReads& blocks = *work.blocks;
  struct Candidate {
    double bound;
    int64_t block;
    // Who is read first.
    bool operator<(const Candidate& other) const {
      return bound != other.bound ? bound > other.bound : block > other.block;
    }
  };
  const int64_t dim = work.layout().head_dim;
  const int64_t newest = blocks.NumBlocks(pos) - 1;
  std::vector<Candidate> candidates;
  for (int64_t block = blocks.first; blocks.most > blocks.newest && block + blocks.newest <= newest; ++block) {
    const uint16_t* const low = work.Bounds(blocks.NotedWith(block));
    double bound = -INFINITY;
    if (blocks.representatives > 0) {
      std::vector<float> query;
      for (int64_t d = 0; d < dim; ++d) query.push_back(GroupQuery(args, work, row_idx, d));
      bound = BoundOf(query.data(), low, low, dim);
    }
    for (int64_t g = 0; blocks.representatives == 0 && g < args.group(); ++g) {
      const int64_t q_row = (work.first_row + row_idx) * args.num_q_heads + work.kv_head * args.group() + g;
      bound = std::max(bound, BoundOf(F32(args.q) + q_row * dim, low, low + PaddedDim(work), dim));
    }
    candidates.push_back({bound, block});
  }
  std::sort(candidates.begin(), candidates.end());
  std::vector<bool> read(static_cast<size_t>(newest + 1));
  std::fill_n(read.begin(), blocks.first, true);
  std::fill(read.end() - blocks.newest, read.end(), true);
  for (int64_t i = 0; i < blocks.most - blocks.newest; ++i) {
    read[static_cast<size_t>(candidates[static_cast<size_t>(i)].block)] = true;
  }
  return read;
}

}  // namespace headwise::ref
