#include "loadgen/http_call.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/field.hpp>
#include <string>
#include <utility>

namespace headwise {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr size_t kReadBytes = size_t{1} << 16;
constexpr uint32_t kHeaderBytes = 64 << 10;

}  // namespace

HttpExchangeCall::HttpExchangeCall(HttpCallShared& shared, std::string request, HttpCallListener& listener)
    : shared_(shared), listener_(&listener), socket_(shared.io), timer_(shared.io), out_(std::move(request)) {
  parser_.header_limit(kHeaderBytes);
  parser_.body_limit(HttpClient::kMaxBodyBytes);
  parser_.eager(true);
}

void HttpExchangeCall::Start() {
  last_moved_ = Clock::now();
  WatchPatience();
  Connect(0);
}

void HttpExchangeCall::Cancel() {
  listener_ = nullptr;
  ErrorCode ignored;
  timer_.cancel(ignored);
  socket_.close(ignored);
}

void HttpExchangeCall::End(std::string failure, std::string message) {
  HttpCallListener* listener = std::exchange(listener_, nullptr);
  Cancel();
  if (listener != nullptr)
    listener->OnEnd({.failure = std::move(failure), .message = std::move(message)}, Clock::now());
}

void HttpExchangeCall::WatchPatience() {
  // Moved seldom and looked at when it is due: a token a millisecond would move it as often.
  timer_.expires_at(last_moved_ + shared_.options.patience);
  timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
    if (error || self->listener_ == nullptr) return;
    if (Clock::now() < self->last_moved_ + self->shared_.options.patience) return self->WatchPatience();
    self->End("timeout", fmt::format("nothing came for {} s",
                                     std::chrono::duration<double>(self->shared_.options.patience).count()));
  });
}

void HttpExchangeCall::Connect(size_t num_tried) {
  const size_t which = (shared_.best_endpoint + num_tried) % shared_.endpoints.size();
  socket_.async_connect(
      shared_.endpoints[which], [self = shared_from_this(), num_tried, which](const ErrorCode& error) {
        if (self->listener_ == nullptr) return;
        if (!error) {
          self->shared_.best_endpoint = which;
          return self->OnConnected();
        }
        if (num_tried + 1 == self->shared_.endpoints.size()) {
          return self->End("connect", fmt::format("{}: {}", self->shared_.options.target.Authority(), error.message()));
        }
        ErrorCode ignored;
        self->socket_.close(ignored);
        self->Connect(num_tried + 1);
      });
}

void HttpExchangeCall::OnConnected() {
  ErrorCode ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  const int handle = socket_.native_handle();
  transport_ = shared_.tls != nullptr ? shared_.tls->NewTransport(handle, shared_.options.target.host)
                                      : NewPlainTransport(handle);
  if (transport_ == nullptr) return End("tls", "no session could be made");
  Advance();
}

void HttpExchangeCall::Advance() {
  while (listener_ != nullptr) {
    if (!has_shaken_) {
      if (!Shake()) return;
    } else if (num_sent_ < out_.size()) {
      if (!Send()) return;
    } else if (!Receive()) {
      return;
    }
  }
}

bool HttpExchangeCall::Shake() {
  const IoStep step = transport_->Handshake();
  if (step.kind == IoStep::Kind::kMoved) {
    has_shaken_ = true;
    last_moved_ = Clock::now();
    listener_->OnConnected(last_moved_);
    return true;
  }
  if (step.kind == IoStep::Kind::kEnd || step.kind == IoStep::Kind::kFailed) {
    const std::string reason = transport_->Reason();
    End("tls", fmt::format("{}: {}", shared_.options.target.Authority(),
                           reason.empty() ? "the connection ended within the handshake" : reason));
    return false;
  }
  return Note(step);
}

bool HttpExchangeCall::Send() {
  const IoStep step = transport_->Write(std::string_view(out_).substr(num_sent_));
  if (step.kind == IoStep::Kind::kMoved) {
    num_sent_ += step.size;
    last_moved_ = Clock::now();
    return true;
  }
  if (step.kind == IoStep::Kind::kFailed) {
    // A server that refuses a request before it has read it may have said why.
    num_sent_ = out_.size();
    return true;
  }
  return Note(step);
}

bool HttpExchangeCall::Receive() {
  std::array<char, kReadBytes> bytes;
  const IoStep step = transport_->Read(bytes);
  if (step.kind == IoStep::Kind::kMoved) {
    last_moved_ = Clock::now();
    return Parse({bytes.data(), step.size});
  }
  return Note(step);
}

bool HttpExchangeCall::Note(const IoStep& step) {
  switch (step.kind) {
    case IoStep::Kind::kWantsRead:
      WaitFor(tcp::socket::wait_read);
      break;
    case IoStep::Kind::kWantsWrite:
      WaitFor(tcp::socket::wait_write);
      break;
    case IoStep::Kind::kEnd:
      OnServerEnd();
      break;
    case IoStep::Kind::kFailed: {
      const std::string reason = transport_->Reason();
      End("reset", reason.empty() ? "the connection broke off" : "the connection broke off: " + reason);
      break;
    }
    case IoStep::Kind::kMoved:
      return true;
  }
  return false;
}

void HttpExchangeCall::WaitFor(tcp::socket::wait_type type) {
  socket_.async_wait(type, [self = shared_from_this()](const ErrorCode& error) {
    if (self->listener_ == nullptr) return;
    if (error) return self->End("reset", error.message());
    self->Advance();
  });
}

bool HttpExchangeCall::TellBody() {
  if (!has_told_head_ && parser_.is_header_done()) {
    has_told_head_ = true;
    const auto type = parser_.get()[http::field::content_type];
    listener_->OnHead(parser_.get().result_int(), {type.data(), type.size()});
  }
  std::string& body = parser_.get().body();
  if (body.empty()) return true;
  const bool goes_on = listener_->OnBody(body, last_moved_);
  body.clear();
  if (!goes_on) End("stopped", "");
  return goes_on;
}

bool HttpExchangeCall::Parse(std::string_view bytes) {
  in_ += bytes;
  while (!parser_.is_done() && !in_.empty()) {
    ErrorCode error;
    const size_t num_taken = parser_.put(asio::buffer(in_), error);
    in_.erase(0, num_taken);
    if (!TellBody()) return false;
    if (error == http::error::need_more || (!error && num_taken == 0)) return true;
    if (error) {
      End("protocol", fmt::format("no HTTP as it should be: {}", error.message()));
      return false;
    }
  }
  if (!parser_.is_done()) return true;
  End("", "");
  return false;
}

void HttpExchangeCall::OnServerEnd() {
  if (!parser_.got_some()) return End("reset", "the connection ended without an answer");
  ErrorCode error;
  parser_.put_eof(error);
  if (error) return End("reset", "the connection ended within the answer");
  End("", "");
}

}  // namespace headwise
