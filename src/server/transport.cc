#include "server/transport.h"

#include <sys/socket.h>

#include <cerrno>

namespace headwise {
namespace {

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(int socket) : socket_(socket) {}

  IoStep Handshake() override { return {.kind = IoStep::Kind::kMoved}; }

  IoStep Read(std::span<char> bytes) override {
    while (true) {
      const ssize_t n = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n > 0) return {.kind = IoStep::Kind::kMoved, .size = static_cast<size_t>(n)};
      if (n == 0) return {.kind = IoStep::Kind::kEnd};
      if (errno == EINTR) continue;
      const bool is_empty = errno == EAGAIN || errno == EWOULDBLOCK;
      return {.kind = is_empty ? IoStep::Kind::kWantsRead : IoStep::Kind::kFailed};
    }
  }

  IoStep Write(std::string_view bytes) override {
    while (true) {
      // A client that is gone is no reason for SIGPIPE.
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) return {.kind = IoStep::Kind::kMoved, .size = static_cast<size_t>(n)};
      if (n < 0 && errno == EINTR) continue;
      const bool is_full = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS);
      return {.kind = is_full ? IoStep::Kind::kWantsWrite : IoStep::Kind::kFailed};
    }
  }

  void FinishWriting() override { ::shutdown(socket_, SHUT_WR); }
  IoStep Discard(std::span<char> bytes) override { return Read(bytes); }

 private:
  int socket_;
};

}  // namespace

std::unique_ptr<Transport> NewPlainTransport(int socket) {
  return std::make_unique<PlainTransport>(socket);
}

}  // namespace headwise
