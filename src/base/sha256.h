// SHA-256, for telling files and results apart.
#ifndef HEADWISE_BASE_SHA256_H_
#define HEADWISE_BASE_SHA256_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace headwise {

class Sha256 {
 public:
  Sha256();
  Sha256(Sha256&&) noexcept;
  ~Sha256();

  void Update(const void* data, size_t size_bytes);
  void Update(std::string_view text) { Update(text.data(), text.size()); }
  // 64 hexadecimal digits. Call once, last.
  std::string Hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_BASE_SHA256_H_
