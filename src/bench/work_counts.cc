#include "bench/work_counts.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace headwise {
namespace {

int64_t BytesOf(const ConstTensorView& view) {
  return view.present() ? view.size_bytes() : 0;
}
int64_t ParamsOf(const LinearWeights& linear) {
  return linear.weight.present() ? linear.weight.shape.num_elements() : 0;
}
int64_t BytesOf(const LinearWeights& linear) {
  return (linear.weight.present() ? linear.weight.size_bytes() : 0) + BytesOf(linear.bias);
}
int64_t BytesOf(const NormWeights& norm) {
  return BytesOf(norm.weight) + BytesOf(norm.bias);
}

// Keys in the cache that the query at `pos` reads.
std::vector<TokenRange> ReadRanges(const ResolvedRule& rule, int64_t pos) {
  // A head that selects by score reads what it kept and the token itself.
  if (rule.SelectsByScore()) return {{0, NumKeptTokens(rule, pos) + 1}};
  // Which blocks is only known by score: as many tokens.
  if (rule.ReadsBlocks()) return {{0, rule.blocks.ReadsAll(pos) ? pos + 1 : rule.blocks.NumTokensRead(pos)}};
  // The last query of a prompt after which a rule holds still reads all of it; KeptRanges is what the cut leaves.
  if (pos < rule.holds_from) return {{std::max<int64_t>(0, pos + 1 - rule.recent_before), pos + 1}};
  return KeptRanges(rule, pos + 1);
}

bool ReadsMean(const ResolvedRule& rule, int64_t pos) {
  if (rule.SelectsByScore()) return rule.compensate && pos > NumKeptTokens(rule, pos);
  const TokenRange folded = FoldedRange(rule, pos + 1);
  return pos >= rule.holds_from && folded.end > folded.begin;
}

// The mean counts as a key.
int64_t KeysOf(const ResolvedRule& rule, int64_t pos) {
  int64_t keys = ReadsMean(rule, pos) ? 1 : 0;
  for (const TokenRange& range : ReadRanges(rule, pos)) keys += range.end - range.begin;
  return keys;
}

// Rules of a plan, each with the number of KV heads under it: plans have few different ones.
std::vector<std::pair<ResolvedRule, int64_t>> DistinctRules(const WorkArgs& args) {
  std::vector<std::pair<ResolvedRule, int64_t>> distinct;
  for (const ResolvedRule& resolved : ResolveRules(*args.plan, args.limits, args.windows)) {
    const auto known =
        std::find_if(distinct.begin(), distinct.end(), [&](const auto& entry) { return entry.first == resolved; });
    if (known != distinct.end()) {
      ++known->second;
    } else {
      distinct.emplace_back(resolved, 1);
    }
  }
  return distinct;
}

// Every query head of the group: a multiply-add per dimension for the score and one for the output.
double FlopsPerPair(const ModelConfig& config) {
  return 4.0 * static_cast<double>(config.head_dim * config.q_heads_per_kv_head());
}

}  // namespace

WeightCounts CountWeights(const ModelWeights& weights, int64_t num_chosen) {
  WeightCounts counts;
  const auto add = [&](const LinearWeights& linear) {
    counts.layer_params += ParamsOf(linear);
    counts.read_bytes += BytesOf(linear);
  };
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down,
                                        &layer.router, &layer.shared_gate}) {
      add(*linear);
    }
    for (size_t i = 0; i < std::min(layer.experts.size(), static_cast<size_t>(num_chosen)); ++i) {
      for (const LinearWeights* linear : {&layer.experts[i].gate, &layer.experts[i].up, &layer.experts[i].down}) {
        add(*linear);
      }
    }
    counts.read_bytes += BytesOf(layer.norm) + BytesOf(layer.post_norm) + BytesOf(layer.mlp_norm) +
                         BytesOf(layer.mlp_post_norm) + BytesOf(layer.q_norm) + BytesOf(layer.k_norm) +
                         BytesOf(layer.sink_logits);
  }
  counts.output_params = ParamsOf(weights.output);
  counts.read_bytes += BytesOf(weights.output) + BytesOf(weights.final_norm);
  return counts;
}

double KvReadBytes(const ResolvedRule& rule, const KvLayout& layout, int64_t pos) {
  int64_t num_aged = 0;
  if (NewestFormat(layout.format) != layout.format) {
    const PageRange aged = AgedPages(rule, pos, layout.page_tokens);
    for (const TokenRange& range : ReadRanges(rule, pos)) {
      const int64_t begin = std::max(range.begin, aged.begin * layout.page_tokens);
      const int64_t end = std::min(range.end, aged.end * layout.page_tokens);
      num_aged += std::max<int64_t>(0, end - begin);
    }
  }
  const int64_t num_newest = KeysOf(rule, pos) - num_aged;
  const bool reads_bounds = rule.ReadsBlocks() && !rule.blocks.ReadsAll(pos) && rule.blocks.most > rule.blocks.newest;
  const double bounds_bytes =
      reads_bounds ? static_cast<double>(rule.blocks.NumBlocks(pos) * KeyBoundsBytes(layout.head_dim, 16)) : 0.0;
  return bounds_bytes + static_cast<double>(num_aged) * BytesPerToken(layout) +
         static_cast<double>(num_newest * TokensBytes(NewestFormat(layout.format), layout.head_dim, 1));
}

int64_t CountPairs(const ResolvedRule& rule, int64_t begin, int64_t end) {
  int64_t pairs = 0;
  for (int64_t pos = begin; pos < end; ++pos) pairs += KeysOf(rule, pos);
  return pairs;
}

Work PrefillWork(const WorkArgs& args, int64_t num_tokens, int64_t depth) {
  Work work;
  work.linear_flops = 2.0 * static_cast<double>(args.weights.layer_params) * static_cast<double>(num_tokens) +
                      2.0 * static_cast<double>(args.weights.output_params);
  for (const auto& [rule, num_heads] : DistinctRules(args)) {
    work.attention_flops += static_cast<double>(CountPairs(rule, depth, depth + num_tokens)) *
                            static_cast<double>(num_heads) * FlopsPerPair(*args.config);
  }
  return work;
}

Work DecodeWork(const WorkArgs& args, int64_t pos) {
  Work work;
  work.linear_flops = 2.0 * static_cast<double>(args.weights.layer_params + args.weights.output_params);
  work.weight_bytes = static_cast<double>(args.weights.read_bytes);
  for (const auto& [rule, num_heads] : DistinctRules(args)) {
    const double keys = static_cast<double>(CountPairs(rule, pos, pos + 1)) * static_cast<double>(num_heads);
    work.attention_flops += keys * FlopsPerPair(*args.config);
    const KvFormat format = rule.Bounded() ? args.kv_formats.bounded : args.kv_formats.full;
    const KvLayout layout = {.head_dim = args.config->head_dim, .page_tokens = args.page_tokens, .format = format};
    work.kv_bytes += static_cast<double>(num_heads) * KvReadBytes(rule, layout, pos);
  }
  return work;
}

Bound BoundOf(const Work& work, const Peaks& peaks) {
  return {.memory_seconds = work.bytes() / peaks.bytes_per_second,
          .compute_seconds = work.linear_flops / peaks.linear_flops + work.attention_flops / peaks.attention_flops};
}

}  // namespace headwise
