#include "device/device.h"

#include <chrono>

#include "base/cpu_info.h"

namespace headwise {

Result<double> Device::TimeOf(const std::function<void()>& put) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  put();
  HW_RETURN_IF_ERROR(Wait());
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int64_t Device::CacheBytes() const {
  return LastLevelCacheBytes();
}
int64_t Device::MemoryBytes() const {
  return PhysicalMemoryBytes();
}

}  // namespace headwise
