// Server: the composition root. Opens device, tiers and store, starts what serves them, and takes
// all of it down again in the right order.
//
//   KVSTOW_ASSIGN_OR_RETURN(std::unique_ptr<Server> server, Server::Start(config, {}));
//   ... until SIGTERM ...
//   server->Stop();
//
// Start returns OK only once calls are served. Thread-safe, except for Stop and the destructor,
// which stops when nobody has.
#ifndef KVSTOW_SERVICE_SERVER_H_
#define KVSTOW_SERVICE_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "service/ops/config.h"
#include "service/pages/device_coder.h"
#include "service/remote/remote_store.h"
#include "service/transports/streams.h"

namespace kvstow {

class Device;
class DeviceSharing;

struct ServerOptions {
  // The time that streams may go on once the server is stopping; then they are cancelled.
  Duration drain_grace = std::chrono::seconds(10);
  // The server drops a page whose sender went silent for this long.
  Duration staging_ttl = std::chrono::seconds(30);
  StreamLimits limits;
  // The interval at which the server looks for idle streams and silent senders.
  Duration reap_every = std::chrono::seconds(1);
  const Clock* clock = &Clock::Real();  // for idle streams; outlives the server
  // The program of the processes that fit the cold forms of spaces (fit_process.h). "" = fits run
  // in a thread of this process.
  std::string fit_program = "";
  // The intervals at which the server looks for pages to fit to, and rests at least after a fit.
  Duration fit_look_every = std::chrono::seconds(5), fit_least_rest = std::chrono::minutes(1);
  // For tests: replace the GPU that codes pages and shares memory with workers. Outlive the server.
  Device* gpu = nullptr;
  DeviceSharing* gpu_sharing = nullptr;
  DeviceCoder::Options device_coder = {};
  // For tests: makes the remote store, in place of the one that the settings name.
  std::function<std::unique_ptr<RemoteStore>()> open_remote = nullptr;
};

class RemoteTier;

class Server {
 public:
  // Errors name the setting or the folder and say what to do.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Config& config,
                                                       const ServerOptions& options);
  ~Server();

  // Return the bound addresses. The last two are "" when they are off; that of operators may be
  // address() itself.
  const std::string& address() const;
  const std::string& http_address() const;
  const std::string& admin_address() const;

  // Reads the access file and the master keys again, as after a SIGHUP. Hangs up on connections
  // beside gRPC whose identity is gone. What fails is logged, and what was read before of it stays
  // in force.
  absl::Status Reload();

  // Sets Health to NOT_SERVING, takes no new calls, lets streams finish within the grace, and
  // writes everything that is only in memory to disk. Returns OK, or the error of the flush. The
  // destructor closes the store.
  absl::Status Stop();

  // For tests: the parts underneath.
  TieredStore& store();
  const Staging& staging() const;
  RemoteTier& remote();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

std::string Version();  // "0.1.0"
// Returns name and version of the libraries that this program was built with.
std::vector<std::pair<std::string, std::string>> LibraryVersions();

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_SERVER_H_
