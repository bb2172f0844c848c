#include "server/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "server/router.h"
#include "support/fake_reply.h"

namespace headwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HttpRequest Asked(std::string method, std::vector<HttpField> fields) {
  return RequestTo(std::move(method), "/v1/models", "", std::move(fields));
}

TEST(Access, AsksForOneOfItsKeys) {
  const AccessControl access({"sk-one", "sk-two"}, {});
  const auto check = [&](const char* value) { return access.CheckKey(Asked("GET", {{"authorization", value}})); };
  EXPECT_FALSE(check("Bearer sk-one"));
  EXPECT_FALSE(check("bearer sk-two"));
  for (const char* wrong : {"Bearer sk-on", "Bearer sk-onee", "Bearer ", "Basic sk-one", "sk-one", "Bearer  sk-one"}) {
    const auto error = check(wrong);
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->status, 401);
    EXPECT_EQ(error->code, "invalid_api_key");
    EXPECT_THAT(error->message, ::testing::Not(HasSubstr("sk-on"))) << "keys are not repeated";
  }
  EXPECT_THAT(access.CheckKey(Asked("GET", {}))->message, HasSubstr("is missing"));
  EXPECT_FALSE(AccessControl({}, {}).CheckKey(Asked("GET", {})));
}

TEST(Access, KnowsItsOwnPagesFromOthers) {
  const AccessControl access({}, {"https://app.example"});
  const auto status = [&](const char* method, const char* origin, const char* host) {
    const auto error = access.CheckOrigin(Asked(method, {{"origin", origin}, {"host", host}}));
    return error ? error->status : 200;
  };
  EXPECT_EQ(status("POST", "https://app.example", "127.0.0.1:8080"), 200);
  EXPECT_EQ(status("POST", "https://evil.example", "127.0.0.1:8080"), 403);
  EXPECT_EQ(status("DELETE", "https://evil.example", "127.0.0.1:8080"), 403);
  EXPECT_EQ(status("OPTIONS", "https://evil.example", "127.0.0.1:8080"), 403);
  EXPECT_EQ(status("POST", "null", "127.0.0.1:8080"), 403);
  EXPECT_EQ(status("GET", "https://evil.example", "127.0.0.1:8080"), 200);
  EXPECT_EQ(status("POST", "http://127.0.0.1:8080", "127.0.0.1:8080"), 200);
  EXPECT_EQ(status("POST", "http://localhost:8080", "localhost:8080"), 200);
  EXPECT_EQ(status("POST", "http://[::1]:8080", "[::1]:8080"), 200);
  EXPECT_EQ(status("POST", "http://127.0.0.1:9090", "127.0.0.1:8080"), 403);
  // A name that its owner lets point here.
  EXPECT_EQ(status("POST", "http://evil.example:8080", "evil.example:8080"), 403);
  EXPECT_FALSE(access.CheckOrigin(Asked("POST", {})));
  EXPECT_FALSE(AccessControl({}, {"*"}).CheckOrigin(Asked("POST", {{"origin", "https://evil.example"}})));
}

TEST(Access, NamesAllowedOriginsInReplies) {
  const AccessControl access({}, {"https://app.example"});
  EXPECT_TRUE(access.AnswerFields(Asked("GET", {{"origin", "https://evil.example"}})).empty());
  EXPECT_TRUE(access.AnswerFields(Asked("GET", {})).empty());
  auto reply = std::make_shared<FakeReply>();
  WithFields(reply, access.AnswerFields(Asked(
                        "OPTIONS", {{"origin", "https://app.example"}, {"access-control-request-headers", "x-one"}})))
      ->Send({.status = 204, .body = {}});
  EXPECT_EQ(reply->Field("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(reply->Field("Access-Control-Allow-Headers"), "x-one");
  EXPECT_THAT(reply->Field("Access-Control-Allow-Methods"), HasSubstr("POST"));
}

TEST(Access, ReadsKeysFromAFile) {
  const std::string path = (std::filesystem::path(::testing::TempDir()) / "keys.txt").string();
  ASSERT_TRUE(WriteFileAtomically(path, "# ours\nsk-one\r\n\nsk-two").ok());
  const auto keys = ReadKeyFile(path);
  ASSERT_TRUE(keys.ok());
  EXPECT_THAT(*keys, ElementsAre("sk-one", "sk-two"));
  ASSERT_TRUE(WriteFileAtomically(path, "# none\n").ok());
  EXPECT_THAT(ReadKeyFile(path).status().message(), HasSubstr("has no key"));
}

class RouterTest : public ::testing::Test {
 protected:
  RouterTest() {
    const auto answer = [](const char* name) {
      return [name](const HttpRequest&, const std::string& rest, std::shared_ptr<HttpReply> reply) {
        reply->Send({.body = name + rest});
      };
    };
    router_.Add("GET", "/v1/things", answer("list"));
    router_.Add("POST", "/v1/things", answer("add"));
    router_.Add("GET", "/v1/things/*", answer("one:"));
  }

  void Ask(std::string method, std::string path) {
    auto reply = std::make_shared<FakeReply>();
    router_.Handle(RequestTo(std::move(method), std::move(path)), reply);
    reply->Await();
    status_ = reply->status();
    text_ = reply->Text();
    allow_ = reply->Field("Allow");
  }

  Router router_;
  int status_ = 0;
  std::string text_, allow_;
};

TEST_F(RouterTest, FindsTheEndpoint) {
  Ask("GET", "/v1/things");
  EXPECT_EQ(text_, "list");
  Ask("POST", "/v1/things");
  EXPECT_EQ(text_, "add");
  Ask("GET", "/v1/things/a/b");
  EXPECT_EQ(text_, "one:a/b");
}

TEST_F(RouterTest, SaysWhatThereIsNot) {
  Ask("GET", "/v1/others");
  EXPECT_EQ(status_, 404);
  EXPECT_THAT(text_, HasSubstr("Unknown request URL: GET /v1/others"));
  Ask("GET", "/v1/things/");
  EXPECT_EQ(status_, 404);
  Ask("DELETE", "/v1/things");
  EXPECT_EQ(status_, 405);
  EXPECT_EQ(allow_, "GET, POST, OPTIONS");
  Ask("OPTIONS", "/v1/things/x");
  EXPECT_EQ(status_, 204);
  EXPECT_EQ(allow_, "GET, OPTIONS");
}

}  // namespace
}  // namespace headwise
