// What this machine can do at most, measured: how fast its memory is read and how many operations its registers do.
// Clouds hand out different machines on different days, so a speed means something only as a share of these, taken in
// the same run on the same number of threads.
#ifndef HEADWISE_BACKEND_CPU_CEILINGS_H_
#define HEADWISE_BACKEND_CPU_CEILINGS_H_

#include <headwise/status.h>

#include <string>

#include "backend/ops.h"

namespace headwise::cpu {

struct Ceilings {
  std::string isa;
  int num_threads = 0;
  double read_bytes_per_second = 0;
  double f32_flops = 0;       // operations per second; a multiply-add is two
  double bf16_dot_flops = 0;  // the f32 figure where the instruction set has no bf16 dot product
  bool has_bf16_dot = false;
  double int8_dot_flops = 0;  // the f32 figure where the instruction set has no int8 dot product
  bool has_int8_dot = false;

  // What products in `compute` can reach.
  double flops(Compute compute) const {
    return compute == Compute::kF32 ? f32_flops : compute == Compute::kBF16 ? bf16_dot_flops : int8_dot_flops;
  }
};

struct CeilingOptions {
  std::string isa = "auto";
  int num_threads = 0;  // 0: one per core
};

// Bytes per second, by every thread together. Memory as below.
Result<double> MeasureReadBandwidth(const CeilingOptions& options);

// Takes about a second, and memory of four times the last-level cache (at least 512 MiB) meanwhile.
Result<Ceilings> MeasureCeilings(const CeilingOptions& options);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_CEILINGS_H_
