// The ceilings of this machine's CPU (backend/ceilings.h).
#ifndef HEADWISE_BACKEND_CPU_CEILINGS_H_
#define HEADWISE_BACKEND_CPU_CEILINGS_H_

#include <headwise/status.h>

#include <string>

#include "backend/ceilings.h"

namespace headwise::cpu {

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
