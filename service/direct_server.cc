#include "service/direct_server.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"

namespace kvstow {
namespace {

constexpr Duration kAcceptAgain = std::chrono::milliseconds(100);  // after it failed

}  // namespace

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
    : options_(options), parts_(parts), socket_(std::move(socket)), port_(socket_.port()) {
  accepting_ = std::thread([this] { AcceptAll(); });
}

DirectServer::~DirectServer() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    for (const auto& connection : connections_) connection->HangUp();
  }
  stop_.NotifyAll();
  socket_.HangUp();
  accepting_.join();
  std::list<std::unique_ptr<Connection>> last;
  {
    MutexLock lock(mu_);
    last.swap(connections_);
  }
}

void DirectServer::AcceptAll() {
  for (;;) {
    auto socket = socket_.Accept();
    std::list<std::unique_ptr<Connection>> ended;  // which join outside the lock
    MutexLock lock(mu_);
    if (stopping_) return;
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if ((*it)->ended()) ended.splice(ended.end(), connections_, it);
      it = next;
    }
    if (!socket.ok()) {
      Log().error("{}", std::string(socket.status().message()));
      stop_.WaitFor(mu_, kAcceptAgain);
      if (stopping_) return;
      continue;
    }
    if (connections_.size() < options_.max_connections) {
      connections_.push_back(std::make_unique<Connection>(*this, *std::move(socket)));
    }
  }
}

size_t DirectServer::connections() const {
  MutexLock lock(mu_);
  return std::ranges::count_if(connections_,
                               [](const auto& connection) { return !connection->ended(); });
}

}  // namespace kvstow
