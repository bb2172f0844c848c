#include "server/request_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace headwise {
namespace {

using State = RequestReader::State;

constexpr int64_t kHeaderBytes = 1000;
constexpr int64_t kBodyBytes = 100;

// Gives it the bytes in pieces, with what it left in front of the next one, as a connection does.
std::string ReadInPieces(RequestReader& reader, std::string_view bytes, size_t piece_size) {
  std::string left;
  while (!bytes.empty() && (reader.state() == State::kHeader || reader.state() == State::kBody)) {
    left += bytes.substr(0, piece_size);
    bytes.remove_prefix(std::min(piece_size, bytes.size()));
    left.erase(0, reader.Read(left));
  }
  return left + std::string(bytes);
}

// The status that it is refused with, in whatever pieces it comes; 0: it is not refused.
int StatusOf(std::string_view bytes) {
  int status = 0;
  for (const size_t piece_size : {size_t{1}, size_t{7}, bytes.size()}) {
    RequestReader reader(kHeaderBytes, kBodyBytes);
    ReadInPieces(reader, bytes, piece_size);
    const int now = reader.state() == State::kRefused ? reader.refusal_status() : 0;
    EXPECT_TRUE(piece_size == 1 || now == status) << now << " in pieces of " << piece_size << ": " << bytes;
    status = now;
  }
  return status;
}

std::string WithField(std::string_view field) {
  return "POST / HTTP/1.1\r\nHost: a\r\n" + std::string(field) + "\r\n\r\n";
}

TEST(RequestReader, ReadsInPiecesOfAnySize) {
  const std::string first =
      "POST /a%20b?c HTTP/1.1\r\nHost: a\r\nX-Two: 1\r\nx-two: 2\r\nContent-Length: 5\r\n\r\nhello";
  for (size_t piece_size = 1; piece_size <= first.size() + 4; ++piece_size) {
    RequestReader reader(kHeaderBytes, kBodyBytes);
    EXPECT_EQ(ReadInPieces(reader, first + "GET ", piece_size), "GET ");
    ASSERT_EQ(reader.state(), State::kDone) << piece_size;
    EXPECT_TRUE(reader.keep_alive());
    const HttpRequest request = reader.TakeRequest();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a b");
    EXPECT_EQ(request.query, "c");
    EXPECT_EQ(request.body, "hello");
    EXPECT_EQ(request.fields.size(), 4);
    EXPECT_EQ(request.Field("x-two"), "1");
    EXPECT_EQ(request.Field("content-length"), "5");
  }
}

TEST(RequestReader, ReadsChunksAndForgetsWhatFollowsThem) {
  const std::string bytes = WithField("Transfer-Encoding: Chunked") +
                            "3\r\nabc\r\n10;name=value\r\n0123456789abcdef\r\n0\r\nAuthorization: late\r\n\r\n";
  for (size_t piece_size = 1; piece_size <= bytes.size(); ++piece_size) {
    RequestReader reader(kHeaderBytes, kBodyBytes);
    EXPECT_EQ(ReadInPieces(reader, bytes, piece_size), "");
    ASSERT_EQ(reader.state(), State::kDone) << piece_size;
    const HttpRequest request = reader.TakeRequest();
    EXPECT_EQ(request.body, "abc0123456789abcdef");
    EXPECT_EQ(request.Field("authorization"), "");
  }
}

// Where assertions of Beast are compiled in (preset debug) they hold in these pieces too.
TEST(RequestReader, ReadsBodiesWithoutChunks) {
  for (const std::string_view end : {"0\r\n\r\n", "000;a=b\r\nX: y\r\n\r\n"}) {
    const std::string bytes = WithField("Transfer-Encoding: chunked") + std::string(end);
    for (size_t piece_size = 1; piece_size <= bytes.size() + 4; ++piece_size) {
      RequestReader reader(kHeaderBytes, kBodyBytes);
      EXPECT_EQ(ReadInPieces(reader, bytes + "GET ", piece_size), "GET ");
      ASSERT_EQ(reader.state(), State::kDone) << piece_size;
      EXPECT_EQ(reader.TakeRequest().body, "");
    }
  }
}

TEST(RequestReader, KnowsWhetherTheConnectionStaysOpen) {
  const auto keeps = [](std::string_view bytes) {
    RequestReader reader(kHeaderBytes, kBodyBytes);
    ReadInPieces(reader, bytes, bytes.size());
    EXPECT_EQ(reader.state(), State::kDone);
    return reader.keep_alive();
  };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
}

TEST(RequestReader, WhatIsNoHttpIsRefused) {
  using std::string_view_literals::operator""sv;
  for (const std::string_view bytes :
       {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and more"sv, "GET\r\n\r\n"sv, "GET / HTTP/3.0\r\n\r\n"sv,
        "GET / HTTQ/1.1\r\n\r\n"sv, "G\0T / HTTP/1.1\r\n\r\n"sv, "GET / HTTP/1.1\r\nHost a\r\n\r\n"sv,
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n"sv, "GET  / HTTP/1.1\r\n\r\n"sv,
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"sv, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"sv}) {
    EXPECT_EQ(StatusOf(bytes), 400) << bytes;
  }
  // In pieces it waits for the end of a header that never comes.
  RequestReader reader(kHeaderBytes, kBodyBytes);
  reader.Read("GET / HTTP/1.1\nHost: a\n\n");
  EXPECT_EQ(reader.state(), State::kRefused);
}

TEST(RequestReader, TargetsAreChecked) {
  EXPECT_EQ(StatusOf("GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
  EXPECT_EQ(StatusOf("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
  EXPECT_EQ(StatusOf("BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n"), 0);
}

TEST(RequestReader, WhatTwoServersMayReadTwoWaysIsRefused) {
  EXPECT_EQ(StatusOf(WithField("Content-Length: 3\r\nTransfer-Encoding: chunked") + "0\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked\r\nContent-Length: 3") + "0\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")), 400);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: gzip, chunked")), 501);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked, identity")), 501);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: xchunked")), 501);
  EXPECT_EQ(StatusOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf(WithField("Content-Length: 3\r\nContent-Length: 4")), 400);
  EXPECT_EQ(StatusOf(WithField("Host: b")), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.0\r\n\r\n"), 0);
}

TEST(RequestReader, LengthsThatAreNoneAreRefused) {
  for (const char* length : {"-1", "+1", "", "1 2", "0x10", "1e3", "99999999999999999999", "a"}) {
    EXPECT_EQ(StatusOf(WithField("Content-Length: " + std::string(length))), 400) << length;
  }
  for (const char* size : {"-1", "g", "", "10000000000000000", "1 x"}) {
    EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked") + size + "\r\nabc"), 400) << size;
  }
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked") + "3\r\nabcd\r\n0\r\n\r\n"), 400);
}

TEST(RequestReader, LongBodiesAreRefusedBeforeTheyCome) {
  EXPECT_EQ(StatusOf(WithField("Content-Length: 101")), 413);
  EXPECT_EQ(StatusOf(WithField("Content-Length: 18446744073709551615")), 413);
  EXPECT_EQ(StatusOf(WithField("Content-Length: 100") + std::string(100, 'a')), 0);
  const std::string chunk = "32\r\n" + std::string(50, 'a') + "\r\n";
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked") + chunk + chunk + "0\r\n\r\n"), 0);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked") + chunk + chunk + "1\r\n"), 413);
  EXPECT_EQ(StatusOf(WithField("Transfer-Encoding: chunked") + "ffffffffffffffff\r\n"), 413);
}

