#include "text/escape.h"

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

}  // namespace headwise
