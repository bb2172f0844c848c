// Replies that come piece by piece: who sees what when one side ends before the other.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http_server.h"
#include "server/http_test_client.h"

namespace headwise {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShort(50);  // for limits that a test waits for

// A stream that is under way: its first piece has come.
TestServer::Held BeginStream(TestServer& server, TestClient& client, Event* gone) {
  client.Get("/hold");
  TestServer::Held held = server.Take();
  if (gone != nullptr) held.reply->OnGone([gone] { gone->Set(); });
  held.reply->Begin({.content_type = "text/event-stream"});
  EXPECT_TRUE(held.reply->Write("first"));
  client.ReadUntil("\r\n\r\n");
  EXPECT_EQ(client.ReadChunk(), "first");
  return held;
}

TEST(HttpStream, PiecesComeAsTheyAreWritten) {
  TestServer server;
  TestClient client(server.port());
  for (int i = 0; i < 2; ++i) {
    Event gone;
    const TestServer::Held held = BeginStream(server, client, &gone);
    EXPECT_TRUE(held.reply->Write(""));
    for (const std::string piece : {"second", "a", "0\r\n\r\n"}) {
      EXPECT_TRUE(held.reply->Write(piece));
      EXPECT_EQ(client.ReadChunk(), piece);
    }
    held.reply->End();
    EXPECT_FALSE(held.reply->Write("late"));
    held.reply->End();
    EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "0\r\n\r\n");
    EXPECT_EQ(gone.count(), 0);
  }
}

TEST(HttpStream, AClientThatLeavesIsNoticedWhileNothingIsSent) {
  TestServer server;
  enum class How { kClose, kReset, kHalfClose };
  for (const How how : {How::kClose, How::kReset, How::kHalfClose}) {
    TestClient client(server.port());
    Event gone;
    const TestServer::Held held = BeginStream(server, client, &gone);
    if (how == How::kClose) client.Close();
    if (how == How::kReset) client.Reset();
    if (how == How::kHalfClose) client.HalfClose();
    EXPECT_TRUE(gone.Wait());
    EXPECT_FALSE(held.reply->Write("nobody reads this"));
    held.reply->End();
    EXPECT_EQ(gone.count(), 1);
  }
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
}

TEST(HttpStream, AClientMayBeGoneBeforeAnybodyAsks) {
  TestServer server;
  TestClient client(server.port());
  client.Get("/hold");
  const TestServer::Held held = server.Take();
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  Event gone;
  held.reply->OnGone([&] { gone.Set(); });
  EXPECT_TRUE(gone.Wait());
  held.reply->Begin({});
  EXPECT_FALSE(held.reply->Write("a"));
  held.reply->End();
  EXPECT_EQ(gone.count(), 1);
}

TEST(HttpStream, TheNextRequestIsNotTheEnd) {
  TestServer server;
  TestClient client(server.port());
  Event gone;
  const TestServer::Held held = BeginStream(server, client, &gone);
  client.Get("/echo");
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(held.reply->Write("more"));
    EXPECT_EQ(client.ReadChunk(), "more");
  }
  held.reply->End();
  EXPECT_EQ(client.ReadChunk(), "");
  EXPECT_EQ(client.ReadReply().body, "GET /echo  ");
  EXPECT_EQ(gone.count(), 0);
}

TEST(HttpStream, AReplyThatIsLetGoBreaksOff) {
  TestServer server;
  {
    TestClient client(server.port());
    TestServer::Held held = BeginStream(server, client, nullptr);
    held.reply->Write("last");
    held.reply.reset();
    EXPECT_EQ(client.ReadChunk(), "last");
    EXPECT_TRUE(client.IsClosed());
  }
  // Where only the end of the connection tells the end of the body, breaking off is a reset.
  TestClient old(server.port());
  old.Send("GET /hold HTTP/1.0\r\n\r\n");
  TestServer::Held held = server.Take();
  held.reply->Begin({.body = "first"});
  old.ReadUntil("first");
  held.reply.reset();
  char byte;
  EXPECT_EQ(::recv(old.fd(), &byte, 1, 0), -1);
}

