// Any bytes as text inside XML and HTML.
#ifndef HEADWISE_TEXT_ESCAPE_H_
#define HEADWISE_TEXT_ESCAPE_H_

#include <string>
#include <string_view>

namespace headwise {

// < > & " and ' become entities, so that the result may stand between tags and inside quoted attributes. Bytes that
// are not UTF-8 become U+FFFD; control characters, line ends and tabs excepted, become blanks, for XML has no others.
std::string EscapeXml(std::string_view text);

}  // namespace headwise

#endif  // HEADWISE_TEXT_ESCAPE_H_
