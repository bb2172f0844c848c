// The "pre_tokenizer" of a tokenizer.json: cuts text into the words inside which BPE merges.
#ifndef HEADWISE_TEXT_PRE_TOKENIZER_H_
#define HEADWISE_TEXT_PRE_TOKENIZER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <headwise/status.h>

#include "base/json.h"
#include "text/regex.h"

namespace headwise {

enum class TextPosition { kStartOfText, kLater };

// A text cut into words. Steps that rewrite words replace `buffer`.
struct Words {
  std::string buffer;
  std::vector<TextSpan> spans;  // not empty, in order, inside `buffer`
  // Whether the first span begins where the whole text begins.
  TextPosition first = TextPosition::kLater;

  std::string_view At(size_t i) const {
    return std::string_view(buffer).substr(spans[i].begin, spans[i].end - spans[i].begin);
  }
};

class PreTokenizer {
 public:
  // Leaves a text as one word.
  PreTokenizer() = default;

  // `value` is the pre_tokenizer object or null.
  static Result<PreTokenizer> FromJson(const Json& value, std::string_view origin);

  // `position` says whether `text` begins the whole text or follows an added token. Requires: text is valid UTF-8.
  Result<Words> Split(std::string text, TextPosition position) const;

 private:
  enum class Kind { kSplit, kCharacters, kByteLevel, kMetaspace };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class PrependScheme { kAlways, kFirst, kNever };
  using CharacterClass = bool (*)(char32_t);
  struct Step {
    Kind kind;
    Behavior behavior = Behavior::kIsolated;                // kSplit, kCharacters
    bool invert = false;                                    // kSplit
    std::vector<Regex> pattern = {};                        // kSplit; kByteLevel unless use_regex is false
    CharacterClass character_class = nullptr;               // kCharacters
    std::string content = {};                               // kMetaspace: the replacement
    bool add_prefix_space = false;                          // kByteLevel
    PrependScheme prepend_scheme = PrependScheme::kAlways;  // kMetaspace
    bool split = true;                                      // kMetaspace
  };
  struct Match {
    TextSpan span;
    bool is_match;
  };

  Status Add(const Json& value, std::string_view origin, int depth);
  Status AddSplit(const JsonObject& object);
  Status AddByteLevel(const JsonObject& object);
  Status AddMetaspace(const JsonObject& object);
  Status AddStep(Step step, std::string_view origin);
  static Result<Behavior> BehaviorFromJson(const JsonObject& object, const char* otherwise);

  static Result<Words> ApplyStep(const Step& step, const Words& words, PatternBudget& budget);
  static Words ApplyByteLevelPrefix(const Words& words);
  static Words ApplyByteLevelAlphabet(const Words& words);
  static Words ApplyMetaspace(const Step& step, const Words& words);
  // Cuts every word by the matches that `find` appends for it.
  template <typename Find>
  static Result<Words> Cut(const Words& words, Behavior behavior, Find find);
  static std::vector<Match> Merge(const std::vector<Match>& matches, Behavior behavior);

  std::vector<Step> steps_;
  std::string origin_;
};

}  // namespace headwise

#endif  // HEADWISE_TEXT_PRE_TOKENIZER_H_
