// What reading the metadata of every architecture has in common: its keys, what the sizes of heads depend on, rotary
// embeddings and windows. Inside model/gguf_*.cc only.
#ifndef HEADWISE_MODEL_GGUF_KEYS_H_
#define HEADWISE_MODEL_GGUF_KEYS_H_

#include <headwise/status.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/json.h"
#include "model/gguf_model.h"
#include "model/gguf_names.h"

namespace headwise {

inline constexpr int64_t kMaxGgufSize = (int64_t{1} << 31) - 1;

// The keys of one architecture, by what stands behind its name. Errors name the file, the key, what was found and what
// was expected.
class GgufKeys {
 public:
  GgufKeys(const GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), architecture_(architecture) {}

  std::string Full(std::string_view key) const;
  bool Has(std::string_view key) const { return metadata_.Has(Full(key)); }

  // 1 to 2^31 - 1.
  Result<int64_t> Size(std::string_view key) const;
  Result<int64_t> SizeOr(std::string_view key, int64_t otherwise) const;
  // A float as config.json had it: 1e-5 where the file has 9.99999974737875e-06.
  Result<double> Number(std::string_view key) const;
  Result<double> NumberOr(std::string_view key, double otherwise) const;
  Result<bool> BoolOr(std::string_view key, bool otherwise) const;
  Result<std::string> StringOr(std::string_view key, std::string otherwise) const;

  Status Wrong(std::string_view key, std::string_view found, std::string_view expected) const;
  Status Unsupported(std::string_view key, std::string_view found, std::string_view expected) const;

 private:
  const GgufMetadata& metadata_;
  std::string architecture_;
};

struct GgufSource {
  const GgufMetadata& metadata;
  const GgufTensorNames& tensors;
  const GgufArchitecture& architecture;
  GgufKeys keys;

  // Whether the first layer has one of these.
  bool HasInLayer(std::initializer_list<std::string_view> names) const;
};

// What the sizes of heads depend on, whatever a family calls it.
struct GgufHeads {
  int64_t model_dim = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
};
Result<GgufHeads> ReadGgufHeads(const GgufSource& source);
// For families whose config has no key for the head dimension.
Status CheckGgufHeadDim(const GgufSource& source, const GgufHeads& heads);

// What query_pre_attn_scalar is, one over the square of the scale of scores, in a file of Gemma 2 or 3 that has no
// attention.scale: readers of the format know the largest model of each by its number of layers.
double UsualGemmaScalar(std::string_view family, int64_t num_layers, const GgufHeads& heads);

// The smallest number not below `part` / `whole` whose product with `whole` is not below `part`: families multiply a
// share and cut off what is behind the point.
double ShareOf(int64_t part, int64_t whole);

// Layers, positions, model dim and heads under the names that most families have for them.
Status AddGgufSizes(const GgufSource& source, const GgufHeads& heads, Json& config);
// The rotary embedding. What LongRoPE divides by is in tensors, which GgufModelConfig adds.
Status AddGgufRope(const GgufSource& source, const GgufHeads& heads, Json& config);
// "sliding_window" and which layers have it, for a family that knows windows. Requires: AddGgufSizes.
Status AddGgufWindows(const GgufSource& source, Json& config);
// "no_rope_layers". Requires: AddGgufSizes.
Status AddGgufUnrotated(const GgufSource& source, Json& config);

}  // namespace headwise

#endif  // HEADWISE_MODEL_GGUF_KEYS_H_
