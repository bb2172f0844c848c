// Attention over one head's pages, literally as docs/head-plan.md and the papers have it: per query, the keys that the
// rule lets it read, one softmax, one weighted sum.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/dropped_mean.h"
#include "backend/ref/block_reads.h"
#include "backend/ref/kv_page.h"
#include "backend/ref/ref_ops.h"

namespace headwise::ref {
namespace {

// Reads token j of one head.
class PagedTokens {
 public:
  explicit PagedTokens(const HeadWork& work) : work_(work) {}

  float Key(int64_t pos, int64_t d) const { return PageOf(pos).Key(pos % work_.page_tokens(), d); }
  float Value(int64_t pos, int64_t d) const { return PageOf(pos).Value(pos % work_.page_tokens(), d); }

 private:
  KvPage PageOf(int64_t pos) const {
    const int64_t page_idx = pos / work_.page_tokens();
    KvLayout layout = work_.layout();
    if (work_.IsAged(page_idx)) layout.format = KvFormat::kQ4;
    return {work_.Page(page_idx), layout};
  }

  const HeadWork& work_;
};

// The score that counts, of one scaled product.
double Capped(double score, float cap) {
  return cap == 0.0f ? score : cap * std::tanh(score / cap);
}

// `blocks_read` as BlocksRead has them.
void AttendOneQuery(const AttentionArgs& args, const HeadWork& work, int64_t row_idx, int64_t q_head,
                    const std::vector<bool>& blocks_read) {
  const int64_t dim = work.layout().head_dim;
  const PagedTokens tokens(work);
  const int64_t row = work.first_row + row_idx;
  const int64_t pos = work.first_pos + row_idx;
  const int64_t sink_pos = work.mask().SinkPos(pos);
  const int64_t q_offset = (row * args.num_q_heads + q_head) * dim;
  const double slope = args.alibi_slopes.present() ? F32(args.alibi_slopes)[q_head] : 0.0;

  std::vector<int64_t> keys;
  std::vector<double> scores;
  double max_score = -INFINITY;
  for (int64_t j = 0; j <= pos; ++j) {
    if (!work.mask().Reads(pos, j)) continue;
    if (!blocks_read.empty() && !blocks_read[static_cast<size_t>(j / work.blocks->block_tokens)]) continue;
    const bool is_sink = j < work.mask().sink;
    const float* q = F32(is_sink && args.q_sink.present() ? args.q_sink : args.q) + q_offset;
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * tokens.Key(j, d);
    const double score =
        Capped(dot * args.scale, args.score_cap) + slope * static_cast<double>(j - (is_sink ? sink_pos : pos));
    keys.push_back(j);
    scores.push_back(score);
    max_score = std::max(max_score, score);
  }
  if (args.sink_logits.present()) max_score = std::max<double>(max_score, F32(args.sink_logits)[q_head]);

  double denominator = args.sink_logits.present() ? std::exp(F32(args.sink_logits)[q_head] - max_score) : 0.0;
  std::vector<double> sum(static_cast<size_t>(dim), 0.0);
  for (size_t i = 0; i < keys.size(); ++i) {
    const double weight = std::exp(scores[i] - max_score);
    denominator += weight;
    for (int64_t d = 0; d < dim; ++d) sum[static_cast<size_t>(d)] += weight * tokens.Value(keys[i], d);
  }
  for (int64_t d = 0; d < dim; ++d) {
    F32(args.out)[q_offset + d] = static_cast<float>(sum[static_cast<size_t>(d)] / denominator);
  }
  if (args.lse.present()) {
    F32(args.lse)[row * args.num_q_heads + q_head] = static_cast<float>(max_score + std::log(denominator));
  }
}

// The mean of dropped tokens as one more key of weight n, merged into what the kept keys gave.
void MergeMeanToken(const CompensateArgs& args, const HeadWork& work, int64_t num_folded, int64_t row, int64_t q_head) {
  const int64_t dim = work.layout().head_dim;
  const float* q = F32(args.q) + (row * args.num_q_heads + q_head) * dim;
  float* out = F32(args.out) + (row * args.num_q_heads + q_head) * dim;
  float& lse = F32(args.lse)[row * args.num_q_heads + q_head];
  const float* state = work.State();
  double dot = 0;
  for (int64_t d = 0; d < dim; ++d) dot += static_cast<double>(q[d]) * state[d];
  double score = Capped(dot * args.scale, args.score_cap) + std::log(static_cast<double>(num_folded));
  if (args.alibi_slopes.present()) {
    const double mean_pos = static_cast<double>(work.head->fold_from) + static_cast<double>(num_folded - 1) / 2;
    const auto pos = static_cast<double>(work.first_pos + row - work.first_row);
    score += F32(args.alibi_slopes)[q_head] * (mean_pos - pos);
  }
  const double max_score = std::max<double>(score, lse);
  const double kept_weight = std::exp(lse - max_score);
  const double mean_weight = std::exp(score - max_score);
  for (int64_t d = 0; d < dim; ++d) {
    out[d] = static_cast<float>((kept_weight * out[d] + mean_weight * state[dim + d]) / (kept_weight + mean_weight));
  }
  lse = static_cast<float>(max_score + std::log(kept_weight + mean_weight));
}

}  // namespace

void Attention(const AttentionArgs& args) {
  Validate(args);
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    if (work.HasRepresentatives()) NoteQueries(args, work);
    for (int64_t i = 0; i < work.num_rows; ++i) {
      const std::vector<bool> blocks_read = BlocksRead(args, work, i);
      for (int64_t g = 0; g < args.group(); ++g) {
        AttendOneQuery(args, work, i, work.kv_head * args.group() + g, blocks_read);
      }
    }
  }
}

void Compensate(const CompensateArgs& args) {
  Validate(args);
  for (int64_t idx = 0; idx < args.step->num_heads(); ++idx) {
    const HeadWork work = args.step->Head(args.layer_idx, idx);
    const int64_t num_dropped = NumInDroppedMean(work);
    for (int64_t i = 0; num_dropped > 0 && args.q.present() && i < work.num_rows; ++i) {
      for (int64_t g = 0; g < args.group(); ++g) {
        MergeMeanToken(args, work, num_dropped, work.first_row + i, work.kv_head * args.group() + g);
      }
    }
    if (!work.Folds()) continue;
    const int64_t dim = work.layout().head_dim;
    const PagedTokens tokens(work);
    float* state = work.State();
    int64_t num_folded = work.fold_begin() - work.head->fold_from;
    // mean += (x - mean) / n, with n counting the new token [razor §3.3].
    const auto fold = [&](float& mean, float x) {
      mean = num_folded == 1 ? x : mean + (x - mean) / static_cast<float>(num_folded);
    };
    const auto fold_up_to = [&](int64_t end) {
      for (int64_t j = work.head->fold_from + num_folded; j < end; ++j) {
        ++num_folded;
        for (int64_t d = 0; d < dim; ++d) {
          fold(state[d], tokens.Key(j, d));
          fold(state[dim + d], tokens.Value(j, d));
        }
      }
    };
    for (int64_t i = 0; work.head->reads_mean && args.q.present() && i < work.num_rows; ++i) {
      fold_up_to(work.first_pos + i - work.mask().recent + 1);
      if (num_folded == 0) continue;
      for (int64_t g = 0; g < args.group(); ++g) {
        MergeMeanToken(args, work, num_folded, work.first_row + i, work.kv_head * args.group() + g);
      }
    }
    fold_up_to(work.fold_end());
  }
}

}  // namespace headwise::ref
