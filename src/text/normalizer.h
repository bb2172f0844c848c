// The "normalizer" of a tokenizer.json: what is done to text before it is cut into words.
#ifndef HEADWISE_TEXT_NORMALIZER_H_
#define HEADWISE_TEXT_NORMALIZER_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/byte_range.h>
#include <headwise/status.h>

#include "base/json.h"
#include "text/chars_map.h"
#include "text/regex.h"

namespace headwise {

// A step that multiplies its text beyond this is a malformed file: a few such steps in a row would fill the memory. The
// bytes are for what stands before or in place of a short text, of which a long one may have many between its tokens.
inline constexpr size_t kMaxTextGrowth = 64;
inline constexpr size_t kMaxTextGrowthBytes = 1 << 10;
inline constexpr size_t kMaxPipelineSteps = 64;
inline constexpr int kMaxPipelineDepth = 8;

class Normalizer {
 public:
  // Does nothing to a text.
  Normalizer() = default;

  // `value` is the normalizer object or null.
  static Result<Normalizer> FromJson(const Json& value, std::string_view origin);

  // Requires: text is valid UTF-8. So is what comes back. `marks`, sorted ranges of the text that end with characters,
  // become those of what was made of them; where a step does not tell, all of the text is marked.
  // `drops_start`, if not null, tells whether the text's first character is gone.
  Result<std::string> Apply(std::string text, std::vector<ByteRange>* marks = nullptr,
                            bool* drops_start = nullptr) const;

 private:
  enum class Kind {
    kPrepend,
    kReplace,
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kLowercase,
    kStrip,
    kStripAccents,
    kByteLevel,
    kPrecompiled,
  };
  struct Step {
    Kind kind;
    std::string content = {};         // kPrepend, kReplace
    std::vector<Regex> pattern = {};  // kReplace: exactly one
    bool strip_left = false;          // kStrip
    bool strip_right = false;
    std::optional<CharsMap> map = std::nullopt;  // kPrecompiled
  };

  Status Add(const Json& value, std::string_view origin, int depth);
  Status AddStep(Step step, std::string_view origin);
  Status AddPrecompiled(const JsonObject& object);
  // `original_bytes` of text there were before the first step.
  Result<std::string> ApplyStep(const Step& step, std::string text, size_t original_bytes) const;
  // Whether the step takes away the first character of `text`.
  Result<bool> DropsStart(const Step& step, std::string_view text) const;
  // Where `marks` lie in `after`, which the step has made of `before`.
  Result<std::vector<ByteRange>> MoveMarks(const Step& step, std::string_view before, std::string_view after,
                                           std::span<const ByteRange> marks) const;
  Result<std::string> ApplyCharsMap(const CharsMap& map, std::string_view text, size_t original_bytes) const;
  // Every match replaced by the content, taken literally.
  Result<std::string> ReplaceAll(const Step& step, std::string_view text, size_t original_bytes) const;

  std::vector<Step> steps_;
  std::string origin_;
};

// A {"String": ...} or {"Regex": ...} object of a tokenizer.json.
Result<Regex> PatternFromJson(const Json& value, std::string_view origin);

// An error when `text_bytes` is more than the growth limits allow for a text that began with `original_bytes`.
Status CheckGrowth(size_t text_bytes, size_t original_bytes, std::string_view origin);

}  // namespace headwise

#endif  // HEADWISE_TEXT_NORMALIZER_H_
