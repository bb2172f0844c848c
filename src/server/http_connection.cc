#include "server/http_connection.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <span>
#include <utility>

#include "server/http_head.h"

namespace headwise {
namespace {

using boost::system::error_code;

// Of a client that sends its next requests before it has read the reply. At more he is left waiting.
constexpr size_t kMaxReadAhead = 16 << 10;
// Steps in a row for one connection, before others have their turn.
constexpr int kMaxSteps = 32;
// For a client that was told to go: to read why, and to go first.
constexpr std::chrono::milliseconds kDrainTime(1000);
// Of a reply in pieces, where those of all together are more than the server holds.
constexpr int64_t kUnsentWhenFull = 64 << 10;
// Memory that a connection keeps between two pieces.
constexpr size_t kKeptBytes = 4 << 10;

std::span<char> ThreadBuffer() {
  thread_local std::array<char, 64 << 10> buffer;
  return buffer;
}

std::string PeerOf(const HttpConnection::Socket& socket) {
  error_code error;
  const auto peer = socket.remote_endpoint(error);
  return error ? "unknown" : TextOf(peer);
}

void FreeIfLarge(std::string& bytes) {
  if (bytes.capacity() > kKeptBytes) std::string().swap(bytes);
}

}  // namespace

std::string TextOf(const boost::asio::ip::tcp::endpoint& endpoint) {
  boost::asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6());
  }
  if (address.is_v6()) return fmt::format("[{}]:{}", address.to_string(), endpoint.port());
  return fmt::format("{}:{}", address.to_string(), endpoint.port());
}

HttpConnection::HttpConnection(std::shared_ptr<ConnectionOwner> owner, Socket socket,
                               std::unique_ptr<Transport> transport, bool is_refused)
    : owner_(std::move(owner)),
      socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      transport_(std::move(transport)),
      is_refused_(is_refused) {}

void HttpConnection::Post(void (HttpConnection::*step)()) {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this(), step] { self->Run(step); });
}

void HttpConnection::Run(void (HttpConnection::*step)()) noexcept {
  try {
    (this->*step)();
  } catch (...) {
    Leave();
  }
}

void HttpConnection::Start() {
  Post(&HttpConnection::Advance);
}

void HttpConnection::Stop() {
  Post(&HttpConnection::OnStop);
}

void HttpConnection::Abort() {
  Post(&HttpConnection::Leave);
}

void HttpConnection::Advance() {
  if (state_ == State::kHandshake) Shake();
  for (int i = 0; i < kMaxSteps && state_ != State::kHandshake && state_ != State::kClosed; ++i) {
    const bool has_sent = Send();
    const bool has_read = Receive();
    if (!has_sent && !has_read) return Wait();
  }
  if (state_ == State::kHandshake) return Wait();
  if (state_ != State::kClosed) Post(&HttpConnection::Advance);
}

void HttpConnection::Shake() {
  if (deadline_ == Clock::time_point::max()) SetDeadlineIn(options().limits.header_time);
  const IoStep step = transport_->Handshake();
  Note(step.kind);
  if (step.kind == IoStep::Kind::kEnd || step.kind == IoStep::Kind::kFailed) return Leave();
  if (step.kind != IoStep::Kind::kMoved) return;
  if (is_refused_) return Refuse(503, "the server has as many connections as it takes");
  if (owner_->is_stopping()) return Leave();
  state_ = State::kIdle;
  SetDeadlineIn(options().limits.idle_time);
}

void HttpConnection::Note(IoStep::Kind kind) {
  if (kind == IoStep::Kind::kWantsRead) wants_read_ = true;
  if (kind == IoStep::Kind::kWantsWrite) wants_write_ = true;
}

void HttpConnection::Wait() {
  if (std::exchange(wants_read_, false) && !is_waiting_to_read_) {
    WaitFor(boost::asio::socket_base::wait_read, is_waiting_to_read_);
  }
  if (std::exchange(wants_write_, false) && !is_waiting_to_write_) {
    WaitFor(boost::asio::socket_base::wait_write, is_waiting_to_write_);
  }
}

void HttpConnection::WaitFor(WaitType type, bool& is_waiting) {
  is_waiting = true;
  socket_.async_wait(type, [self = shared_from_this(), &is_waiting](const error_code& error) {
    is_waiting = false;
    self->Run(error ? &HttpConnection::Leave : &HttpConnection::Advance);
  });
}

// Sending.

