// TLS by OpenSSL over a socket that never waits. OpenSSL's own way to a socket writes without MSG_NOSIGNAL, so that a
// client that leaves could end the process by SIGPIPE; here is another one.
#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <string>
#include <utility>

#include "base/file.h"
#include "server/transport.h"

namespace headwise {
namespace {

template <auto kFree>
struct FreeBy {
  template <typename T>
  void operator()(T* value) const {
    kFree(value);
  }
};

Transport* TransportOf(BIO* bio) {
  return static_cast<Transport*>(BIO_get_data(bio));
}

int BioRead(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const IoStep step = TransportOf(bio)->Read({bytes, static_cast<size_t>(std::max(size, 0))});
  if (step.kind == IoStep::Kind::kMoved) return static_cast<int>(step.size);
  if (step.kind == IoStep::Kind::kWantsRead) BIO_set_retry_read(bio);
  return step.kind == IoStep::Kind::kEnd ? 0 : -1;
}

int BioWrite(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const IoStep step = TransportOf(bio)->Write({bytes, static_cast<size_t>(std::max(size, 0))});
  if (step.kind == IoStep::Kind::kMoved) return static_cast<int>(step.size);
  if (step.kind == IoStep::Kind::kWantsWrite) BIO_set_retry_write(bio);
  return -1;
}

long BioControl(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

using BioMethod = std::unique_ptr<BIO_METHOD, FreeBy<BIO_meth_free>>;

BioMethod NewBioMethod() {
  BioMethod method(BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "headwise transport"));
  if (method == nullptr) return nullptr;
  BIO_meth_set_read(method.get(), BioRead);
  BIO_meth_set_write(method.get(), BioWrite);
  BIO_meth_set_ctrl(method.get(), BioControl);
  return method;
}

class TlsTransport : public Transport {
 public:
  using Session = std::unique_ptr<SSL, FreeBy<SSL_free>>;

  // The session writes and reads through `plain`.
  TlsTransport(std::unique_ptr<Transport> plain, Session session)
      : plain_(std::move(plain)), session_(std::move(session)) {}

  IoStep Handshake() override {
    ERR_clear_error();
    const int result = SSL_do_handshake(session_.get());
    return result == 1 ? IoStep{.kind = IoStep::Kind::kMoved} : Explain(result);
  }
  IoStep Read(std::span<char> bytes) override {
    ERR_clear_error();
    size_t size = 0;
    const int result = SSL_read_ex(session_.get(), bytes.data(), bytes.size(), &size);
    return result == 1 ? IoStep{.kind = IoStep::Kind::kMoved, .size = size} : Explain(result);
  }
  IoStep Write(std::string_view bytes) override {
    ERR_clear_error();
    size_t size = 0;
    const int result = SSL_write_ex(session_.get(), bytes.data(), bytes.size(), &size);
    return result == 1 ? IoStep{.kind = IoStep::Kind::kMoved, .size = size} : Explain(result);
  }
  void FinishWriting() override {
    ERR_clear_error();
    // A session that failed, or is not yet made, says no goodbye.
    if (!has_failed_ && SSL_is_init_finished(session_.get()) == 1) SSL_shutdown(session_.get());
    plain_->FinishWriting();
  }
  IoStep Discard(std::span<char> bytes) override { return plain_->Read(bytes); }
  std::string Reason() const override { return reason_; }

 private:
  IoStep Explain(int result) {
    switch (SSL_get_error(session_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return {.kind = IoStep::Kind::kWantsRead};
      case SSL_ERROR_WANT_WRITE:
        return {.kind = IoStep::Kind::kWantsWrite};
      case SSL_ERROR_ZERO_RETURN:
        return {.kind = IoStep::Kind::kEnd};
      default:
        has_failed_ = true;
        reason_ = ReasonOfFailure();
        return {.kind = IoStep::Kind::kFailed};
    }
  }
  // Empty where the connection failed and not the session over it.
  std::string ReasonOfFailure() const {
    const long verified = SSL_get_verify_result(session_.get());
    if (verified != X509_V_OK && SSL_get_verify_mode(session_.get()) != SSL_VERIFY_NONE) {
      return X509_verify_cert_error_string(verified);
    }
    const char* reason = ERR_reason_error_string(ERR_peek_error());
    return reason != nullptr ? reason : "";
  }

  std::unique_ptr<Transport> plain_;
  Session session_;
  bool has_failed_ = false;
  std::string reason_;
};

// The first of OpenSSL's errors, which is the cause of the others.
std::string Reason() {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown error";
}

// Whose certificate is asked for, and has to come. An address is not sent: TLS has no place for it.
bool SetExpectedHost(SSL* session, const std::string& host) {
  if (host.empty()) return true;
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session), host.c_str()) == 1) return true;
  ERR_clear_error();
  return SSL_set1_host(session, host.c_str()) == 1 && SSL_set_tlsext_host_name(session, host.c_str()) == 1;
}

