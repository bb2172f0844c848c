// Any bytes as what a server streams to the load generator: the same however they are cut, and a failure that says
// something.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "loadgen/completion_stream.h"

namespace headwise {
namespace {

CompletionStream Read(std::string_view bytes, size_t step) {
  CompletionStream stream;
  for (size_t at = 0; at < bytes.size(); at += step) {
    if (!stream.Feed(bytes.substr(at, step), 1)) break;
  }
  return stream;
}

void Check(std::string_view bytes, size_t step) {
  const CompletionStream whole = Read(bytes, std::max<size_t>(1, bytes.size()));
  const CompletionStream cut = Read(bytes, step);
  HW_CHECK(whole.piece_times() == cut.piece_times());
  HW_CHECK(whole.is_done() == cut.is_done() && whole.is_finished() == cut.is_finished());
  HW_CHECK(whole.failure().has_value() == cut.failure().has_value());
  HW_CHECK(whole.usage().has_value() == cut.usage().has_value());
  if (whole.usage()) HW_CHECK(whole.usage()->completion_tokens >= 0 && whole.usage()->prompt_tokens >= 0);
  if (whole.failure()) HW_CHECK(!whole.failure()->kind.empty() && !(whole.is_done()));
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  headwise::Check(bytes, 1);
  headwise::Check(bytes, 7);
  static_cast<void>(headwise::ErrorMessageOf(bytes));
  return 0;
}
