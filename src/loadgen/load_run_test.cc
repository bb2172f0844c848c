// Runs against servers that do what a prompt says, well and badly. No test knows how long anything takes.
#include "loadgen/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "loadgen/load_summary.h"
#include "loadgen/raw_test_server.h"
#include "server/http_server.h"

namespace headwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

std::string PieceEvent(const std::string& text) {
  return "data: {\"choices\":[{\"index\":0,\"text\":\"" + text + "\",\"finish_reason\":null}]}\n\n";
}
constexpr const char* kLastPiece = "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n";
constexpr const char* kStreamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

std::unique_ptr<HttpClient> OpenTo(const std::string& url, HttpClientOptions options = {}) {
  auto target = ParseBaseUrl(url);
  EXPECT_TRUE(target.ok()) << target.status().message();
  options.target = *target;
  auto client = HttpClient::Open(options);
  EXPECT_TRUE(client.ok()) << client.status().message();
  return std::move(client).value();
}

LoadSchedule AtOnce(size_t count, int64_t max_concurrency = 0) {
  return LoadSchedule(std::vector<double>(count, 0.0), max_concurrency);
}

// Request i asks the i-th of the texts.
LoadRunOptions Asking(const std::vector<std::string>& prompts) {
  LoadRunOptions options;
  options.prompt = [prompts](int64_t request) {
    return LoadPrompt{.prompt = prompts[static_cast<size_t>(request)], .output_tokens = 3};
  };
  return options;
}

std::map<std::string, std::string> FailuresByPrompt(const LoadRunResult& result,
                                                    const std::vector<std::string>& prompts) {
  std::map<std::string, std::string> failures;
  for (const LoadRecord& record : result.records) {
    failures[prompts[static_cast<size_t>(record.request)]] = record.failure;
  }
  return failures;
}

// headwise's own carrier under a handler that streams as many pieces as max_tokens asks for.
class StreamingServer {
 public:
  explicit StreamingServer(HttpServerOptions options = {}) {
    auto started = HttpServer::Start(
        options, [this](const HttpRequest& request, std::shared_ptr<HttpReply> reply) { Answer(request, *reply); });
    EXPECT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(started).value();
  }
  ~StreamingServer() { server_.reset(); }

  int port() const { return server_->port(); }
  int most_at_a_time() const { return most_; }
  std::vector<Json> bodies() {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }
  std::set<std::string> keys() {
    const std::lock_guard lock(mutex_);
    return keys_;
  }

 private:
  void Answer(const HttpRequest& request, HttpReply& reply) {
    const Json body = Json::parse(request.body, nullptr, false);
    {
      const std::lock_guard lock(mutex_);
      bodies_.push_back(body);
      keys_.insert(std::string(request.Field("authorization")));
    }
    const int running = ++running_;
    for (int most = most_; running > most && !most_.compare_exchange_weak(most, running);) {
    }
    reply.Begin({.content_type = "text/event-stream"});
    const int64_t count = body["max_tokens"];
    for (int64_t i = 0; i < count; ++i) reply.Write(PieceEvent("x"));
    reply.Write(kLastPiece);
    reply.Write("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":" +
                std::to_string(2 * count) + "}}\n\n");
    --running_;  // before the client can know of the end
    reply.Write("data: [DONE]\n\n");
    reply.End();
  }

  std::mutex mutex_;
  std::vector<Json> bodies_;
  std::set<std::string> keys_;
  std::atomic<int> running_ = 0;
  std::atomic<int> most_ = 0;
  std::unique_ptr<HttpServer> server_;
};

std::string UrlOf(int port, const std::string& scheme = "http://127.0.0.1:") {
  return scheme + std::to_string(port);
}