TEST(HttpStream, AClientThatFallsBehindIsGivenUp) {
  HttpServerOptions options;
  options.limits.unsent_bytes = 64 << 10;
  TestServer server(options);
  TestClient client(server.port(), /*receive_buffer=*/4096);
  Event gone;
  const TestServer::Held held = BeginStream(server, client, &gone);
  const std::string piece(10'000, 'x');
  int num_written = 0;
  EXPECT_TRUE(Eventually([&] {
    ++num_written;
    return !held.reply->Write(piece);
  }));
  EXPECT_GT(num_written, 6);
  EXPECT_TRUE(gone.Wait());
  EXPECT_FALSE(held.reply->Write("a"));
  held.reply->End();
  EXPECT_EQ(gone.count(), 1);
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
}

// Each of them is behind by less than what one may be; together they are by too much, until most are given up.
TEST(HttpStream, ManyThatFallBehindAreGivenUp) {
  HttpServerOptions options;
  options.limits.unsent_bytes = 16 << 20;
  options.limits.all_unsent_bytes = 4 << 20;
  TestServer server(options);
  constexpr int kNumClients = 12;
  std::vector<std::unique_ptr<TestClient>> clients;
  std::vector<TestServer::Held> held;
  for (int i = 0; i < kNumClients; ++i) {
    clients.push_back(std::make_unique<TestClient>(server.port(), /*receive_buffer=*/4096));
    held.push_back(BeginStream(server, *clients.back(), nullptr));
  }
  // One that reads what it gets is not disturbed.
  TestClient honest(server.port());
  const TestServer::Held heard = BeginStream(server, honest, nullptr);
  int num_gone = 0;
  const std::string piece(100'000, 'x');
  for (int round = 0; round < 100; ++round) {
    num_gone = 0;
    for (const auto& each : held) num_gone += each.reply->Write(piece) ? 0 : 1;
    EXPECT_TRUE(heard.reply->Write("a"));
    EXPECT_EQ(honest.ReadChunk(), "a");
  }
  EXPECT_EQ(num_gone, kNumClients) << "10 MB each";
  heard.reply->End();
  EXPECT_TRUE(Eventually([&] { return server->num_connections() <= 1; }));
  // What they held is free again.
  TestClient later(server.port(), /*receive_buffer=*/4096);
  const TestServer::Held again = BeginStream(server, later, nullptr);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(again.reply->Write(piece));
  again.reply->End();
}

TEST(HttpStream, APieceMayBeOfAnySize) {
  HttpServerOptions options;
  options.limits.unsent_bytes = 64 << 10;
  TestServer server(options);
  TestClient client(server.port());
  const TestServer::Held held = BeginStream(server, client, nullptr);
  const std::string piece(1 << 20, 'x');
  EXPECT_TRUE(held.reply->Write(piece));
  EXPECT_TRUE(client.ReadChunk() == piece);
  held.reply->End();
}

TEST(HttpStream, AClientThatTakesNothingIsGivenUp) {
  HttpServerOptions options;
  options.limits.write_time = kShort;
  options.limits.unsent_bytes = 64 << 20;
  TestServer server(options);
  TestClient client(server.port(), /*receive_buffer=*/4096);
  Event gone;
  const TestServer::Held held = BeginStream(server, client, &gone);
  EXPECT_TRUE(held.reply->Write(std::string(32 << 20, 'x')));
  EXPECT_TRUE(gone.Wait());
  // The same for a reply that has ended: nobody is told, and the connection goes.
  TestClient other(server.port(), /*receive_buffer=*/4096);
  other.Get("/hold");
  const TestServer::Held whole = server.Take();
  Event not_gone;
  whole.reply->OnGone([&] { not_gone.Set(); });
  whole.reply->Send({.body = std::string(32 << 20, 'x')});
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
  EXPECT_EQ(not_gone.count(), 0);
}

TEST(HttpStream, ASlowClientGetsAllOfIt) {
  TestServer server;
  TestClient client(server.port(), /*receive_buffer=*/4096);
  client.Get("/hold");
  const TestServer::Held held = server.Take();
  std::string body(8 << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 1000) body[i] = static_cast<char>('a' + i / 1000 % 26);
  held.reply->Send({.body = body});
  const TestReply reply = client.ReadReply();
  EXPECT_TRUE(reply.is_whole);
  EXPECT_TRUE(reply.body == body);
}

TEST(HttpStream, ManyAtOnce) {
  constexpr int kStreams = 1000;
  constexpr int kPieces = 5;
  TestServer server;
  std::vector<TestClient> clients;
  std::vector<TestServer::Held> streams;
  clients.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server.port());
    clients.back().Get("/hold?" + std::to_string(i));
  }
  std::atomic<int> num_gone = 0;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(server.Take());
    streams.back().reply->OnGone([&] { ++num_gone; });
    streams.back().reply->Begin({.body = streams.back().request.query});
  }
  // Several threads write, as several engines would.
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int p = 0; p < kPieces; ++p) {
        for (int i = t; i < kStreams; i += 4) EXPECT_TRUE(streams[i].reply->Write(" " + std::to_string(p)));
      }
      for (int i = t; i < kStreams; i += 4) streams[i].reply->End();
    });
  }
  for (int i = 0; i < kStreams; ++i) EXPECT_EQ(clients[i].ReadReply().body, std::to_string(i) + " 0 1 2 3 4");
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_gone, 0);
}

