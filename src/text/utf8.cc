#include "text/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace headwise {
namespace {

using Byte = unsigned char;

// The length that a lead byte announces, and the range its second byte must lie in (this is what excludes overlong
// forms, surrogates and codes above U+10FFFF).
struct Lead {
  size_t size_bytes;  // 0: not a lead byte
  Byte second_min;
  Byte second_max;
};

Lead LeadOf(Byte lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead < 0xF0) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead < 0xF4) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

bool IsContinuation(Byte byte) {
  return (byte & 0xC0) == 0x80;
}

utf8proc_category_t CategoryOf(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

Utf8Step StepUtf8(std::string_view text) {
  const Lead lead = LeadOf(static_cast<Byte>(text[0]));
  if (lead.size_bytes == 0) return {Utf8Step::Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.size_bytes; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const Byte byte = static_cast<Byte>(text[i]);
    const bool fits = i == 1 ? byte >= lead.second_min && byte <= lead.second_max : IsContinuation(byte);
    if (!fits) return {Utf8Step::Kind::kInvalid, i};
  }
  return {Utf8Step::Kind::kCharacter, lead.size_bytes};
}

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = StepUtf8(text.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return at;
    at += step.size_bytes;
  }
  return std::nullopt;
}

Utf8Character FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<Byte>(text[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

Utf8Character LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && IsContinuation(static_cast<Byte>(text[at]))) --at;
  return FirstCharacter(text.substr(at));
}

void AppendUtf8(char32_t code, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<Byte>(byte))); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool IsWhitespace(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  if (code == 0x85) return true;
  const auto category = CategoryOf(code);
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool IsNumeric(char32_t code) {
  const auto category = CategoryOf(code);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= 0x21 && code <= 0x2F) || (code >= 0x3A && code <= 0x40) || (code >= 0x5B && code <= 0x60) ||
           (code >= 0x7B && code <= 0x7E);
  }
  const auto category = CategoryOf(code);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsMark(char32_t code) {
  const auto category = CategoryOf(code);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool IsWord(char32_t code) {
  // Circled and squared letters are alphabetic although their category is So; the joiners belong to words.
  if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) || code == 0x200C ||
      code == 0x200D) {
    return true;
  }
  const auto category = CategoryOf(code);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME) || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC;
}

std::string_view TrimStart(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    if (!IsWhitespace(character.code)) break;
    text.remove_prefix(character.size_bytes);
  }
  return text;
}

std::string_view TrimEnd(std::string_view text) {
  while (!text.empty()) {
    const Utf8Character character = LastCharacter(text);
    if (!IsWhitespace(character.code)) break;
    text.remove_suffix(character.size_bytes);
  }
  return text;
}

}  // namespace headwise
