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
  // Pages of tokens that are written as kQ8 and made smaller once they are complete and no longer the newest (AgeKv in
  // backend/ops.h). element = scale * code + low, code = (element - low) / scale to nearest in 0 .. 15, with scale =
  // f16((high - low) / 15) and low = f16(low), where low .. high is what the elements span as kQ8 has them; a scale of
  // 0 has codes 0. Keys have one scale and one low for a dimension of all tokens of a page, values for 32 dimensions of
  // a token: keys have dimensions that are large in every token. [KIVI §3]
  kQ4,
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

// What tokens are written in: kQ8 for kQ4, otherwise the format itself.
KvFormat NewestFormat(KvFormat format);

// Tokens of a page: `asked`, or where it is 0 what suits the format of heads that keep every token. 64 if their pages
// age: scales take fewer bytes, decoding prepares its queries for fewer pages, and more of the newest tokens stay as
// they were written (docs/kv-formats.md). 32 otherwise: windows and sinks are rounded up to whole pages. The error
// speaks of the option page_tokens.
Result<int64_t> PageTokensFor(int64_t asked, KvFormat full);

// Bytes that keys and values of `num_tokens` tokens of one page of one KV head take, scales included, padding left out.
int64_t TokensBytes(KvFormat format, int64_t head_dim, int64_t num_tokens);

}  // namespace headwise

#endif  // HEADWISE_BACKEND_KV_FORMAT_H_
