#include "backend/all_backends.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backend/cpu/ceilings.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/process_memory.h"

namespace headwise {

std::vector<std::string> BackendNames() {
  return {"auto", "cpu", "cuda", "ref"};
}

#ifndef HEADWISE_CUDA
Result<std::unique_ptr<Backend>> MakeCudaBackend() {
  return Status::Unsupported("backend cuda: this build has none; one with HEADWISE_CUDA=ON has");
}
Result<Ceilings> MeasureCudaCeilings(Backend& /*backend*/) {
  return MakeCudaBackend().status();
}
Result<double> MeasureCudaReadBandwidth(Backend& /*backend*/) {
  return MakeCudaBackend().status();
}
int64_t FreeCudaMemoryBytes() {
  return 0;
}
#endif

Result<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.expert_bytes > 0 && (options.name == "ref" || options.name == "cuda")) {
    return Status::Unsupported(
        fmt::format("backend {}: expert_bytes is {}, expected 0: only the backend cpu keeps some experts in memory and "
                    "reads others when they are chosen",
                    options.name, options.expert_bytes));
  }
  if (options.name == "ref") return MakeRefBackend();
  if (options.name == "cuda") {
    if (!options.batch_invariant) return MakeCudaBackend();
    return Status::Unsupported(
        "backend cuda: cannot be batch-invariant, its products of few and of many rows sum in different orders; "
        "expected backend cpu or ref");
  }
  if (options.name == "auto" && !options.batch_invariant && options.expert_bytes == 0) {
    Result<std::unique_ptr<Backend>> cuda = MakeCudaBackend();
    if (cuda.ok() || cuda.status().code() != StatusCode::kUnsupported) return cuda;
  }
  if (options.name == "cpu" || options.name == "auto") {
    return MakeCpuBackend({.isa = options.isa,
                           .num_threads = options.num_threads,
                           .batch_invariant = options.batch_invariant,
                           .expert_bytes = options.expert_bytes});
  }
  return Status::InvalidInput(
      fmt::format("backend \"{}\" is unknown, expected one of: {}", options.name, fmt::join(BackendNames(), ", ")));
}

int64_t FreeMemoryBytes(const Backend& backend) {
  return backend.name() == "cuda" ? FreeCudaMemoryBytes() : AvailableMemoryBytes();
}

Result<Ceilings> MeasureCeilings(const BackendOptions& options, Backend& backend) {
  if (backend.name() == "cuda") return MeasureCudaCeilings(backend);
  return cpu::MeasureCeilings({.isa = options.isa, .num_threads = options.num_threads});
}

Result<double> MeasureReadBandwidth(const BackendOptions& options, Backend& backend) {
  if (backend.name() == "cuda") return MeasureCudaReadBandwidth(backend);
  return cpu::MeasureReadBandwidth({.isa = options.isa, .num_threads = options.num_threads});
}

}  // namespace headwise
