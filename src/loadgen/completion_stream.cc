#include "loadgen/completion_stream.h"

#include <fmt/format.h>

#include <utility>

#include "base/json.h"

namespace headwise {
namespace {

constexpr size_t kMaxShown = 200;

std::string Beginning(std::string_view text) {
  // Of a character that is cut in two nothing is left.
  size_t size = text.size();
  if (size > kMaxShown) {
    size = kMaxShown;
    while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80) --size;
  }
  return std::string(text.substr(0, size)) + (size < text.size() ? "..." : "");
}

const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

int64_t CountOr0(const Json& object, const char* key) {
  const Json* count = Find(object, key);
  if (count == nullptr || !count->is_number_unsigned()) return 0;
  constexpr uint64_t kMost = uint64_t{1} << 40;  // a server that says more makes it up
  return static_cast<int64_t>(std::min(count->get<uint64_t>(), kMost));
}

std::optional<StreamUsage> UsageOf(const Json& event) {
  const Json* usage = Find(event, "usage");
  if (usage == nullptr || !usage->is_object() || Find(*usage, "completion_tokens") == nullptr) return std::nullopt;
  StreamUsage read = {.prompt_tokens = CountOr0(*usage, "prompt_tokens"),
                      .completion_tokens = CountOr0(*usage, "completion_tokens")};
  if (const Json* details = Find(*usage, "prompt_tokens_details")) {
    read.cached_tokens = CountOr0(*details, "cached_tokens");
  }
  return read;
}

}  // namespace

std::string ErrorMessageOf(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  const Json* error = Find(json, "error");
  const Json* holder = error != nullptr && error->is_object() ? error : &json;
  for (const char* key : {"message", "detail"}) {
    const Json* message = Find(*holder, key);
    if (message != nullptr && message->is_string()) return Beginning(message->get_ref<const std::string&>());
  }
  if (error != nullptr && error->is_string()) return Beginning(error->get_ref<const std::string&>());
  return Beginning(body);
}

bool CompletionStream::Fail(std::string kind, std::string message) {
  failure_ = {.kind = std::move(kind), .message = std::move(message)};
  return false;
}

bool CompletionStream::Feed(std::string_view bytes, double now) {
  if (is_done_ || failure_) return false;
  const Status status = reader_.Feed(bytes, [&](std::string_view data) { return OnData(data, now); });
  if (!status.ok()) return Fail("protocol", status.message());
  return !is_done_ && !failure_;
}

bool CompletionStream::OnData(std::string_view data, double now) {
  if (data == "[DONE]") {
    is_done_ = true;
    return false;
  }
  const Json event = Json::parse(data, nullptr, false);
  if (!event.is_object()) {
    return Fail("protocol", fmt::format("an event that is no JSON object: {}", Beginning(data)));
  }
  if (const Json* error = Find(event, "error"); error != nullptr && !error->is_null()) {
    return Fail("stream_error", ErrorMessageOf(data));
  }
  if (auto usage = UsageOf(event)) usage_ = usage;
  const Json* choices = Find(event, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return true;
  const Json& choice = choices->front();
  const Json* text = Find(choice, "text");
  const Json* reason = Find(choice, "finish_reason");
  const bool has_text = text != nullptr && text->is_string() && !text->get_ref<const std::string&>().empty();
  const bool is_last = reason != nullptr && !reason->is_null();
  if (has_text || (is_last && piece_times_.empty())) piece_times_.push_back(now);
  is_finished_ = is_finished_ || is_last;
  return true;
}

}  // namespace headwise
