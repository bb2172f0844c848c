#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "text/utf8.h"

namespace headwise {
namespace {

// The published pre-tokenizers need about one step per character of a run of spaces; 64 leaves room for nested optional
// parts and still ends a pathological pattern within milliseconds on short texts.
constexpr uint64_t kStepsPerByte = 64;
constexpr uint64_t kStepsAtLeast = 100'000;
constexpr uint32_t kHeapLimitKib = 256 << 10;
// Published patterns are below 1,000 bytes.
constexpr size_t kMaxPatternBytes = 32 << 10;

std::string ErrorText(int code) {
  PCRE2_UCHAR8 buffer[160];
  pcre2_get_error_message_8(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// Oniguruma reads "[a[bc]]" and "[a&&b]" as set operations; PCRE2 reads them as plain members.
bool HasSetOperation(std::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      ++i;
    } else if (!in_class) {
      in_class = c == '[';
    } else if (c == ']') {
      in_class = false;
    } else if (c == '[' && next == ':') {
      const size_t end = pattern.find(":]", i + 2);
      if (end == std::string_view::npos) return false;
      i = end + 1;
    } else if (c == '[' || (c == '&' && next == '&')) {
      return true;
    }
  }
  return false;
}

struct MatchState {
  explicit MatchState(const pcre2_code_8* code, size_t text_bytes)
      : data(pcre2_match_data_create_from_pattern_8(code, nullptr)), context(pcre2_match_context_create_8(nullptr)) {
    if (context == nullptr) return;
    const uint64_t steps = std::max<uint64_t>(kStepsAtLeast, kStepsPerByte * text_bytes);
    pcre2_set_match_limit_8(context,
                            static_cast<uint32_t>(std::min<uint64_t>(steps, std::numeric_limits<uint32_t>::max())));
    pcre2_set_heap_limit_8(context, kHeapLimitKib);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;
  ~MatchState() {
    pcre2_match_data_free_8(data);
    pcre2_match_context_free_8(context);
  }
  pcre2_match_data_8* data;
  pcre2_match_context_8* context;
};

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free_8(code);
}

Result<Regex> Regex::Compile(std::string_view pattern, std::string_view origin) {
  if (pattern.size() > kMaxPatternBytes) {
    return Status::Unsupported(
        fmt::format("{}: pattern of {} bytes, expected at most {}", origin, pattern.size(), kMaxPatternBytes));
  }
  if (HasSetOperation(pattern)) {
    return Status::Unsupported(fmt::format("{}: pattern with a set operation inside brackets: {}", origin, pattern));
  }
  const std::unique_ptr<pcre2_compile_context_8, void (*)(pcre2_compile_context_8*)> context(
      pcre2_compile_context_create_8(nullptr), pcre2_compile_context_free_8);
  if (context == nullptr) return Status::OutOfMemory(fmt::format("{}: no memory for a pattern", origin));
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  // In Ruby syntax ^ and $ always match at lines. \C would split characters, so that NO_UTF_CHECK were unsafe.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE error_at = 0;
  pcre2_code_8* code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(), options, &error,
                                       &error_at, context.get());
  if (code == nullptr) {
    return Status::InvalidInput(
        fmt::format("{}: bad pattern at byte {}: {}: {}", origin, error_at, ErrorText(error), pattern));
  }
  // Where there is no JIT this fails, and matching is slower.
  (void)pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE);
  return Regex(code, std::string(origin));
}

Status Regex::FindAll(std::string_view text, std::vector<TextSpan>& matches) const {
  const MatchState state(code_.get(), text.size());
  if (state.data == nullptr || state.context == nullptr) {
    return Status::OutOfMemory(fmt::format("{}: no memory to match a pattern", origin_));
  }
  const auto subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  size_t last_end = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    // The caller checked UTF-8 once; checking the rest of the text at every match would be quadratic.
    int rc = pcre2_match_8(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match_8(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data,
                         state.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return Status::InvalidInput(
          fmt::format("{}: a pattern failed on a text of {} bytes: {}", origin_, text.size(), ErrorText(rc)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer_8(state.data);
    // \K inside a lookaround can put the start behind the end or before where the search began.
    const size_t begin = std::max<size_t>(bounds[0], at);
    const size_t end = bounds[1];
    if (begin > end) {
      return Status::Unsupported(fmt::format("{}: a pattern matched backwards (\\K in a lookaround)", origin_));
    }
    // An empty match right behind another match is not a match of its own.
    if (begin != end || end != last_end) matches.push_back({begin, end});
    last_end = end;
    at = end;
    if (begin == end) {
      if (end == text.size()) break;
      at += FirstCharacter(text.substr(end)).size_bytes;
    }
  }
  return Status::Ok();
}

std::string EscapeForRegex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    // Escaping a letter or digit would give it a meaning, escaping a byte of a longer character is an error.
    if (static_cast<unsigned char>(c) < 0x80 && IsPunctuation(static_cast<char32_t>(c))) pattern.push_back('\\');
    pattern.push_back(c);
  }
  return pattern;
}

}  // namespace headwise
