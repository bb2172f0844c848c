// The API over the bundled model, without a network.
#ifndef HEADWISE_TESTS_SUPPORT_TEST_API_H_
#define HEADWISE_TESTS_SUPPORT_TEST_API_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api_server.h"
#include "support/engines.h"
#include "support/fake_reply.h"
#include "support/golden.h"

namespace headwise {

using Reply = std::shared_ptr<FakeReply>;

inline constexpr const char* kModel = "headwise-17m";
inline const std::string kStory = "Once upon a time there was a house by the sea, and in the house lived";

inline std::unique_ptr<ServedModel> MustServe(const std::string& name, const std::string& path,
                                              int64_t kv_limit_bytes = 0, int64_t prefix_cache_bytes = 0,
                                              std::shared_ptr<PrefixDir> prefix_dir = nullptr) {
  EngineOptions options = ExactOptions(SourcePath(path), {"cpu"});
  options.num_threads = 2;
  options.kv_limit_bytes = kv_limit_bytes;
  auto service = Service::Create(MustCreate(options));
  EXPECT_TRUE(service.ok()) << service.status().message();
  auto model = ServedModel::Create(
      *std::move(service),
      {.name = name, .prefix_cache_bytes = prefix_cache_bytes, .prefix_dir = std::move(prefix_dir)});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

// A server of one model, with a plan.
class TestApi {
 public:
  explicit TestApi(ApiOptions options = {}, int64_t kv_limit_bytes = 0, int64_t prefix_cache_bytes = 0,
                   std::shared_ptr<PrefixDir> prefix_dir = nullptr) {
    auto served = MustServe(kModel, "models/headwise-17m", kv_limit_bytes, prefix_cache_bytes, std::move(prefix_dir));
    EXPECT_TRUE(host_.Add(std::move(served)).ok());
    auto plan = ReadHeadPlan(SourcePath("models/headwise-17m-two-heads.json"));
    EXPECT_TRUE(plan.ok());
    EXPECT_FALSE(model().AddPlan("two-heads", *plan, "test"));
    server_ = std::make_unique<ApiServer>(host_, std::move(options));
  }
  // Once nothing runs any more.
  ~TestApi() { server_->Shutdown(); }

  ModelHost& host() { return host_; }
  ServedModel& model() { return *host_.models().front(); }
  ApiServer& server() { return *server_; }

  Reply Begin(const std::string& method, const std::string& path, std::string body = "",
              std::vector<HttpField> fields = {}, Reply reply = std::make_shared<FakeReply>()) {
    server_->Handle(RequestTo(method, path, std::move(body), std::move(fields)), reply);
    return reply;
  }
  Reply Ask(const std::string& method, const std::string& path, std::string body = "",
            std::vector<HttpField> fields = {}) {
    Reply reply = Begin(method, path, std::move(body), std::move(fields));
    reply->Await();
    return reply;
  }
  // The object of a request that has to succeed.
  Json Must(const std::string& method, const std::string& path, std::string body = "") {
    const Reply reply = Ask(method, path, std::move(body));
    EXPECT_LT(reply->status(), 300) << reply->Text();
    return reply->Object();
  }
  Json Complete(const Json& body) { return Must("POST", "/v1/completions", body.dump()); }
  // The error of one that has to fail.
  Json Fail(int status, const std::string& method, const std::string& path, std::string body = "") {
    const Reply reply = Ask(method, path, std::move(body));
    EXPECT_EQ(reply->status(), status) << reply->Text();
    const Json json = reply->Object();
    return json.contains("error") ? json["error"] : Json::object({{"message", ""}});
  }

 private:
  ModelHost host_;
  std::unique_ptr<ApiServer> server_;
};

// One server for all tests that change nothing of it.
inline TestApi& Shared() {
  static TestApi api;
  return api;
}

inline Json Greedy(const std::string& prompt, int64_t max_tokens) {
  return {{"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}};
}

template <typename Condition>
bool WaitUntil(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kReplyPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::yield();
  }
  return false;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_TEST_API_H_
