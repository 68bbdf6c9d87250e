#include "client/connection/channel.h"

#include <grpc/compression.h>
#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/connection/fork.h"
#include "proto/wire/chunk.h"

namespace kvstow {
namespace {

grpc::ChannelArguments CommonArguments() {
  grpc::ChannelArguments args;
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

std::shared_ptr<grpc::Channel> MakeMetadataChannel(const std::string& address) {
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), CommonArguments());
}

std::shared_ptr<grpc::Channel> MakeBulkChannel(const std::string& address) {
  grpc::ChannelArguments args = CommonArguments();
  // Windows and frames of the size of our chunks: fewer wake-ups for each, and a short tail.
  args.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  args.SetInt(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
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

}  // namespace

absl::Status Validate(const ClientOptions& options) {
  const absl::string_view address = options.address;
  if (!absl::StartsWith(address, "unix:") &&
      (!absl::StrContains(address, ":") || absl::StrContains(address, "://"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: '", address, "' is not HOST:PORT or unix:PATH"));
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

Channels::Channels(std::string address)
    : address_(KeepGrpcUp(std::move(address))),
      metadata_(MakeMetadataChannel(address_)),
      bulk_(MakeBulkChannel(address_)) {}

std::shared_ptr<grpc::Channel> Channels::bulk() const {
  MutexLock lock(mu_);
  return bulk_;
}

void Channels::ReplaceBulk(const grpc::Channel* stalled) {
  std::shared_ptr<grpc::Channel> fresh = MakeBulkChannel(address_);
  MutexLock lock(mu_);
  if (bulk_.get() == stalled) bulk_.swap(fresh);
}

void Channels::CloseBulk() {
  std::shared_ptr<grpc::Channel> last;
  MutexLock lock(mu_);
  bulk_.swap(last);
}

}  // namespace kvstow
