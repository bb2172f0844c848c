#include "base/json_lines.h"

#include <fmt/format.h>

#include <cstdint>

namespace headwise {

Status ForEachJsonLine(std::string_view text, const std::string& origin,
                       const std::function<Status(const JsonObject&)>& read) {
  return ForEachJsonLine(text, origin, [&](const JsonObject& object, std::string_view) { return read(object); });
}

Status ForEachJsonLine(std::string_view text, const std::string& origin,
                       const std::function<Status(const JsonObject&, std::string_view line)>& read) {
  int64_t line_number = 0;
  while (!text.empty()) {
    const size_t line_end = text.find('\n');
    const std::string_view line = text.substr(0, line_end);
    text.remove_prefix(line_end == std::string_view::npos ? text.size() : line_end + 1);
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;

    const std::string where = fmt::format("{}:{}", origin, line_number);
    HW_ASSIGN_OR_RETURN(const Json json, ParseJson(line, where));
    HW_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::Of(json, where));
    HW_RETURN_IF_ERROR(read(object, line));
  }
  return Status::Ok();
}

}  // namespace headwise
