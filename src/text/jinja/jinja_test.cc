// What the golden files cannot say: errors and their lines, the context, the time, and templates that serve many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "text/jinja/jinja_test_support.h"
#include "text/jinja/numbers.h"
#include "text/jinja/strftime.h"

namespace headwise::jinja {
namespace {

using ::testing::HasSubstr;

TEST(Jinja, ParseErrorsSayWhereAndWhat) {
  EXPECT_EQ(ErrorOf("a\nb {% if x %}\n{{ 1 +\n}}"), "line 4: '}}', expected an expression");
  EXPECT_EQ(ErrorOf("{% for x\nxs %}"), "line 2: 'xs', expected 'in'");
  EXPECT_EQ(ErrorOf("{% if x %}\n\n"), "line 2: the end of the template, expected {% endif %}");
  EXPECT_EQ(ErrorOf("\n{% endif %}"), "line 2: 'endif', expected the name of a tag that is open or known");
  EXPECT_THAT(ErrorOf("{{ 'a' | shout }}"), HasSubstr("line 1: no filter is called 'shout'"));
  EXPECT_THAT(ErrorOf("\n{{ 'a' is loud }}"), HasSubstr("line 2: no test is called 'loud'"));
  EXPECT_THAT(ErrorOf("{% include 'x' %}"), HasSubstr("line 1: {% include %} is not supported"));
  EXPECT_THAT(ErrorOf("x\n{# never closed"), HasSubstr("line 2: a comment has no end"));
  EXPECT_THAT(ErrorOf("x\n{{ 'never closed }}"), HasSubstr("line 2: a string has no end"));
  EXPECT_THAT(ErrorOf("{{ (1 ] }}"), HasSubstr("unexpected ']', expected ')'"));
  EXPECT_THAT(ErrorOf("{{ a ? b }}"), HasSubstr("unexpected character '?'"));
  EXPECT_THAT(ErrorOf("{% set none = 1 %}"), HasSubstr("expected a name to assign to"));
}

TEST(Jinja, RenderErrorsSayWhereAndWhat) {
  EXPECT_EQ(ErrorOf("\n\n{{ x.y }}"), "line 3: 'x' is undefined");
  EXPECT_EQ(ErrorOf("{{ {}.a.b }}"), "line 1: 'dict object' has no attribute 'a'");
  EXPECT_EQ(ErrorOf("{{ 1\n + 'a' }}"), "line 2: int + str: not possible");
  EXPECT_EQ(ErrorOf("\n{{ raise_exception('no ' ~ 1) }}"), "line 2: the template says: no 1");
  EXPECT_EQ(ErrorOf("{% if 1 %}\n{{ 2 | nope }}{% endif %}"), "line 2: no filter is called 'nope'");
  EXPECT_EQ(ErrorOf("{{ 'a'.shout() }}"), "line 1: 'str object' has no attribute 'shout'");
  EXPECT_EQ(ErrorOf("{{ nope(1) }}"), "line 1: 'nope' is undefined");
  EXPECT_EQ(ErrorOf("{{ [].append(1) }}"), "line 1: list.append changes what it belongs to, which templates may not");
  EXPECT_EQ(ErrorOf("{{ 'a'.split('') }}"), "line 1: split(): an empty separator");
  EXPECT_EQ(ErrorOf("{{ 'a' | replace('a') }}"), "line 1: filter 'replace': parameter 'new' is missing");
  EXPECT_EQ(ErrorOf("{{ 'a' | trim(what=1) }}"), "line 1: filter 'trim': no parameter is called 'what'");
  EXPECT_EQ(ErrorOf("{% macro m(a) %}{% endmacro %}\n{{ m(1, 2) }}"),
            "line 2: macro 'm': 2 arguments, expected at most 1");
  EXPECT_EQ(ErrorOf("{% macro m() %}\n\n{{ x.y }}{% endmacro %}\n{{ m() }}"), "line 3: 'x' is undefined");
  EXPECT_EQ(ErrorOf("{% set a, b = [1] %}"), "line 1: 1 values to unpack, expected 2");
  EXPECT_EQ(ErrorOf("{% for x in 5 %}{% endfor %}"), "line 1: a int has no items to go through");
  EXPECT_EQ(ErrorOf("{% set x.y = 1 %}"), "line 1: 'x' is undefined, expected a namespace to set 'y' of");
  EXPECT_EQ(ErrorOf("{{ x | tojson }}"), "line 1: filter 'tojson': 'x' is undefined, which JSON has no word for");
}

TEST(Jinja, ContextsAreJson) {
  const Context context = ContextOf(R"({"a": 1, "b": 1.0, "c": {"z": 1, "a": 2}, "f": -0.0})");
  EXPECT_EQ(RenderIn("{{ a }} {{ b }} {{ c }} {{ f }}", context)->text, "1 1.0 {'z': 1, 'a': 2} -0.0");
  Context other;
  EXPECT_THAT(other.SetJson("x", OrderedJson("a\xff")).message(), HasSubstr("x: invalid UTF-8 at byte 1"));
  EXPECT_EQ(RenderIn("{{ x }}", other)->text, "");
}

TEST(Jinja, TemplatesTellWhatTheyRead) {
  const auto parsed = Template::Parse("{% set a = 1 %}{% if tools %}{{ m.documents }}{% endif %}");
  ASSERT_TRUE(parsed.ok());
  EXPECT_TRUE(parsed->Reads("tools"));
  EXPECT_FALSE(parsed->Reads("a"));
  EXPECT_FALSE(parsed->Reads("documents"));
}

TEST(Jinja, TheTimeIsHandedIn) {
  EXPECT_THAT(ErrorOf("{{ strftime_now('%Y') }}"), HasSubstr("the time is not known here"));
  std::tm now{};
  now.tm_year = 100;
  now.tm_mday = 1;
  now.tm_wday = 6;
  EXPECT_EQ(*FormatTime(now, "%Y %G-%V %j %-d %I%p %%"), "2000 1999-52 001 1 12AM %");
  EXPECT_FALSE(FormatTime(now, "%Q").ok());
}

TEST(Jinja, OneTemplateServesManyThreads) {
  const auto parsed = Template::Parse("{% for x in xs %}{{ 'a' ~ x ~ s }}{% endfor %}{{ s + '!' }}");
  ASSERT_TRUE(parsed.ok());
  const Context context = ContextOf(R"({"xs": [1, 2, 3], "s": "long enough to be shared"})");
  const std::string expected = parsed->Render(context)->text;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) EXPECT_EQ(parsed->Render(context)->text, expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JinjaNumbers, AsPythonPrintsAndReadsThem) {
  EXPECT_EQ(FloatRepr(0.1), "0.1");
  EXPECT_EQ(FloatRepr(1e16), "1e+16");
  EXPECT_EQ(FloatRepr(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(FloatRepr(0.0001), "0.0001");
  EXPECT_EQ(FloatRepr(0.00001), "1e-05");
  EXPECT_EQ(FloatRepr(-5e-324), "-5e-324");
  EXPECT_EQ(ParseInt(" -1_000 ", 10).value, -1000);
  EXPECT_EQ(ParseInt("-9223372036854775808", 10).value, INT64_MIN);
  EXPECT_TRUE(ParseInt("9223372036854775808", 10).overflows);
  for (const char* wrong : {"", "_1", "1_", "1__0", "1.0", "0x", "a", "- 1"}) {
    EXPECT_EQ(ParseInt(wrong, 10).value, std::nullopt) << wrong;
  }
  EXPECT_EQ(ParseFloat("1_0.5e-1"), 1.05);
  EXPECT_EQ(ParseFloat("-Infinity"), -HUGE_VAL);
  EXPECT_EQ(ParseFloat("1e999"), HUGE_VAL);
  EXPECT_EQ(ParseFloat("1e-999"), 0.0);
  for (const char* wrong : {"", "1_", "_1", "1e", "0x1p3", "nan(1)", "--1", "1 2"}) {
    EXPECT_EQ(ParseFloat(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace headwise::jinja
