// Times every operation of a model alone, on data that lies where a model's does, and counts the work it cannot do
// without. Measuring the machine, and putting the two side by side, is the command's business.
#ifndef HEADWISE_BENCH_OP_BENCH_H_
#define HEADWISE_BENCH_OP_BENCH_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bench/bench.h"
#include "bench/op_work.h"
#include "model/model.h"

namespace headwise {

// Whose operations are timed.
struct OpSubject {
  ModelConfig config;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Model> model = {};  // in `backend`; null: random weights
  std::vector<DType> weights = {};          // formats of random weights, one after the other; CanQuantize
  // More of the kind of `backend`, for random weights: a backend keeps what it adopts.
  std::function<Result<std::unique_ptr<Backend>>()> new_backend = {};
};

struct OpBenchOptions {
  std::vector<std::string> ops = {};  // of OpNames(); empty: all that the model has
  std::string compute = "auto";       // by each format of the weights; attention goes by the first
  std::vector<KvFormat> kv_formats = {KvFormat::kF16};
  std::vector<int64_t> rows = {1, 8, 512};      // tokens of a step
  std::vector<int64_t> depths = {4096, 65536};  // tokens in the cache before it
  // KV head h has rules[h % size]; each is kFull or kStream.
  std::vector<HeadRule> rules = {HeadRule::Full()};
  int64_t page_tokens = 0;  // 0: by each format, as PageTokensFor
  int64_t reps = 20;        // samples of each line, fewer where they take long
  int64_t cycle_bytes = 0;  // that calls cycle through, at least, where the model has as many; 0: past every cache
  uint64_t seed = 0;
  int num_fill_threads = 1;                                               // that make random weights
  std::function<void(int64_t num_done, int64_t total)> on_progress = {};  // in operations
};

// What was called.
struct OpPoint {
  std::string op = {};      // of OpNames()
  std::string part = {};    // of a layer, where an operation has several: "qkv", "down"
  std::string shape = {};   // in words
  std::string format = {};  // of weights or cache
  std::string heads = {};   // the rule, in words, where it matters
  int64_t rows = 0;
  std::optional<int64_t> depth = {};
  OpWork work = {};
  Compute numbers = Compute::kF32;  // in which products are computed
  int64_t cycled_bytes = 0;         // of weights, pages and activations that calls go through before they come again
};

struct OpLine {
  OpPoint point;
  Timing timing;                 // of one call
  int64_t calls_per_sample = 1;  // more than one where a call is too short for the clock
  bool is_cached = false;        // what is cycled through fits in the last-level cache
};

// "matmul", "attention-decode", ...
std::vector<std::string> OpNames();

// Unknown operations, sizes below 1, a format that the shape's rows do not fit, and an operation asked for by name that
// this model or these sizes do not have are errors. Runs nothing.
Status CheckOpBench(const OpSubject& subject, const OpBenchOptions& options);

// Lines in the order of OpNames().
Result<std::vector<OpLine>> RunOpBench(const OpSubject& subject, const OpBenchOptions& options);

}  // namespace headwise

#endif  // HEADWISE_BENCH_OP_BENCH_H_
