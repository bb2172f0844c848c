#include "message_reader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace headwise {
namespace {

Status CannotRead() {
  return Status::Io(fmt::format("standard input: cannot read: {}", std::strerror(errno)));
}

}  // namespace

MessageReader::MessageReader(const InterruptGuard& guard) : guard_(guard), is_terminal_(::isatty(STDIN_FILENO) == 1) {}

bool MessageReader::HasLine() const {
  return buffer_.find('\n') != std::string::npos || (is_at_end_ && !buffer_.empty());
}

MessageReader::Input MessageReader::TakeLine() {
  const size_t end = buffer_.find('\n');
  Input input{.kind = Kind::kLine, .line = buffer_.substr(0, end)};
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  return input;
}

Result<MessageReader::Input> MessageReader::Next() {
  if (is_terminal_) fmt::print(stderr, "> ");
  while (true) {
    if (is_terminal_ && guard_.interrupted()) buffer_.clear();  // as the terminal does with what it held of the line
    if (HasLine()) return TakeLine();
    if (guard_.interrupted()) return Input{.kind = Kind::kInterrupted, .line = {}};
    if (is_at_end_) return Input{};
    HW_RETURN_IF_ERROR(ReadMore());
  }
}

Status MessageReader::ReadMore() {
  pollfd files[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                    {.fd = guard_.fd(), .events = POLLIN, .revents = 0}};
  if (::poll(files, 2, -1) < 0) return errno == EINTR ? Status::Ok() : CannotRead();
  if (files[0].revents == 0) return Status::Ok();
  char bytes[4096];
  const ssize_t num_read = ::read(STDIN_FILENO, bytes, sizeof bytes);
  if (num_read < 0) return errno == EINTR ? Status::Ok() : CannotRead();
  is_at_end_ = num_read == 0;
  buffer_.append(bytes, static_cast<size_t>(num_read));
  return Status::Ok();
}

}  // namespace headwise
