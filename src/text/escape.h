// Any bytes as text inside XML and HTML, and on a terminal.
#ifndef HEADWISE_TEXT_ESCAPE_H_
#define HEADWISE_TEXT_ESCAPE_H_

#include <string>
#include <string_view>

namespace headwise {

// < > & " and ' become entities, so that the result may stand between tags and inside quoted attributes. Bytes that
// are not UTF-8 become U+FFFD; control characters, line ends and tabs excepted, become blanks, for XML has no others.
std::string EscapeXml(std::string_view text);

// What a terminal would obey becomes the letters \u001b: control characters, those of 8 bits too, line ends and tabs
// excepted. Bytes that are not UTF-8 become U+FFFD. JSON stays the same JSON.
std::string EscapeControls(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_TEXT_ESCAPE_H_
