#include "base/process_memory.h"

#include <malloc.h>

#include <fstream>
#include <sstream>
#include <string>

namespace headwise {

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kilobytes = 0;
    words >> name >> kilobytes;
    if (name == "VmRSS:") memory.resident_bytes = kilobytes * 1024;
    if (name == "RssAnon:") memory.resident_anon_bytes = kilobytes * 1024;
    if (name == "VmHWM:") memory.peak_resident_bytes = kilobytes * 1024;
  }
  return memory;
}

void ResetPeakResident() {
  std::ofstream("/proc/self/clear_refs") << "5\n";  // man proc: 5 resets VmHWM to VmRSS
}

void ReturnFreeMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace headwise
