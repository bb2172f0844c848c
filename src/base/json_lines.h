// JSONL files: one JSON object per line.
#ifndef HEADWISE_BASE_JSON_LINES_H_
#define HEADWISE_BASE_JSON_LINES_H_

#include <headwise/status.h>

#include <functional>
#include <string>
#include <string_view>

#include "base/json.h"

namespace headwise {

// Calls `read` with the object of every line that is not blank, and stops at the first error. An object's origin() is
// "<origin>:<line number>".
Status ForEachJsonLine(std::string_view text, const std::string& origin,
                       const std::function<Status(const JsonObject&)>& read);
// The same with the line's own text.
Status ForEachJsonLine(std::string_view text, const std::string& origin,
                       const std::function<Status(const JsonObject&, std::string_view line)>& read);

}  // namespace headwise

#endif  // HEADWISE_BASE_JSON_LINES_H_
