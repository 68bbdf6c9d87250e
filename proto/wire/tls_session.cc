#include "proto/wire/tls_session.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

// Several records, which go to the kernel at once; less than a core's cache.
constexpr size_t kGatheredBytes = 128 << 10;

std::string TextOf(const ASN1_STRING* text) {
  return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                     static_cast<size_t>(ASN1_STRING_length(text)));
}

// A name with a NUL in it is one thing to a certificate authority and another to C.
void AddName(std::vector<std::string>& out, absl::string_view kind, const std::string& name) {
  if (!name.empty() && name.find('\0') == std::string::npos) {
    out.push_back(absl::StrCat(kind, name));
  }
}

// What to do next, beside the reason that OpenSSL gives.
absl::string_view HintFor(absl::string_view reason) {
  if (absl::StrContains(reason, "certificate required")) {
    return ": the server wants a certificate of its clients";
  }
  if (absl::StrContains(reason, "wrong version number") ||
      absl::StrContains(reason, "http request")) {
    return ": the peer does not speak TLS";
  }
  if (absl::StrContains(reason, "unsupported protocol") ||
      absl::StrContains(reason, "protocol version")) {
    return ": only TLS 1.3 is spoken here";
  }
  return "";
}

}  // namespace

struct TlsSession::Wire {
  explicit Wire(int number) : descriptor(number) {}

  // Returns whether all that was gathered is with the kernel; else errno says why.
  bool Drain() {
    while (sent < gathered) {
      const ssize_t n = send(descriptor, buffer.get() + sent, gathered - sent, MSG_NOSIGNAL);
      if (n >= 0) {
        sent += static_cast<size_t>(n);
      } else if (errno != EINTR) {
        error = errno;
        return false;
      }
    }
    sent = gathered = 0;
    return true;
  }

  static Wire& Of(BIO* bio) { return *static_cast<Wire*>(BIO_get_data(bio)); }
  static int Write(BIO* bio, const char* data, int size) {
    Wire& wire = Of(bio);
    const auto bytes = static_cast<size_t>(size);
    BIO_clear_retry_flags(bio);
    if (wire.buffer == nullptr) {
      wire.buffer = std::make_unique_for_overwrite<uint8_t[]>(kGatheredBytes);
    }
    if (wire.gathered + bytes > kGatheredBytes && !wire.Drain()) {
      if (wire.error == EAGAIN) BIO_set_retry_write(bio);
      return -1;
    }
    const size_t taken = std::min(bytes, kGatheredBytes - wire.gathered);
    std::memcpy(wire.buffer.get() + wire.gathered, data, taken);
    wire.gathered += taken;
    return static_cast<int>(taken);
  }
  static int Read(BIO* bio, char* data, int size) {
    Wire& wire = Of(bio);
    BIO_clear_retry_flags(bio);
    ssize_t came = -1;
    do {
      came = recv(wire.descriptor, data, static_cast<size_t>(size), 0);
    } while (came < 0 && errno == EINTR);
    wire.error = came < 0 ? errno : 0;
    if (came < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
    return static_cast<int>(came);
  }
  static long Control(BIO* bio, int command, long, void*) {
    if (command != BIO_CTRL_FLUSH) return 0;
    BIO_clear_retry_flags(bio);
    if (Of(bio).Drain()) return 1;
    if (Of(bio).error == EAGAIN) BIO_set_retry_write(bio);
    return -1;
  }

  const int descriptor;
  std::unique_ptr<uint8_t[]> buffer;
  size_t gathered = 0, sent = 0;  // bytes in the buffer, and those of them that the kernel has
  int error = 0;                  // of the last call of the kernel's
};

const BIO_METHOD* TlsSession::Method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* const out = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "kvstow");
    BIO_meth_set_write(out, Wire::Write);
    BIO_meth_set_read(out, Wire::Read);
    BIO_meth_set_ctrl(out, Wire::Control);
    return out;
  }();
  return method;
}

TlsSession::TlsSession(TlsContext& context, int descriptor, bool may_be_anonymous)
    : loaded_(context.Current()),
      wire_(std::make_unique<Wire>(descriptor)),
      ssl_(SSL_new(loaded_->context.get()), SSL_free) {
  BIO* const bio = BIO_new(Method());
  BIO_set_data(bio, wire_.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (context.server()) {
    if (may_be_anonymous && context.asks_for_certificates()) {
      SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
    }
    SSL_set_accept_state(ssl_.get());
    return;
  }
  SSL_set_connect_state(ssl_.get());
  const std::string& name = context.peer_name();
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), name.c_str()) != 1) {
    SSL_set1_host(ssl_.get(), name.c_str());
    SSL_set_tlsext_host_name(ssl_.get(), name.c_str());
  }
}

