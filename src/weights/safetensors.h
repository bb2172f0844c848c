// The safetensors format: an 8-byte little-endian header length, a JSON header of names, dtypes, shapes and byte
// ranges, then the bytes. Read in place from a mapped file; nothing of a file is trusted.
#ifndef HEADWISE_WEIGHTS_SAFETENSORS_H_
#define HEADWISE_WEIGHTS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

#include "tensor/tensor.h"

namespace headwise {

struct SafetensorsEntry {
  std::string dtype;  // as written: "BF16", "F32", "I64", ...
  std::vector<int64_t> shape;
  size_t begin = 0;  // bytes from the start of the file
  size_t end = 0;
};

// By name. Every offset is inside the file, no two tensors overlap, and sizes agree with shape and dtype where the
// dtype is known.
Result<std::map<std::string, SafetensorsEntry, std::less<>>> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                                                    const std::string& origin);

struct NamedTensor {
  std::string name;
  ConstTensorView view;  // host memory
};
// Replaces `path` in one step.
Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_SAFETENSORS_H_
