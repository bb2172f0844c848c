// For tests: a server that answers a prompt with the bytes written down for it, and then ends, breaks off or says no
// more.
#ifndef HEADWISE_LOADGEN_RAW_TEST_SERVER_H_
#define HEADWISE_LOADGEN_RAW_TEST_SERVER_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"

namespace headwise {

class RawTestServer {
 public:
  enum class End { kClose, kReset, kHold };
  struct Script {
    std::string bytes;
    End end = End::kClose;
  };

  // By the prompt of a request; "" for those without.
  explicit RawTestServer(std::map<std::string, Script> scripts)
      : scripts_(std::move(scripts)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Loop(); });
  }
  RawTestServer(const RawTestServer&) = delete;
  ~RawTestServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (const int fd : held_) ::close(fd);
    ::close(listener_);
  }

  int port() const { return port_; }

 private:
  void Loop() {
    int fd;
    while ((fd = ::accept(listener_, nullptr, nullptr)) >= 0) Serve(fd);
  }

  void Serve(int fd) {
    const Json body = Json::parse(ReadBody(fd), nullptr, false);
    const std::string prompt = body.is_object() ? body.value("prompt", "") : "";
    const Script& script = scripts_[prompt];
    std::string_view bytes = script.bytes;
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) break;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    if (script.end == End::kHold) {
      held_.push_back(fd);
      return;
    }
    if (script.end == End::kReset) {
      const linger now{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }
    ::close(fd);
  }

  // Of a request, to the end that it announces.
  static std::string ReadBody(int fd) {
    std::string request;
    while (true) {
      const size_t head_end = request.find("\r\n\r\n");
      if (head_end != std::string::npos) {
        const size_t length_at = request.find("Content-Length: ");
        const size_t length = length_at < head_end ? std::stoul(request.substr(length_at + 16)) : 0;
        if (request.size() >= head_end + 4 + length) return request.substr(head_end + 4);
      }
      char bytes[4096];
      const ssize_t n = ::recv(fd, bytes, sizeof(bytes), 0);
      if (n <= 0) return "";
      request.append(bytes, static_cast<size_t>(n));
    }
  }

  std::map<std::string, Script> scripts_;
  int listener_;
  int port_ = 0;
  std::vector<int> held_;
  std::thread thread_;
};

}  // namespace headwise

#endif  // HEADWISE_LOADGEN_RAW_TEST_SERVER_H_
