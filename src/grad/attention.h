// Attention of a whole text under one mask, forward and backward, in tiles: no [N, N] matrix is ever stored. Gradients
// go to q, k and v; the probabilities' own gradient is visited tile by tile for MoA's influence.
//
// Unlike the backend's attention this has no cache and keeps what a gradient needs. N tokens, Hq query heads, Hkv KV
// heads, D head dim, G = Hq / Hkv; all matrices are token-major.
#ifndef HEADWISE_GRAD_ATTENTION_H_
#define HEADWISE_GRAD_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "kv/rule.h"

namespace headwise {

// Backward cuts the keys into at most this many slabs, each with its own partial gradient of q.
inline constexpr int64_t kMaxKeySlabs = 4;

template <typename Real>
struct AttentionShape {
  int64_t num_tokens = 0;    // N
  int64_t num_q_heads = 0;   // Hq
  int64_t num_kv_heads = 0;  // Hkv
  int64_t head_dim = 0;      // D
  Real scale = 1;
  Real score_cap = 0;                   // 0: none; otherwise cap * tanh(scale q k^T / cap) in place of scale q k^T
  std::span<const float> alibi_slopes;  // [Hq], or empty: score += slope * (j - t)
  std::span<const float> sink_logits;   // [Hq], or empty: one more logit in the softmax denominator
  ResolvedRule rule;                    // what every head reads; positions in the text, from the first token
  std::vector<bool> active;             // [Hkv]: heads to compute; empty: all. Others' outputs are left alone
};

template <typename Real>
struct AttentionForwardArgs {
  AttentionShape<Real> shape;
  const Real* q = nullptr;  // [N, Hq*D], rotated
  const Real* k = nullptr;  // [N, Hkv*D], rotated
  const Real* v = nullptr;  // [N, Hkv*D]
  Real* out = nullptr;      // [N, Hq*D]
  Real* lse = nullptr;      // [N, Hq] log of the softmax denominator
  // [N, Hq] or null: the share of the denominator that is not the row's largest entry, summed without it, so that
  // 1 - 0.99999999 keeps its digits.
  Real* other_mass = nullptr;
};

// Influence [moa §4.1 eq.3] of one layer, summed over blocks of tokens.
struct Influence {
  enum class By {
    kBlock,     // sums [Hq, num_blocks, num_blocks]: queries of a block with keys of a block
    kDistance,  // sums [Hq, num_blocks]: distances t - j of a block, over all queries; keys of the first block left out
  } by = By::kBlock;
  int64_t block_tokens = 64;
  int64_t num_blocks = 0;  // ceil(N / block_tokens)
  std::vector<double> sums;

  static Influence For(By by, int64_t num_tokens, int64_t num_q_heads, int64_t block_tokens = 64) {
    Influence influence{.by = by, .block_tokens = block_tokens, .sums = {}};
    influence.num_blocks = (num_tokens + block_tokens - 1) / block_tokens;
    const int64_t per_head = by == By::kBlock ? influence.num_blocks * influence.num_blocks : influence.num_blocks;
    influence.sums.resize(static_cast<size_t>(num_q_heads * per_head));
    return influence;
  }
};

template <typename Real>
struct AttentionBackwardArgs {
  AttentionShape<Real> shape;
  const Real* q = nullptr;
  const Real* k = nullptr;
  const Real* v = nullptr;
  const Real* lse = nullptr;         // [N, Hq] of the forward pass
  const Real* delta = nullptr;       // [N, Hq] sum over D of d_out * out
  const Real* d_out = nullptr;       // [N, Hq*D]
  const Real* other_mass = nullptr;  // [N, Hq], needed with `influence`
  // Gradients are added to these.
  Real* d_q = nullptr;                   // [N, Hq*D]
  Real* d_k = nullptr;                   // [N, Hkv*D]
  Real* d_v = nullptr;                   // [N, Hkv*D]
  std::vector<Real>* scratch = nullptr;  // grows to (slabs - 1) * N * Hq*D
  Influence* influence = nullptr;        // or null; added to
};

template <typename Real>
void AttentionForward(const AttentionForwardArgs<Real>& args, ThreadPool& pool);
template <typename Real>
void AttentionBackward(const AttentionBackwardArgs<Real>& args, ThreadPool& pool);

// Number of key slabs for a text of that length: never depends on the number of threads.
int64_t NumKeySlabs(int64_t num_tokens);

}  // namespace headwise

#endif  // HEADWISE_GRAD_ATTENTION_H_
