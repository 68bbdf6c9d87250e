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
#include "base/status_macros.h"
#include "proto/wire/tls_secrets.h"

namespace kvstow {
namespace {

// Several records go to the kernel at once, and come from it: fewer calls, and less than a core's
// cache. What is sent early is decoded early on the other side.
constexpr size_t kRecordsSent = 4, kRecordsReceived = 8;
constexpr size_t kGatheredBytes = kRecordsSent * TlsRecords::kMostRecord + TlsRecords::kUpdateBytes;
constexpr size_t kRoomBehind = TlsRecords::kMostEnd;
constexpr size_t kCameBytes = kRecordsReceived * TlsRecords::kMostRecord;

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

  // Returns whether all that was gathered is with the kernel; else `error` says why.
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
  // Returns room for `bytes` more; null = not before the kernel takes what was gathered.
  uint8_t* Room(size_t bytes, size_t limit = kGatheredBytes) {
    if (buffer == nullptr) {
      buffer = std::make_unique_for_overwrite<uint8_t[]>(kGatheredBytes + kRoomBehind);
    }
    if (gathered + bytes > limit && !Drain()) return nullptr;
    return buffer.get() + gathered;
  }

  std::span<uint8_t> unread() const { return {came.get() + first, last - first}; }
  // Receives more behind what is unread, which moves to the front. Returns false when there is
  // nothing at the moment, or ever: `error` says why, and 0 is the end.
  bool Receive() {
    if (came == nullptr) came = std::make_unique_for_overwrite<uint8_t[]>(kCameBytes);
    if (first > 0) std::memmove(came.get(), came.get() + first, last - first);
    last -= std::exchange(first, 0);
    ssize_t n = -1;
    do {
      n = recv(descriptor, came.get() + last, kCameBytes - last, 0);
    } while (n < 0 && errno == EINTR);
    error = n < 0 ? errno : 0;
    if (n > 0) last += static_cast<size_t>(n);
    return n > 0;
  }

  static Wire& Of(BIO* bio) { return *static_cast<Wire*>(BIO_get_data(bio)); }
  static int Write(BIO* bio, const char* data, int size) {
    Wire& wire = Of(bio);
    BIO_clear_retry_flags(bio);
    const size_t taken = std::min(static_cast<size_t>(size), TlsRecords::kMostRecord);
    uint8_t* const room = wire.Room(taken);
    if (room == nullptr) {
      if (wire.error == EAGAIN) BIO_set_retry_write(bio);
      return -1;
    }
    std::memcpy(room, data, taken);
    wire.gathered += taken;
    return static_cast<int>(taken);
  }
  static int Read(BIO* bio, char* data, int size) {
    Wire& wire = Of(bio);
    BIO_clear_retry_flags(bio);
    if (wire.first == wire.last && !wire.Receive()) {
      if (wire.error == EAGAIN) BIO_set_retry_read(bio);
      return wire.error == 0 ? 0 : -1;
    }
    const size_t taken = std::min(static_cast<size_t>(size), wire.unread().size());
    std::memcpy(data, wire.unread().data(), taken);
    wire.first += taken;
    return static_cast<int>(taken);
  }
  static long Control(BIO* bio, int command, long, void*) {
    if (command != BIO_CTRL_FLUSH) return 0;
    BIO_clear_retry_flags(bio);
    if (Of(bio).Drain()) return 1;
    if (Of(bio).error == EAGAIN) BIO_set_retry_write(bio);
    return -1;
  }

  const int descriptor;
  TlsSecrets secrets;                 // until the handshake is over
  std::unique_ptr<uint8_t[]> buffer;  // to send
  size_t gathered = 0, sent = 0;      // bytes in it, and those of them that the kernel has
  std::unique_ptr<uint8_t[]> came;    // from the kernel
  size_t first = 0, last = 0;         // where what is unread begins and ends
  int error = 0;                      // of the last call of the kernel's
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
  wire_->secrets.TakeFrom(ssl_.get());
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
  if (step.ok() && step->wait_for == 0) {
    shaken_ = true;
    TakeOver();
  }
  return step;
}

// OpenSSL reads no further than the handshake's last record, and sends nothing behind its own: so
// all records from here on are this side's, and the first of each direction is number 0.
void TlsSession::TakeOver() {
  if (SSL_has_pending(ssl_.get()) == 0) {
    const auto side =
        SSL_is_server(ssl_.get()) == 1 ? TlsRecords::Side::kServer : TlsRecords::Side::kClient;
    const uint16_t suite = SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(ssl_.get()));
    records_ = TlsRecords::Make(side, suite, wire_->secrets.client(), wire_->secrets.server());
  }
  wire_->secrets.Clear();
}