// A key under a passphrase would have OpenSSL ask for it on the terminal.
int NoPassphrase(char*, int, int, void*) {
  return -1;
}

}  // namespace

struct TlsContext::Impl {
  // What both sides have in common.
  Status Open(const SSL_METHOD* side) {
    ERR_clear_error();
    method = NewBioMethod();
    context.reset(SSL_CTX_new(side));
    if (method == nullptr || context == nullptr) return Status::Io(fmt::format("TLS: {}", Reason()));
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    // Buffers of a connection that says nothing are given back.
    SSL_CTX_set_mode(context.get(),
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);  // clients keep theirs as tickets
    return Status::Ok();
  }

  bool is_client = false;
  BioMethod method;
  std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>> context;
};

TlsContext::TlsContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TlsContext::~TlsContext() = default;

Result<std::unique_ptr<TlsContext>> TlsContext::Load(const std::string& certificate, const std::string& key) {
  // Read once for their errors: OpenSSL says of a file that is not there that "system lib" failed.
  HW_RETURN_IF_ERROR(ReadFile(certificate).status());
  HW_RETURN_IF_ERROR(ReadFile(key).status());
  auto impl = std::make_unique<Impl>();
  HW_RETURN_IF_ERROR(impl->Open(TLS_server_method()));
  SSL_CTX* context = impl->context.get();
  SSL_CTX_set_default_passwd_cb(context, NoPassphrase);
  if (SSL_CTX_use_certificate_chain_file(context, certificate.c_str()) != 1) {
    return Status::InvalidInput(fmt::format("{}: no certificate in PEM: {}", certificate, Reason()));
  }
  if (SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Status::InvalidInput(
        fmt::format("{}: no key in PEM, of the certificate {}, without a passphrase: {}", key, certificate, Reason()));
  }
  return std::unique_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

Result<std::unique_ptr<TlsContext>> TlsContext::ForClient(const std::string& authorities, bool verifies) {
  if (!authorities.empty()) HW_RETURN_IF_ERROR(ReadFile(authorities).status());
  auto impl = std::make_unique<Impl>();
  impl->is_client = true;
  HW_RETURN_IF_ERROR(impl->Open(TLS_client_method()));
  SSL_CTX* context = impl->context.get();
  SSL_CTX_set_verify(context, verifies ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  const bool has_loaded = authorities.empty()
                              ? SSL_CTX_set_default_verify_paths(context) == 1
                              : SSL_CTX_load_verify_locations(context, authorities.c_str(), nullptr) == 1;
  if (!has_loaded) return Status::InvalidInput(fmt::format("{}: no certificate in PEM: {}", authorities, Reason()));
  return std::unique_ptr<TlsContext>(new TlsContext(std::move(impl)));
}

std::unique_ptr<Transport> TlsContext::NewTransport(int socket, const std::string& host) const {
  std::unique_ptr<Transport> plain = NewPlainTransport(socket);
  TlsTransport::Session session(SSL_new(impl_->context.get()));
  BIO* bio = session != nullptr ? BIO_new(impl_->method.get()) : nullptr;
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, plain.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(session.get(), bio, bio);
  if (!impl_->is_client) {
    SSL_set_accept_state(session.get());
  } else if (SSL_set_connect_state(session.get()); !SetExpectedHost(session.get(), host)) {
    return nullptr;
  }
  return std::make_unique<TlsTransport>(std::move(plain), std::move(session));
}

}  // namespace headwise
