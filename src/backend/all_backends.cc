#include "backend/all_backends.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"

namespace headwise {

std::vector<std::string> BackendNames() {
  return {"cpu", "ref"};
}

Result<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.name == "ref") return MakeRefBackend();
  if (options.name == "cpu") return MakeCpuBackend({.isa = options.isa, .num_threads = options.num_threads});
  return Status::InvalidInput(
      fmt::format("backend \"{}\" is unknown, expected one of: {}", options.name, fmt::join(BackendNames(), ", ")));
}

}  // namespace headwise
