// HTTPS, with a certificate made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "server/http_server.h"
#include "server/http_test_client.h"

namespace headwise {
namespace {

using std::chrono::milliseconds;

class HttpTls : public testing::Test {
 protected:
  HttpTls() {
    std::filesystem::create_directories(folder_);
    key_ = EVP_RSA_gen(2048);
    WriteKey(Path("key.pem"), key_);
    X509* certificate = X509_new();
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key_);
    X509_NAME* name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1,
                               0);
    X509_set_issuer_name(certificate, name);
    X509_sign(certificate, key_, EVP_sha256());
    std::FILE* file = std::fopen(Path("certificate.pem").c_str(), "w");
    PEM_write_X509(file, certificate);
    std::fclose(file);
    X509_free(certificate);
  }
  ~HttpTls() override {
    EVP_PKEY_free(key_);
    std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static void WriteKey(const std::string& path, EVP_PKEY* key) {
    std::FILE* file = std::fopen(path.c_str(), "w");
    PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(file);
  }
  HttpServerOptions Options() const { return {.tls_certificate = Path("certificate.pem"), .tls_key = Path("key.pem")}; }

  const std::filesystem::path folder_ =
      std::filesystem::path(testing::TempDir()) / ("headwise_tls_" + std::to_string(::getpid()));
  EVP_PKEY* key_ = nullptr;
};

// A client that waits in OpenSSL.
class TlsClient {
 public:
  explicit TlsClient(int port, int version = 0) : tcp_(port), context_(SSL_CTX_new(TLS_client_method())) {
    if (version != 0) SSL_CTX_set_max_proto_version(context_, version);
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, tcp_.fd());
    EXPECT_EQ(SSL_connect(ssl_), 1);
  }
  TlsClient(const TlsClient&) = delete;
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  TestClient& tcp() { return tcp_; }
  void Send(std::string_view bytes) {
    EXPECT_EQ(SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())), static_cast<int>(bytes.size()));
  }
  std::string ReadUntil(std::string_view last) {
    std::string read;
    char byte;
    while (!read.ends_with(last) && SSL_read(ssl_, &byte, 1) == 1) read += byte;
    return read;
  }
  std::string ReadBytes(size_t size) {
    std::string bytes(size, '\0');
    size_t num_read = 0;
    while (num_read < size) {
      const int n = SSL_read(ssl_, bytes.data() + num_read, static_cast<int>(size - num_read));
      if (n <= 0) break;
      num_read += static_cast<size_t>(n);
    }
    bytes.resize(num_read);
    return bytes;
  }
  // The other side said that it would say no more.
  bool IsEnded() {
    char byte;
    return SSL_get_error(ssl_, SSL_read(ssl_, &byte, 1)) == SSL_ERROR_ZERO_RETURN;
  }

 private:
  TestClient tcp_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
};

TEST_F(HttpTls, RoundTrip) {
  TestServer server(Options());
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    TlsClient client(server.port(), version);
    for (int i = 0; i < 2; ++i) {
      client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
      EXPECT_THAT(client.ReadUntil("hello"), testing::StartsWith("HTTP/1.1 200 OK\r\n"));
    }
    client.Send("GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    client.ReadUntil("/echo  ");
    EXPECT_TRUE(client.IsEnded());
  }
}

TEST_F(HttpTls, LargeBodiesBothWays) {
  TestServer server(Options());
  TlsClient client(server.port());
  const std::string body(1 << 20, 'b');
  client.Send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  client.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(client.ReadBytes(body.size() + 12) == "POST /echo  " + body);
}

TEST_F(HttpTls, Streams) {
  TestServer server(Options());
  for (const bool resets : {false, true}) {
    TlsClient client(server.port());
    client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
    const TestServer::Held held = server.Take();
    Event gone;
    held.reply->OnGone([&] { gone.Set(); });
    held.reply->Begin({});
    client.ReadUntil("\r\n\r\n");
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(held.reply->Write("piece"));
      EXPECT_EQ(client.ReadUntil("piece\r\n"), "5\r\npiece\r\n");
    }
    // Writing to a client that is gone must not end the process by SIGPIPE, which nobody ignores here.
    if (resets) {
      client.tcp().Reset();
    } else {
      client.tcp().Close();
    }
    EXPECT_TRUE(Eventually([&] { return !held.reply->Write("piece"); }));
    EXPECT_TRUE(gone.Wait());
  }
}

TEST_F(HttpTls, ASlowClientGetsAllOfIt) {
  TestServer server(Options());
  TlsClient client(server.port());
  client.Send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const TestServer::Held held = server.Take();
  const std::string body(8 << 20, 'x');
  held.reply->Send({.body = body});
  client.ReadUntil("\r\n\r\n");
  EXPECT_TRUE(client.ReadBytes(body.size()) == body);
}

TEST_F(HttpTls, WhatIsNoTlsIsCutOff) {
  HttpServerOptions options = Options();
  options.limits.header_time = milliseconds(50);
  TestServer server(options);
  TestClient plain(server.port());
  plain.Get("/echo");
  plain.ReadToEnd();  // an alert, perhaps
  TestClient silent(server.port());
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(Eventually([&] { return server->num_connections() == 0; }));
}

TEST_F(HttpTls, TooManyConnections) {
  HttpServerOptions options = Options();
  options.limits.max_connections = 1;
  TestServer server(options);
  TlsClient first(server.port());
  TlsClient second(server.port());
  EXPECT_THAT(second.ReadUntil("\r\n"), testing::StartsWith("HTTP/1.1 503 "));
}

TEST_F(HttpTls, FilesThatAreNone) {
  const auto error_of = [](const HttpServerOptions& options) {
    const auto server = HttpServer::Start(options, [](const HttpRequest&, const std::shared_ptr<HttpReply>&) {});
    return server.ok() ? "none" : server.status().message();
  };
  HttpServerOptions options = Options();
  options.tls_certificate = Path("missing.pem");
  EXPECT_THAT(error_of(options), testing::StartsWith(Path("missing.pem") + ": cannot open: "));
  ASSERT_TRUE(WriteFileAtomically(Path("broken.pem"), "no certificate").ok());
  options.tls_certificate = Path("broken.pem");
  EXPECT_THAT(error_of(options), testing::StartsWith(Path("broken.pem") + ": no certificate in PEM: "));
  options = Options();
  options.tls_key = Path("missing.pem");
  EXPECT_THAT(error_of(options), testing::StartsWith(Path("missing.pem") + ": cannot open: "));
  options.tls_key = Path("certificate.pem");
  EXPECT_THAT(error_of(options), testing::StartsWith(Path("certificate.pem") + ": no key in PEM, "));
  EVP_PKEY* other = EVP_RSA_gen(2048);
  WriteKey(Path("other.pem"), other);
  EVP_PKEY_free(other);
  options.tls_key = Path("other.pem");
  EXPECT_THAT(error_of(options), testing::HasSubstr("mismatch"));
}

}  // namespace
}  // namespace headwise
