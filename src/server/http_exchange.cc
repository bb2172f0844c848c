#include "server/http_exchange.h"

#include <fmt/format.h>

#include <iterator>

#include "base/check.h"
#include "server/http_head.h"

namespace headwise {

HttpExchange::~HttpExchange() {
  CountUnsent(-unsent_);
}

void HttpExchange::CountUnsent(int64_t more) {
  unsent_ += more;
  options_.all_unsent->now += more;
}

bool HttpExchange::IsBehind() const {
  const bool is_full = options_.all_unsent->now > options_.all_unsent->most;
  return unsent_ > (is_full ? options_.unsent_bytes_when_full : options_.unsent_bytes);
}

void HttpExchange::AppendHead(const HttpResponse& response, bool is_whole) {
  BodyEnd end = BodyEnd::kLength;
  if (HasNoBody(response.status)) {
    end = BodyEnd::kNoBody;
  } else if (!is_whole) {
    end = options_.is_http_1_0 ? BodyEnd::kClose : BodyEnd::kChunks;
  }
  const bool keep_alive = keep_alive_ && end != BodyEnd::kClose;
  output_ += HttpHead(response, {.end = end, .keep_alive = keep_alive, .is_http_1_0 = options_.is_http_1_0});
  keep_alive_ = keep_alive;
  is_said_ = true;
  has_body_ = end != BodyEnd::kNoBody && !options_.is_head;
  is_chunked_ = has_body_ && end == BodyEnd::kChunks;
  ends_by_close_ = has_body_ && end == BodyEnd::kClose;
}

void HttpExchange::Wake() {
  if (is_woken_ || is_detached_) return;
  options_.wake();
  is_woken_ = true;
}

void HttpExchange::Send(HttpResponse response) {
  std::function<void()> dropped;  // what it holds may be anything, and ends outside of the lock
  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen) return;
  AppendHead(response, /*is_whole=*/true);
  if (has_body_) output_ += response.body;
  CountUnsent(static_cast<int64_t>(output_.size()) - unsent_);
  state_ = State::kEnded;
  dropped.swap(on_gone_);
  Wake();
}

void HttpExchange::Begin(const HttpResponse& response) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen) return;
    AppendHead(response, /*is_whole=*/false);
    CountUnsent(static_cast<int64_t>(output_.size()) - unsent_);
    state_ = State::kBegun;
    Wake();
  }
  Write(response.body);
}

bool HttpExchange::Write(std::string_view piece) {
  const std::lock_guard lock(mutex_);
  HW_CHECK(state_ != State::kOpen, "a piece of a reply that has not begun");
  if (state_ != State::kBegun) return false;
  // A chunk of no bytes would be the last one.
  if (!has_body_ || piece.empty()) return true;
  // Asked ahead of the piece: one of any size may come to a client that has fallen behind by less.
  const bool is_behind = IsBehind();
  const size_t old_size = output_.size();
  if (is_chunked_) fmt::format_to(std::back_inserter(output_), "{:x}\r\n", piece.size());
  output_ += piece;
  if (is_chunked_) output_ += "\r\n";
  CountUnsent(static_cast<int64_t>(output_.size() - old_size));
  if (is_behind) {
    state_ = State::kGone;
    std::string().swap(output_);
    is_woken_ = false;  // a connection that waits for its client takes nothing, and is to hear of this
  }
  Wake();
  return state_ == State::kBegun;
}

void HttpExchange::End() {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  HW_CHECK(state_ != State::kOpen, "the end of a reply that has not begun");
  if (state_ != State::kBegun) return;
  if (is_chunked_) output_ += "0\r\n\r\n";
  state_ = State::kEnded;
  dropped.swap(on_gone_);
  Wake();
}

void HttpExchange::OnGone(std::function<void()> on_gone) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kOpen || state_ == State::kBegun) {
      on_gone_.swap(on_gone);
      return;
    }
    if (state_ != State::kGone) return;
  }
  options_.call_later(std::move(on_gone));
}

void HttpExchange::Abandon() {
  std::function<void()> dropped;
  const std::lock_guard lock(mutex_);
  if (state_ != State::kOpen && state_ != State::kBegun) return;
  state_ = State::kAbandoned;
  dropped.swap(on_gone_);
  Wake();
}

void HttpExchange::GiveUp() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kGone) return;
  // What was said last may be there in part.
  state_ = State::kGone;
  std::string().swap(output_);
  is_woken_ = false;
  Wake();
}

HttpExchange::Next HttpExchange::Take(std::string& bytes) {
  const std::lock_guard lock(mutex_);
  is_woken_ = false;
  bytes.swap(output_);
  switch (state_) {
    case State::kOpen:
    case State::kBegun:
      return Next::kWaits;
    case State::kEnded:
      return Next::kEnds;
    case State::kAbandoned:
      return is_said_ ? Next::kBreaksOff : Next::kFails;
    case State::kGone:
      break;
  }
  return Next::kIsGone;
}

void HttpExchange::Sent(size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  CountUnsent(-static_cast<int64_t>(num_bytes));
}

void HttpExchange::Fail(const HttpResponse& response) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kAbandoned || is_said_) return;
  AppendHead(response, /*is_whole=*/true);
  if (has_body_) output_ += response.body;
  CountUnsent(static_cast<int64_t>(output_.size()) - unsent_);
  state_ = State::kEnded;
}

bool HttpExchange::has_ended() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kEnded;
}

bool HttpExchange::is_gone() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kGone;
}

bool HttpExchange::keep_alive() const {
  const std::lock_guard lock(mutex_);
  return keep_alive_;
}

void HttpExchange::CloseAfter() {
  const std::lock_guard lock(mutex_);
  keep_alive_ = false;
}

bool HttpExchange::ends_by_close() const {
  const std::lock_guard lock(mutex_);
  return ends_by_close_;
}

std::function<void()> HttpExchange::MarkGone() {
  std::function<void()> on_gone;
  const std::lock_guard lock(mutex_);
  std::string().swap(output_);
  CountUnsent(-unsent_);
  is_detached_ = true;
  if (state_ == State::kOpen || state_ == State::kBegun) state_ = State::kGone;
  // It is set in no other state but where the reply was given up.
  on_gone.swap(on_gone_);
  return on_gone;
}

}  // namespace headwise
