// Backends for tests that need no model: every one, and every instruction set of this machine.
#ifndef HEADWISE_TESTS_SUPPORT_BACKENDS_H_
#define HEADWISE_TESTS_SUPPORT_BACKENDS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isa.h"
#include "backend/ref/ref_backend.h"

namespace headwise {

struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};

inline std::vector<NamedBackend> CpuBackends() {
  std::vector<NamedBackend> backends;
  for (const cpu::KernelTable* kernels : cpu::AvailableKernelTables()) {
    backends.push_back({kernels->isa, MakeCpuBackend({.isa = kernels->isa, .num_threads = 2}).value()});
  }
  return backends;
}

inline std::vector<NamedBackend> AllBackends() {
  std::vector<NamedBackend> backends = CpuBackends();
  backends.insert(backends.begin(), NamedBackend{"ref", MakeRefBackend()});
  return backends;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_BACKENDS_H_
