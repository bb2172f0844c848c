// Templates come from strangers: whatever they do, a rendering ends, within its memory, with an error that says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja/jinja_test_support.h"

namespace headwise::jinja {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Times(const std::string& part, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += part;
  return text;
}

RenderOptions Small() {
  RenderOptions options;
  options.limits = {.max_steps = 200'000, .max_value_bytes = 4 << 20, .max_output_bytes = 1 << 20, .max_depth = 600};
  return options;
}

std::string Error(const std::string& source, const char* json = "{}") {
  return ErrorOf(source, ContextOf(json), Small());
}

TEST(JinjaLimits, NestingOfTheText) {
  const int n = 1000;
  EXPECT_THAT(Error("{{ " + Times("(", n) + "1" + Times(")", n) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + Times("[", n) + Times("]", n) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + Times("{1:", n) + "1" + Times("}", n) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + Times("- ", n) + "1 }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + Times("not ", n) + "1 }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ x" + Times("[x", n) + Times("]", n) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + Times("f(", n) + Times(")", n) + " }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{{ " + Times("1 if 1 else ", n) + "1 }}"), HasSubstr("deep"));
  EXPECT_THAT(Error(Times("{% if 1 %}", n) + Times("{% endif %}", n)), HasSubstr("deep"));
  EXPECT_THAT(Error(Times("{% for x in y %}", n)), HasSubstr("deep"));
  EXPECT_THAT(Error("{% set " + Times("(", n) + "a" + Times(")", n) + " = 1 %}"), HasSubstr("deep"));
}

TEST(JinjaLimits, LongChains) {
  EXPECT_THAT(Error("{{ 1" + Times(" + 1", 1000) + " }}"), HasSubstr("more than 300 operations"));
  EXPECT_THAT(Error("{{ x" + Times(".x", 1000) + " }}"), HasSubstr("more than 300 operations"));
  EXPECT_THAT(Error("{{ x" + Times("|trim", 1000) + " }}"), HasSubstr("more than 300 operations"));
  EXPECT_THAT(Error("{{ 1" + Times(" and 1", 1000) + " }}"), HasSubstr("more than 300 operations"));
  EXPECT_THAT(Error("{{ x" + Times("()", 1000) + " }}"), HasSubstr("more than 300 operations"));
  // What has no order inside is as long as it likes.
  EXPECT_EQ(Error("{{ ''" + Times(" ~ ''", 1000) + " }}"), "no error: ");
  EXPECT_EQ(Error("{% if 0 %}" + Times("{% elif 0 %}", 1000) + "{% endif %}"), "no error: ");
}

TEST(JinjaLimits, Recursion) {
  EXPECT_THAT(Error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("deep inside one another"));
  EXPECT_THAT(Error("{% macro m(x) %}{{ [[[(x ~ m(x))]]] }}{% endmacro %}{{ m(1) }}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}"),
              HasSubstr("deep"));
  EXPECT_THAT(Error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), HasSubstr("deep"));
  EXPECT_THAT(Error("{% macro m(x=m()) %}{% endmacro %}{{ m() }}"), HasSubstr("deep"));
}

TEST(JinjaLimits, DeepValues) {
  const std::string grow = "{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  EXPECT_THAT(Error("{% set ns = namespace(x=1) %}" + grow), HasSubstr("lists and dicts more than 200 deep"));
  EXPECT_THAT(Error("{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set ns.x = {'a': ns.x} %}{% endfor %}"),
              HasSubstr("deep"));
  // Namespaces may hold each other; whoever walks them is stopped, and nothing leaks.
  EXPECT_THAT(Error("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), HasSubstr("nested too deeply"));
  EXPECT_EQ(Error("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns == ns }}"), "no error: True");
  EXPECT_THAT(Error("{% set ns = namespace(x=1) %}{% for i in range(5000) %}{% set n2 = namespace(x=ns.x) %}"
                    "{% set ns.x = n2 %}{% endfor %}{{ ns.x == 1 }}"),
              HasSubstr("no error: False"));
  std::string json = "1";
  for (int i = 0; i < 300; ++i) json = "[" + json + "]";
  EXPECT_THAT(ValueFromJson(OrderedJson::parse(json), Origin::kContext).status().message(), HasSubstr("200 deep"));
}

TEST(JinjaLimits, ValuesThatDouble) {
  const std::string twice =
      "{% set ns = namespace(x=1, y=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
      "{% set ns.y = [ns.y, ns.y] %}{% endfor %}";
  EXPECT_THAT(Error(twice + "{{ ns.x == ns.y }}"), HasSubstr("values inside"));
  EXPECT_THAT(
      Error("{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"),
      HasSubstr("values of more than"));
  EXPECT_THAT(
      Error("{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
      HasSubstr("values of more than"));
  EXPECT_THAT(Error("{% set ns = namespace(x='a') %}{% for i in range(9) %}{% set ns.x = ns.x.replace('a', 'a' * 99) %}"
                    "{% endfor %}"),
              HasSubstr("values of more than"));
}

TEST(JinjaLimits, SizesByNumber) {
  for (const char* bomb :
       {"'a' * 10**9", "10**9 * 'a'", "[1] * 10**9", "(1,) * 10**12", "'a' * 10**18", "'a'.center(10**12)",
        "'a' | center(10**12)", "'a'.zfill(10**9)", "'a' | indent(10**12)", "[1] | batch(10**12, 1) | list",
        "[1] | slice(10**12) | list", "'%999999999d' % 1", "'{:999999999}'.format(1)", "[[1]] | tojson(indent=10**9)",
        "['a' * 1000] * 100000", "'\n' * 100000 | indent('a' * 1000)", "('a' * 1000000) | replace('', 'b' * 1000)"}) {
    EXPECT_THAT(Error(std::string("{{ ") + bomb + " }}"), testing::Not(StartsWith("no error"))) << bomb;
  }
  EXPECT_THAT(Error("{{ range(10**9) | list }}"), HasSubstr("expected at most 100000"));
  EXPECT_THAT(Error("{{ range(-9223372036854775807, 9223372036854775807) }}"), HasSubstr("100000"));
}

TEST(JinjaLimits, Integers) {
  for (const char* sum : {"9223372036854775807 + 1", "-9223372036854775807 - 2", "9223372036854775807 * 2", "2 ** 64",
                          "(-9223372036854775807 - 1) // -1", "-(-9223372036854775807 - 1)",
                          "(-9223372036854775807 - 1) | abs", "'9223372036854775808' | int"}) {
    EXPECT_THAT(Error(std::string("{{ ") + sum + " }}"), HasSubstr("64 bits")) << sum;
  }
  EXPECT_THAT(Error("{{ 9223372036854775808 }}"), HasSubstr("64 bits"));
  EXPECT_EQ(Error("{{ (-9223372036854775807 - 1) % -1 }}{{ 2 ** 62 }}"), "no error: 04611686018427387904");
  EXPECT_THAT(ValueFromJson(OrderedJson(UINT64_MAX), Origin::kContext).status().message(), HasSubstr("64 bits"));
}

TEST(JinjaLimits, Time) {
  const std::string loops = Times("{% for x in 'abc' %}", 12) + Times("{% endfor %}", 12);
  EXPECT_THAT(Error(loops), HasSubstr("values of more than 4194304 bytes"));
  RenderOptions options = Small();
  options.limits.max_value_bytes = 64 << 20;
  EXPECT_THAT(ErrorOf(loops, {}, options), HasSubstr("more than 200000 operations"));
  // Looking through a long text again and again counts, though it makes nothing.
  const std::string json = "{\"t\": \"" + std::string(1 << 20, 'a') + "\"}";
  for (const char* look : {"t.count('b')", "'b' in t", "t == t", "t | length", "t.find('ab')", "t.strip('b')",
                           "t.startswith('b', -1)", "t[5]", "t.isdigit()", "t is upper"}) {
    EXPECT_THAT(ErrorOf("{% for i in range(10000) %}{% set x = " + std::string(look) + " %}{% endfor %}",
                        ContextOf(json.c_str()), Small()),
                HasSubstr("operations"))
        << look;
  }
  // So does a search that begins again at every place.
  EXPECT_THAT(Error("{{ ('a' * 400000).find('a' * 200000 ~ 'b') }}"), HasSubstr("operations"));
}

TEST(JinjaLimits, Output) {
  RenderOptions options = Small();
  options.limits.max_value_bytes = 64 << 20;
  options.limits.max_steps = 100'000'000;
  EXPECT_THAT(ErrorOf("{% for i in range(100000) %}0123456789012345{% endfor %}", {}, options),
              HasSubstr("a text of more than 1048576 bytes"));
}

TEST(JinjaLimits, SizeOfTheTemplate) {
  EXPECT_THAT(Template::Parse(std::string(Template::kMaxBytes + 1, 'x')).status().message(),
              HasSubstr("expected at most"));
  EXPECT_TRUE(Template::Parse(std::string(Template::kMaxBytes, 'x')).ok());
  EXPECT_THAT(Template::Parse("abc\xff").status().message(), HasSubstr("invalid UTF-8 at byte 3"));
}

// A conversation of a megabyte, put together the way templates do it, is a small part of the default limits.
TEST(JinjaLimits, LongConversationsAreFarBelow) {
  OrderedJson messages = OrderedJson::array();
  for (int i = 0; i < 1000; ++i) {
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(1000, 'x') + " "}});
  }
  Context context;
  ASSERT_TRUE(context.SetJson("messages", messages).ok());
  RenderOptions options;
  options.limits.max_steps /= 100;
  options.limits.max_value_bytes /= 16;
  const auto rendered = RenderIn(
      "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all + '<|' + m.role + '|>' + "
      "m.content | trim + '\n' %}{% endfor %}{{ ns.all }}",
      context, options);
  ASSERT_TRUE(rendered.ok()) << rendered.status().message();
  EXPECT_GT(rendered->text.size(), 1'000'000u);
}

TEST(JinjaLimits, MutableObjectsOutliveTheirBlocks) {
  EXPECT_THAT(Error("{% set ns = namespace() %}{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}"),
              HasSubstr("no error"));
  EXPECT_EQ(Error("{% set ns = namespace() %}{% for x in [1, 2] %}{% macro m() %}{{ x }}{% endmacro %}"
                  "{% set ns.m = m %}{% endfor %}{{ ns.m() }}"),
            "no error: 2");
  EXPECT_THAT(Error("{% for x in [1] %}{{ loop.changed(loop) }}{% endfor %}"), HasSubstr("no loops"));
}

}  // namespace
}  // namespace headwise::jinja
