#include "loadgen/load_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headwise {
namespace {

using testing::HasSubstr;

LoadTarget Parsed(std::string_view url) {
  const auto target = ParseBaseUrl(url);
  EXPECT_TRUE(target.ok()) << target.status().message();
  return target.ok() ? *target : LoadTarget{};
}

TEST(ParseBaseUrl, TakesWhatClientsWrite) {
  const LoadTarget plain = Parsed("http://127.0.0.1:8080");
  EXPECT_FALSE(plain.is_tls);
  EXPECT_EQ(plain.host, "127.0.0.1");
  EXPECT_EQ(plain.port, "8080");
  EXPECT_EQ(plain.path, "");

  const LoadTarget tls = Parsed("https://name.example/v1/");
  EXPECT_TRUE(tls.is_tls);
  EXPECT_EQ(tls.host, "name.example");
  EXPECT_EQ(tls.port, "443");
  EXPECT_EQ(tls.path, "");
  EXPECT_EQ(tls.Authority(), "name.example:443");

  EXPECT_EQ(Parsed("http://a/b/c").path, "/b/c");
  EXPECT_EQ(Parsed("http://a/b/v1").path, "/b");
  EXPECT_EQ(Parsed("http://a/b/xv1").path, "/b/xv1");
  EXPECT_EQ(Parsed("http://a").port, "80");
}

TEST(ParseBaseUrl, TakesAddressesOfSixteenBytes) {
  const LoadTarget target = Parsed("http://[::1]:9000");
  EXPECT_EQ(target.host, "::1");
  EXPECT_EQ(target.port, "9000");
  EXPECT_EQ(target.Authority(), "[::1]:9000");
  EXPECT_EQ(Parsed("http://[::1]").port, "80");
}

TEST(ParseBaseUrl, RefusesOthers) {
  for (const char* url : {"", "localhost:8080", "ftp://a", "http://", "http://:80", "http://a:", "http://a:0",
                          "http://a:65536", "http://a:8o", "http://[::1", "http://[::1]x", "http://[]:1", "http://a b",
                          "http://user@a", "http://a/?x=1", "http://a#b", "http://a\r\nX: y", "http://\xc3\xa4"}) {
    const auto target = ParseBaseUrl(url);
    ASSERT_FALSE(target.ok()) << url;
    EXPECT_THAT(target.status().message(), HasSubstr("expected an address")) << url;
  }
}

}  // namespace
}  // namespace headwise
