#include "text/jinja/strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace headwise::jinja {
namespace {

bool IsContinuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

utf8proc_category_t CategoryOf(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

char32_t ToUpper(char32_t code) {
  if (code < 0x80) return code >= 'a' && code <= 'z' ? code - 0x20 : code;
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

char32_t ToLower(char32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 0x20 : code;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

bool IsUpper(char32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z';
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0;
}

bool IsLower(char32_t code) {
  if (code < 0x80) return code >= 'a' && code <= 'z';
  return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0;
}

bool IsTitle(char32_t code) {
  if (code < 0x80) return false;
  return CategoryOf(code) == UTF8PROC_CATEGORY_LT;
}

bool IsCased(char32_t code) {
  return IsUpper(code) || IsLower(code) || IsTitle(code);
}

bool IsLineEnd(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

constexpr char32_t kSharpS = 0xDF;

void AppendUpper(char32_t code, std::string& out, bool is_title) {
  if (code == kSharpS) {
    out += is_title ? "Ss" : "SS";
  } else {
    AppendUtf8(is_title ? static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))) : ToUpper(code),
               out);
  }
}

// Appends map(code, out) for every character, with its origin.
template <typename Map>
MarkedBuffer MapCharacters(const MarkedString& text, Map map) {
  MarkedBuffer out;
  out.Reserve(text.size());
  std::string run_text;
  text.ForEachRun([&](std::string_view run, Origin origin) {
    run_text.clear();
    while (!run.empty()) {
      const Utf8Character character = FirstCharacter(run);
      map(character.code, run_text);
      run.remove_prefix(character.size_bytes);
    }
    out.Append(run_text, origin);
  });
  return out;
}

bool IsOfClass(char32_t code, CharacterClass of) {
  const utf8proc_category_t category = CategoryOf(code);
  const bool is_letter = category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
  switch (of) {
    case CharacterClass::kAlnum:
      return is_letter || IsNumeric(code);
    case CharacterClass::kAlpha:
      return is_letter;
    case CharacterClass::kDecimal:
      return category == UTF8PROC_CATEGORY_ND;
    case CharacterClass::kDigit:
      // Superscripts, circled digits and the like are digits without being decimal.
      return category == UTF8PROC_CATEGORY_ND || code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 ||
             (code >= 0x2074 && code <= 0x2079) || (code >= 0x2080 && code <= 0x2089) ||
             (code >= 0x2460 && code <= 0x2468);
    case CharacterClass::kNumeric:
      return IsNumeric(code);
    case CharacterClass::kSpace:
      return IsSpace(code);
    case CharacterClass::kAscii:
      return code < 0x80;
    case CharacterClass::kPrintable:
      return IsPrintable(code);
    default:
      return false;
  }
}

bool IsTitleCased(std::string_view text) {
  bool any = false, after_cased = false;
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    text.remove_prefix(character.size_bytes);
    const bool begins_word = IsUpper(character.code) || IsTitle(character.code);
    if (begins_word ? after_cased : IsLower(character.code) && !after_cased) return false;
    after_cased = IsCased(character.code);
    any |= after_cased;
  }
  return any;
}

}  // namespace

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return !IsContinuation(byte); });
}

size_t ByteOfCharacter(std::string_view text, int64_t character) {
  size_t at = 0;
  for (int64_t i = 0; at < text.size(); ++at) {
    if (!IsContinuation(text[at]) && i++ == character) break;
  }
  return at;
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    characters.push_back(text.substr(0, FirstCharacter(text).size_bytes));
    text.remove_prefix(characters.back().size());
  }
  return characters;
}

bool IsSpace(char32_t code) {
  return IsWhitespace(code) || (code >= 0x1C && code <= 0x1F);
}

std::string_view Strip(std::string_view text, std::optional<std::string_view> chars, StripSide side) {
  const auto goes = [&](const Utf8Character& character, std::string_view bytes) {
    return chars ? chars->find(bytes) != std::string_view::npos : IsSpace(character.code);
  };
  while (side != StripSide::kRight && !text.empty()) {
    const Utf8Character first = FirstCharacter(text);
    if (!goes(first, text.substr(0, first.size_bytes))) break;
    text.remove_prefix(first.size_bytes);
  }
  while (side != StripSide::kLeft && !text.empty()) {
    const Utf8Character last = LastCharacter(text);
    if (!goes(last, text.substr(text.size() - last.size_bytes))) break;
    text.remove_suffix(last.size_bytes);
  }
  return text;
}

std::vector<std::string_view> Split(std::string_view text, std::optional<std::string_view> separator,
                                    int64_t max_splits) {
  std::vector<std::string_view> parts;
  if (separator) {
    for (size_t at; max_splits != 0 && (at = text.find(*separator)) != std::string_view::npos; --max_splits) {
      parts.push_back(text.substr(0, at));
      text.remove_prefix(at + separator->size());
    }
    parts.push_back(text);
    return parts;
  }
  for (text = Strip(text, std::nullopt, StripSide::kLeft); !text.empty(); --max_splits) {
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Character character = FirstCharacter(text.substr(end));
      if (max_splits != 0 && IsSpace(character.code)) break;
      end += character.size_bytes;
    }
    parts.push_back(text.substr(0, end));
    text = Strip(text.substr(end), std::nullopt, StripSide::kLeft);
  }
  return parts;
}

