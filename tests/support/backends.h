// Backends for tests that need no model: every one, and every instruction set of this machine.
#ifndef HEADWISE_TESTS_SUPPORT_BACKENDS_H_
#define HEADWISE_TESTS_SUPPORT_BACKENDS_H_

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/all_backends.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/ref/ref_backend.h"
#include "support/test_device.h"

namespace headwise {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

inline std::vector<NamedBackend> CpuBackends(bool batch_invariant = false) {
  std::vector<NamedBackend> backends;
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    const CpuOptions options{.isa = kernels->isa, .num_threads = 2, .batch_invariant = batch_invariant};
    backends.push_back({kernels->isa, MakeCpuBackend(options).value()});
  }
  return backends;
}

// With HEADWISE_TEST_DEVICE=cuda in the environment it is that one alone.
inline std::vector<NamedBackend> AllBackends() {
  if (IsTestDevice("cuda")) {
    auto cuda = MakeBackend({.name = "cuda"});
    if (!cuda.ok()) {
      std::fprintf(stderr, "all of it is skipped: %s\n", cuda.status().message().c_str());
      std::exit(77);
    }
    std::vector<NamedBackend> backends;
    backends.push_back({"cuda", *std::move(cuda)});
    return backends;
  }
  std::vector<NamedBackend> backends = CpuBackends();
  backends.insert(backends.begin(), NamedBackend{"ref", MakeRefBackend()});
  return backends;
}

// Whether the backend multiplies many rows in `compute`, or why not.
inline Status CanMultiplyIn(Compute compute, Backend& backend) {
  static const std::vector<float> ones(16 * 16, 1.0f);
  HW_ASSIGN_OR_RETURN(const WeightMatrix matrix,
                      backend.AdoptWeights(ConstTensorView(ones.data(), DType::kF32, {16, 16})));
  return backend.PrepareProducts(matrix, compute);
}

// What every backend multiplies in, and bytes with long scales where this one does.
inline std::vector<Compute> ComputesOf(Backend& backend) {
  std::vector<Compute> computes = {Compute::kF32, Compute::kBF16, Compute::kInt8};
  if (CanMultiplyIn(Compute::kW8A8, backend).ok()) computes.push_back(Compute::kW8A8);
  return computes;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_BACKENDS_H_