bool HttpConnection::Send() {
  // Whoever fell behind is blocked: he is not to be waited for.
  if (exchange_ != nullptr && exchange_->is_gone()) Leave();
  if (is_waiting_to_write_ || state_ == State::kClosed) return false;
  bool has_moved = false;
  while (num_sent_ < out_.size() || NextOutput()) {
    const IoStep step = transport_->Write(std::string_view(out_).substr(num_sent_));
    Note(step.kind);
    if (step.kind == IoStep::Kind::kWantsRead || step.kind == IoStep::Kind::kWantsWrite) {
      if (state_ == State::kReply) OnBlocked(has_moved);
      return has_moved;
    }
    if (step.kind != IoStep::Kind::kMoved) {
      Leave();
      return true;
    }
    has_moved = true;
    num_sent_ += step.size;
    if (exchange_ != nullptr) exchange_->Sent(step.size);
  }
  return has_moved;
}

bool HttpConnection::NextOutput() {
  out_.clear();
  num_sent_ = 0;
  FreeIfLarge(out_);
  if (state_ != State::kReply) return false;
  if (exchange_ == nullptr) {
    Drain();
    return false;
  }
  HttpExchange::Next next = exchange_->Take(out_);
  if (next == HttpExchange::Next::kFails) {
    exchange_->Fail(ErrorResponse(500, "the server failed to answer"));
    next = exchange_->Take(out_);
  }
  if (next == HttpExchange::Next::kIsGone) {
    Leave();
    return false;
  }
  if (!out_.empty()) return true;
  is_blocked_ = false;
  SetDeadline(Clock::time_point::max());
  if (next == HttpExchange::Next::kEnds) OnReplySent();
  if (next == HttpExchange::Next::kBreaksOff) {
    // Where the end of the connection would be the end of the body, a reset tells that it is not.
    error_code ignored;
    if (exchange_->ends_by_close()) socket_.set_option(boost::asio::socket_base::linger(true, 0), ignored);
    Leave();
  }
  return false;
}

void HttpConnection::OnReplySent() {
  const bool goes_on = exchange_->keep_alive() && !has_ended_ && !owner_->is_stopping();
  exchange_.reset();
  std::string().swap(out_);
  if (!goes_on) return Drain();
  state_ = State::kIdle;
  SetDeadlineIn(options().limits.idle_time);
}

void HttpConnection::OnBlocked(bool has_moved) {
  if (is_blocked_ && !has_moved) return;
  is_blocked_ = true;
  HasTakenBytes();
  SetDeadlineIn(options().limits.write_time);
}

bool HttpConnection::HasTakenBytes() {
  int unsent = 0;
  if (::ioctl(socket_.native_handle(), SIOCOUTQ, &unsent) != 0) return false;
  return unsent < std::exchange(unsent_by_system_, unsent);
}

// Receiving.

bool HttpConnection::Receive() {
  if (state_ == State::kIdle && !unread_.empty()) {
    OnBytes({});
    return true;
  }
  if (is_waiting_to_read_ || has_ended_ || state_ == State::kClosed) return false;
  if (state_ == State::kReply && unread_.size() >= kMaxReadAhead) return false;
  const std::span<char> buffer = ThreadBuffer();
  const bool is_reply = state_ == State::kReply;
  const std::span<char> room = is_reply ? buffer.first(kMaxReadAhead - unread_.size()) : buffer;
  const IoStep step = state_ == State::kDrained ? transport_->Discard(room) : transport_->Read(room);
  Note(step.kind);
  if (step.kind == IoStep::Kind::kWantsRead || step.kind == IoStep::Kind::kWantsWrite) return false;
  if (step.kind != IoStep::Kind::kMoved) {
    OnEnd(/*has_failed=*/step.kind == IoStep::Kind::kFailed);
    return true;
  }
  const std::string_view bytes(room.data(), step.size);
  if (is_reply) {
    unread_ += bytes;
  } else if (state_ != State::kDrained) {
    OnBytes(bytes);
  }
  return true;
}

void HttpConnection::OnEnd(bool has_failed) {
  const bool is_said = state_ == State::kReply && (exchange_ == nullptr || exchange_->has_ended());
  if (has_failed || !is_said) return Leave();
  has_ended_ = true;
}

void HttpConnection::OnBytes(std::string_view bytes) {
  if (!unread_.empty()) {
    unread_ += bytes;
    bytes = unread_;
  }
  if (state_ == State::kIdle) {
    // Some clients send an empty line behind a body.
    bytes.remove_prefix(std::min(bytes.find_first_not_of("\r\n"), bytes.size()));
    if (bytes.empty()) return std::string().swap(unread_);
    state_ = State::kHeader;
    reader_ = std::make_unique<RequestReader>(options().limits.header_bytes, options().limits.body_bytes);
    SetDeadlineIn(options().limits.header_time);
  }
  bytes.remove_prefix(reader_->Read(bytes));
  std::string(bytes).swap(unread_);  // an assignment may keep memory
  switch (reader_->state()) {
    case RequestReader::State::kRefused:
      return Refuse(reader_->refusal_status(), reader_->refusal_message());
    case RequestReader::State::kDone:
      return OnRequest();
    case RequestReader::State::kBody:
      if (state_ == State::kHeader) OnHeader();
      break;
    case RequestReader::State::kHeader:
      break;
  }
}