std::vector<std::string_view> SplitFromRight(std::string_view text, std::optional<std::string_view> separator,
                                             int64_t max_splits) {
  std::vector<std::string_view> parts;
  if (separator) {
    for (size_t at; max_splits != 0 && (at = text.rfind(*separator)) != std::string_view::npos; --max_splits) {
      // A separator that overlaps the one cut before lies behind what is left.
      parts.push_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    }
    parts.push_back(text);
  } else {
    for (text = Strip(text, std::nullopt, StripSide::kRight); !text.empty(); --max_splits) {
      size_t begin = text.size();
      while (begin > 0) {
        const Utf8Character character = LastCharacter(text.substr(0, begin));
        if (max_splits != 0 && IsSpace(character.code)) break;
        begin -= character.size_bytes;
      }
      parts.push_back(text.substr(begin));
      text = Strip(text.substr(0, begin), std::nullopt, StripSide::kRight);
    }
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin, end_size = 0;
    while (end < text.size()) {
      const Utf8Character character = FirstCharacter(text.substr(end));
      if (IsLineEnd(character.code)) {
        end_size = text.substr(end, 2) == "\r\n" ? 2 : character.size_bytes;
        break;
      }
      end += character.size_bytes;
    }
    lines.push_back(text.substr(begin, end - begin + (keep_ends ? end_size : 0)));
    begin = end + end_size;
  }
  return lines;
}

int64_t CountPart(std::string_view text, std::string_view part) {
  if (part.empty()) return CountCharacters(text) + 1;
  int64_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
  return count;
}

MarkedBuffer Replace(const MarkedString& text, std::string_view from, const MarkedString& to, int64_t max_count) {
  MarkedBuffer out;
  out.Reserve(text.size());
  const std::string_view all = text.view();
  size_t begin = 0;
  for (size_t at = 0; max_count != 0; --max_count) {
    const size_t found = all.find(from, at);
    if (found == std::string_view::npos) break;
    out.Append(text.Substr(begin, found));
    out.Append(to);
    begin = found + from.size();
    at = begin;
    if (from.empty()) {
      // In front of every character, and at the end.
      if (at == all.size()) break;
      at += FirstCharacter(all.substr(at)).size_bytes;
    }
  }
  out.Append(text.Substr(begin, all.size()));
  return out;
}

MarkedBuffer MapCase(const MarkedString& text, Case to) {
  bool is_first = true, after_cased = false;
  return MapCharacters(text, [&](char32_t code, std::string& out) {
    const bool begins = to == Case::kTitle ? !after_cased : to == Case::kCapitalize && is_first;
    if (begins) {
      AppendUpper(code, out, true);
    } else if (to == Case::kUpper || (to == Case::kSwap && IsLower(code))) {
      AppendUpper(code, out, false);
    } else {
      AppendUtf8(to == Case::kSwap && !IsUpper(code) ? code : ToLower(code), out);
    }
    after_cased = IsCased(code);
    is_first = false;
  });
}

MarkedBuffer TitleOfWords(const MarkedString& text) {
  bool begins = true;
  return MapCharacters(text, [&](char32_t code, std::string& out) {
    const bool is_between = IsSpace(code) || (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) !=
                                                                 std::string_view::npos);
    if (is_between || !begins) {
      AppendUtf8(ToLower(code), out);
    } else {
      AppendUpper(code, out, false);
    }
    begins = is_between;
  });
}

bool IsPrintable(char32_t code) {
  const utf8proc_category_t category = CategoryOf(code);
  return code == ' ' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_SO);
}

bool AreAll(std::string_view text, CharacterClass of) {
  if (of == CharacterClass::kAscii) return IsAscii(text);
  if (of == CharacterClass::kTitle) return IsTitleCased(text);
  if (text.empty()) return of == CharacterClass::kPrintable;
  bool any_cased = false;
  while (!text.empty()) {
    const char32_t code = FirstCharacter(text).code;
    text.remove_prefix(FirstCharacter(text).size_bytes);
    if (of == CharacterClass::kUpper || of == CharacterClass::kLower) {
      const bool is_wanted = of == CharacterClass::kUpper ? IsUpper(code) : IsLower(code);
      if (IsCased(code) && !is_wanted) return false;
      any_cased |= is_wanted;
    } else if (!IsOfClass(code, of)) {
      return false;
    }
  }
  return any_cased || (of != CharacterClass::kUpper && of != CharacterClass::kLower);
}

MarkedBuffer EscapeHtml(const MarkedString& text) {
  return MapCharacters(text, [](char32_t code, std::string& out) {
    switch (code) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        AppendUtf8(code, out);
    }
  });
}

}  // namespace headwise::jinja
