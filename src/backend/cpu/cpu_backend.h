// The SIMD backend: kernels per instruction set, chosen at run time, spread over a thread pool. Results do not depend
// on the number of threads, bit for bit.
#ifndef HEADWISE_BACKEND_CPU_CPU_BACKEND_H_
#define HEADWISE_BACKEND_CPU_CPU_BACKEND_H_

#include <memory>
#include <string>

#include "backend/backend.h"

namespace headwise {

struct CpuOptions {
  std::string isa = "auto";  // "amx", "avx512", "avx2", "baseline"; auto takes the best of this machine
  int num_threads = 0;       // 0: one per core this process may use
  // Every row takes the same sums, however many there are: Backend::is_batch_invariant().
  bool batch_invariant = false;
  int64_t expert_bytes = 0;  // EngineOptions::expert_bytes; 0: all experts
};

// An instruction set that is unknown or that this machine lacks is an error.
Result<std::unique_ptr<Backend>> MakeCpuBackend(const CpuOptions& options);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_CPU_CPU_BACKEND_H_
