#include "service/transports/direct_server.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace kvstow {
namespace {

constexpr Duration kGivesWay = std::chrono::seconds(5);  // when it has been idle so long

DirectParts WithTickets(DirectParts parts, Tickets& tickets) {
  parts.tickets = &tickets;
  return parts;
}

}  // namespace

class DirectServer::Connection {
 public:
  Connection(DirectServer& all, DirectSocket socket)
      : socket_(std::move(socket)),
        requests_(all.parts_, socket_, all.options_.patience),
        access_(*all.parts_.access),
        idle_time_(all.options_.idle_time),
        hello_time_(all.options_.hello_time) {}
  ~Connection() {
    socket_.HangUp();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    KVSTOW_ASSIGN_OR_RETURN(thread_, StartThread("kvstow-direct", [this] { Run(); }));
    return absl::OkStatus();
  }
  void HangUp() {
    gave_way_ = true;
    socket_.HangUp();
  }
  bool ended() const { return ended_; }
  void HangUpUnlessKnown() {
    const CallerPtr caller = requests_.caller();
    if (caller != nullptr && !access_.Knows(caller)) HangUp();
  }
  std::optional<Time> idle_since() const {
    if (gave_way_) return std::nullopt;
    const Time since = idle_since_;
    return since == kBusy ? std::nullopt : std::optional(since);
  }

 private:
  static constexpr Time kBusy = Time::max();

  void Run() {
    absl::Status status;
    while (status.ok()) {
      const Time now = Clock::Real().Now();
      idle_since_ = now;
      status =
          socket_.WaitForFrame(now + (requests_.caller() == nullptr ? hello_time_ : idle_time_));
      if (absl::IsDeadlineExceeded(status)) status = absl::UnavailableError("it was idle");
      idle_since_ = kBusy;
      if (status.ok()) status = requests_.ServeOne();
    }
    if (!absl::IsUnavailable(status)) {
      Log().warn("hanging up on a direct connection: {}", std::string(status.message()));
    }
    socket_.HangUp();
    ended_ = true;
  }

  const DirectSocket socket_;
  DirectRequests requests_;
  const Access& access_;
  const Duration idle_time_, hello_time_;
  std::atomic<Time> idle_since_{Clock::Real().Now()};
  std::atomic<bool> gave_way_{false}, ended_{false};
  std::thread thread_;  // last: it uses the others
};

absl::StatusOr<std::unique_ptr<DirectServer>> DirectServer::Start(const DirectOptions& options,
                                                                  DirectParts parts) {
  KVSTOW_ASSIGN_OR_RETURN(DirectSocket socket, DirectSocket::Listen(options.host, options.port));
  return std::unique_ptr<DirectServer>(new DirectServer(options, parts, std::move(socket)));
}

DirectServer::DirectServer(const DirectOptions& options, DirectParts parts, DirectSocket socket)
    : options_(options),
      tickets_(options.ticket_life),
      parts_(WithTickets(parts, tickets_)),
      port_(socket.port()),
      connections_(std::move(socket),
                   {.listener = "direct", .most = options_.max_connections, .idle = kGivesWay},
                   [this](DirectSocket accepted) {
                     return std::make_unique<Connection>(*this, std::move(accepted));
                   }) {}

DirectServer::~DirectServer() = default;

void DirectServer::HangUpOnStrangers() const {
  connections_.ForEach([](Connection& connection) { connection.HangUpUnlessKnown(); });
}

size_t DirectServer::connections() const {
  return connections_.Count([](const Connection& connection) { return !connection.ended(); });
}

uint64_t DirectServer::refused() const { return connections_.refused(); }

}  // namespace kvstow
