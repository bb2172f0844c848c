// Short ways to render, for tests.
#ifndef HEADWISE_TEXT_JINJA_JINJA_TEST_SUPPORT_H_
#define HEADWISE_TEXT_JINJA_JINJA_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "text/jinja/template.h"

namespace headwise::jinja {

// A context of JSON, all of it what people wrote, and the trusted <s>.
inline Context ContextOf(const char* json) {
  Context context;
  const OrderedJson variables = OrderedJson::parse(json);
  for (const auto& [name, value] : variables.items()) {
    EXPECT_TRUE(context.SetJson(name, value).ok()) << name;
  }
  context.SetTrusted("bos", "<s>");
  return context;
}

inline Result<MarkedText> RenderIn(const std::string& source, const Context& context,
                                   const RenderOptions& options = {}) {
  HW_ASSIGN_OR_RETURN(const Template parsed, Template::Parse(source));
  return parsed.Render(context, options);
}

// The error's message, or what was rendered.
inline std::string ErrorOf(const std::string& source, const Context& context = {}, const RenderOptions& options = {}) {
  const auto rendered = RenderIn(source, context, options);
  return rendered.ok() ? "no error: " + rendered->text : rendered.status().message();
}

// The text with what came from the context in «».
inline std::string Marked(const std::string& source, const Context& context) {
  const auto rendered = RenderIn(source, context);
  if (!rendered.ok()) return "error: " + rendered.status().message();
  std::string marked;
  size_t at = 0;
  for (const ByteRange& range : rendered->from_context) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_TRUE(at == 0 ? range.begin >= at : range.begin > at) << "ranges touch or are out of order";
    marked += rendered->text.substr(at, range.begin - at);
    marked += "«" + rendered->text.substr(range.begin, range.end - range.begin) + "»";
    at = range.end;
  }
  EXPECT_LE(at, rendered->text.size());
  return marked + rendered->text.substr(at);
}

}  // namespace headwise::jinja

#endif  // HEADWISE_TEXT_JINJA_JINJA_TEST_SUPPORT_H_
