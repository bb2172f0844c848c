// Dates as text, in English whatever the locale of the process.
#ifndef HEADWISE_TEXT_JINJA_STRFTIME_H_
#define HEADWISE_TEXT_JINJA_STRFTIME_H_

#include <headwise/status.h>

#include <ctime>
#include <string>
#include <string_view>

namespace headwise::jinja {

// As Python's datetime.strftime of a time without a zone. A conversion that is unknown is an error.
Result<std::string> FormatTime(const std::tm& time, std::string_view format);

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_STRFTIME_H_
