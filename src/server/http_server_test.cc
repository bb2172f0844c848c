#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_test_client.h"

namespace headwise {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr milliseconds kShort(50);  // for limits that a test waits for
constexpr std::string_view kGet = "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n";

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  TestServer server;
  TestClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.Get("/echo?x=1");
    TestReply reply = client.ReadReply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "GET /echo x=1 ");
    EXPECT_EQ(reply.fields["server"], "headwise");
    EXPECT_EQ(reply.fields["content-type"], "text/plain");
    EXPECT_THAT(reply.fields["date"], testing::ContainsRegex("^[A-Z][a-z]+, [0-9]+ [A-Z][a-z]+ 20[0-9]+ .* GMT$"));
    EXPECT_FALSE(reply.fields.contains("connection"));
  }
  client.Post("/echo", "hello");
  EXPECT_EQ(client.ReadReply().body, "POST /echo  hello");
  client.Send("\r\nGET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.ReadReply().fields["connection"], "close");
  EXPECT_TRUE(client.IsClosed());
}

TEST(HttpServer, TellsTheHandlerWhatWasAsked) {
  TestServer server;
  TestClient client(server.port());
  client.Send("PUT http://host/%68old HTTP/1.1\r\nHost: a\r\nX-Name: Value \r\nContent-Length: 2\r\n\r\n\xff\n");
  const TestServer::Held held = server.Take();
  EXPECT_EQ(held.request.method, "PUT");
  EXPECT_EQ(held.request.path, "/hold");
  EXPECT_EQ(held.request.Field("x-name"), "Value");
  EXPECT_EQ(held.request.Field("x-other"), "");
  EXPECT_EQ(held.request.body, "\xff\n");
  EXPECT_THAT(held.request.peer, StartsWith("127.0.0.1:"));
  held.reply->Send({.status = 201, .body = ""});
  EXPECT_EQ(client.ReadReply().status, 201);
}

TEST(HttpServer, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server;
  TestClient client(server.port());
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += "GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  client.Send(requests);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.ReadReply().body, "GET /echo " + std::to_string(i) + " ");
}