// What to wait for, or why there is nothing to wait for, after a call of the kernel's.
absl::StatusOr<TlsSession::Step> TlsSession::Blocked(int16_t wait_for) const {
  if (wire_->error == EAGAIN) return Step{.wait_for = wait_for};
  return absl::UnavailableError(
      absl::StrCat("tls: ", wire_->error == 0 ? "the peer hung up" : std::strerror(wire_->error)));
}

absl::StatusOr<TlsSession::Step> TlsSession::Write(std::span<const uint8_t> bytes) {
  if (bytes.empty()) return Step{};
  if (records_ == nullptr) {
    ERR_clear_error();
    return StepOf(SSL_write(ssl_.get(), bytes.data(),
                            static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
  }
  size_t taken = 0;
  while (taken < bytes.size()) {
    const auto left = bytes.subspan(taken);
    uint8_t* const room = wire_->Room(TlsRecords::MostSealed(left.size()));
    if (room == nullptr && taken == 0) return Blocked(POLLOUT);
    if (room == nullptr) break;  // the next call says why
    const TlsRecords::Sealed sealed = records_->Seal(left, room);
    wire_->gathered += sealed.written;
    taken += sealed.taken;
  }
  return Step{.bytes = taken};
}

absl::StatusOr<TlsSession::Step> TlsSession::Flush() {
  if (wire_->Drain()) return Step{};
  return Blocked(POLLOUT);
}

absl::StatusOr<TlsSession::Step> TlsSession::Read(std::span<uint8_t> bytes) {
  if (bytes.empty()) return Step{};
  if (records_ != nullptr) return ReadRecords(bytes);
  ERR_clear_error();
  return StepOf(SSL_read(ssl_.get(), bytes.data(),
                         static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX))));
}

absl::StatusOr<TlsSession::Step> TlsSession::ReadRecords(std::span<uint8_t> bytes) {
  size_t got = 0;
  while (got < bytes.size() && failed_.ok()) {
    const absl::StatusOr<Step> next = NextBytes(bytes.subspan(got));
    if (!next.ok()) failed_ = next.status();
    if (!next.ok() || next->wait_for != 0) {
      if (got == 0) return next;
      break;
    }
    got += next->bytes;
  }
  if (got == 0) return failed_;
  return Step{.bytes = got};
}

// Takes what one record brings, or calls the kernel for one; may bring nothing.
absl::StatusOr<TlsSession::Step> TlsSession::NextBytes(std::span<uint8_t> bytes) {
  if (opened_.empty()) {
    const std::span<uint8_t> unread = wire_->unread();
    KVSTOW_ASSIGN_OR_RETURN(const size_t size, TlsRecords::SizeOf(unread));
    if (size == 0 || size > unread.size()) {
      return wire_->Receive() ? Step{} : Blocked(POLLIN);
    }
    wire_->first += size;
    const auto opened = records_->Open(unread.first(size), bytes);
    if (absl::IsUnauthenticated(opened.status())) {
      const absl::string_view reason = opened.status().message();
      return absl::UnauthenticatedError(absl::StrCat(reason, HintFor(reason)));
    }
    KVSTOW_RETURN_IF_ERROR(opened.status());
    if (opened->empty() || opened->data() == bytes.data()) return Step{.bytes = opened->size()};
    opened_ = *opened;
  }
  const size_t taken = std::min(bytes.size(), opened_.size());
  std::memcpy(bytes.data(), opened_.data(), taken);
  opened_ = opened_.subspan(taken);
  return Step{.bytes = taken};
}

void TlsSession::Finish() {
  if (records_ != nullptr) {
    uint8_t* const room = wire_->Room(TlsRecords::kMostEnd, kGatheredBytes + kRoomBehind);
    if (room != nullptr) wire_->gathered += records_->SealEnd(room);
    return;
  }
  ERR_clear_error();
  SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

bool TlsSession::pending() const {
  return !opened_.empty() || !wire_->unread().empty() || SSL_has_pending(ssl_.get()) == 1;
}

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
