// Server: the composition root. Opens device, tiers and store, starts what serves them, and takes
// all of it down again in the right order.
//
//   KVSTOW_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(config, {}));
//   ... until SIGTERM ...
//   server->Stop();
//
// Start answers OK only once calls are served. Thread-safe, but for Stop and the destructor, which
// stops when nobody has.
#ifndef KVSTOW_SERVICE_SERVER_H_
#define KVSTOW_SERVICE_SERVER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "service/ops/config.h"
#include "service/transports/streams.h"

namespace kvstow {

class Device;
class DeviceSharing;

struct ServerOptions {
  // How long streams may go on once the server is stopping; then they are cancelled.
  Duration drain_grace = std::chrono::seconds(10);
  // A page whose sender went silent is dropped after this.
  Duration staging_ttl = std::chrono::seconds(30);
  StreamLimits limits;
  // How often idle streams and silent senders are looked for.
  Duration reap_every = std::chrono::seconds(1);
  const Clock* clock = &Clock::Real();  // of idle streams; outlives the server
  // For tests: in the place of the GPU that is to share memory with workers. Outlive the server.
  Device* gpu = nullptr;
  DeviceSharing* gpu_sharing = nullptr;
};

class Server {
 public:
  // Errors name the setting or the folder and say what to do.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       const ServerOptions& options);
  ~Server();

  // As they are bound. http_address() is "" when HTTP is off.
  const std::string& address() const;
  const std::string& http_address() const;

  // Health says NOT_SERVING, no new calls, streams finish within the grace, everything that is only
  // in memory goes to disk, the store closes. OK, or what the flush failed with.
  absl::Status Stop();

  // For tests: what is underneath.
  TieredStore& store();
  const Staging& staging() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

std::string Version();  // "0.1.0"
// Name and version of the libraries that this program was built with.
std::vector<std::pair<std::string, std::string>> LibraryVersions();

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SERVER_H_