TEST(RunLoad, NotesWhatComesBack) {
  StreamingServer server;
  const auto client = OpenTo(UrlOf(server.port()) + "/v1", {.api_key = "sk-1"});
  LoadRunOptions options;
  options.body = {{"model", "m"}, {"plan", "two-heads"}, {"ignore_eos", true}};
  options.prompt = [](int64_t request) {
    return LoadPrompt{.prompt = Json({request, 2}), .num_ids = 2, .output_tokens = request + 1};
  };
  size_t num_told = 0;
  options.on_record = [&](std::span<const LoadRecord> records) { EXPECT_EQ(records.size(), ++num_told); };
  const LoadRunResult result = RunLoad(*client, AtOnce(20, 3), options);
  EXPECT_FALSE(result.is_stopped);
  ASSERT_EQ(result.records.size(), 20u);
  EXPECT_EQ(num_told, 20u);
  EXPECT_LE(server.most_at_a_time(), 3);
  EXPECT_THAT(server.keys(), ElementsAre("Bearer sk-1"));
  std::set<int64_t> requests;
  for (const LoadRecord& record : result.records) {
    requests.insert(record.request);
    EXPECT_TRUE(record.ok()) << record.failure << ": " << record.message;
    EXPECT_EQ(record.status, 200);
    EXPECT_TRUE(record.is_counted);
    EXPECT_EQ(record.prompt_tokens, 5);
    EXPECT_EQ(record.output_tokens, 2 * (record.request + 1));
    EXPECT_EQ(record.pieces.size(), static_cast<size_t>(record.request + 1));
    EXPECT_LE(record.arrival, record.start);
    EXPECT_LE(record.start, record.connected);
    EXPECT_LE(record.connected, record.pieces.front());
    EXPECT_TRUE(std::ranges::is_sorted(record.pieces));
    EXPECT_LE(record.pieces.back(), record.end);
  }
  EXPECT_EQ(requests.size(), 20u);
  EXPECT_LE(Summarise(result.records).peak_concurrency, 3);
  for (const Json& body : server.bodies()) {
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["plan"], "two-heads");
    EXPECT_EQ(body["max_tokens"], body["prompt"][0].get<int64_t>() + 1);
  }
}

