#include "client/connection/channel.h"

#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/connection/address_list.h"
#include "client/connection/fork.h"
#include "proto/wire/chunk.h"
#include "proto/wire/direct_socket.h"

namespace kvstow {
namespace {

constexpr unsigned kLookEvery = 2;  // seconds, at files of TLS
constexpr Duration kAskTime = std::chrono::seconds(1);
constexpr Duration kAskAgain = std::chrono::seconds(5);

// gRPC looks at the files by itself. It verifies the same name as a direct connection.
std::shared_ptr<grpc::ChannelCredentials> TlsCredentialsOf(const TlsOptions& tls) {
  using grpc::experimental::FileWatcherCertificateProvider;
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<FileWatcherCertificateProvider>(
      tls.key, tls.certificate, tls.ca, kLookEvery));
  options.watch_root_certs();
  if (!tls.certificate.empty()) options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      std::make_shared<grpc::experimental::HostNameCertificateVerifier>());
  return grpc::experimental::TlsCredentials(options);
}

grpc::ChannelArguments CommonArguments(const std::string& server_name) {
  grpc::ChannelArguments args;
  if (!server_name.empty()) args.SetSslTargetNameOverride(server_name);
  // Neither clients of one process nor the two channels of one client share a connection.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // the client's own attempts know what was answered
  args.SetCompressionAlgorithm(GRPC_COMPRESS_NONE);
  args.SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Finds a peer that is gone without a word. The server allows pings every 10 s.
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  return args;
}

// The last user of gRPC shuts it down, which joins a thread that may sit in a poll of 10 s. So a
// process that once had a client keeps gRPC up until the process ends.
std::string KeepGrpcUp(std::string address) {
  static const bool up = [] {
    NoticeForks();
    grpc_init();
    return true;
  }();
  static_cast<void>(up);
  return address;
}

// Makes a handshake with the server, and waits for its first byte. It refuses a client's
// certificate only after the handshake: with an alert, or, as gRPC does, without a word.
absl::Status AskForReason(TlsContext& tls, const std::string& address, const std::string& own,
                          Time deadline) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return absl::OkStatus();
  KVSTOW_ASSIGN_OR_RETURN(DirectSocket socket,
                          DirectSocket::Connect(HostOf(address), port, deadline));
  KVSTOW_RETURN_IF_ERROR(socket.StartTls(tls, deadline, "h2"));
  uint8_t byte = 0;
  const absl::Status read = socket.Receive({&byte, 1}, deadline);
  if (!absl::IsUnavailable(read)) return read;
  return absl::UnauthenticatedError(absl::StrCat(
      "tls: the server hung up after the handshake: does it want ",
      own.empty() ? "a certificate of its clients?" : absl::StrCat("another one than ", own, "?")));
}

}  // namespace

absl::Status Validate(const ClientOptions& options) {
  KVSTOW_RETURN_IF_ERROR(ParseAddresses(options.address).status());
  const TlsOptions& tls = options.tls;
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("tls: a certificate and its key go together: name both");
  }
  if (tls.ca.empty() && !(tls.certificate.empty() && tls.server_name.empty())) {
    return absl::InvalidArgumentError(
        "tls: there is no TLS without a CA: name the file of the CA that the server's certificate "
        "is from");
  }
  if (options.timeout <= std::chrono::milliseconds(0)) {
    return absl::InvalidArgumentError("timeout: must be more than 0");
  }
  if (options.attempts < 1) return absl::InvalidArgumentError("attempts: must be at least 1");
  if (options.chunk_bytes == 0 || options.chunk_bytes > kMaxChunkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_bytes: ", options.chunk_bytes, " is not in 1..", kMaxChunkBytes));
  }
  if (options.get_window_bytes < kMaxChunkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("get_window_bytes: ", options.get_window_bytes,
                                                   " is less than a chunk, ", kMaxChunkBytes));
  }
  return absl::OkStatus();
}

Channels::Channels(std::string address, const std::string& name, const TlsOptions& tls)
    : address_(KeepGrpcUp(std::move(address))),
      server_name_(tls.server_name.empty() ? name : tls.server_name),
      certificate_(tls.certificate) {
  if (tls.ca.empty() || HostOf(address_).empty()) {
    credentials_ = grpc::InsecureChannelCredentials();
  } else {
    OpenTls(tls);
  }
  metadata_ = MakeMetadataChannel();
  bulk_ = MakeBulkChannel();
}

// Leaves credentials_ null, with which no channel connects, when the files are not good.
void Channels::OpenTls(const TlsOptions& options) {
  auto tls = TlsContext::ForClient(
      {.certificate = options.certificate, .key = options.key, .ca = options.ca},
      server_name_.empty() ? HostOf(address_) : server_name_);
  status_ = tls.status();
  if (!status_.ok()) return;
  tls_ = *std::move(tls);
  credentials_ = TlsCredentialsOf(options);
}

std::shared_ptr<grpc::Channel> Channels::MakeMetadataChannel() const {
  return grpc::CreateCustomChannel(address_, credentials_, CommonArguments(server_name_));
}

std::shared_ptr<grpc::Channel> Channels::MakeBulkChannel() const {
  grpc::ChannelArguments args = CommonArguments(server_name_);
  // Windows and frames of the size of our chunks: fewer wake-ups for each, and a short tail.
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  args.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20);
  return grpc::CreateCustomChannel(address_, credentials_, args);
}

std::shared_ptr<grpc::Channel> Channels::metadata() {
  MutexLock lock(mu_);
  if (metadata_ == nullptr) metadata_ = MakeMetadataChannel();
  return metadata_;
}

std::shared_ptr<grpc::Channel> Channels::bulk() {
  MutexLock lock(mu_);
  if (bulk_ == nullptr && !bulk_closed_) bulk_ = MakeBulkChannel();
  return bulk_;
}

void Channels::Rest() {
  std::shared_ptr<grpc::Channel> metadata, bulk;
  MutexLock lock(mu_);
  metadata_.swap(metadata);
  bulk_.swap(bulk);
}

void Channels::ReplaceBulk(const grpc::Channel* stalled) {
  std::shared_ptr<grpc::Channel> fresh = MakeBulkChannel();
  MutexLock lock(mu_);
  if (bulk_.get() == stalled) bulk_.swap(fresh);
}

absl::Status Channels::WithReason(const absl::Status& status, Time deadline) {
  if (tls_ == nullptr || !absl::IsUnavailable(status)) return status;
  const Time now = Clock::Real().Now();
  {
    MutexLock lock(mu_);
    if (now < ask_after_) return reason_.ok() ? status : reason_;
    ask_after_ = now + kAskAgain;
  }
  const absl::Status asked =
      AskForReason(*tls_, address_, certificate_, std::min(deadline, now + kAskTime));
  MutexLock lock(mu_);
  reason_ =
      absl::IsUnauthenticated(asked) ? absl::UnavailableError(asked.message()) : absl::OkStatus();
  return reason_.ok() ? status : reason_;
}

void Channels::CloseBulk() {
  std::shared_ptr<grpc::Channel> last;
  MutexLock lock(mu_);
  bulk_closed_ = true;
  bulk_.swap(last);
}

}  // namespace kvstow
