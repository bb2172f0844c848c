// The number formats of the KV cache.
#ifndef HEADWISE_BACKEND_KV_FORMAT_H_
#define HEADWISE_BACKEND_KV_FORMAT_H_

#include <headwise/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace headwise {

enum class KvFormat : uint8_t {
  kF32,
  kF16,
  kBF16,
  // Key and value of a token are each one f16 scale, their largest magnitude / 127, and an int8 code per dimension:
  // element = scale * code, code = element / scale to nearest. A row with NaN or infinity is NaN throughout.
  kQ8,
};

std::string_view NameOf(KvFormat format);  // "f32", "bf16", "q8", ...
// The error speaks of the option kv_dtype and lists every name.
Result<KvFormat> KvFormatByName(std::string_view name);

// Heads that keep every token may have another format than heads that drop some.
struct KvFormats {
  KvFormat full = KvFormat::kF16;
  KvFormat bounded = KvFormat::kF16;

  friend bool operator==(const KvFormats&, const KvFormats&) = default;
};
std::string NameOf(const KvFormats& formats);  // "f16", or two with a comma: "q8,f16"
Result<KvFormats> KvFormatsByName(std::string_view names);

// Bytes that key and value of one token of one KV head take, scales included, padding left out.
int64_t TokenBytes(KvFormat format, int64_t head_dim);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_KV_FORMAT_H_
