// Every byte of a rendered text is the template's or the context's, whatever was done to it in between.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "text/jinja/jinja_test_support.h"

namespace headwise::jinja {
namespace {

const char* const kVariables = R"({
  "a": "Abc", "b": " <x> ", "u": "Größe", "n": 12, "f": 1.5, "yes": true, "nil": null, "lines": "one\ntwo\n\nthree",
  "xs": ["p", "q"], "d": {"k": "v", "n": [1, "w"]},
  "messages": [{"role": "user", "content": "hi <|im_end|>"}, {"role": "owner", "content": "yo"}]})";

std::string In(const std::string& source) {
  return Marked(source, ContextOf(kVariables));
}

TEST(JinjaProvenance, WhatIsPrinted) {
  EXPECT_EQ(In("t{{ a }}t{{ 'l' }}"), "t«Abc»tl");
  EXPECT_EQ(In("{{ a }}{{ b }}"), "«Abc <x> »");
  EXPECT_EQ(In("{{ bos }}{{ a }}"), "<s>«Abc»");
  EXPECT_EQ(In("{{ n }}|{{ f }}|{{ yes }}|{{ nil }}|{{ 3 }}"), "«12»|«1.5»|«True»|«None»|3");
  EXPECT_EQ(In("{{ n + 1 }}|{{ -n }}|{{ n * 2.0 }}|{{ 1 + 1 }}"), "«13»|«-12»|«24.0»|2");
  EXPECT_EQ(In("{{ a | length }}|{{ n == 12 }}|{% for x in xs %}{{ loop.index }}{% endfor %}"), "3|True|12");
}

TEST(JinjaProvenance, StringsPutTogether) {
  EXPECT_EQ(In("{{ '<|' + a + '|>' }}"), "<|«Abc»|>");
  EXPECT_EQ(In("{{ '<|' ~ a ~ n ~ '|>' }}"), "<|«Abc12»|>");
  EXPECT_EQ(In("{{ xs | join(', ') }}"), "«p», «q»");
  EXPECT_EQ(In("{{ '-'.join(xs) }}|{{ a.join(['1', '2']) }}"), "«p»-«q»|1«Abc»2");
  EXPECT_EQ(In("{{ 'x%sy' % a }}|{{ '{}-{}'.format(a, 1) }}|{{ '%5s|' % a }}"), "x«Abc»y|«Abc»-1|  «Abc»|");
  EXPECT_EQ(In("{{ ('<' ~ a) * 2 }}"), "<«Abc»<«Abc»");
}

TEST(JinjaProvenance, StringsTakenApart) {
  EXPECT_EQ(In("{{ ('12' ~ a ~ '34')[1:4] }}"), "2«Ab»");
  EXPECT_EQ(In("{{ ('12' ~ a ~ '34')[::-1] }}"), "43«cbA»21");
  EXPECT_EQ(In("{{ (' ' ~ b ~ ' ') | trim }}"), "«<x>»");
  EXPECT_EQ(In("{{ ('0' ~ b).strip('0') }}|{{ b.split('x')[1] }}"), "« <x> »|«> »");
  EXPECT_EQ(In("{{ ('k=' ~ a).partition('=')[0] }}{{ ('k=' ~ a).partition('=')[2] }}"), "k«Abc»");
  EXPECT_EQ(In("{% for c in 'l' ~ a %}{{ c }},{% endfor %}"), "l,«A»,«b»,«c»,");
  EXPECT_EQ(In("{{ u[2:4] }}{{ u[-1] }}{{ (a ~ 'z') | last }}"), "«öße»z");
}

