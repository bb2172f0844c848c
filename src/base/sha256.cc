#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/check.h"

namespace headwise {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  HW_CHECK(context_->evp != nullptr && EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t size_bytes) {
  HW_CHECK(EVP_DigestUpdate(context_->evp, data, size_bytes) == 1);
}

std::string Sha256::Hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size_bytes = 0;
  HW_CHECK(EVP_DigestFinal_ex(context_->evp, digest, &size_bytes) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size_bytes; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

std::string Sha256Hex(std::string_view text) {
  Sha256 hash;
  hash.Update(text);
  return hash.Hex();
}

}  // namespace headwise
