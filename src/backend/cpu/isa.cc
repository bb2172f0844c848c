#include "backend/cpu/isa.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/cpu_info.h"

namespace headwise::cpu {

std::vector<Isa> AllIsas() {
  std::vector<Isa> isas;
#if defined(HEADWISE_X86)
  const CpuFeatures features = DetectCpuFeatures();
  const bool has_avx512 = features.avx2 && features.avx512 && features.avx512_vnni && features.avx512_bf16;
  isas.push_back({"amx", "tile registers of bf16 and int8 beside AVX-512", &amx::kKernelTable,
                  has_avx512 && features.amx && AskForTiles()});
  isas.push_back({"avx512", "AVX-512 with VNNI and BF16", &avx512::kKernelTable, has_avx512});
  isas.push_back({"avx2", "AVX2, FMA, F16C", &avx2::kKernelTable, features.avx2});
#endif
  isas.push_back({"baseline", "what every supported machine has", &baseline::kKernelTable, true});
  isas.push_back({"amx_emulated", "amx in plain loops, for tests", &amx_emulated::kKernelTable, true});
  return isas;
}

std::vector<const KernelTable*> AvailableKernelTables() {
  std::vector<const KernelTable*> tables;
  for (const Isa& isa : AllIsas()) {
    if (isa.runs_here) tables.push_back(isa.kernels);
  }
  return tables;
}

std::string WhyNotBest([[maybe_unused]] const KernelTable& kernels) {
#if defined(HEADWISE_X86)
  if (&kernels == &avx512::kKernelTable && DetectCpuFeatures().amx && !AskForTiles()) {
    return "the system refuses this process the tile registers of amx";
  }
#endif
  return "";
}

Result<const KernelTable*> FindKernels(const std::string& name) {
  if (name == "auto") return AvailableKernelTables().front();
  std::vector<std::string_view> names;
  for (const Isa& isa : AllIsas()) {
    if (isa.name == name && isa.runs_here) return isa.kernels;
    if (isa.name == name) {
      return Status::Unsupported(
          fmt::format("instruction set \"{}\" ({}): this machine does not have it", name, isa.description));
    }
    names.push_back(isa.name);
  }
  return Status::InvalidInput(
      fmt::format("instruction set \"{}\" is unknown, expected auto or one of: {}", name, fmt::join(names, ", ")));
}

}  // namespace headwise::cpu
