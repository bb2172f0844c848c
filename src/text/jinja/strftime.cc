#include "text/jinja/strftime.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace headwise::jinja {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {"January",   "February", "March",    "April",
                                                      "May",       "June",     "July",     "August",
                                                      "September", "October",  "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};

int DaysSince(int weekday, int first_weekday) {
  return (weekday - first_weekday + 7) % 7;
}

// The week of ISO 8601, and the year that it belongs to.
std::pair<int, int> IsoWeek(const std::tm& time) {
  const auto weeks_of = [](int year) {
    const auto ends_on = [](int y) { return (y + y / 4 - y / 100 + y / 400) % 7; };
    return ends_on(year) == 4 || ends_on(year - 1) == 3 ? 53 : 52;
  };
  const int year = time.tm_year + 1900;
  const int week = (time.tm_yday + 1 - (time.tm_wday == 0 ? 7 : time.tm_wday) + 10) / 7;
  if (week < 1) return {weeks_of(year - 1), year - 1};
  if (week > weeks_of(year)) return {1, year + 1};
  return {week, year};
}

Result<std::string> Convert(const std::tm& time, char conversion, bool is_padded) {
  const auto number = [&](int value, int width) {
    return is_padded ? fmt::format("{:0{}}", value, width) : fmt::format("{}", value);
  };
  const std::string_view day = kDays[static_cast<size_t>(DaysSince(time.tm_wday, 0))];
  const std::string_view month = kMonths[static_cast<size_t>(std::clamp(time.tm_mon, 0, 11))];
  const int hour = time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12;
  switch (conversion) {
    case 'a':
      return std::string(day.substr(0, 3));
    case 'A':
      return std::string(day);
    case 'b':
    case 'h':
      return std::string(month.substr(0, 3));
    case 'B':
      return std::string(month);
    case 'c':
      return FormatTime(time, "%a %b %e %H:%M:%S %Y");
    case 'C':
      return number((time.tm_year + 1900) / 100, 2);
    case 'd':
      return number(time.tm_mday, 2);
    case 'D':
    case 'x':
      return FormatTime(time, "%m/%d/%y");
    case 'e':
      return is_padded ? fmt::format("{:2}", time.tm_mday) : fmt::format("{}", time.tm_mday);
    case 'f':
      return std::string("000000");
    case 'F':
      return FormatTime(time, "%Y-%m-%d");
    case 'G':
      return number(IsoWeek(time).second, 4);
    case 'H':
      return number(time.tm_hour, 2);
    case 'I':
      return number(hour, 2);
    case 'j':
      return number(time.tm_yday + 1, 3);
    case 'm':
      return number(time.tm_mon + 1, 2);
    case 'M':
      return number(time.tm_min, 2);
    case 'n':
      return std::string("\n");
    case 'p':
      return std::string(time.tm_hour < 12 ? "AM" : "PM");
    case 'r':
      return FormatTime(time, "%I:%M:%S %p");
    case 'R':
      return FormatTime(time, "%H:%M");
    case 'S':
      return number(time.tm_sec, 2);
    case 't':
      return std::string("\t");
    case 'T':
    case 'X':
      return FormatTime(time, "%H:%M:%S");
    case 'u':
      return number(time.tm_wday == 0 ? 7 : time.tm_wday, 1);
    case 'U':
      return number((time.tm_yday + 7 - time.tm_wday) / 7, 2);
    case 'V':
      return number(IsoWeek(time).first, 2);
    case 'w':
      return number(time.tm_wday, 1);
    case 'W':
      return number((time.tm_yday + 7 - DaysSince(time.tm_wday, 1)) / 7, 2);
    case 'y':
      return number((time.tm_year + 1900) % 100, 2);
    case 'Y':
      return fmt::format("{}", time.tm_year + 1900);
    case 'z':
    case 'Z':
      return std::string();
    case '%':
      return std::string("%");
    default:
      return Status::InvalidInput("an unknown conversion in the form of a time");
  }
}

}  // namespace

Result<std::string> FormatTime(const std::tm& time, std::string_view format) {
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      text += format[i];
      continue;
    }
    const bool is_padded = format[i + 1] != '-' || i + 2 == format.size();
    i += is_padded ? 1 : 2;
    HW_ASSIGN_OR_RETURN(const std::string part, Convert(time, format[i], is_padded));
    text += part;
  }
  return text;
}

}  // namespace headwise::jinja