TEST(HttpServer, APipelinedRequestWaitsForTheReplyBefore) {
  TestServer server;
  TestClient client(server.port());
  client.Get("/hold");
  // More than is read ahead.
  const std::string body(100'000, 'b');
  std::thread sender([&] { client.Post("/echo", body); });
  const TestServer::Held held = server.Take();
  Event gone;
  held.reply->OnGone([&] { gone.Set(); });
  held.reply->Begin({.body = "first"});
  EXPECT_TRUE(held.reply->Write(" reply"));
  held.reply->End();
  EXPECT_EQ(client.ReadReply().body, "first reply");
  EXPECT_EQ(client.ReadReply().body, "POST /echo  " + body);
  sender.join();
  EXPECT_EQ(gone.count(), 0);
}

TEST(HttpServer, BodiesInChunks) {
  TestServer server;
  TestClient client(server.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  client.Send("4\r\ndefg\r\n0\r\n\r\n");
  EXPECT_EQ(client.ReadReply().body, "POST /echo  abcdefg");
  client.Get("/echo");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST(HttpServer, SaysThatTheBodyMayCome) {
  TestServer server;
  TestClient client(server.port());
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("hello");
  EXPECT_EQ(client.ReadReply().body, "POST /echo  hello");
}

TEST(HttpServer, ABodyThatIsTooLongIsRefusedBeforeItIsSent) {
  HttpServerOptions options;
  options.limits.body_bytes = 1000;
  options.error_body = [](int status, std::string_view) { return "{\"status\": " + std::to_string(status) + "}"; };
  TestServer server(options);
  TestClient waits(server.port());
  waits.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n");
  TestReply reply = waits.ReadReply();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.body, "{\"status\": 413}");
  EXPECT_EQ(reply.fields["content-type"], "application/json");
  EXPECT_EQ(reply.fields["connection"], "close");
  EXPECT_TRUE(waits.IsClosed());
  // One that sends all the same can read why, and is cut off.
  TestClient sends(server.port());
  sends.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n" + std::string(1 << 20, 'x'));
  EXPECT_EQ(sends.ReadReply().status, 413);
  TestClient chunks(server.port());
  chunks.Send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + std::string(1000, 'x') +
              "\r\n1\r\n");
  EXPECT_EQ(chunks.ReadReply().status, 413);
}

TEST(HttpServer, WhatItsHeaderRefusesIsNotRead) {
  HttpServerOptions options;
  options.check_header = [](const HttpRequest& header) -> std::optional<HttpResponse> {
    if (header.Field("authorization") == "yes") return std::nullopt;
    return HttpResponse{.status = 401, .body = header.path};
  };
  TestServer server(options);
  const std::string body = "Host: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
  TestClient waits(server.port());
  waits.Send("POST /echo HTTP/1.1\r\n" + body);
  const TestReply reply = waits.ReadReply();
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.body, "/echo");
  EXPECT_TRUE(waits.IsClosed());
  TestClient sends(server.port());
  sends.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n" + std::string(1 << 20, 'x'));
  EXPECT_EQ(sends.ReadReply().status, 401);
  TestClient may(server.port());
  may.Send("POST /echo HTTP/1.1\r\nAuthorization: yes\r\n" + body);
  EXPECT_EQ(may.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  may.Send("hello");
  EXPECT_EQ(may.ReadReply().body, "POST /echo  hello");
}

TEST(HttpServer, HeadGetsNoBody) {
  TestServer server;
  TestClient client(server.port());
  client.Send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.ReadReply(/*has_body=*/false).fields["content-length"], "12");
  client.Send("HEAD /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const TestServer::Held held = server.Take();
  held.reply->Begin({.body = "a"});
  EXPECT_TRUE(held.reply->Write("b"));
  held.reply->End();
  EXPECT_EQ(client.ReadReply(/*has_body=*/false).fields["transfer-encoding"], "chunked");
  client.Get("/echo");
  EXPECT_EQ(client.ReadReply().body, "GET /echo  ");
  client.Send("HEAD /../a HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.ReadReply(/*has_body=*/false).status, 400);
  EXPECT_TRUE(client.IsClosed());
}

TEST(HttpServer, SomeRepliesHaveNoBody) {
  TestServer server;
  TestClient client(server.port());
  client.Get("/hold");
  server.Take().reply->Send({.status = 204, .body = "no"});
  TestReply reply = client.ReadReply();
  EXPECT_EQ(reply.status, 204);
  EXPECT_FALSE(reply.fields.contains("content-length"));
  client.Get("/echo");
  EXPECT_EQ(client.ReadReply().body, "GET /echo  ");
}

TEST(HttpServer, OldClients) {
  TestServer server;
  TestClient closes(server.port());
  closes.Send("GET /echo HTTP/1.0\r\n\r\n");
  TestReply reply = closes.ReadReply();
  EXPECT_EQ(reply.body, "GET /echo  ");
  EXPECT_EQ(reply.fields["connection"], "close");
  EXPECT_TRUE(closes.IsClosed());

  TestClient stays(server.port());
  stays.Send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  EXPECT_EQ(stays.ReadReply().fields["connection"], "keep-alive");
  stays.Send("GET /hold HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const TestServer::Held held = server.Take();
  held.reply->Begin({.body = "one"});
  held.reply->Write(" two");
  held.reply->End();
  reply = stays.ReadReply();
  EXPECT_EQ(reply.body, "one two");
  EXPECT_TRUE(reply.is_whole);
  EXPECT_FALSE(reply.fields.contains("transfer-encoding"));
  EXPECT_EQ(reply.fields["connection"], "close");
}

TEST(HttpServer, WhatHandlersMayGetWrong) {
  TestServer server;
  TestClient client(server.port());
  for (const char* path : {"/throw", "/drop"}) {
    client.Get(path);
    EXPECT_EQ(client.ReadReply().status, 500) << path;
  }
  client.Get("/hold");
  server.Take().reply->Send({.content_type = "text/plain\r\nX: y",
                             .body = "ok",
                             .fields = {{"X-Split", "a\r\nSet-Cookie: b\nc"},
                                        {"X Bad: no\r\nname", "v"},
                                        {"", "v"},
                                        {"Content-LENGTH", "0"},
                                        {"Transfer-Encoding", "chunked"},
                                        {"X-Good", "v"}}});
  TestReply reply = client.ReadReply();
  EXPECT_EQ(reply.body, "ok");
  EXPECT_EQ(reply.fields["x-split"], "a  Set-Cookie: b c");
  EXPECT_EQ(reply.fields["content-type"], "text/plain  X: y");
  EXPECT_EQ(reply.fields["x-good"], "v");
  EXPECT_EQ(reply.fields["content-length"], "2");
  EXPECT_EQ(reply.fields.size(), 6);
  client.Get("/hold");
  server.Take().reply->Send({.status = 99});
  EXPECT_EQ(client.ReadReply().status, 500);
  client.Get("/echo");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST(HttpServer, HostileBytes) {
  TestServer server;
  const auto status_of = [&](const std::string& bytes) {
    TestClient client(server.port());
    client.Send(bytes);
    TestReply reply = client.ReadReply();
    EXPECT_EQ(reply.fields["content-type"], "text/plain");
    EXPECT_TRUE(client.IsClosed());
    return reply.status;
  };
  EXPECT_EQ(status_of("\x16\x03\x01\x02 this is no HTTP\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET * HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(status_of("TRACE /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
  EXPECT_EQ(status_of("GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0"),
            400);
  EXPECT_EQ(status_of("GET /echo HTTP/1.1\r\nX: " + std::string(40'000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status_of("GET /" + std::string(1'000'000, 'x')), 431);
  TestClient client(server.port());
  client.Get("/echo");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST(HttpServer, SlowRequestsAreCutOff) {
  HttpServerOptions options;
  options.limits.header_time = kShort;
  options.limits.body_time = kShort;
  TestServer server(options);
  TestClient slow_header(server.port());
  slow_header.Send("GET /echo HTTP/1.1\r\nHo");
  TestClient slow_body(server.port());
  slow_body.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell");
  for (TestClient* client : {&slow_header, &slow_body}) {
    EXPECT_EQ(client->ReadReply().status, 408);
    EXPECT_TRUE(client->IsClosed());
  }
}

TEST(HttpServer, ATrickleDoesNotMakeTimeLonger) {
  HttpServerOptions options;
  options.limits.header_time = kShort;
  TestServer server(options);
  TestClient client(server.port());
  client.Send("GET /echo HTTP/1.1\r\n");
  pollfd poll = {.fd = client.fd(), .events = POLLIN, .revents = 0};
  EXPECT_TRUE(Eventually([&] {
    client.Send("X: y\r\n");
    return ::poll(&poll, 1, 5) > 0;
  }));
  EXPECT_EQ(client.ReadReply().status, 408);
}

TEST(HttpServer, IdleConnectionsAreClosedWithoutAWord) {
  HttpServerOptions options;
  options.limits.idle_time = kShort;
  TestServer server(options);
  TestClient fresh(server.port());
  TestClient used(server.port());
  used.Get("/echo");
  EXPECT_EQ(used.ReadReply().status, 200);
  EXPECT_TRUE(fresh.IsClosed());
  EXPECT_TRUE(used.IsClosed());
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
}

TEST(HttpServer, TooManyConnections) {
  HttpServerOptions options;
  options.limits.max_connections = 2;
  TestServer server(options);
  {
    TestClient first(server.port());
    TestClient second(server.port());
    EXPECT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
    TestClient third(server.port());
    third.Send(kGet);
    EXPECT_EQ(third.ReadReply().status, 503);
    EXPECT_TRUE(third.IsClosed());
    // A flood of them changes nothing for those who are in.
    std::vector<TestClient> flood;
    for (int i = 0; i < 100; ++i) flood.emplace_back(server.port());
    first.Get("/echo");
    EXPECT_EQ(first.ReadReply().status, 200);
    EXPECT_EQ(server->num_connections(), 2);
  }
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  TestClient client(server.port());
  client.Get("/echo");
  EXPECT_EQ(client.ReadReply().status, 200);
}

TEST(HttpServer, RequestsWaitForAHandlerThread) {
  HttpServerOptions options;
  options.num_handler_threads = 1;
  Event entered;
  Event leave;
  auto server = HttpServer::Start(options, [&](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
    if (request.path == "/wait") {
      entered.Set();
      EXPECT_TRUE(leave.Wait());
    }
    reply->Send({.body = request.path});
  });
  ASSERT_TRUE(server.ok());
  TestClient first((*server)->port());
  first.Get("/wait");
  EXPECT_TRUE(entered.Wait());
  std::vector<TestClient> others;
  for (int i = 0; i < 20; ++i) {
    others.emplace_back((*server)->port());
    others.back().Get("/other");
  }
  leave.Set();
  EXPECT_EQ(first.ReadReply().body, "/wait");
  for (TestClient& other : others) EXPECT_EQ(other.ReadReply().body, "/other");
}

// Descriptors run out while clients wait to be accepted; once there are some, they are served.
TEST(HttpServer, RunsOutOfDescriptors) {
  TestServer server;
  TestClient probe(server.port());
  probe.Get("/echo");
  EXPECT_EQ(probe.ReadReply().status, 200);
  rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  TestClient client(server.port());
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 2; }));
  rlimit none = old;
  none.rlim_cur = 1;  // poll is refused under 1
  const int late = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(::connect(late, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(::send(late, kGet.data(), kGet.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kGet.size()));
  // Who is there is served meanwhile.
  for (int i = 0; i < 10; ++i) {
    client.Get("/echo");
    EXPECT_EQ(client.ReadReply().status, 200);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  char first = 0;
  EXPECT_EQ(::recv(late, &first, 1, 0), 1);
  EXPECT_EQ(first, 'H');
  ::close(late);
}

TEST(HttpServer, StartSaysWhatIsWrong) {
  const HttpHandler handler = [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {};
  const auto error_of = [&](const HttpServerOptions& options) {
    const auto server = HttpServer::Start(options, handler);
    return server.ok() ? "none" : server.status().message();
  };
  TestServer server;
  EXPECT_EQ(error_of({.port = server.port()}),
            "cannot listen on 127.0.0.1:" + std::to_string(server.port()) + ": Address already in use");
  EXPECT_THAT(error_of({.host = "no such host"}), StartsWith("host no such host: "));
  EXPECT_THAT(error_of({.host = "192.0.2.1"}), StartsWith("cannot listen on 192.0.2.1:0: "));
  EXPECT_EQ(error_of({.host = ""}), "host is empty, expected an address or a name");
  EXPECT_EQ(error_of({.port = 65536}), "port is 65536, expected 0 to 65535");
  EXPECT_EQ(error_of({.num_threads = 0}), "num_threads is 0, expected 1 or more");
  EXPECT_EQ(error_of({.num_handler_threads = -1}), "num_handler_threads is -1, expected 1 or more");
  EXPECT_EQ(error_of({.limits = {.header_bytes = 0}}), "header_bytes is 0, expected 1 or more");
  EXPECT_EQ(error_of({.tls_certificate = "a.pem"}), "TLS: a certificate without a key, expected both or neither");
  EXPECT_FALSE(HttpServer::Start({}, nullptr).ok());
}

TEST(HttpServer, ListensByName) {
  for (const char* host : {"localhost", "0.0.0.0", "::", "::1"}) {
    auto server = HttpServer::Start({.host = host}, [](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
      reply->Send({.body = "hi"});
    });
    if (!server.ok() && std::string_view(host).find(':') != std::string_view::npos) continue;  // no IPv6 here
    ASSERT_TRUE(server.ok()) << server.status().message();
    EXPECT_GT((*server)->port(), 0);
    if (std::string_view(host) == "::1") continue;
    TestClient client((*server)->port());
    client.Get("/");
    EXPECT_EQ(client.ReadReply().body, "hi") << host;
  }
}

TEST(HttpServer, StopsWhileNothingHappens) {
  TestServer server;
  TestClient idle(server.port());
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 1; }));
  server->Stop(kPatience);
  EXPECT_TRUE(idle.IsClosed());
  EXPECT_EQ(server->num_connections(), 0);
  server->Stop(kPatience);
}

TEST(HttpServer, ManyIdleConnections) {
  constexpr int kConnections = 1000;
  TestServer server;
  std::vector<TestClient> clients;
  clients.reserve(kConnections);
  for (int i = 0; i < kConnections; ++i) clients.emplace_back(server.port());
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == kConnections; }));
  for (const int i : {0, kConnections / 2, kConnections - 1}) {
    clients[i].Get("/echo");
    EXPECT_EQ(clients[i].ReadReply().status, 200);
  }
}

// Also those that have asked before: what a request took is given back.
TEST(HttpServer, IdleConnectionsAreSmall) {
  if (HEADWISE_SANITIZED) GTEST_SKIP() << "a sanitizer counts no bytes";
  constexpr int kConnections = 500;
  TestServer server;
  std::vector<TestClient> clients;
  clients.reserve(kConnections);
  const auto allocated = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  const size_t before = allocated();
  for (int i = 0; i < kConnections; ++i) {
    clients.emplace_back(server.port());
    clients.back().Post("/echo", std::string(100'000, 'b'));
    EXPECT_EQ(clients.back().ReadReply().status, 200);
  }
  const size_t bytes = (allocated() - before) / kConnections;
  RecordProperty("bytes_per_connection", static_cast<int>(bytes));
  EXPECT_LT(bytes, 4096);
}

}  // namespace
}  // namespace headwise
