#include "text/escape.h"

#include <gtest/gtest.h>

namespace headwise {
namespace {

TEST(EscapeXml, LeavesNothingThatMarkupWouldRead) {
  EXPECT_EQ(EscapeXml("<a href=\"x\" title='y'>&amp;"), "&lt;a href=&quot;x&quot; title=&#39;y&#39;&gt;&amp;amp;");
}

TEST(EscapeXml, KeepsTextOfAnyScript) {
  EXPECT_EQ(EscapeXml("naïve 日本 🙂"), "naïve 日本 🙂");
}

TEST(EscapeXml, KeepsLineEndsAndNoOtherControls) {
  EXPECT_EQ(EscapeXml(std::string_view("a\nb\tc\0d\x1b[0m\x7f", 11)), "a\nb\tc d [0m");
}

TEST(EscapeXml, ShowsBrokenBytes) {
  EXPECT_EQ(EscapeXml("a\xff<"), "a\xEF\xBF\xBD&lt;");
  EXPECT_EQ(EscapeXml("cut \xE6\x97"), "cut \xEF\xBF\xBD");  // two bytes of three
}

}  // namespace
}  // namespace headwise
