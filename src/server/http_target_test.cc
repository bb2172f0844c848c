#include "server/http_target.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace headwise {
namespace {

std::string PathOf(std::string_view target) {
  const auto parsed = ParseHttpTarget(target);
  return parsed.ok() ? parsed->path : "refused";
}

TEST(HttpTarget, PathsAreDecodedAndQueriesKept) {
  EXPECT_EQ(PathOf("/"), "/");
  EXPECT_EQ(PathOf("/v1/models"), "/v1/models");
  EXPECT_EQ(PathOf("/v1/models/a%2Fb%20c"), "/v1/models/a/b c");
  EXPECT_EQ(PathOf("/%c3%A9"), "/\xC3\xA9");
  EXPECT_EQ(PathOf("/a+b"), "/a+b");
  EXPECT_EQ(PathOf("//a"), "//a");
  EXPECT_EQ(PathOf("/a?b=%zz?c"), "/a");
  EXPECT_EQ(ParseHttpTarget("/a?b=%zz?c")->query, "b=%zz?c");
  EXPECT_EQ(ParseHttpTarget("/a")->query, "");
}

TEST(HttpTarget, AbsoluteOnesNameTheirPath) {
  EXPECT_EQ(PathOf("http://host:80/a%20b"), "/a b");
  EXPECT_EQ(PathOf("HTTPS://host/"), "/");
  EXPECT_EQ(PathOf("http://host"), "/");
  EXPECT_EQ(PathOf("http://host?q"), "/");
  EXPECT_EQ(ParseHttpTarget("http://host?q")->query, "q");
  EXPECT_EQ(PathOf("http:///a"), "refused");
  EXPECT_EQ(PathOf("http://"), "refused");
  EXPECT_EQ(PathOf("ftp://host/a"), "refused");
}

TEST(HttpTarget, WhatIsNoPathIsRefused) {
  for (const std::string_view target : {"", "*", "host:443", "a/b", "?q", "/a#b", "/a?b#c"}) {
    EXPECT_EQ(PathOf(target), "refused") << target;
  }
}

TEST(HttpTarget, DotSegmentsAreRefusedHoweverTheyAreWritten) {
  for (const std::string_view target :
       {"/..", "/.", "/a/../b", "/a/./b", "/a/..", "/%2e%2E/b", "/a%2f..%2fb", "/.%2e"}) {
    EXPECT_EQ(PathOf(target), "refused") << target;
  }
  EXPECT_EQ(PathOf("/.well-known/..a/b..c/..."), "/.well-known/..a/b..c/...");
}

TEST(HttpTarget, BytesThatNobodyShouldReadAreRefused) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view target :
       {"/a%00b"sv, "/a\0b"sv, "/%0a"sv, "/%0D%0Aa"sv, "/%7f"sv, "/\x1f"sv, "/a?\x01"sv, "/%"sv, "/%1"sv, "/%g0"sv,
        "/%0g"sv, "/%%20"sv, "/%ff"sv, "/\xff"sv, "/?\xff"sv, "/%c3"sv, "/%c0%af"sv}) {
    EXPECT_EQ(PathOf(target), "refused") << target;
  }
}

std::string FieldsOf(std::string_view query) {
  const auto fields = ParseHttpQuery(query);
  if (!fields.ok()) return "refused";
  std::string text;
  for (const HttpField& field : *fields) text += "[" + field.name + ":" + field.value + "]";
  return text;
}

TEST(HttpTarget, QueriesAreTakenApart) {
  EXPECT_EQ(FieldsOf(""), "");
  EXPECT_EQ(FieldsOf("a=1&b=two+words&&c"), "[a:1][b:two words][c:]");
  EXPECT_EQ(FieldsOf("m%61=%2B%26%3d=x&"), "[ma:+&==x]");
  for (const std::string_view query : {"a=%", "%zz=1", "a=%00", "a=%ff"})
    EXPECT_EQ(FieldsOf(query), "refused") << query;
}

}  // namespace
}  // namespace headwise
