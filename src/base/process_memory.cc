#include "base/process_memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace headwise {
namespace {

// The number behind `name` in a file of such lines; 0 where there is none.
int64_t NumberAfter(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    int64_t number = 0;
    if (words >> first >> number && first == name) return number;
  }
  return 0;
}

}  // namespace

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

int64_t AvailableMemoryBytes() {
  const int64_t of_machine = NumberAfter("/proc/meminfo", "MemAvailable:") * 1024;
  // Version 2, as a process in a container sees its own group; "max" is no number.
  int64_t limit = 0;
  int64_t used = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return of_machine;
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> used)) return of_machine;
  // Of what counts as used, pages of files that nobody looked at lately are given back first.
  const int64_t left = limit - used + NumberAfter("/sys/fs/cgroup/memory.stat", "inactive_file");
  return std::max<int64_t>(0, std::min(of_machine, left));
}

int64_t ResidentBytes(const void* begin, int64_t bytes) {
  if (bytes <= 0) return 0;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t end = first + static_cast<uintptr_t>(bytes);
  const uintptr_t first_page = first / page * page;
  std::vector<unsigned char> is_there((end - first_page + page - 1) / page);
  if (::mincore(reinterpret_cast<void*>(first_page), end - first_page, is_there.data()) != 0) return bytes;
  int64_t resident = 0;
  for (size_t i = 0; i < is_there.size(); ++i) {
    const uintptr_t from = first_page + i * page;
    if ((is_there[i] & 1) != 0) resident += static_cast<int64_t>(std::min(end, from + page) - std::max(first, from));
  }
  return resident;
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
