// GGUF files put together by hand, so that reader and writer are each held to the format and not only to one another.
#ifndef HEADWISE_TESTS_SUPPORT_GGUF_BYTES_H_
#define HEADWISE_TESTS_SUPPORT_GGUF_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwise::gguf_bytes {

// Numbers as they stand in files.
inline constexpr uint32_t kU8 = 0, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10,
                          kI64 = 11;
inline constexpr uint32_t kTensorF32 = 0, kTensorQ8_0 = 8, kTensorQ6_K = 14;

template <typename T>
std::string Number(T number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}
inline std::string Text(std::string_view text) {
  return Number<uint64_t>(text.size()) + std::string(text);
}
inline std::string Key(std::string_view key, uint32_t type, const std::string& value) {
  return Text(key) + Number(type) + value;
}
inline std::string Array(std::string_view key, uint32_t type, uint64_t count, const std::string& values) {
  return Key(key, kArray, Number(type) + Number(count) + values);
}
// Dimensions innermost first, as they stand in the file.
inline std::string Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
  std::string entry = Text(name) + Number(static_cast<uint32_t>(dims.size()));
  for (const uint64_t dim : dims) entry += Number(dim);
  return entry + Number(type) + Number(offset);
}
inline std::string Header(uint32_t version, uint64_t num_tensors, uint64_t num_keys) {
  return "GGUF" + Number(version) + Number(num_tensors) + Number(num_keys);
}

struct FileParts {
  uint32_t version = 3;
  std::vector<std::string> keys = {};
  std::vector<std::string> tensors = {};
  size_t data_bytes = 0;  // 0, 1, 2, ...
  size_t alignment = 32;
};
inline std::string FileOf(const FileParts& parts) {
  std::string file = Header(parts.version, parts.tensors.size(), parts.keys.size());
  for (const std::string& key : parts.keys) file += key;
  for (const std::string& tensor : parts.tensors) file += tensor;
  file.resize((file.size() + parts.alignment - 1) / parts.alignment * parts.alignment);
  for (size_t i = 0; i < parts.data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

}  // namespace headwise::gguf_bytes

#endif  // HEADWISE_TESTS_SUPPORT_GGUF_BYTES_H_