TEST(RunLoad, CountsFailuresByKind) {
  const std::string json_head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
  const std::map<std::string, RawTestServer::Script> scripts = {
      {"well", {kStreamHead + PieceEvent("a") + kLastPiece + "data: [DONE]\n\n"}},
      {"without done", {kStreamHead + PieceEvent("a") + kLastPiece}},
      {"chunks",
       {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        "40\r\n" +
        (PieceEvent("aaaa") + kLastPiece).substr(0, 64) + "\r\n" +
        [] {
          const std::string rest = (PieceEvent("aaaa") + kLastPiece + "data: [DONE]\n\n").substr(64);
          char size[16];
          std::snprintf(size, sizeof(size), "%zx", rest.size());
          return std::string(size) + "\r\n" + rest;
        }() +
        "\r\n0\r\n\r\n"}},
      {"busy", {"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 32\r\n\r\n{\"error\":{\"message\":\"later on\"}}"}},
      {"broken", {"HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\nno more"}},
      {"silent end", {""}},
      {"reset", {"", RawTestServer::End::kReset}},
      {"reset within", {kStreamHead + PieceEvent("a"), RawTestServer::End::kReset}},
      {"cut within",
       {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n" + PieceEvent("a")}},
      {"cut text", {kStreamHead + PieceEvent("a")}},
      {"no piece", {kStreamHead + std::string("data: [DONE]\n\n")}},
      {"garbage", {"SSH-2.0-OpenSSH_9.2\r\n"}},
      {"garbage within", {kStreamHead + PieceEvent("a") + "data: }{\n\n"}},
      {"garbage chunks",
       {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}},
      {"huge length", {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99999999999999\r\n\r\n"}},
      {"no stream", {json_head}},
      {"error within", {kStreamHead + PieceEvent("a") + "data: {\"error\":{\"message\":\"memory\"}}\n\n"}},
  };
  RawTestServer server(scripts);
  std::vector<std::string> prompts;
  for (const auto& [prompt, script] : scripts) prompts.push_back(prompt);
  const auto client = OpenTo(UrlOf(server.port()));
  const LoadRunResult result = RunLoad(*client, AtOnce(prompts.size()), Asking(prompts));
  EXPECT_THAT(FailuresByPrompt(result, prompts),
              UnorderedElementsAre(Pair("well", ""), Pair("without done", ""), Pair("chunks", ""),
                                   Pair("busy", "http_429"), Pair("broken", "http_500"), Pair("silent end", "reset"),
                                   Pair("reset", "reset"), Pair("reset within", "reset"), Pair("cut within", "reset"),
                                   Pair("cut text", "incomplete"), Pair("no piece", "incomplete"),
                                   Pair("garbage", "protocol"), Pair("garbage within", "protocol"),
                                   Pair("garbage chunks", "protocol"), Pair("huge length", "protocol"),
                                   Pair("no stream", "protocol"), Pair("error within", "stream_error")));
  for (const LoadRecord& record : result.records) {
    const std::string& prompt = prompts[static_cast<size_t>(record.request)];
    if (prompt == "busy") {
      EXPECT_EQ(record.message, "later on");
    }
    if (prompt == "broken") {
      EXPECT_EQ(record.message, "no more");
    }
    if (prompt == "error within") {
      EXPECT_EQ(record.message, "memory");
    }
    if (prompt == "well") {
      EXPECT_FALSE(record.is_counted);
    }
    if (prompt == "well") {
      EXPECT_EQ(record.output_tokens, 1);
    }
    EXPECT_EQ(record.ok(), record.message.empty()) << prompt;
  }
  const LoadSummary summary = Summarise(result.records);
  EXPECT_EQ(summary.completed, 3);
  EXPECT_EQ(summary.failures.at("protocol"), 5);
}

TEST(RunLoad, GivesUpOnServersThatStall) {
  RawTestServer server({{"mute", {"", RawTestServer::End::kHold}},
                        {"within", {kStreamHead + PieceEvent("a"), RawTestServer::End::kHold}}});
  const auto client = OpenTo(UrlOf(server.port()), {.patience = std::chrono::milliseconds(1)});
  const std::vector<std::string> prompts = {"mute", "within", "mute"};
  const LoadRunResult result = RunLoad(*client, AtOnce(3, 1), Asking(prompts));
  ASSERT_EQ(result.records.size(), 3u);
  for (const LoadRecord& record : result.records) {
    EXPECT_EQ(record.failure, "timeout");
    EXPECT_THAT(record.message, HasSubstr("nothing came for 0.001 s"));
  }
}

TEST(RunLoad, SaysThatNobodyListens) {
  int port = 0;
  {
    RawTestServer server(std::map<std::string, RawTestServer::Script>{});
    port = server.port();
  }
  const auto client = OpenTo(UrlOf(port));
  const LoadRunResult result = RunLoad(*client, AtOnce(2), Asking({"a", "b"}));
  ASSERT_EQ(result.records.size(), 2u);
  EXPECT_EQ(result.records[0].failure, "connect");
  EXPECT_THAT(result.records[0].message, HasSubstr(std::to_string(port)));
  EXPECT_FALSE(client->Ask({.path = "/v1/models"}).ok());
}

TEST(RunLoad, EndsWhenItIsTold) {
  RawTestServer server(
      {{"mute", {"", RawTestServer::End::kHold}}, {"well", {kStreamHead + PieceEvent("a") + kLastPiece}}});
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const auto client = OpenTo(UrlOf(server.port()));
  LoadRunOptions options = Asking({"well", "mute", "mute"});
  options.stop_fd = pipe[0];
  options.on_record = [&](std::span<const LoadRecord>) { EXPECT_EQ(::write(pipe[1], "x", 1), 1); };
  const LoadRunResult result = RunLoad(*client, AtOnce(3), options);
  EXPECT_TRUE(result.is_stopped);
  ASSERT_EQ(result.records.size(), 1u);
  EXPECT_TRUE(result.records[0].ok());
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(HttpClient, AsksForWholeAnswers) {
  const std::map<std::string, RawTestServer::Script> none = {
      {"", {"HTTP/1.1 404 None\r\nContent-Length: 4\r\n\r\nnone"}}};
  RawTestServer server(none);
  const auto client = OpenTo(UrlOf(server.port()));
  for (int i = 0; i < 2; ++i) {
    const auto reply = client->Ask({.path = "/v1/models"});
    ASSERT_TRUE(reply.ok()) << reply.status().message();
    EXPECT_EQ(reply->status, 404);
    EXPECT_EQ(reply->body, "none");
  }
}

TEST(HttpClient, RefusesKeysThatWouldForgeFields) {
  const auto client = HttpClient::Open({.target = *ParseBaseUrl("http://127.0.0.1:1"), .api_key = "a\r\nX: y"});
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(client.status().message(), HasSubstr("control character"));
  EXPECT_FALSE(HttpClient::Open({.target = *ParseBaseUrl("http://no.such.host.invalid")}).ok());
}

class LoadTls : public testing::Test {
 protected:
  LoadTls() {
    std::filesystem::create_directories(folder_);
    EVP_PKEY* key = EVP_RSA_gen(2048);
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1,
                               0);
    X509_set_issuer_name(certificate, name);
    X509_sign(certificate, key, EVP_sha256());
    std::FILE* file = std::fopen(certificate_.c_str(), "w");
    PEM_write_X509(file, certificate);
    std::fclose(file);
    file = std::fopen(key_.c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ~LoadTls() override { std::filesystem::remove_all(folder_); }

  static LoadRecord AskOnce(const std::string& url, const HttpClientOptions& options) {
    const LoadRunResult result = RunLoad(*OpenTo(url, options), AtOnce(1), Asking({"a"}));
    EXPECT_EQ(result.records.size(), 1u);
    return result.records.empty() ? LoadRecord{} : result.records[0];
  }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("headwise_load_tls_" + std::to_string(::getpid()));
  const std::string certificate_ = (folder_ / "certificate.pem").string();
  const std::string key_ = (folder_ / "key.pem").string();
};

TEST_F(LoadTls, TrustsTheServerThatItKnows) {
  StreamingServer server({.tls_certificate = certificate_, .tls_key = key_});
  const std::string by_name = UrlOf(server.port(), "https://localhost:");
  const std::string by_address = UrlOf(server.port(), "https://127.0.0.1:");
  const LoadRecord known = AskOnce(by_name, {.tls_authorities = certificate_});
  EXPECT_TRUE(known.ok()) << known.failure << ": " << known.message;
  EXPECT_EQ(known.pieces.size(), 3u);
  const LoadRecord unknown = AskOnce(by_name, {});
  EXPECT_EQ(unknown.failure, "tls");
  EXPECT_THAT(unknown.message, HasSubstr("certificate"));
  const LoadRecord other = AskOnce(by_address, {.tls_authorities = certificate_});
  EXPECT_EQ(other.failure, "tls");
  EXPECT_THAT(other.message, HasSubstr("IP address mismatch"));
  EXPECT_TRUE(AskOnce(by_address, {.tls_verifies = false}).ok());
  // In the clear where TLS is spoken, and the other way round.
  EXPECT_FALSE(AskOnce(UrlOf(server.port(), "http://localhost:"), {}).ok());
  StreamingServer plain;
  EXPECT_EQ(AskOnce(UrlOf(plain.port(), "https://127.0.0.1:"), {.tls_verifies = false}).failure, "tls");
}

TEST_F(LoadTls, NamesFilesThatAreNoCertificates) {
  const LoadTarget target = *ParseBaseUrl("https://localhost:1");
  EXPECT_THAT(HttpClient::Open({.target = target, .tls_authorities = "/nowhere.pem"}).status().message(),
              HasSubstr("/nowhere.pem"));
  EXPECT_THAT(HttpClient::Open({.target = target, .tls_authorities = key_}).status().message(),
              HasSubstr("no certificate in PEM"));
}

}  // namespace
}  // namespace headwise
