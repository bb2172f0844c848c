// The keys of a row in pieces, each with a softmax of its own, and how partial softmaxes are put together.
#ifndef HEADWISE_BACKEND_CPU_KEY_PIECES_H_
#define HEADWISE_BACKEND_CPU_KEY_PIECES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/row_sums.h"
#include "backend/kv_step.h"

namespace headwise::cpu {

// At most kDecodePieceTokens keys, all in pages of one format.
struct KeyPiece {
  KeyRanges keys;
  KvFormat format;

  int64_t num_keys() const { return keys.sink_end - keys.sink_begin + keys.recent_end - keys.recent_begin; }
};

// Appends the pieces of `keys`, which `work` reads. Where sums are to be alike the cuts lie at positions that follow
// from the mask alone: rows that read other keys have the same.
void AppendPieces(const KeyRanges& keys, const HeadWork& work, RowSums sums, std::vector<KeyPiece>& pieces);

// The pieces of one row, of one query head, put together one by one, in order: max, sum and out become those of
//   out = sum of 2^(max_i - max) out_i,   sum likewise.
class PieceMerge {
 public:
  // A logit that takes part without a value, in log 2, where there is one. `out` becomes zero.
  PieceMerge(std::optional<double> sink_logit, float* out, int64_t dim);
  // Goes on where another one was: max() and sum() of then.
  PieceMerge(double max, double sum, float* out, int64_t dim) : max_(max), sum_(sum), out_(out), dim_(dim) {}

  void Add(float max, float sum, const float* out, const KernelTable& kernels);
  // out becomes the average that it is of.
  void Finish();
  double max() const { return max_; }
  double sum() const { return sum_; }
  // Log-sum-exp, natural. Requires: every piece was added.
  float Lse() const;

 private:
  double max_;
  double sum_;
  float* out_;
  int64_t dim_;
};

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_KEY_PIECES_H_
