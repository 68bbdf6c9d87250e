// The connections of one client: one for pages, one for everything else, so that a Lookup never
// queues behind megabytes of payload.
//
// A connection comes back by itself. Thread-safe.
#ifndef KVSTOW_CLIENT_CONNECTION_CHANNEL_H_
#define KVSTOW_CLIENT_CONNECTION_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "client/client_options.h"

namespace kvstow {

// Fails with INVALID_ARGUMENT, which names the option, when an option is out of range.
absl::Status Validate(const ClientOptions& options);

class Channels {
 public:
  explicit Channels(std::string address);

  std::shared_ptr<grpc::Channel> metadata() const { return metadata_; }
  std::shared_ptr<grpc::Channel> bulk() const;  // null once it is closed

  // Closes `stalled` once its last call has ended and puts a new bulk connection in its place. Does
  // nothing when another one has replaced it before.
  void ReplaceBulk(const grpc::Channel* stalled);
  // Closes the bulk connection once its last call has ended.
  void CloseBulk();

 private:
  const std::string address_;
  const std::shared_ptr<grpc::Channel> metadata_;
  mutable Mutex mu_;
  std::shared_ptr<grpc::Channel> bulk_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_CHANNEL_H_
