// Any bytes as a safetensors file: an error, or entries that lie inside the file and are of the sizes they claim.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto entries = headwise::ParseSafetensorsHeader(file, "fuzz");
  if (!entries.ok()) {
    HW_CHECK(entries.status().message().starts_with("fuzz"), "{}", entries.status().message());
    return 0;
  }
  for (const auto& [name, entry] : *entries) {
    HW_CHECK(entry.begin <= entry.end && entry.end <= size, "{}: {} to {} of {}", name, entry.begin, entry.end, size);
    for (const int64_t dim : entry.shape) HW_CHECK(dim >= 0, "{}: {}", name, dim);
  }
  return 0;
}
