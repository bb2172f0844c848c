// Numbers and texts as bytes of a file, least significant byte first, and back from bytes that may be anything.
#ifndef HEADWISE_BASE_BYTE_STREAM_H_
#define HEADWISE_BASE_BYTE_STREAM_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace headwise {

static_assert(std::endian::native == std::endian::little, "values are copied as they lie in memory");

class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Put(T value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  // With its length in front.
  void PutText(std::string_view text) {
    Put(static_cast<uint64_t>(text.size()));
    bytes_.append(text);
  }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void PutAll(std::span<const T> values) {
    PutText({reinterpret_cast<const char*>(values.data()), values.size_bytes()});
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Once something was not there, ok() is false and every value is zero or empty. Borrows the bytes.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T Get() {
    T value{};
    const std::string_view from = Take(sizeof(T));
    if (from.size() == sizeof(T)) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  // 0 or 1, anything else is an error.
  bool GetBool() {
    const auto value = Get<uint8_t>();
    if (value > 1) is_ok_ = false;
    return value == 1;
  }
  std::string_view GetText() { return Take(Get<uint64_t>()); }
  template <typename T>
  requires std::is_arithmetic_v<T> std::vector<T> GetAll() {
    const std::string_view from = GetText();
    if (from.size() % sizeof(T) != 0) is_ok_ = false;
    std::vector<T> values(is_ok_ ? from.size() / sizeof(T) : 0);
    if (!values.empty()) std::memcpy(values.data(), from.data(), from.size());
    return values;
  }

  bool ok() const { return is_ok_; }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view Take(uint64_t size) {
    if (!is_ok_ || size > bytes_.size()) {
      is_ok_ = false;
      return {};
    }
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }

  std::string_view bytes_;
  bool is_ok_ = true;
};

}  // namespace headwise

#endif  // HEADWISE_BASE_BYTE_STREAM_H_
