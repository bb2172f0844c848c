#include "weights/weight_source.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>

namespace headwise {

Result<ConstTensorView> WeightSource::Get(std::string_view name, const Shape& shape) const {
  HW_ASSIGN_OR_RETURN(const ConstTensorView view, Get(name));
  if (view.shape != shape || view.dtype == DType::kI32) {
    return Status::InvalidInput(fmt::format("{}: tensor \"{}\" is {} {}, expected {} of f32, f16 or bf16", origin(),
                                            name, NameOf(view.dtype), view.shape.ToString(), shape.ToString()));
  }
  return view;
}

std::string SourceHash(const WeightSource& source) {
  constexpr int64_t kHashedBytes = 4096;
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
  for (const std::string& name : source.Names()) {
    const auto view = source.Get(name);
    if (!view.ok()) continue;  // buffers of other formats are not weights
    const std::string line = fmt::format("{} {} {}\n", name, NameOf(view->dtype), view->shape.ToString());
    EVP_DigestUpdate(context, line.data(), line.size());
    EVP_DigestUpdate(context, view->data, static_cast<size_t>(std::min(kHashedBytes, view->size_bytes())));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_DigestFinal_ex(context, digest, &size);
  EVP_MD_CTX_free(context);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace headwise
