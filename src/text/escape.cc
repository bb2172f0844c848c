#include "text/escape.h"

#include <fmt/format.h>

#include "text/utf8.h"

namespace headwise {
namespace {

void AppendEscaped(char c, std::string& out) {
  switch (c) {
    case '<':
      out += "&lt;";
      return;
    case '>':
      out += "&gt;";
      return;
    case '&':
      out += "&amp;";
      return;
    case '"':
      out += "&quot;";
      return;
    case '\'':
      out += "&#39;";
      return;
    case '\n':
    case '\t':
      out += c;
      return;
    default:
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  }
}

}  // namespace

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = StepUtf8(text);
    if (step.kind != Utf8Step::Kind::kCharacter) {
      escaped += kReplacementCharacter;
    } else if (step.size_bytes == 1) {
      AppendEscaped(text.front(), escaped);
    } else {
      escaped += text.substr(0, step.size_bytes);
    }
    text.remove_prefix(step.size_bytes);
  }
  return escaped;
}

std::string EscapeControls(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = StepUtf8(text);
    const std::string_view character = text.substr(0, step.size_bytes);
    const auto first = static_cast<unsigned char>(character.front());
    // U+0080 to U+009F, among them one that is ESC and [ at once.
    const bool is_c1 = step.size_bytes == 2 && first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
    if (step.kind != Utf8Step::Kind::kCharacter) {
      escaped += kReplacementCharacter;
    } else if (is_c1 || first == 0x7F || (first < 0x20 && first != '\n' && first != '\t')) {
      escaped += fmt::format("\\u{:04x}", is_c1 ? static_cast<unsigned char>(character[1]) : first);
    } else {
      escaped += character;
    }
    text.remove_prefix(step.size_bytes);
  }
  return escaped;
}

}  // namespace headwise