// Everybody leaves at once while threads write.
TEST(HttpStream, ManyLeave) {
  constexpr int kStreams = 200;
  TestServer server;
  std::vector<TestClient> clients;
  std::vector<TestServer::Held> streams;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server.port());
    clients.back().Get("/hold");
  }
  std::atomic<int> num_gone = 0;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(server.Take());
    streams.back().reply->OnGone([&] { ++num_gone; });
    streams.back().reply->Begin({});
  }
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      for (int i = t; i < kStreams; i += 4) {
        EXPECT_TRUE(Eventually([&] { return !streams[i].reply->Write("piece"); }));
      }
    });
  }
  for (int i = 0; i < kStreams; ++i) {
    if (i % 2 == 0) {
      clients[i].Reset();
    } else {
      clients[i].Close();
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(Eventually([&] { return num_gone == kStreams && server->num_connections() == 0; }));
}

TEST(HttpStream, StopLetsRepliesEnd) {
  TestServer server;
  TestClient client(server.port());
  TestClient idle(server.port());
  Event gone;
  const TestServer::Held held = BeginStream(server, client, &gone);
  std::thread stops([&] { server->Stop(kPatience); });
  EXPECT_TRUE(idle.IsClosed());  // it has begun to stop
  EXPECT_TRUE(held.reply->Write("last"));
  EXPECT_EQ(client.ReadChunk(), "last");
  held.reply->End();
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "0\r\n\r\n");
  EXPECT_TRUE(client.IsClosed());
  client.Close();
  stops.join();
  EXPECT_EQ(gone.count(), 0);
}

TEST(HttpStream, StopEndsRepliesThatDoNot) {
  TestServer server;
  std::vector<TestClient> clients;
  std::vector<TestServer::Held> streams;
  Event gone;
  constexpr int kStreams = 20;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server.port());
    streams.push_back(BeginStream(server, clients.back(), &gone));
  }
  server->Stop(kShort);
  EXPECT_EQ(gone.count(), kStreams);
  for (int i = 0; i < kStreams; ++i) {
    EXPECT_TRUE(clients[i].IsClosed());
    EXPECT_FALSE(streams[i].reply->Write("late"));
  }
}

TEST(HttpStream, RepliesOutliveTheServer) {
  TestServer server;
  TestClient open(server.port());
  open.Get("/hold");
  const TestServer::Held never_begun = server.Take();
  TestClient client(server.port());
  const TestServer::Held begun = BeginStream(server, client, nullptr);
  server.Destroy();
  Event gone;
  begun.reply->OnGone([&] { gone.Set(); });
  EXPECT_FALSE(begun.reply->Write("late"));
  begun.reply->End();
  never_begun.reply->Send({.body = "late"});
  EXPECT_EQ(gone.count(), 0);  // none is called once the server has stopped
  EXPECT_TRUE(client.IsClosed());
  EXPECT_TRUE(open.IsClosed());
}

// Writers go on while the server ends under them.
TEST(HttpStream, TheServerEndsUnderItsWriters) {
  for (int round = 0; round < 10; ++round) {
    TestServer server;
    std::vector<TestClient> clients;
    std::vector<TestServer::Held> streams;
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back(server.port());
      streams.push_back(BeginStream(server, clients.back(), nullptr));
    }
    std::vector<std::thread> writers;
    for (TestServer::Held& held : streams) {
      writers.emplace_back([reply = std::move(held.reply)]() mutable {
        EXPECT_TRUE(Eventually([&] { return !reply->Write("piece"); }));
        reply->OnGone([] {});
        reply.reset();
      });
    }
    server.Destroy();
    for (std::thread& writer : writers) writer.join();
  }
}

// Stop waits for the handler, whose client is long gone.
TEST(HttpStream, StopWaitsForHandlers) {
  Event entered;
  Event leave;
  std::atomic<bool> has_left = false;
  auto server = HttpServer::Start({}, [&](const HttpRequest&, const std::shared_ptr<HttpReply>& reply) {
    entered.Set();
    EXPECT_TRUE(leave.Wait());
    reply->Send({});
    has_left = true;
  });
  ASSERT_TRUE(server.ok());
  TestClient client((*server)->port());
  client.Get("/");
  EXPECT_TRUE(entered.Wait());
  std::thread stops([&] {
    (*server)->Stop(milliseconds(0));
    EXPECT_TRUE(has_left);
  });
  EXPECT_TRUE(client.IsClosed());
  leave.Set();
  stops.join();
}

}  // namespace
}  // namespace headwise
