// Times prefill and decode of one plan through the engine, after checking that what is timed computes something sane.
// Measuring the machine, and putting the two side by side, is the command's business.
#ifndef HEADWISE_BENCH_BENCH_H_
#define HEADWISE_BENCH_BENCH_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace headwise {

// Median and spread, in seconds.
struct Timing {
  double median = 0;
  double min = 0;
  double max = 0;
  int64_t count = 0;
};
// Requires: at least one value.
Timing TimingOf(std::vector<double> seconds);

struct Verification {
  bool repeats = false;           // a second run gave the same logits, bit for bit
  double prefill_difference = 0;  // decode step against the same token read as prompt: |a - b| / |a| over all logits
};

struct PrefillTiming {
  int64_t num_tokens = 0;
  int64_t depth = 0;  // tokens in the cache before
  Timing timing;      // of whole prompts, to the last token's logits
  int64_t kv_bytes = 0;
  int64_t kv_peak_bytes = 0;
};

struct DecodeTiming {
  int64_t depth = 0;          // tokens in each cache before the first timed step
  int64_t batch = 1;          // sequences that decode together
  Timing timing;              // of single steps, which take each sequence's most likely token
  int64_t kv_bytes_full = 0;  // this and the next ones: of all sequences
  int64_t kv_bytes_bounded = 0;
  int64_t kv_peak_bytes = 0;         // prefill included
  double host_seconds = 0;           // of the median step, in which the host did not wait for a device; 0 without one
  double read_bytes_per_second = 0;  // of BenchOptions::measure_read, the better of before and after; 0 without
};

// A chunk of one prompt, read in one step, alone and in a step with a batch of sequences that decode.
struct MixedTiming {
  int64_t depth = 0;  // tokens in each cache that decodes; the prompt has none before
  int64_t batch = 1;
  int64_t chunk_tokens = 0;
  Timing chunk;   // alone
  Timing decode;  // the batch alone
  Timing both;    // in one step
};

struct BenchOptions {
  // What leads to a depth: a real prefill, which is timed as well, or random values, in a fraction of the time.
  enum class Fill { kPrefill, kRandom };

  std::shared_ptr<const HeadPlan> plan = {};  // null: every head full
  std::vector<int64_t> depths = {};
  std::vector<int64_t> prefills = {};
  int64_t prefill_depth = 0;  // tokens in the cache before each of `prefills`
  Fill fill = Fill::kPrefill;
  int64_t num_steps = 20;  // timed decode steps per depth
  int64_t batch = 1;       // sequences that decode together; several only with kRandom
  int64_t mixed = 0;       // tokens of a prompt that is read beside them in one step, with kRandom; 0: none is
  uint64_t seed = 0;       // of the random ids
  std::function<void(int64_t num_read, int64_t total)> on_progress = {};
  // How fast memory is read right now: asked before and after the steps of each depth, because neighbours on the
  // machine come and go. May be empty.
  std::function<Result<double>()> measure_read = {};
};

struct BenchResult {
  Verification verification;
  std::vector<PrefillTiming> prefill;  // ascending; depths that were filled by one are among them
  std::vector<DecodeTiming> decode;    // ascending
  std::vector<MixedTiming> mixed;      // a row for each of `decode`, where it is asked for
};

// What RunBench asks of its options, which needs no model: asked before one is loaded.
Status CheckBench(const BenchOptions& options);

// Random ids are read. An error if logits are not finite, if a run does not repeat itself, or,
// with every head full, if a decode step and a prefill of the same token disagree.
Result<BenchResult> RunBench(Engine& engine, const BenchOptions& options);

}  // namespace headwise

#endif  // HEADWISE_BENCH_BENCH_H_
