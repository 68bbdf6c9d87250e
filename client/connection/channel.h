// The gRPC connections of a client to one server: one for pages, one for everything else, so that a
// Lookup never queues behind megabytes of payload.
//
// A connection comes back by itself. With TLS, all of them trust the same files, as do direct
// connections. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_CHANNEL_H_
#define KVSTOW_CLIENT_CONNECTION_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/client_options.h"
#include "proto/wire/tls_context.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT, which names the option, when an option is out of range.
absl::Status Validate(const ClientOptions& options);

class Channels {
 public:
  // `name` is what the server's certificate must have, where `tls` names nothing; "" = the host of
  // the address.
  Channels(std::string address, const std::string& name, const TlsOptions& tls);

  // Returns what is wrong with the files of TLS. Without OK there is no connection.
  const absl::Status& status() const { return status_; }
  const std::shared_ptr<TlsContext>& tls() const { return tls_; }  // null: none

  std::shared_ptr<grpc::Channel> metadata();
  std::shared_ptr<grpc::Channel> bulk();  // null once it is closed
  // Closes both connections once their last calls have ended. The next call opens them anew. Until
  // then, nothing tries to reach the server.
  void Rest();

  // Closes `stalled` once its last call has ended and puts a new bulk connection in its place. Does
  // nothing when another one has replaced it before.
  void ReplaceBulk(const grpc::Channel* stalled);
  // Returns `status`, of a call that failed, with the reason where TLS is the reason: gRPC tells
  // only that it failed. Asks the server itself when the call found it UNAVAILABLE. Blocks for a
  // second at most, and once in a while.
  absl::Status WithReason(const absl::Status& status, Time deadline);
  // Closes the bulk connection once its last call has ended.
  void CloseBulk();

 private:
  void OpenTls(const TlsOptions& options);
  std::shared_ptr<grpc::Channel> MakeMetadataChannel() const;
  std::shared_ptr<grpc::Channel> MakeBulkChannel() const;

  const std::string address_;
  const std::string server_name_;  // in place of the host; "" = the host
  const std::string certificate_;  // file of its own; "" = none
  absl::Status status_;
  std::shared_ptr<TlsContext> tls_;
  std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable Mutex mu_;
  std::shared_ptr<grpc::Channel> metadata_ KVSTOW_GUARDED_BY(mu_);
  std::shared_ptr<grpc::Channel> bulk_ KVSTOW_GUARDED_BY(mu_);
  bool bulk_closed_ KVSTOW_GUARDED_BY(mu_) = false;
  Time ask_after_ KVSTOW_GUARDED_BY(mu_);
  absl::Status reason_ KVSTOW_GUARDED_BY(mu_);  // as it was asked for last
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_CHANNEL_H_