void HttpConnection::OnHeader() {
  if (options().check_header) {
    if (const auto answer = options().check_header(reader_->request())) return Refuse(*answer);
  }
  state_ = State::kBody;
  SetDeadlineIn(options().limits.body_time);
  if (reader_->expects_continue() && unread_.empty()) out_ += "HTTP/1.1 100 Continue\r\n\r\n";
}

void HttpConnection::OnRequest() {
  HttpRequest request = reader_->TakeRequest();
  request.peer = PeerOf(socket_);
  HttpExchange::Options exchange{
      .is_head = request.method == "HEAD",
      .is_http_1_0 = reader_->is_http_1_0(),
      .keep_alive = reader_->keep_alive() && !owner_->is_stopping(),
      .unsent_bytes = options().limits.unsent_bytes,
      .unsent_bytes_when_full = std::min(kUnsentWhenFull, options().limits.unsent_bytes),
      .all_unsent = owner_->all_unsent(),
      .wake =
          [weak = weak_from_this()] {
            if (const auto self = weak.lock()) self->Post(&HttpConnection::Advance);
          },
      .call_later =
          [weak = std::weak_ptr(owner_)](std::function<void()> function) {
            if (const auto owner = weak.lock()) owner->Post(std::move(function));
          },
  };
  exchange_ = std::make_shared<HttpExchange>(std::move(exchange));
  reader_.reset();
  state_ = State::kReply;
  SetDeadline(Clock::time_point::max());
  if (owner_->Handle(std::move(request), exchange_)) return;
  exchange_.reset();
  Refuse(503, "the server has no thread to answer");
}

void HttpConnection::Refuse(const HttpResponse& response) {
  const bool has_body = reader_ == nullptr || !reader_->is_head();
  reader_.reset();
  std::string().swap(unread_);
  // A word to go on that is half said comes first.
  out_ += HttpHead(response, {.keep_alive = false});
  if (has_body) out_ += response.body;
  state_ = State::kReply;
  SetDeadlineIn(options().limits.write_time);
}

HttpResponse HttpConnection::ErrorResponse(int status, std::string_view message) const {
  if (options().error_body) return {.status = status, .body = options().error_body(status, message)};
  return {.status = status, .content_type = "text/plain", .body = std::string(message) + "\n"};
}

// Time.

void HttpConnection::SetDeadline(Clock::time_point deadline) {
  deadline_ = deadline;
  // A later one is looked at when the timer fires: most deadlines move on before they are reached.
  if (deadline < timer_time_) ArmTimer(deadline);
}

void HttpConnection::ArmTimer(Clock::time_point time) {
  timer_time_ = time;
  timer_.expires_at(time);
  timer_.async_wait([self = shared_from_this(), number = ++timer_number_](const error_code&) {
    // One that was set anew may have fired before.
    if (number == self->timer_number_) self->Run(&HttpConnection::OnTimer);
  });
}

void HttpConnection::OnTimer() {
  timer_time_ = Clock::time_point::max();
  if (state_ == State::kClosed || deadline_ == Clock::time_point::max()) return;
  if (Clock::now() < deadline_) return ArmTimer(deadline_);
  deadline_ = Clock::time_point::max();
  OnDeadline();
}

void HttpConnection::OnDeadline() {
  switch (state_) {
    case State::kHeader:
    case State::kBody:
      Refuse(408, "the request took too long to come");
      return Advance();
    case State::kReply:
      // The system says that there is room once there is plenty: a slow client may have taken bytes all the while.
      if (HasTakenBytes()) return SetDeadlineIn(options().limits.write_time);
      return Leave();
    default:
      return Leave();
  }
}

// The end.

void HttpConnection::OnStop() {
  if (state_ == State::kHandshake || state_ == State::kIdle) return Leave();
  if (exchange_ != nullptr) exchange_->CloseAfter();
}

void HttpConnection::Drain() {
  if (has_ended_) return Leave();
  state_ = State::kDrained;
  std::string().swap(unread_);
  transport_->FinishWriting();
  SetDeadlineIn(kDrainTime);
}

void HttpConnection::Leave() {
  if (state_ == State::kClosed) return;
  std::function<void()> on_gone;
  if (exchange_ != nullptr) on_gone = exchange_->MarkGone();
  Close();
  try {
    if (on_gone) on_gone();
  } catch (...) {
    // Nobody is there to tell.
  }
}

void HttpConnection::Close() {
  state_ = State::kClosed;
  error_code ignored;
  timer_.cancel(ignored);
  socket_.close(ignored);
  exchange_.reset();
  reader_.reset();
  std::string().swap(unread_);
  std::string().swap(out_);
  num_sent_ = 0;
  owner_->Remove(this);
}

}  // namespace headwise
