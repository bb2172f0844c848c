#include "text/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "base/base64.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace headwise {
namespace {

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

enum class Composition { kCompose, kDecompose };
enum class Mapping { kCanonical, kCompatibility };

// utf8proc reorders marks by swapping neighbours, which is quadratic in a long run of them; decomposing character by
// character and sorting the runs here keeps any text n log n.
Result<std::string> UnicodeNormalForm(std::string_view text, Composition composition, Mapping mapping) {
  if (IsAscii(text)) return std::string(text);
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (mapping == Mapping::kCompatibility ? UTF8PROC_COMPAT : 0);
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 1);
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    text.remove_prefix(character.size_bytes);
    // The longest decomposition of one character is 18 codes.
    utf8proc_int32_t buffer[32];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(character.code), buffer, std::size(buffer),
                                               static_cast<utf8proc_option_t>(options), &boundary);
    if (count < 0 || count > static_cast<utf8proc_ssize_t>(std::size(buffer))) {
      return Status::InvalidInput(fmt::format("U+{:04X} cannot be decomposed", static_cast<uint32_t>(character.code)));
    }
    codes.insert(codes.end(), buffer, buffer + count);
  }
  const auto combining_class = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto it = codes.begin(); it != codes.end();) {
    if (combining_class(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, codes.end(), [&](auto code) { return combining_class(code) == 0; });
    std::stable_sort(it, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    it = end;
  }
  auto count = static_cast<utf8proc_ssize_t>(codes.size());
  if (composition == Composition::kCompose) {
    count = utf8proc_normalize_utf32(codes.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (count < 0) return Status::InvalidInput(fmt::format("normalization failed: {}", utf8proc_errmsg(count)));
  }
  std::string out;
  for (utf8proc_ssize_t i = 0; i < count; ++i) AppendUtf8(static_cast<char32_t>(codes[static_cast<size_t>(i)]), out);
  return out;
}

std::string Lowercase(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    text.remove_prefix(character.size_bytes);
    if (character.code == 0x130) {
      // The one character whose lower case is two: i and a combining dot.
      out += "i\xCC\x87";
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code))), out);
    }
  }
  return out;
}

std::string StripAccents(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    if (!IsMark(character.code)) out.append(text.substr(0, character.size_bytes));
    text.remove_prefix(character.size_bytes);
  }
  return out;
}

// The bytes of what a reader takes for one character at the start of `text`: a letter and its marks, a flag, CR and LF.
size_t FirstGraphemeBytes(std::string_view text) {
  Utf8Character last = FirstCharacter(text);
  size_t size_bytes = last.size_bytes;
  for (utf8proc_int32_t state = 0; size_bytes < text.size();) {
    const Utf8Character next = FirstCharacter(text.substr(size_bytes));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    last = next;
    size_bytes += next.size_bytes;
  }
  return size_bytes;
}

}  // namespace

Result<Regex> PatternFromJson(const Json& value, std::string_view origin) {
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
  if (object.Has("String")) {
    HW_ASSIGN_OR_RETURN(const std::string text, object.String("String"));
    return Regex::Compile(EscapeForRegex(text), origin);
  }
  HW_ASSIGN_OR_RETURN(const std::string pattern, object.String("Regex"));
  return Regex::Compile(pattern, origin);
}

Result<std::string> Normalizer::ReplaceAll(const Step& step, std::string_view text, size_t original_bytes) const {
  std::vector<TextSpan> matches;
  PatternBudget budget(text.size());
  HW_RETURN_IF_ERROR(step.pattern.front().FindAll(text, budget, matches));
  // Before there is such a text.
  size_t matched_bytes = 0;
  for (const TextSpan& match : matches) matched_bytes += match.end - match.begin;
  const size_t size_bytes = text.size() - matched_bytes + matches.size() * step.content.size();
  HW_RETURN_IF_ERROR(CheckGrowth(size_bytes, original_bytes, origin_));
  std::string out;
  out.reserve(size_bytes);
  size_t at = 0;
  for (const TextSpan& match : matches) {
    out.append(text.substr(at, match.begin - at)).append(step.content);
    at = match.end;
  }
  return out.append(text.substr(at));
}