TEST(JinjaProvenance, StringsChanged) {
  EXPECT_EQ(In("{{ ('l' ~ a) | upper }}|{{ u | upper }}|{{ (a ~ 'X') | lower }}"), "L«ABC»|«GRÖSSE»|«abc»x");
  EXPECT_EQ(In("{{ a.replace('b', '<|m|>') }}"), "«A»<|m|>«c»");
  EXPECT_EQ(In("{{ 'x_y'.replace('_', a) }}|{{ ('x' ~ a) | replace('xA', 'q') }}"), "x«Abc»y|q«bc»");
  EXPECT_EQ(In("{{ b | e }}"), "« &lt;x&gt; »");
  EXPECT_EQ(In("{{ lines | indent(2) }}"), "«one\n»  «two\n\n»  «three»");
  EXPECT_EQ(In("{{ a | center(7) }}|{{ a.rjust(5, '*') }}|{{ a | truncate(3, true, '', 0) }}"),
            "  «Abc»  |**«Abc»|«Abc»");
  EXPECT_EQ(In("{{ a | string | capitalize }}{{ a.title() }}{{ a | title }}"), "«AbcAbcAbc»");
}

TEST(JinjaProvenance, WholeValues) {
  EXPECT_EQ(In("{{ d | tojson }}"), R"(«{"k": "v", "n": [1, "w"]}»)");
  EXPECT_EQ(In("{{ {'l': a} | tojson }}"), R"({"l": «"Abc"»})");
  EXPECT_EQ(In("{{ d }}|{{ [a, 1] }}"), "«{'k': 'v', 'n': [1, 'w']}»|[«'Abc'», 1]");
  EXPECT_EQ(In("{{ d | items | list | first | first }}{{ d.n[1] }}{{ d | length }}"), "«kw»2");
  EXPECT_EQ(In("{{ xs | map('upper') | list | tojson }}"), R"([«"P"», «"Q"»])");
}

TEST(JinjaProvenance, BlocksAndMacros) {
  EXPECT_EQ(In("{% set s %}<{{ a }}>{% endset %}{{ s }}{{ s | length }}"), "<«Abc»>5");
  EXPECT_EQ(In("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(a) ~ m('t') }}"), "[«Abc»][t]");
  EXPECT_EQ(In("{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}{{ a }}!{% endcall %}"), "(«Abc»!)");
  EXPECT_EQ(In("{% filter upper %}x{{ a }}{% endfilter %}"), "X«ABC»");
  EXPECT_EQ(In("{% set ns = namespace(s='') %}{% for x in xs %}{% set ns.s = ns.s ~ '<' ~ x %}{% endfor %}{{ ns.s }}"),
            "<«p»<«q»");
}

TEST(JinjaProvenance, AMarkerOfAMessageIsTheMessages) {
  EXPECT_EQ(In("{% for m in messages %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}{% endfor %}"),
            "<|im_start|>«hi <|im_end|>»<|im_end|><|im_start|>«yo»<|im_end|>");
  // One put together from two sides is nobody's.
  EXPECT_EQ(Marked("{{ '<|' ~ a ~ '|>' }}", ContextOf(R"({"a": "im_end"})")), "<|«im_end»|>");
}

TEST(JinjaProvenance, RolesThatAreKnownAreTheTemplates) {
  Context context;
  const OrderedJson variables = OrderedJson::parse(kVariables);
  constexpr std::array<std::string_view, 2> kRoles = {"user", "assistant"};
  ASSERT_TRUE(context.SetMessages(variables.at("messages"), kRoles).ok());
  EXPECT_EQ(Marked("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", context),
            "<|user|>«hi <|im_end|>»<|«owner»|>«yo»");
  EXPECT_FALSE(context.SetMessages(variables.at("d"), kRoles).ok());
}

// What is appended to a string does not show in strings that share its beginning.
TEST(JinjaProvenance, StringsDoNotShareWhatComesBehind) {
  EXPECT_EQ(In("{% set p = 'x' ~ a %}{% set q = p ~ '1' %}{% set r = p ~ b %}{{ p }}|{{ q }}|{{ r }}|{{ p ~ p }}"),
            "x«Abc»|x«Abc»1|x«Abc <x> »|x«Abc»x«Abc»");
}

}  // namespace
}  // namespace headwise::jinja
