#include "planner/fastgen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/utf8.h"

namespace headwise {
namespace {

constexpr int64_t kBlock = 16;  // keys that are multiplied side by side

bool IsPunctuationOnly(std::string_view text) {
  if (text.empty() || FindInvalidUtf8(text).has_value()) return false;
  bool has_mark = false;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    if (!IsPunctuation(character.code) && !IsWhitespace(character.code)) return false;
    has_mark |= IsPunctuation(character.code);
    text.remove_prefix(character.size_bytes);
  }
  return has_mark;
}

// One query head's attention, a query at a time.
class AttentionRows {
 public:
  AttentionRows(const AttentionView<float>& view, int64_t kv_head) : view_(view) {
    const AttentionShape<float>& shape = view.shape;
    num_blocks_ = (shape.num_tokens + kBlock - 1) / kBlock;
    keys_.resize(static_cast<size_t>(num_blocks_ * kBlock * shape.head_dim));
    for (int64_t key = 0; key < shape.num_tokens; ++key) {
      const float* const row = view.k + (key * shape.num_kv_heads + kv_head) * shape.head_dim;
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        keys_[static_cast<size_t>((key / kBlock * shape.head_dim + d) * kBlock + key % kBlock)] = row[d];
      }
    }
    row_.resize(static_cast<size_t>(num_blocks_ * kBlock));
  }

  // What the query gives keys [begin, query]: at their places in a row of all keys, valid until the next call.
  std::span<const float> Of(int64_t q_head, int64_t query, int64_t begin) {
    const AttentionShape<float>& shape = view_.shape;
    const int64_t at = query * shape.num_q_heads + q_head;
    const float* const q = view_.q + at * shape.head_dim;
    const float slope = shape.alibi_slopes.empty() ? 0.0f : shape.alibi_slopes[static_cast<size_t>(q_head)];
    for (int64_t block = begin / kBlock; block <= query / kBlock; ++block) {
      float sums[kBlock] = {};
      const float* keys = keys_.data() + block * shape.head_dim * kBlock;
      for (int64_t d = 0; d < shape.head_dim; ++d, keys += kBlock) {
        for (int64_t i = 0; i < kBlock; ++i) sums[i] += q[d] * keys[i];
      }
      for (int64_t i = 0; i < kBlock; ++i) {
        const int64_t key = block * kBlock + i;
        float score = shape.scale * sums[i];
        if (shape.score_cap > 0) score = shape.score_cap * std::tanh(score / shape.score_cap);
        score += slope * static_cast<float>(key - query);
        const bool is_read = key >= begin && key <= query && Readable(shape.rule, query, key);
        row_[static_cast<size_t>(key)] = is_read ? std::exp(score - view_.lse[at]) : 0.0f;
      }
    }
    return row_;
  }

 private:
  const AttentionView<float>& view_;
  int64_t num_blocks_ = 0;
  std::vector<float> keys_;  // [num_blocks, D, kBlock]
  std::vector<float> row_;
};

}  // namespace

TokenLists ListTokens(const Tokenizer& tokenizer) {
  TokenLists lists;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsSpecial(id)) {
      lists.special.push_back(id);
    } else if (IsPunctuationOnly(tokenizer.BytesOf(id))) {
      lists.punctuation.push_back(id);
    }
  }
  return lists;
}

FastGenRecovery RecoveryOf(const AttentionView<float>& view, int64_t kv_head, std::span<const TokenMark> marks,
                           const FastGenOptions& options) {
  const int64_t num_tokens = view.shape.num_tokens;
  const int64_t group = view.shape.num_q_heads / view.shape.num_kv_heads;
  AttentionRows rows(view, kv_head);
  std::vector<double> columns(static_cast<size_t>(num_tokens));
  for (int64_t q_head = kv_head * group; q_head < (kv_head + 1) * group; ++q_head) {
    for (int64_t query = 0; query < num_tokens; ++query) {
      const std::span<const float> row = rows.Of(q_head, query, 0);
      for (int64_t key = 0; key <= query; ++key) columns[static_cast<size_t>(key)] += row[static_cast<size_t>(key)];
    }
  }
  FastGenRecovery recovery{};
  std::vector<char> is_kept(static_cast<size_t>(num_tokens));
  double mass = 0;
  const auto keep = [&](size_t key) {
    is_kept[key] = 1;
    mass += columns[key];
  };
  for (const TokenMark mark : {TokenMark::kSpecial, TokenMark::kPunctuation}) {
    for (size_t key = 0; key < marks.size(); ++key) {
      if (marks[key] == mark) keep(key);
    }
    recovery[static_cast<size_t>(mark) - 1] = mass;
  }
  std::vector<size_t> others;
  for (size_t key = 0; key < marks.size(); ++key) {
    if (is_kept[key] == 0) others.push_back(key);
  }
  std::ranges::stable_sort(others, [&](size_t a, size_t b) { return columns[a] > columns[b]; });
  const auto share_of = [&](double share) { return std::ceil(share * static_cast<double>(num_tokens)); };
  others.resize(std::min(others.size(), static_cast<size_t>(share_of(options.frequent_share))));
  for (const size_t key : others) keep(key);
  recovery[static_cast<size_t>(FastGenPolicy::kFrequent)] = mass;
  const auto num_local = static_cast<int64_t>(share_of(options.local_share));
  for (int64_t q_head = kv_head * group; num_local > 0 && q_head < (kv_head + 1) * group; ++q_head) {
    for (int64_t query = 0; query < num_tokens; ++query) {
      const int64_t begin = std::max<int64_t>(0, query + 1 - num_local);
      const std::span<const float> row = rows.Of(q_head, query, begin);
      for (int64_t key = begin; key <= query; ++key) {
        if (is_kept[static_cast<size_t>(key)] == 0) mass += row[static_cast<size_t>(key)];
      }
    }
  }
  recovery[static_cast<size_t>(FastGenPolicy::kLocal)] = mass;
  const double total = std::accumulate(columns.begin(), columns.end(), 0.0);
  for (double& each : recovery) each /= total;
  return recovery;
}

HeadRule FastGenRule(FastGenPolicy policy, const FastGenSizes& sizes, const FastGenOptions& options) {
  if (policy == FastGenPolicy::kFull) return HeadRule::Full();
  HeadRule rule;
  rule.kind = HeadRule::Kind::kElasticMoa;
  // Where a text has more special tokens than the span, the first are the first to go; but not what a text begins with,
  // which attention rests on when nothing else matters.
  rule.sink = 1;
  rule.alpha = sizes.special;
  rule.start = RuleStart::kEndOfPrompt;
  rule.select.kind = TokenSelector::Kind::kFastGen;
  rule.select.punctuation = policy >= FastGenPolicy::kPunctuation;
  if (policy >= FastGenPolicy::kPunctuation) rule.beta += sizes.punctuation;
  if (policy >= FastGenPolicy::kFrequent) rule.beta += options.frequent_share;
  if (policy >= FastGenPolicy::kLocal) rule.beta += options.local_share;
  rule.select.recent_share = policy >= FastGenPolicy::kLocal && rule.beta > 0 ? options.local_share / rule.beta : 0;
  return rule;
}

FastGenPolicy CheapestPolicy(const FastGenRecovery& recovery, double threshold) {
  const auto enough = std::ranges::find_if(recovery, [&](double share) { return share >= threshold; });
  return static_cast<FastGenPolicy>(enough - recovery.begin());
}

}  // namespace headwise