Result<std::string> Normalizer::ApplyCharsMap(const CharsMap& map, std::string_view text, size_t original_bytes) const {
  // The Hugging Face implementation looks up short graphemes as a whole, and a rule for their beginning replaces all
  // of them; in longer ones, and where no rule is found, it looks up character by character.
  constexpr size_t kLookedUpWholeBytes = 6;
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    std::string_view grapheme = text.substr(0, FirstGraphemeBytes(text));
    text.remove_prefix(grapheme.size());
    const auto whole = grapheme.size() < kLookedUpWholeBytes ? map.ShortestRule(grapheme) : std::nullopt;
    if (whole) {
      out.append(*whole);
      grapheme = {};
    }
    while (!grapheme.empty()) {
      const std::string_view character = grapheme.substr(0, FirstCharacter(grapheme).size_bytes);
      out.append(map.ShortestRule(character).value_or(character));
      grapheme.remove_prefix(character.size());
      HW_RETURN_IF_ERROR(CheckGrowth(out.size(), original_bytes, origin_));
    }
    HW_RETURN_IF_ERROR(CheckGrowth(out.size(), original_bytes, origin_));
  }
  return out;
}

Status CheckGrowth(size_t text_bytes, size_t original_bytes, std::string_view origin) {
  const size_t limit = kMaxTextGrowthBytes + kMaxTextGrowth * original_bytes;
  if (text_bytes <= limit) return Status::Ok();
  return Status::InvalidInput(
      fmt::format("{}: made {} bytes out of {}, expected at most {}", origin, text_bytes, original_bytes, limit));
}

Result<Normalizer> Normalizer::FromJson(const Json& value, std::string_view origin) {
  Normalizer normalizer;
  normalizer.origin_ = fmt::format("{}: normalizer", origin);
  if (!value.is_null()) HW_RETURN_IF_ERROR(normalizer.Add(value, normalizer.origin_, 0));
  return normalizer;
}

Status Normalizer::AddStep(Step step, std::string_view origin) {
  if (steps_.size() == kMaxPipelineSteps) {
    return Status::Unsupported(fmt::format("{}: more than {} steps", origin, kMaxPipelineSteps));
  }
  steps_.push_back(std::move(step));
  return Status::Ok();
}

Status Normalizer::Add(const Json& value, std::string_view origin, int depth) {
  if (depth > kMaxPipelineDepth) return Status::Unsupported(fmt::format("{}: nested too deeply", origin));
  HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(value, origin));
  HW_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type == "Sequence") {
    if (!object.Has("normalizers") || !object.At("normalizers").is_array()) {
      return Status::InvalidInput(fmt::format("{}: a Sequence without a list \"normalizers\"", origin));
    }
    for (const Json& part : object.At("normalizers")) HW_RETURN_IF_ERROR(Add(part, origin, depth + 1));
    return Status::Ok();
  }
  if (type == "Prepend") {
    HW_ASSIGN_OR_RETURN(std::string content, object.String("prepend"));
    return AddStep({.kind = Kind::kPrepend, .content = std::move(content)}, origin);
  }
  if (type == "Replace") {
    if (!object.Has("pattern")) return Status::InvalidInput(fmt::format("{}: a Replace without \"pattern\"", origin));
    Step step{.kind = Kind::kReplace};
    HW_ASSIGN_OR_RETURN(step.content, object.String("content"));
    HW_ASSIGN_OR_RETURN(Regex pattern, PatternFromJson(object.At("pattern"), origin));
    step.pattern.push_back(std::move(pattern));
    return AddStep(std::move(step), origin);
  }
  if (type == "Strip") {
    Step step{.kind = Kind::kStrip};
    HW_ASSIGN_OR_RETURN(step.strip_left, object.BoolOr("strip_left", true));
    HW_ASSIGN_OR_RETURN(step.strip_right, object.BoolOr("strip_right", true));
    return AddStep(std::move(step), origin);
  }
  if (type == "Precompiled") return AddPrecompiled(object);
  constexpr std::pair<std::string_view, Kind> kPlain[] = {
      {"NFC", Kind::kNfc},
      {"NFD", Kind::kNfd},
      {"NFKC", Kind::kNfkc},
      {"NFKD", Kind::kNfkd},
      {"Lowercase", Kind::kLowercase},
      {"StripAccents", Kind::kStripAccents},
      {"ByteLevel", Kind::kByteLevel},
  };
  for (const auto& [name, kind] : kPlain) {
    if (type == name) return AddStep({.kind = kind}, origin);
  }
  return Status::Unsupported(fmt::format("{}: type \"{}\" is not supported", origin, type));
}

