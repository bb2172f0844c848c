// Reads the input as a template, and behind a zero byte as the JSON of its variables; renders it under limits that are
// soon reached. Besides crashes it looks for broken promises: the text is UTF-8, the ranges that came from the context
// are in order and within it, and without a context there are none.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "text/jinja/template.h"
#include "text/utf8.h"

namespace headwise::jinja {
namespace {

void Check(const MarkedText& rendered, bool has_context) {
  HW_CHECK(!FindInvalidUtf8(rendered.text), "not UTF-8");
  size_t past = 0;
  for (const ByteRange& range : rendered.from_context) {
    HW_CHECK(range.begin < range.end && range.end <= rendered.text.size(), "[{}, {})", range.begin, range.end);
    HW_CHECK(range.begin > past || (past == 0 && range.begin == 0), "{} behind {}", range.begin, past);
    past = range.end;
    const std::string_view part = std::string_view(rendered.text).substr(range.begin, range.end - range.begin);
    HW_CHECK(!FindInvalidUtf8(part), "a range begins or ends inside a character");
  }
  HW_CHECK(has_context || rendered.from_context.empty(), "nothing was given");
}

}  // namespace
}  // namespace headwise::jinja

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headwise::jinja;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const auto parsed = Template::Parse(input.substr(0, zero));
  if (!parsed.ok()) return 0;
  Context context;
  bool has_context = false;
  if (zero != std::string_view::npos) {
    const OrderedJson json = OrderedJson::parse(input.substr(zero + 1), nullptr, false);
    if (json.is_object()) {
      for (const auto& [name, value] : json.items()) has_context |= context.SetJson(name, value).ok();
    }
  }
  RenderOptions options;
  options.limits = {.max_steps = 20'000, .max_value_bytes = 4 << 20, .max_output_bytes = 1 << 20};
  options.now = std::tm{};
  const auto rendered = parsed->Render(context, options);
  if (rendered.ok()) Check(*rendered, has_context);
  return 0;
}
