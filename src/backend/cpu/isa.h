// Which instruction sets this build has kernels for, and which of them this machine can run.
#ifndef HEADWISE_BACKEND_CPU_ISA_H_
#define HEADWISE_BACKEND_CPU_ISA_H_

#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

#include "backend/cpu/kernels/kernels.h"

namespace headwise::cpu {

struct Isa {
  std::string_view name;
  std::string_view description;
  const KernelTable* kernels;
  bool runs_here;
};

// Best first.
std::vector<Isa> AllIsas();
// The tables of those that run here, best first.
std::vector<const KernelTable*> AvailableKernelTables();
// Why not the best instruction set of the processor, where the system keeps it from this process; else empty.
std::string WhyNotBest(const KernelTable& kernels);
// "auto" or a name. Unknown, or not of this machine: an error that lists what there is.
Result<const KernelTable*> FindKernels(const std::string& name);

}  // namespace headwise::cpu

#endif  // HEADWISE_BACKEND_CPU_ISA_H_
