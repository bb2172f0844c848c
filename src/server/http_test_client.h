// For tests of the server: a client that sends whatever bytes it is given, and a server whose handler does what a path
// says. Nothing here sleeps; what does not come within kPatience fails.
#ifndef HEADWISE_SERVER_HTTP_TEST_CLIENT_H_
#define HEADWISE_SERVER_HTTP_TEST_CLIENT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "server/http_server.h"

namespace headwise {

inline constexpr std::chrono::seconds kPatience(20);

// Something that comes to pass once or more on another thread.
class Event {
 public:
  void Set() {
    const std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  bool Wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count_ > 0; });
  }
  int count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

// Until it holds; for what only polling tells.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

struct TestReply {
  int status = 0;  // 0: none came
  std::map<std::string, std::string> fields;
  std::string body;
  bool is_whole = false;  // it came to the end that it announced
};

class TestClient {
 public:
  explicit TestClient(int port, int receive_buffer = 0) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_GE(fd_, 0) << std::strerror(errno);
    if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int result = ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    EXPECT_EQ(result, 0) << std::strerror(errno);
  }
  TestClient(const TestClient&) = delete;
  TestClient(TestClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)), unread_(std::move(other.unread_)) {}
  ~TestClient() { Close(); }

  int fd() const { return fd_; }
  void Close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void Reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    Close();
  }
  void HalfClose() { ::shutdown(fd_, SHUT_WR); }

  // As much as the other side takes before it closes.
  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  void Get(std::string_view path) { Send("GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n\r\n"); }
  void Post(std::string_view path, std::string_view body) {
    Send("POST " + std::string(path) + " HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + std::string(body));
  }

  // Bytes up to the end of `last`, or all that came before the connection ended.
  std::string ReadUntil(std::string_view last) {
    size_t found;
    while ((found = unread_.find(last)) == std::string::npos) {
      if (!ReadMore()) return std::exchange(unread_, {});
    }
    return TakeBytes(found + last.size());
  }
  std::string ReadBytes(size_t size) {
    while (unread_.size() < size && ReadMore()) {
    }
    return TakeBytes(std::min(size, unread_.size()));
  }
  std::string ReadToEnd() {
    while (ReadMore()) {
    }
    return std::exchange(unread_, {});
  }
  // By an end or a reset, without another byte.
  bool IsClosed() { return ReadToEnd().empty() && !is_late_; }

  TestReply ReadReply(bool has_body = true) {
    TestReply reply;
    const std::string head = ReadUntil("\r\n\r\n");
    if (!head.starts_with("HTTP/1.1 ") || !head.ends_with("\r\n\r\n")) return reply;
    reply.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size(); at = head.find("\r\n", at) + 2) {
      const std::string line = head.substr(at, head.find("\r\n", at) - at);
      const size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      reply.fields[name] = line.substr(colon + 2);
    }
    if (!has_body || reply.status == 204 || reply.status == 304) {
      reply.is_whole = true;
    } else if (reply.fields.contains("content-length")) {
      const size_t size = std::stoul(reply.fields["content-length"]);
      reply.body = ReadBytes(size);
      reply.is_whole = reply.body.size() == size;
    } else if (reply.fields.contains("transfer-encoding")) {
      ReadChunks(reply);
    } else {
      reply.body = ReadToEnd();
      reply.is_whole = !is_reset_;
    }
    return reply;
  }
  // One chunk; empty: the last one, or none came.
  std::string ReadChunk() {
    const std::string line = ReadUntil("\r\n");
    if (!line.ends_with("\r\n")) return {};
    const std::string chunk = ReadBytes(std::stoul(line, nullptr, 16));
    return ReadUntil("\r\n") == "\r\n" ? chunk : std::string();
  }

 private:
  std::string TakeBytes(size_t size) {
    std::string taken = unread_.substr(0, size);
    unread_.substr(size).swap(unread_);  // gives memory back, as an assignment may not: tests count it
    return taken;
  }
  void ReadChunks(TestReply& reply) {
    while (true) {
      const std::string line = ReadUntil("\r\n");
      if (!line.ends_with("\r\n")) return;
      const size_t size = std::stoul(line, nullptr, 16);
      reply.body += ReadBytes(size);
      if (ReadBytes(2) != "\r\n") return;
      if (size == 0) {
        reply.is_whole = true;
        return;
      }
    }
  }
  bool ReadMore() {
    pollfd poll = {.fd = fd_, .events = POLLIN, .revents = 0};
    const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
    const int ready = ::poll(&poll, 1, static_cast<int>(patience.count()));
    is_late_ = ready == 0;
    EXPECT_FALSE(is_late_) << "nothing came, not even an end";
    if (ready <= 0) return false;
    char bytes[1 << 14];
    const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
    is_reset_ = n < 0;
    if (n <= 0) return false;
    unread_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  int fd_;
  std::string unread_;
  bool is_late_ = false;
  bool is_reset_ = false;
};

// Paths: /echo says what was asked, /throw throws, /drop lets the reply go, /hold keeps it for the test, others are
// 404.
class TestServer {
 public:
  struct Held {
    HttpRequest request;
    std::shared_ptr<HttpReply> reply;
  };

  explicit TestServer(const HttpServerOptions& options = {}) {
    auto started = HttpServer::Start(options, [held = held_](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      Answer(*held, std::move(request), std::move(reply));
    });
    EXPECT_TRUE(started.ok()) << started.status().message();
    if (started.ok()) server_ = std::move(started).value();
  }

  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }
  int port() const { return server_->port(); }
  void Destroy() { server_.reset(); }

  // The next request for /hold.
  Held Take() {
    std::unique_lock lock(held_->mutex);
    const bool came = held_->changed.wait_for(lock, kPatience, [&] { return !held_->exchanges.empty(); });
    EXPECT_TRUE(came) << "no request came";
    if (!came) return {};
    Held held = std::move(held_->exchanges.front());
    held_->exchanges.pop_front();
    return held;
  }

 private:
  struct Exchanges {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Held> exchanges;
  };

  static void Answer(Exchanges& held, HttpRequest request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/echo") {
      std::string text = request.method + " " + request.path + " " + request.query + " " + request.body;
      return reply->Send({.content_type = "text/plain", .body = std::move(text)});
    }
    if (request.path == "/throw") throw std::string("no exception that anybody knows");
    if (request.path == "/drop") return;
    if (request.path != "/hold") return reply->Send({.status = 404, .body = request.path});
    const std::lock_guard lock(held.mutex);
    held.exchanges.push_back({.request = std::move(request), .reply = std::move(reply)});
    held.changed.notify_all();
  }

  std::shared_ptr<Exchanges> held_ = std::make_shared<Exchanges>();
  std::unique_ptr<HttpServer> server_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_HTTP_TEST_CLIENT_H_
