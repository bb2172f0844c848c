// Server-sent events out of a stream of bytes that is cut anywhere.
#ifndef HEADWISE_LOADGEN_SSE_READER_H_
#define HEADWISE_LOADGEN_SSE_READER_H_

#include <headwise/status.h>

#include <functional>
#include <string>
#include <string_view>

namespace headwise {

class SseReader {
 public:
  // An event of more bytes is an error: nothing that a completion has to say is so long.
  static constexpr size_t kMaxEventBytes = size_t{8} << 20;

  // Calls `on_data` with the data of every event that ends in these bytes; lines of one event are joined by line ends,
  // comments and events without data are passed over. False from it ends the reading. Lines end as the format has
  // them: with CR, LF or both.
  Status Feed(std::string_view bytes, const std::function<bool(std::string_view data)>& on_data);

  // Whether an event has begun that has not ended.
  bool is_within_event() const { return !line_.empty() || has_data_; }

 private:
  // False: on_data did not want more.
  bool OnLine(const std::function<bool(std::string_view data)>& on_data);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_SSE_READER_H_
