#include "eval/work_counts.h"

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
  return BytesOf(linear.weight) + BytesOf(linear.bias);
}
int64_t BytesOf(const NormWeights& norm) {
  return BytesOf(norm.weight) + BytesOf(norm.bias);
}

// Keys, the mean among them, that the query at `pos` reads.
int64_t KeysOf(const ResolvedRule& rule, int64_t pos) {
  // The last query of a prompt after which a rule holds still reads all of it; KeptRanges is what the cut leaves.
  if (pos < rule.holds_from) return std::min(pos + 1, rule.recent_before);
  const TokenRange folded = FoldedRange(rule, pos + 1);
  return NumKeptTokens(rule, pos + 1) + (folded.end > folded.begin ? 1 : 0);
}

// Rules of a plan, each with the number of KV heads under it: plans have few different ones.
std::vector<std::pair<ResolvedRule, int64_t>> DistinctRules(const HeadPlan& plan, const SequenceLimits& limits) {
  std::vector<std::pair<ResolvedRule, int64_t>> distinct;
  for (const HeadRule& rule : plan.rules) {
    const ResolvedRule resolved = ResolveRule(rule, limits);
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

WeightCounts CountWeights(const ModelWeights& weights) {
  WeightCounts counts;
  for (const LayerWeights& layer : weights.layers) {
    for (const LinearWeights* linear : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      counts.layer_params += ParamsOf(*linear);
      counts.read_bytes += BytesOf(*linear);
    }
    counts.read_bytes += BytesOf(layer.norm) + BytesOf(layer.mlp_norm) + BytesOf(layer.sink_logits);
  }
  counts.output_params = ParamsOf(weights.output);
  counts.read_bytes += BytesOf(weights.output) + BytesOf(weights.final_norm);
  return counts;
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
  for (const auto& [rule, num_heads] : DistinctRules(*args.plan, args.limits)) {
    work.attention_flops += static_cast<double>(CountPairs(rule, depth, depth + num_tokens)) *
                            static_cast<double>(num_heads) * FlopsPerPair(*args.config);
  }
  return work;
}

Work DecodeWork(const WorkArgs& args, int64_t pos) {
  Work work;
  work.linear_flops = 2.0 * static_cast<double>(args.weights.layer_params + args.weights.output_params);
  work.weight_bytes = static_cast<double>(args.weights.read_bytes);
  for (const auto& [rule, num_heads] : DistinctRules(*args.plan, args.limits)) {
    const double keys = static_cast<double>(CountPairs(rule, pos, pos + 1)) * static_cast<double>(num_heads);
    work.attention_flops += keys * FlopsPerPair(*args.config);
    work.kv_bytes +=
        keys * static_cast<double>(rule.Bounded() ? args.kv_token_bytes_bounded : args.kv_token_bytes_full);
  }
  return work;
}

Bound BoundOf(const Work& work, const Peaks& peaks) {
  return {.memory_seconds = work.bytes() / peaks.bytes_per_second,
          .compute_seconds = work.linear_flops / peaks.linear_flops + work.attention_flops / peaks.attention_flops};
}

}  // namespace headwise
