// Every backend of this build, by name. Only apps, benches, tests and the engine's factory use it; all other code is
// handed a Backend&.
#ifndef HEADWISE_BACKEND_ALL_BACKENDS_H_
#define HEADWISE_BACKEND_ALL_BACKENDS_H_

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/ceilings.h"

namespace headwise {

struct BackendOptions {
  std::string name = "cpu";  // "cpu", "cuda", "ref", or "auto": cuda where a GPU is, else cpu
  std::string isa = "auto";  // cpu only
  int num_threads = 0;       // cpu only; 0: one per core
  // Backend::is_batch_invariant(); "auto" is cpu then.
  bool batch_invariant = false;
  int64_t expert_bytes = 0;  // cpu only: EngineOptions::expert_bytes
};

// An unknown name, or an instruction set that this machine lacks, is an error that lists what there is. So is a backend
// that cannot be batch-invariant and is asked to be.
Result<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);

std::vector<std::string> BackendNames();

// Of the memory that `backend` keeps caches in, what is free now; 0 where nobody tells.
int64_t FreeMemoryBytes(const Backend& backend);

// What the machine can do at most on which `backend`, made of `options`, works. Takes about a second, and memory:
// four times the last-level cache (at least 512 MiB), of a GPU 4 GiB.
Result<Ceilings> MeasureCeilings(const BackendOptions& options, Backend& backend);
// The read bandwidth alone, bytes per second.
Result<double> MeasureReadBandwidth(const BackendOptions& options, Backend& backend);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_ALL_BACKENDS_H_
