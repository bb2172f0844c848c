#include "server/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

#include "server/http_target.h"

namespace headwise {
namespace {

namespace http = boost::beast::http;
using ErrorCode = boost::beast::error_code;
using BeastView = boost::beast::string_view;

std::string_view ToView(BeastView view) {
  return {view.data(), view.size()};
}

// "0\r\n\r\n": no chunk is followed by less.
constexpr size_t kLastChunkBytes = 5;

std::string InLowerCase(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace

// Beast's parser, filling a HttpRequest. What it lets through and we do not is refused in its callbacks: they set
// refusal and any error at all, which ends the parse.
class RequestReader::Parser : public http::basic_parser<true> {
 public:
  Parser(int64_t max_header_bytes, int64_t body_bytes) : header_bytes(static_cast<size_t>(max_header_bytes)) {
    header_limit(static_cast<uint32_t>(std::min<int64_t>(max_header_bytes, UINT32_MAX)));
    body_limit(static_cast<uint64_t>(body_bytes));
  }

  void Refuse(int status, std::string message) {
    state = State::kRefused;
    refusal_status = status;
    refusal_message = std::move(message);
  }
  void Refuse(const ErrorCode& error) {
    if (state == State::kRefused) return;  // by us
    if (error == http::error::header_limit) return RefuseHeader();
    if (error == http::error::body_limit) return Refuse(413, "the body is longer than this server takes");
    Refuse(400, fmt::format("the request is not valid HTTP/1.1: {}", error.message()));
  }
  void RefuseHeader() { Refuse(431, fmt::format("the header is longer than {} bytes", header_bytes)); }

  State state = State::kHeader;
  HttpRequest request;
  int refusal_status = 0;
  std::string refusal_message;
  size_t header_bytes;
  size_t num_header_bytes = 0;  // read of the header
  bool waits_for_line = false;  // between the chunks of a body
  int num_hosts = 0;
  bool is_http_1_0 = false;
  bool expects_continue = false;

 private:
  void RefuseIn(ErrorCode& error, int status, std::string message) {
    Refuse(status, std::move(message));
    error = http::error::bad_value;
  }

  void on_request_impl(http::verb, BeastView method, BeastView target, int version, ErrorCode& error) override {
    is_http_1_0 = version < 11;
    request.method = ToView(method);
    if (request.method == "CONNECT" || request.method == "TRACE") {
      return RefuseIn(error, 405, fmt::format("{}: this server has no such method", request.method));
    }
    Result<HttpTarget> parsed = ParseHttpTarget(ToView(target));
    if (!parsed.ok()) return RefuseIn(error, 400, std::move(parsed).status().message());
    request.path = std::move(parsed->path);
    request.query = std::move(parsed->query);
  }

  void on_field_impl(http::field field, BeastView name, BeastView value, ErrorCode& error) override {
    // What follows a chunked body is taken from the connection and forgotten: nothing that a header decides is to be
    // decided behind it.
    if (state != State::kHeader) return;
    if (field == http::field::transfer_encoding) {
      if (is_http_1_0) return RefuseIn(error, 400, "Transfer-Encoding is not part of HTTP/1.0");
      if (InLowerCase(ToView(value)) != "chunked") {
        return RefuseIn(error, 501, "Transfer-Encoding: this server knows chunked alone");
      }
    }
    if (field == http::field::host) ++num_hosts;
    if (field == http::field::expect) {
      if (InLowerCase(ToView(value)) != "100-continue") {
        return RefuseIn(error, 417, "Expect: this server knows 100-continue alone");
      }
      expects_continue = !is_http_1_0;
    }
    request.fields.push_back({.name = InLowerCase(ToView(name)), .value = std::string(ToView(value))});
  }

  void on_header_impl(ErrorCode& error) override {
    // Two hosts, or none: servers in front of this one may have understood another request than we do.
    if (num_hosts > 1 || (num_hosts == 0 && !is_http_1_0)) {
      return RefuseIn(error, 400, fmt::format("Host is given {} times, expected it once", num_hosts));
    }
    state = State::kBody;
  }

  // Its length is the client's word; memory is taken as bytes come.
  void on_body_init_impl(const boost::optional<uint64_t>&, ErrorCode&) override {}
  size_t on_body_impl(BeastView bytes, ErrorCode&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_chunk_header_impl(uint64_t, BeastView, ErrorCode&) override {}
  size_t on_chunk_body_impl(uint64_t, BeastView bytes, ErrorCode&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  void on_finish_impl(ErrorCode&) override { state = State::kDone; }
  // Of responses.
  void on_response_impl(int, BeastView, int, ErrorCode&) override {}
};

RequestReader::RequestReader(int64_t header_bytes, int64_t body_bytes)
    : parser_(std::make_unique<Parser>(header_bytes, body_bytes)) {}
RequestReader::~RequestReader() = default;

size_t RequestReader::Read(std::string_view bytes) {
  Parser& parser = *parser_;
  size_t num_taken = 0;
  while (parser.state == State::kHeader || parser.state == State::kBody) {
    const bool was_header = parser.state == State::kHeader;
    const std::string_view rest = bytes.substr(num_taken);
    if (rest.empty()) break;
    // Beast asserts that a last chunk whose end it waits for has these bytes when it is shown again, also where it is
    // the first one, of which it may have seen the line alone. Nothing is lost by waiting: more has to come in any
    // case.
    if (parser.waits_for_line && rest.size() < kLastChunkBytes) break;
    ErrorCode error;
    const size_t num_new = parser.put(boost::asio::const_buffer(rest.data(), rest.size()), error);
    num_taken += num_new;
    if (was_header) parser.num_header_bytes += num_new;
    parser.waits_for_line = !was_header && error == http::error::need_more && num_taken < bytes.size();
    if (error && error != http::error::need_more) {
      parser.Refuse(error);
    } else if (was_header && parser.num_header_bytes > parser.header_bytes) {
      parser.RefuseHeader();
    } else if (error) {
      break;
    }
  }
  // What waits for its end is bounded: of a header, the line before a chunk, what follows the last one.
  const size_t num_left = bytes.size() - num_taken;
  if (parser.state == State::kHeader && parser.num_header_bytes + num_left >= parser.header_bytes) {
    parser.RefuseHeader();
  } else if (parser.state == State::kBody && num_left >= parser.header_bytes) {
    parser.Refuse(400, "the lines between the chunks of the body are too long");
  }
  return num_taken;
}

RequestReader::State RequestReader::state() const {
  return parser_->state;
}
int RequestReader::refusal_status() const {
  return parser_->refusal_status;
}
const std::string& RequestReader::refusal_message() const {
  return parser_->refusal_message;
}
bool RequestReader::is_head() const {
  return parser_->request.method == "HEAD";
}
bool RequestReader::is_http_1_0() const {
  return parser_->is_http_1_0;
}
bool RequestReader::keep_alive() const {
  return parser_->keep_alive();
}
const HttpRequest& RequestReader::request() const {
  return parser_->request;
}
bool RequestReader::expects_continue() const {
  return parser_->expects_continue;
}
HttpRequest RequestReader::TakeRequest() {
  return std::move(parser_->request);
}

}  // namespace headwise