TEST(RequestReader, LongHeadersAreRefused) {
  EXPECT_EQ(StatusOf("GET /" + std::string(2000, 'a')), 431);
  EXPECT_EQ(StatusOf(WithField("X: " + std::string(2000, 'a'))), 431);
  EXPECT_EQ(StatusOf(WithField("X: " + std::string(900, 'a'))), 0);
  // Longer in sum, no line of it long.
  std::string many;
  for (int i = 0; i < 100; ++i) many += "X-Field: aaaaa\r\n";
  EXPECT_EQ(StatusOf(WithField(many + "Y: b")), 431);
  // Each half within the limit.
  EXPECT_EQ(
      StatusOf("GET /" + std::string(700, 'a') + " HTTP/1.1\r\nHost: a\r\nX: " + std::string(700, 'a') + "\r\n\r\n"),
      431);
}

TEST(RequestReader, LongLinesBetweenChunksAreRefused) {
  const std::string header = WithField("Transfer-Encoding: chunked");
  EXPECT_NE(StatusOf(header + "1;" + std::string(5000, 'a')), 0);
  EXPECT_NE(StatusOf(header + "0\r\nX: " + std::string(5000, 'a')), 0);
}

TEST(RequestReader, TheClientMayWaitForAWord) {
  RequestReader reader(kHeaderBytes, kBodyBytes);
  reader.Read(WithField("Expect: 100-Continue\r\nContent-Length: 1"));
  EXPECT_EQ(reader.state(), State::kBody);
  EXPECT_TRUE(reader.expects_continue());
  EXPECT_EQ(StatusOf(WithField("Expect: something\r\nContent-Length: 1")), 417);
}

}  // namespace
}  // namespace headwise