Status Normalizer::AddPrecompiled(const JsonObject& object) {
  HW_ASSIGN_OR_RETURN(const std::string text, object.String("precompiled_charsmap"));
  std::optional<std::string> bytes = DecodeBase64(text);
  if (!bytes) {
    return Status::InvalidInput(
        fmt::format("{}: precompiled_charsmap of {} characters, expected base64", object.origin(), text.size()));
  }
  Step step{.kind = Kind::kPrecompiled};
  HW_ASSIGN_OR_RETURN(step.map, CharsMap::Of(*std::move(bytes), object.origin()));
  return AddStep(std::move(step), object.origin());
}

Result<std::string> Normalizer::ApplyStep(const Step& step, std::string text, size_t original_bytes) const {
  switch (step.kind) {
    case Kind::kPrepend:
      return text.empty() ? text : step.content + text;
    case Kind::kReplace:
      return ReplaceAll(step, text, original_bytes);
    case Kind::kNfc:
      return UnicodeNormalForm(text, Composition::kCompose, Mapping::kCanonical);
    case Kind::kNfd:
      return UnicodeNormalForm(text, Composition::kDecompose, Mapping::kCanonical);
    case Kind::kNfkc:
      return UnicodeNormalForm(text, Composition::kCompose, Mapping::kCompatibility);
    case Kind::kNfkd:
      return UnicodeNormalForm(text, Composition::kDecompose, Mapping::kCompatibility);
    case Kind::kLowercase:
      return Lowercase(text);
    case Kind::kStrip: {
      std::string_view rest = text;
      if (step.strip_left) rest = TrimStart(rest);
      if (step.strip_right) rest = TrimEnd(rest);
      return std::string(rest);
    }
    case Kind::kStripAccents:
      return StripAccents(text);
    case Kind::kByteLevel: {
      std::string out;
      AppendByteLevel(text, out);
      return out;
    }
    case Kind::kPrecompiled:
      return ApplyCharsMap(*step.map, text, original_bytes);
  }
  return text;
}

Result<std::vector<ByteRange>> Normalizer::MoveMarks(const Step& step, std::string_view before, std::string_view after,
                                                     std::span<const ByteRange> marks) const {
  const std::vector<ByteRange> everything = {{0, after.size()}};
  std::vector<ByteRange> moved(marks.begin(), marks.end());
  if (step.kind == Kind::kPrepend) {
    for (ByteRange& mark : moved)
      mark = {mark.begin + after.size() - before.size(), mark.end + after.size() - before.size()};
    return moved;
  }
  // If the step makes of the parts what it makes of the whole, each part is where it came to be.
  std::vector<size_t> cuts;
  for (const ByteRange& mark : marks) cuts.insert(cuts.end(), {mark.begin, mark.end});
  cuts.push_back(before.size());
  size_t from = 0;
  size_t to = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    HW_ASSIGN_OR_RETURN(const std::string part,
                        ApplyStep(step, std::string(before.substr(from, cuts[i] - from)), before.size()));
    if (!after.substr(to).starts_with(part)) return everything;
    from = cuts[i];
    to += part.size();
    if (i / 2 < moved.size()) (i % 2 == 0 ? moved[i / 2].begin : moved[i / 2].end) = to;
  }
  return to == after.size() ? moved : everything;
}

Result<bool> Normalizer::DropsStart(const Step& step, std::string_view text) const {
  if (text.empty()) return false;
  const char32_t first = FirstCharacter(text).code;
  if (step.kind == Kind::kStrip) return step.strip_left && IsWhitespace(first);
  if (step.kind == Kind::kStripAccents) return IsMark(first);
  // A character map that makes nothing of it tells nobody in the Hugging Face implementation.
  if (step.kind != Kind::kReplace || !step.content.empty()) return false;
  std::vector<TextSpan> matches;
  PatternBudget budget(text.size());
  HW_RETURN_IF_ERROR(step.pattern.front().FindAll(text, budget, matches));
  return !matches.empty() && matches.front().begin == 0 && matches.front().end > 0;
}

Result<std::string> Normalizer::Apply(std::string text, std::vector<ByteRange>* marks, bool* drops_start) const {
  const size_t original_bytes = text.size();
  for (const Step& step : steps_) {
    if (drops_start != nullptr && !*drops_start) {
      HW_ASSIGN_OR_RETURN(*drops_start, DropsStart(step, text));
    }
    const std::string before = marks == nullptr || marks->empty() ? std::string() : text;
    HW_ASSIGN_OR_RETURN(text, ApplyStep(step, std::move(text), original_bytes));
    HW_RETURN_IF_ERROR(CheckGrowth(text.size(), original_bytes, origin_));
    if (!before.empty()) {
      HW_ASSIGN_OR_RETURN(*marks, MoveMarks(step, before, text, *marks));
    }
  }
  return text;
}

}  // namespace headwise
