// Values as text: str() and repr() of Python, and json.dumps.
#ifndef HEADWISE_TEXT_JINJA_PRINT_H_
#define HEADWISE_TEXT_JINJA_PRINT_H_

#include <headwise/status.h>

#include <optional>

#include "text/jinja/value.h"

namespace headwise::jinja {

// str(value), repr(value). What came from the context stays the context's: its strings, its numbers, and the brackets
// around its lists. An error where the text has more than `max_bytes`.
Status AppendStr(const Value& value, size_t max_bytes, MarkedBuffer& out);
Status AppendRepr(const Value& value, size_t max_bytes, MarkedBuffer& out);

struct JsonStyle {
  bool ensures_ascii = false;
  bool sorts_keys = false;
  std::optional<MarkedString> indent;  // of one level; without it all is one line
  MarkedString item_separator;
  MarkedString key_separator;
};
Status AppendJson(const Value& value, const JsonStyle& style, size_t max_bytes, MarkedBuffer& out);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_PRINT_H_
