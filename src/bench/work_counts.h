// How many operations and bytes a model under a plan cannot do without: what the bounds of `bench` rest on. Counted
// from shapes and rules alone, nothing here runs or measures.
//
// An operation is an addition or a multiplication: a multiply-add counts as two, as in the measured ceilings. Norms,
// rotations, activations and the softmax are left out.
#ifndef HEADWISE_BENCH_WORK_COUNTS_H_
#define HEADWISE_BENCH_WORK_COUNTS_H_

#include <headwise/head_plan.h>

#include <cstdint>

#include "kv/rule.h"
#include "model/model.h"

namespace headwise {

// The matrices and vectors that one token passes through.
struct WeightCounts {
  int64_t layer_params = 0;   // in the matrices of all layers
  int64_t output_params = 0;  // in the output matrix, which only tokens with wanted logits meet
  int64_t read_bytes = 0;     // of everything above, norms and biases: what a decode step reads
};
// Of a layer's experts, `num_chosen` (ExpertsConfig): what one token reads of them.
WeightCounts CountWeights(const ModelWeights& weights, int64_t num_chosen);

// (query, key) pairs that one head under `rule` reads for the queries [begin, end); the mean of dropped keys counts as
// a key.
int64_t CountPairs(const ResolvedRule& rule, int64_t begin, int64_t end);

struct WorkArgs {
  const HeadPlan* plan = nullptr;
  const ModelConfig* config = nullptr;
  WeightCounts weights;
  SequenceLimits limits;
  LayerWindows windows = {};  // of the model
  KvFormats kv_formats;
  int64_t page_tokens = 32;  // decides which tokens are in aged pages
};

struct Work {
  double linear_flops = 0;
  double attention_flops = 0;
  double weight_bytes = 0;
  double kv_bytes = 0;  // keys and values that the rules let the token read, not rounded to pages, as they are stored
  double flops() const { return linear_flops + attention_flops; }
  double bytes() const { return weight_bytes + kv_bytes; }
};

// Bytes of the keys of one KV head that the query at `pos` reads, and of their values, as they are stored; the mean
// counts as a key. `layout` names the head's format.
double KvReadBytes(const ResolvedRule& rule, const KvLayout& layout, int64_t pos);

// Prompt tokens [depth, depth + num_tokens), logits of the last one. Bytes stay 0: they depend on how the backend
// tiles.
Work PrefillWork(const WorkArgs& args, int64_t num_tokens, int64_t depth = 0);
// The one token at position `pos`, with its logits.
Work DecodeWork(const WorkArgs& args, int64_t pos);

struct Peaks {
  double bytes_per_second = 0;
  double linear_flops = 0;     // per second, in the format that matrix products use
  double attention_flops = 0;  // in the format that attention uses
};
struct Bound {
  double memory_seconds = 0;
  double compute_seconds = 0;
  double seconds() const { return memory_seconds > compute_seconds ? memory_seconds : compute_seconds; }
};
// No implementation that computes what is asked is faster than the larger of the two, unless the bytes fit in a cache.
Bound BoundOf(const Work& work, const Peaks& peaks);

}  // namespace headwise

#endif  // HEADWISE_BENCH_WORK_COUNTS_H_
