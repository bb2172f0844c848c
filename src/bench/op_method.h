// Operations that `bench op` times: each prepares its data and measures one line after the other. A new one is a
// function in bench/ops with one OpMethod and a row in op_bench.cc.
#ifndef HEADWISE_BENCH_OP_METHOD_H_
#define HEADWISE_BENCH_OP_METHOD_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "bench/op_bench.h"

namespace headwise {

struct OpCase {
  OpPoint point;
  std::function<void(int64_t call_idx)> call;
  int64_t period = 1;  // call i + period does what call i does
  // What goes before the calls of a step, once for all of them, where what the host does is not counted.
  std::function<void()> begin_step = {};
  // Before every call and not timed, where a call changes what it reads. Calls are then timed one by one.
  std::function<void()> before = {};
  Device* device = nullptr;  // whose queue is waited for before the clock is read; null: the run's
};

// One operation while it is timed.
class OpRun {
 public:
  OpRun(const OpSubject& subject, const OpBenchOptions& options, std::string_view op, std::vector<OpLine>& lines)
      : subject_(subject), options_(options), op_(op), lines_(lines) {}

  const OpSubject& subject() const { return subject_; }
  const OpBenchOptions& options() const { return options_; }
  const ModelConfig& config() const { return subject_.config; }
  Backend& backend() const { return *subject_.backend; }
  // Formats of the weights to time: one, of no meaning, where they are a model's.
  std::vector<DType> WeightFormats() const;
  Result<Compute> ComputeFor(DType weights) const;
  Result<Compute> AttentionCompute() const { return ComputeFor(WeightFormats().front()); }
  // What calls must cycle through at least: more than caches hold, but no more than a model reads between two uses of
  // the same bytes, which is its weights and `kv_bytes`.
  int64_t CycleBytes(DType weights, int64_t kv_bytes = 0) const;
  // A rule in a text that will have `num_tokens`, and that of each KV head [Hkv].
  ResolvedRule Rule(const HeadRule& rule, int64_t num_tokens) const;
  std::vector<ResolvedRule> Rules(int64_t num_tokens) const;

  // Times it and adds its line. An error of the device is one.
  Status Measure(OpCase& op_case) const;

 private:
  const OpSubject& subject_;
  const OpBenchOptions& options_;
  std::string_view op_;
  std::vector<OpLine>& lines_;
};

struct OpMethod {
  std::string_view name;
  Status (*run)(const OpRun& run);
  // What of the options this operation cannot be timed with, or why this model has none of it: an error where it was
  // asked for by name, and left out by `run` otherwise. Null where there is no such thing.
  Status (*check)(const OpRun& run) = nullptr;
};

// bench/ops/matrices.cc
Status TimeMatMul(const OpRun& run);
Status TimeEmbed(const OpRun& run);
Status TimeDraw(const OpRun& run);
// bench/ops/cache.cc
Status TimeAttentionDecode(const OpRun& run);
Status TimeAttentionPrefill(const OpRun& run);
Status CheckAttentionPrefill(const OpRun& run);
Status TimeAppend(const OpRun& run);
Status TimeAge(const OpRun& run);
Status CheckAge(const OpRun& run);
Status TimeCompensate(const OpRun& run);
Status CheckCompensate(const OpRun& run);
// bench/ops/activations.cc
Status TimeNorm(const OpRun& run);
Status TimeRope(const OpRun& run);
Status CheckRope(const OpRun& run);
Status TimeActivate(const OpRun& run);

}  // namespace headwise

#endif  // HEADWISE_BENCH_OP_METHOD_H_
