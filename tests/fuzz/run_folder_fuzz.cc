// Any bytes as a line of a run folder: an error, or what is written back the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "eval/run_data.h"

namespace headwise {
namespace {

template <typename T>
void CheckRoundTrip(const Json& json, Result<T> (*parse)(const Json&, const std::string&)) {
  const auto parsed = parse(json, "fuzz");
  if (!parsed.ok()) return;
  const Json written = ToJson(*parsed);
  const auto again = parse(written, "fuzz");
  HW_CHECK(again.ok() && ToJson(*again) == written);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = headwise::ParseJson({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json.ok()) return 0;
  headwise::CheckRoundTrip(*json, headwise::RunInfoFromJson);
  headwise::CheckRoundTrip(*json, headwise::CaseTextFromJson);
  headwise::CheckRoundTrip(*json, headwise::CaseResultFromJson);
  return 0;
}
