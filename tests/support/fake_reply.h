// The reply of an exchange without a network: notes what it is given, and can play a client that leaves.
#ifndef HEADWISE_TESTS_SUPPORT_FAKE_REPLY_H_
#define HEADWISE_TESTS_SUPPORT_FAKE_REPLY_H_

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "server/http.h"

namespace headwise {

inline HttpRequest RequestTo(std::string method, std::string path, std::string body = {},
                             std::vector<HttpField> fields = {}) {
  HttpRequest request;
  request.method = std::move(method);
  request.path = std::move(path);
  request.body = std::move(body);
  request.fields = std::move(fields);
  return request;
}

// How long a test waits for what has to come. Under sanitizers on a machine with other work one answer may take
// minutes: the test's own limit ends it then.
inline constexpr std::chrono::minutes kReplyPatience(HEADWISE_SANITIZED ? 60 : 2);

class FakeReply : public HttpReply {
 public:
  void Send(HttpResponse response) override {
    Note([&] {
      EXPECT_FALSE(has_begun_ || has_ended_) << "Send is all of a reply";
      response_ = std::move(response);
      has_ended_ = true;
    });
  }
  void Begin(HttpResponse response) override {
    Note([&] {
      EXPECT_FALSE(has_begun_ || has_ended_);
      body_ = response.body;
      response_ = std::move(response);
      has_begun_ = true;
    });
  }
  bool Write(std::string_view piece) override {
    std::function<void()> on_gone;
    bool is_taken = false;
    Note([&] {
      EXPECT_TRUE(has_begun_ && !has_ended_);
      if (pieces_left_ > 0) {
        --pieces_left_;
        body_ += piece;
        is_taken = true;
      }
      if (pieces_left_ == 0 && !is_gone_) {
        is_gone_ = true;
        on_gone = std::move(on_gone_);
      }
      is_taken &= !is_gone_;
    });
    if (on_gone) on_gone();
    return is_taken;
  }
  void End() override {
    Note([&] {
      EXPECT_TRUE(has_begun_ && !has_ended_);
      has_ended_ = true;
    });
  }
  void OnGone(std::function<void()> on_gone) override {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(has_begun_);
      if (!is_gone_) {
        on_gone_ = std::move(on_gone);
        return;
      }
    }
    on_gone();
  }

  // The client leaves: now, or once he has taken so many pieces.
  void Leave() {
    std::function<void()> on_gone;
    Note([&] {
      is_gone_ = true;
      pieces_left_ = 0;
      on_gone = std::move(on_gone_);
    });
    if (on_gone) on_gone();
  }
  void LeaveAfter(int64_t num_pieces) {
    const std::lock_guard lock(mutex_);
    pieces_left_ = num_pieces;
  }

  // Waits for the end of the reply.
  bool Await() {
    std::unique_lock lock(mutex_);
    const bool has_come = changed_.wait_for(lock, kReplyPatience, [&] { return has_ended_; });
    EXPECT_TRUE(has_come) << "the reply has no end";
    return has_come;
  }
  // Of a reply that has ended.
  int status() const { return response_.status; }
  const HttpResponse& response() const { return response_; }
  std::string Field(std::string_view name) const {
    for (const HttpField& field : response_.fields) {
      if (field.name == name) return field.value;
    }
    return {};
  }
  std::string Text() const { return has_begun_ ? body_ : response_.body; }
  Json Object() const {
    Json json = Json::parse(Text(), nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << Text();
    return json;
  }
  bool has_begun() const { return has_begun_; }
  // The events of a stream; the last, [DONE], as a text.
  std::vector<Json> Events() const {
    std::vector<Json> events;
    const std::string text = Text();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find("\n\n", begin);
      if (end == std::string::npos || text.compare(begin, 6, "data: ") != 0) {
        ADD_FAILURE() << "no event: " << text.substr(begin, 100);
        break;
      }
      const std::string data = text.substr(begin + 6, end - begin - 6);
      events.push_back(data == "[DONE]" ? Json(data) : Json::parse(data, nullptr, false));
      begin = end + 2;
    }
    return events;
  }

 private:
  template <typename Change>
  void Note(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  HttpResponse response_;
  std::string body_;
  int64_t pieces_left_ = int64_t{1} << 40;
  bool has_begun_ = false;
  bool has_ended_ = false;
  bool is_gone_ = false;
  std::function<void()> on_gone_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_FAKE_REPLY_H_
