#include "backend/cpu/key_pieces.h"

#include <algorithm>
#include <cmath>

namespace headwise::cpu {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
// Less than any score, in log 2.
constexpr double kNoMax = -1e30;

// Those of `keys` at positions [begin, end).
KeyPiece KeysWithin(const KeyRanges& keys, int64_t begin, int64_t end, KvFormat format) {
  return {.keys = {.sink_begin = std::clamp(begin, keys.sink_begin, keys.sink_end),
                   .sink_end = std::clamp(end, keys.sink_begin, keys.sink_end),
                   .recent_begin = std::clamp(begin, keys.recent_begin, keys.recent_end),
                   .recent_end = std::clamp(end, keys.recent_begin, keys.recent_end)},
          .format = format};
}

// As few pieces as there can be: sinks share one with recent keys.
void CutFewest(const KeyPiece& all, std::vector<KeyPiece>& pieces) {
  KeyPiece rest = all;
  while (rest.num_keys() > 0) {
    KeyPiece piece = rest;
    KeyRanges& keys = piece.keys;
    keys.sink_end = std::min(rest.keys.sink_end, rest.keys.sink_begin + kDecodePieceTokens);
    const int64_t room = kDecodePieceTokens - (keys.sink_end - keys.sink_begin);
    // Cuts lie at multiples of the piece, so that no group of 16 tokens is read twice.
    int64_t cut = std::min(rest.keys.recent_end, rest.keys.recent_begin + room);
    if (cut < rest.keys.recent_end) {
      cut = std::max(cut / kDecodePieceTokens * kDecodePieceTokens, rest.keys.recent_begin);
    }
    if (cut == rest.keys.recent_begin && cut < rest.keys.recent_end && keys.sink_end == keys.sink_begin) {
      cut = std::min(rest.keys.recent_end, rest.keys.recent_begin + room);
    }
    keys.recent_end = keys.sink_end == rest.keys.sink_end ? cut : rest.keys.recent_begin;
    rest.keys.sink_begin = keys.sink_end;
    rest.keys.recent_begin = keys.recent_end;
    pieces.push_back(piece);
  }
}

// Sinks and recent keys by themselves, at multiples of the piece. A head whose keys fit one piece wherever they lie is
// not cut, which would make two or three of most windows.
void CutAtPositions(const KeyPiece& all, const KeyMask& mask, std::vector<KeyPiece>& pieces) {
  if (mask.recent < kNoLimit && mask.sink + mask.recent <= kDecodePieceTokens) {
    if (all.num_keys() > 0) pieces.push_back(all);
    return;
  }
  const auto cut = [&](int64_t begin, int64_t end, bool are_sinks) {
    while (begin < end) {
      const int64_t next = std::min(end, (begin / kDecodePieceTokens + 1) * kDecodePieceTokens);
      KeyPiece piece = all;
      piece.keys = are_sinks ? KeyRanges{begin, next, next, next} : KeyRanges{begin, begin, begin, next};
      pieces.push_back(piece);
      begin = next;
    }
  };
  cut(all.keys.sink_begin, all.keys.sink_end, true);
  cut(all.keys.recent_begin, all.keys.recent_end, false);
}

}  // namespace

void AppendPieces(const KeyRanges& keys, const HeadWork& work, RowSums sums, std::vector<KeyPiece>& pieces) {
  const auto cut = [&](int64_t begin, int64_t end, KvFormat format) {
    const KeyPiece within = KeysWithin(keys, begin, end, format);
    if (sums == RowSums::kAlike) return CutAtPositions(within, work.mask(), pieces);
    CutFewest(within, pieces);
  };
  const KvFormat format = work.layout().format;
  const int64_t aged_begin = work.aged_begin() * work.page_tokens();
  const int64_t aged_end = work.aged_end() * work.page_tokens();
  cut(0, aged_begin, format);
  cut(aged_begin, aged_end, KvFormat::kQ4);
  cut(aged_end, kNoLimit, format);
}

PieceMerge::PieceMerge(std::optional<double> sink_logit, float* out, int64_t dim)
    : max_(sink_logit.value_or(kNoMax)), sum_(sink_logit ? 1.0 : 0.0), out_(out), dim_(dim) {
  std::fill_n(out_, dim_, 0.0f);
}

void PieceMerge::Add(float max, float sum, const float* out, const KernelTable& kernels) {
  double weight = 1.0;
  if (max > max_) {
    const double shrink = std::exp2(max_ - max);
    max_ = max;
    sum_ *= shrink;
    for (int64_t d = 0; d < dim_; ++d) out_[d] *= static_cast<float>(shrink);
  } else {
    weight = std::exp2(max - max_);
  }
  sum_ += weight * sum;
  kernels.elementwise.add_scaled(out, static_cast<float>(weight), out_, dim_);
}

void PieceMerge::Finish() {
  const auto inverse = static_cast<float>(1.0 / sum_);
  for (int64_t d = 0; d < dim_; ++d) out_[d] *= inverse;
}

float PieceMerge::Lse() const {
  return static_cast<float>((max_ + std::log2(sum_)) / kLog2E);
}

}  // namespace headwise::cpu
