#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <limits>

#include "text/regex_syntax.h"
#include "text/utf8.h"

namespace headwise {
namespace {

// The published pre-tokenizers need about one step per character of a run of spaces; 64 leaves room for nested optional
// parts and still ends a pathological pattern within milliseconds on short texts.
constexpr uint64_t kStepsPerByte = 64;
constexpr uint64_t kStepsAtLeast = 100'000;
// A search goes on in slices, so that its work can be counted: so many bytes in which a match may begin, and so many
// behind them that it may look at. Nearly every match of a published pattern is shorter. A slice in which something
// looked further, or took more steps at one place, is done again place by place, with what it takes on the budget.
constexpr size_t kSliceBytes = 64;
constexpr size_t kAheadBytes = 256;
constexpr uint64_t kSliceSteps = 1024;
constexpr size_t kMaxShownPattern = 120;
constexpr uint32_t kHeapLimitKib = 256 << 10;
// Published patterns are below 1,000 bytes.
constexpr size_t kMaxPatternBytes = 32 << 10;

std::string ErrorText(int code) {
  PCRE2_UCHAR8 buffer[160];
  pcre2_get_error_message_8(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

bool IsWithinCharacter(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
}

}  // namespace

struct Regex::MatchState {
  explicit MatchState(const pcre2_code_8* code)
      : data(pcre2_match_data_create_from_pattern_8(code, nullptr)), context(pcre2_match_context_create_8(nullptr)) {
    if (context != nullptr) pcre2_set_heap_limit_8(context, kHeapLimitKib);
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

// Places [at, last] in which a match may begin, what it may look at, and its steps at one of them.
struct Regex::Slice {
  size_t at = 0;
  size_t last = 0;
  size_t end = 0;
  uint64_t steps = kSliceSteps;
};

Regex::Regex(pcre2_real_code_8* code, std::string_view pattern, std::string_view origin)
    : code_(code), pattern_(pattern.substr(0, kMaxShownPattern)), origin_(origin) {
  if (pattern_.size() < pattern.size()) pattern_ += "...";
}

void Regex::Free::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free_8(code);
}

Result<Regex> Regex::Compile(std::string_view pattern, std::string_view origin) {
  if (pattern.size() > kMaxPatternBytes) {
    return Status::Unsupported(
        fmt::format("{}: pattern of {} bytes, expected at most {}", origin, pattern.size(), kMaxPatternBytes));
  }
  HW_ASSIGN_OR_RETURN(const std::string translated, ToPcreSyntax(pattern, origin));
  const std::unique_ptr<pcre2_compile_context_8, void (*)(pcre2_compile_context_8*)> context(
      pcre2_compile_context_create_8(nullptr), pcre2_compile_context_free_8);
  if (context == nullptr) return Status::OutOfMemory(fmt::format("{}: no memory for a pattern", origin));
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  // In Ruby syntax ^ and $ always match at lines. \C would split characters, so that NO_UTF_CHECK were unsafe.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT;
  int error = 0;
  PCRE2_SIZE error_at = 0;
  pcre2_code_8* code = pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(), options,
                                       &error, &error_at, context.get());
  if (code == nullptr) {
    return Status::InvalidInput(
        fmt::format("{}: bad pattern at byte {}: {}: {}", origin, error_at, ErrorText(error), translated));
  }
  // Where there is no JIT this fails, and matching is slower.
  (void)pcre2_jit_compile_8(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return Regex(code, pattern, origin);
}

int Regex::Match(std::string_view text, const Slice& slice, const MatchState& state) const {
  pcre2_set_offset_limit_8(state.context, slice.last);
  pcre2_set_match_limit_8(state.context,
                          static_cast<uint32_t>(std::min<uint64_t>(slice.steps, std::numeric_limits<uint32_t>::max())));
  const auto subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
  // The caller checked UTF-8 once; checking the rest of the text at every match would be quadratic. Where the text is
  // cut, whatever would look beyond the cut is told from what finds no match.
  const uint32_t options = PCRE2_NO_UTF_CHECK | (slice.end < text.size() ? PCRE2_PARTIAL_HARD : 0u);
  const int rc = pcre2_match_8(code_.get(), subject, slice.end, slice.at, options, state.data, state.context);
  if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
  return pcre2_match_8(code_.get(), subject, slice.end, slice.at, options | PCRE2_NO_JIT, state.data, state.context);
}

Status Regex::TooMuch(std::string_view text) const {
  return Status::InvalidInput(
      fmt::format("{}: the pattern {} wants too much work on a text of {} bytes: it looks at {} characters for each, "
                  "and {} more, and is not done",
                  origin_, pattern_, text.size(), PatternBudget::kPerByte, PatternBudget::kAtLeast));
}

Result<bool> Regex::FindNext(std::string_view text, size_t at, const MatchState& state, PatternBudget& budget,
                             TextSpan& match) const {
  const size_t search_begin = at;
  const uint64_t most_steps = std::max<uint64_t>(kStepsAtLeast, kStepsPerByte * text.size());
  size_t place_by_place_until = at;
  for (size_t ahead = kAheadBytes, steps = kSliceSteps;;) {
    const bool is_place = at < place_by_place_until;
    Slice slice{.at = at, .last = at, .end = 0, .steps = std::min<uint64_t>(steps, most_steps)};
    if (!is_place) slice.last = std::min(text.size(), at + kSliceBytes);
    while (IsWithinCharacter(text, slice.last)) --slice.last;
    slice.end = slice.last + std::min(ahead, text.size() - slice.last);
    while (IsWithinCharacter(text, slice.end)) ++slice.end;
    const int rc = Match(text, slice, state);
    if (rc >= 0) break;
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (slice.last == text.size()) return false;
      at = slice.last + FirstCharacter(text.substr(slice.last)).size_bytes;
      ahead = kAheadBytes;
      steps = kSliceSteps;
    } else if (rc == PCRE2_ERROR_PARTIAL || (rc == PCRE2_ERROR_MATCHLIMIT && slice.steps < most_steps)) {
      if (!is_place) {
        place_by_place_until = slice.last + 1;
        continue;
      }
      if (rc == PCRE2_ERROR_PARTIAL) {
        ahead *= 4;
      } else {
        steps *= 4;
      }
      if (!budget.Spend(rc == PCRE2_ERROR_PARTIAL ? std::min(ahead, text.size() - at) : steps)) return TooMuch(text);
    } else {
      return Status::InvalidInput(fmt::format("{}: the pattern {} failed on a text of {} bytes: {}", origin_, pattern_,
                                              text.size(), ErrorText(rc)));
    }
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer_8(state.data);
  // \K inside a lookaround can put the start behind the end or before where the search began.
  match = {std::max<size_t>(bounds[0], search_begin), bounds[1]};
  return true;
}

Status Regex::FindAll(std::string_view text, PatternBudget& budget, std::vector<TextSpan>& matches) const {
  const MatchState state(code_.get());
  if (state.data == nullptr || state.context == nullptr) {
    return Status::OutOfMemory(fmt::format("{}: no memory to match a pattern", origin_));
  }
  size_t last_end = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    TextSpan match{};
    HW_ASSIGN_OR_RETURN(const bool has_found, FindNext(text, at, state, budget, match));
    if (!has_found) break;
    const auto [begin, end] = match;
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
