// Bytes over a connected socket that never waits, in the clear or in TLS. Who owns the socket waits until it is ready.
#ifndef HEADWISE_SERVER_TRANSPORT_H_
#define HEADWISE_SERVER_TRANSPORT_H_

#include <headwise/status.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace headwise {

struct IoStep {
  enum class Kind {
    kMoved,  // `size` bytes, more than 0
    kWantsRead,
    kWantsWrite,  // again once the socket can be read, or written
    kEnd,         // the other side says no more
    kFailed,
  };
  Kind kind = Kind::kFailed;
  size_t size = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Until it has moved: of no bytes.
  virtual IoStep Handshake() = 0;
  virtual IoStep Read(std::span<char> bytes) = 0;
  // Bytes that it did not take must come again, with whatever behind them.
  virtual IoStep Write(std::string_view bytes) = 0;
  // Tells the other side that no more will come.
  virtual void FinishWriting() = 0;
  // Reads past all meaning, after FinishWriting.
  virtual IoStep Discard(std::span<char> bytes) = 0;
  // After a step that failed: why, as far as this layer knows; empty where only the system does.
  virtual std::string Reason() const { return {}; }
};

// In the clear. The socket is not the transport's.
std::unique_ptr<Transport> NewPlainTransport(int socket);

// What TLS sessions of one side share.
class TlsContext {
 public:
  // A server's: a certificate with its key. Files in PEM: the certificate first, then those that it rests on. An error
  // names the file.
  static Result<std::unique_ptr<TlsContext>> Load(const std::string& certificate, const std::string& key);
  // A client's, that trusts certificates of the PEM file `authorities`; where it is empty, those that the system
  // trusts. Without `verifies` it takes any.
  static Result<std::unique_ptr<TlsContext>> ForClient(const std::string& authorities, bool verifies);
  TlsContext(const TlsContext&) = delete;
  ~TlsContext();

  // Null where memory is short. `host`, for clients alone: the name or address whose certificate the server has to
  // have.
  std::unique_ptr<Transport> NewTransport(int socket, const std::string& host = {}) const;

 private:
  struct Impl;
  explicit TlsContext(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_TRANSPORT_H_
