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

TEST(EscapeControls, WhatATerminalWouldObeyIsShown) {
  EXPECT_EQ(EscapeControls("plain, größer\n\tand so on: 漢字"), "plain, größer\n\tand so on: 漢字");
  EXPECT_EQ(EscapeControls("\x1b[2J\x1b]0;title\a"), "\\u001b[2J\\u001b]0;title\\u0007");
  EXPECT_EQ(EscapeControls("over\rwritten\b\x7f"), "over\\u000dwritten\\u0008\\u007f");
  EXPECT_EQ(EscapeControls("\xc2\x9b"
                           "31m\xc2\x80\xc2\xa0"),
            "\\u009b31m\\u0080\xc2\xa0");
  EXPECT_EQ(EscapeControls("a\xff\x9b"), "a\xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(EscapeControls(std::string_view("\0", 1)), "\\u0000");
}

}  // namespace
}  // namespace headwise
