#include "loadgen/sse_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace headwise {

bool SseReader::OnLine(const std::function<bool(std::string_view data)>& on_data) {
  bool goes_on = true;
  if (line_.empty()) {
    if (has_data_) goes_on = on_data(data_);
    data_.clear();
    has_data_ = false;
  } else {
    const std::string_view line = line_;
    const size_t colon = std::min(line.find(':'), line.size());
    if (line.substr(0, colon) == "data") {
      std::string_view value = line.substr(std::min(colon + 1, line.size()));
      if (value.starts_with(' ')) value.remove_prefix(1);
      if (has_data_) data_ += '\n';
      data_ += value;
      has_data_ = true;
    }
    line_.clear();
  }
  return goes_on;
}

Status SseReader::Feed(std::string_view bytes, const std::function<bool(std::string_view data)>& on_data) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);  // the second half of a line end
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kMaxEventBytes) {
      return Status::InvalidInput(fmt::format("an event of more than {} bytes", kMaxEventBytes));
    }
    if (end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (!OnLine(on_data)) break;
  }
  return Status::Ok();
}

}  // namespace headwise