TlsSession::~TlsSession() = default;

void TlsSession::Offer(absl::string_view protocol) {
  std::string list(1, static_cast<char>(protocol.size()));
  absl::StrAppend(&list, protocol);
  SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const uint8_t*>(list.data()),
                      static_cast<unsigned>(list.size()));
}

absl::Status TlsSession::Failed(int result) {
  const int kind = SSL_get_error(ssl_.get(), result);
  const long verified = SSL_get_verify_result(ssl_.get());
  const std::string reason = TlsError();
  if (kind == SSL_ERROR_ZERO_RETURN || absl::StrContains(reason, "unexpected eof")) {
    return absl::UnavailableError("tls: the peer hung up");
  }
  if (kind == SSL_ERROR_SYSCALL) {
    return absl::UnavailableError(absl::StrCat(
        "tls: ", wire_->error == 0 ? "the peer hung up" : std::strerror(wire_->error)));
  }
  if (!shaken_ && verified != X509_V_OK) {
    return absl::UnauthenticatedError(absl::StrCat("tls: the peer's certificate is refused: ",
                                                   X509_verify_cert_error_string(verified)));
  }
  const std::string text = absl::StrCat("tls: ", reason, HintFor(reason));
  const bool refused = !shaken_ || absl::StrContains(reason, "alert");
  return refused ? absl::UnauthenticatedError(text) : absl::InvalidArgumentError(text);
}

absl::StatusOr<TlsSession::Step> TlsSession::StepOf(int result) {
  if (result > 0) return Step{.bytes = static_cast<size_t>(result)};
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step{.wait_for = POLLIN};
    case SSL_ERROR_WANT_WRITE:
      return Step{.wait_for = POLLOUT};
    default:
      return Failed(result);
  }
}

absl::StatusOr<TlsSession::Step> TlsSession::Handshake() {
  ERR_clear_error();
  const absl::StatusOr<Step> step = StepOf(SSL_do_handshake(ssl_.get()));
  // An alert to the peer may be what says why.
  if (!step.ok()) wire_->Drain();
  if (step.ok() && step->wait_for == 0) shaken_ = true;
  return step;
}

absl::StatusOr<TlsSession::Step> TlsSession::Write(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return Step{};
  ERR_clear_error();
  return StepOf(SSL_write(ssl_.get(), bytes.data(),
                          static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

absl::StatusOr<TlsSession::Step> TlsSession::Flush() {
  if (wire_->Drain()) return Step{};
  if (wire_->error == EAGAIN) return Step{.wait_for = POLLOUT};
  return absl::UnavailableError(absl::StrCat("tls: ", std::strerror(wire_->error)));
}

absl::StatusOr<TlsSession::Step> TlsSession::Read(std::span<uint8_t> bytes) {
  if (bytes.empty()) return Step{};
  ERR_clear_error();
  return StepOf(SSL_read(ssl_.get(), bytes.data(),
                         static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

void TlsSession::Finish() {
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

bool TlsSession::pending() const { return SSL_has_pending(ssl_.get()) == 1; }

bool TlsSession::has_peer_certificate() const {
  return shaken_ && SSL_get0_peer_certificate(ssl_.get()) != nullptr &&
         SSL_get_verify_result(ssl_.get()) == X509_V_OK;
}

std::vector<std::string> TlsSession::peer_names() const {
  std::vector<std::string> out;
  if (!has_peer_certificate()) return out;
  X509* const peer = SSL_get0_peer_certificate(ssl_.get());
  std::vector<std::string> uris, hosts;
  auto* const names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(peer, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_URI) uris.push_back(TextOf(name->d.uniformResourceIdentifier));
    if (name->type == GEN_DNS) hosts.push_back(TextOf(name->d.dNSName));
  }
  GENERAL_NAMES_free(names);
  if (uris.size() == 1 && absl::StartsWith(uris[0], "spiffe://")) AddName(out, "", uris[0]);
  for (const std::string& host : hosts) AddName(out, "dns:", host);
  const X509_NAME* const subject = X509_get_subject_name(peer);
  for (int at = -1; (at = X509_NAME_get_index_by_NID(subject, NID_commonName, at)) >= 0;) {
    AddName(out, "cn:", TextOf(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
  }
  ERR_clear_error();
  return out;
}

}  // namespace kvstow
