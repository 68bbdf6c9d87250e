#include "service/direct_server.h"

#include <pthread.h>

#include <atomic>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace kvstow {

class DirectServer::Connection {
 public:
  Connection(DirectServer& all, DirectSocket socket)
      : socket_(std::move(socket)),
        requests_(all.parts_, socket_, all.options_.patience),
        thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), "kvstow-direct");
  }
  ~Connection() {
    socket_.HangUp();
    thread_.join();
  }

  void HangUp() const { socket_.HangUp(); }
  bool ended() const { return ended_; }

 private:
  void Run() {
    absl::Status status = socket_.WaitForFrame();
    while (status.ok()) {
      status = requests_.ServeOne();
      if (status.ok()) status = socket_.WaitForFrame();
    }
    if (!absl::IsUnavailable(status)) {
      Log().warn("hanging up on a direct connection: {}", std::string(status.message()));
    }
    socket_.HangUp();
    ended_ = true;
  }

  const DirectSocket socket_;
  DirectRequests requests_;
  std::atomic<bool> ended_{false};
  std::thread thread_;  // last: it uses the others
};

absl::StatusOr<std::unique_ptr<DirectServer>> DirectServer::Start(const DirectOptions& options,
                                                                  DirectParts parts) {
  KVSTOW_ASSIGN_OR_RETURN(DirectSocket socket, DirectSocket::Listen(options.host, options.port));
  return std::unique_ptr<DirectServer>(new DirectServer(options, parts, std::move(socket)));
}

DirectServer::DirectServer(const DirectOptions& options, DirectParts parts, DirectSocket socket)
    : options_(options),
      parts_(parts),
      port_(socket.port()),
      connections_(std::move(socket), options_.max_connections, [this](DirectSocket accepted) {
        return std::make_unique<Connection>(*this, std::move(accepted));
      }) {}

DirectServer::~DirectServer() = default;

size_t DirectServer::connections() const {
  return connections_.Count([](const Connection& connection) { return !connection.ended(); });
}

}  // namespace kvstow
