#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/huge_pages.h"
#include "device/device.h"

namespace headwise {
namespace {

// From here on memory is mapped on its own: zero pages that cost nothing until touched, and gone at once when freed.
constexpr size_t kMapBytes = size_t{64} << 10;

std::byte* Map(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

// A mapping aligned to huge pages: mapped with room to spare, and the spare given back.
std::byte* MapHuge(size_t bytes) {
  if (bytes + kHugePageBytes < bytes) return nullptr;
  const size_t mapped = bytes + kHugePageBytes;
  std::byte* begin = Map(mapped);
  if (begin == nullptr) return nullptr;
  const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  if (before > 0) ::munmap(begin, before);
  std::byte* aligned = begin + before;
  ::munmap(aligned + bytes, mapped - before - bytes);
  AskForHugePages(aligned, bytes);
  return aligned;
}

std::byte* TakeFromHeap(size_t bytes) {
  void* memory = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (memory != nullptr) std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

}  // namespace

Result<std::byte*> HostDevice::Allocate(size_t bytes) {
  if (bytes == 0) return static_cast<std::byte*>(nullptr);
  // Whole multiples lie on huge pages where the system has them: of 4 KiB pages a stream costs a page walk every few
  // hundred nanoseconds, which under virtualisation is a third of the time of reading a long cache.
  std::byte* memory = bytes % kHugePageBytes == 0 ? MapHuge(bytes)
                      : bytes >= kMapBytes        ? Map(bytes)
                                                  : TakeFromHeap(bytes);
  if (memory == nullptr) return Status::OutOfMemory(fmt::format("the system has no memory for {} bytes", bytes));
  return memory;
}

void HostDevice::Free(std::byte* memory, size_t bytes) {
  if (bytes >= kMapBytes) {
    ::munmap(memory, bytes);
  } else {
    std::free(memory);
  }
}

void HostDevice::Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

Result<DeviceBuffer> DeviceBuffer::Make(Device& device, size_t bytes) {
  DeviceBuffer buffer;
  HW_ASSIGN_OR_RETURN(buffer.data_, device.Allocate(bytes));
  buffer.device_ = &device;
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace headwise
