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
constexpr Duration kHandshakeTime = std::chrono::seconds(5);
constexpr Duration kComplainAgain = std::chrono::seconds(10);

DirectParts WithTickets(DirectParts parts, Tickets& tickets) {
  parts.tickets = &tickets;
  return parts;
}

}  // namespace

class DirectServer::Connection {
 public:
  Connection(DirectServer& all, DirectSocket socket)
      : all_(all),
        socket_(std::move(socket)),
        requests_(all.parts_, socket_, all.options_.patience),
        access_(*all.parts_.access),
        idle_time_(all.options_.idle_time),
        hello_time_(all.options_.hello_time) {
    if (all.options_.tls != nullptr || requests_.caller() == nullptr) {
      idle_since_ = Clock::Real().Now() - kGivesWay;
    }
  }
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
  void HangUpIfStuck() {
    const std::optional<Time> since = requests_.sending_since();
    if (gave_way_ || !since.has_value() ||
        all_.parts_.clock->Now() - *since < AdmissionLimits().grace)
      return;
    all_.parts_.metrics.CountEndedStream("crowded");
    HangUp();
  }
  std::optional<Time> idle_since() const {
    if (gave_way_) return std::nullopt;
    const Time since = idle_since_;
    return since == kBusy ? std::nullopt : std::optional(since);
  }

 private:
  static constexpr Time kBusy = Time::max();

  absl::Status ShakeHands() {
    const std::shared_ptr<TlsContext>& tls = all_.options_.tls;
    if (tls == nullptr) return absl::OkStatus();
    absl::Status status = socket_.StartTls(*tls, Clock::Real().Now() + kHandshakeTime);
    if (status.ok() || absl::IsUnavailable(status)) return status;
    all_.NoteFailedHandshake(status);
    return absl::UnavailableError("the handshake failed");
  }

  void Run() {
    absl::Status status = ShakeHands();
    while (status.ok()) {
      const Time now = Clock::Real().Now();
      const bool known = requests_.caller() != nullptr;
      if (known) idle_since_ = now;
      status = socket_.WaitForFrame(now + (known ? idle_time_ : hello_time_));
      if (absl::IsDeadlineExceeded(status)) status = absl::UnavailableError("it was idle");
      if (known) idle_since_ = kBusy;
      if (status.ok()) status = requests_.ServeOne(known ? Time::max() : now + hello_time_);
      if (!known && absl::IsDeadlineExceeded(status)) {
        status = absl::UnavailableError("it showed no ticket");
      }
    }
    if (!absl::IsUnavailable(status)) {
      Log().warn("hanging up on a direct connection: {}", std::string(status.message()));
    }
    socket_.HangUp();
    ended_ = true;
  }

  DirectServer& all_;
  DirectSocket socket_;
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

// Whoever reaches the port can make handshakes fail: it must not fill the log.
void DirectServer::NoteFailedHandshake(const absl::Status& why) {
  parts_.metrics.CountFailedHandshake("direct");
  const Time now = Clock::Real().Now();
  Time after = complain_after_;
  if (now < after || !complain_after_.compare_exchange_strong(after, now + kComplainAgain)) return;
  Log().warn("a direct connection was refused: {}", std::string(why.message()));
}

void DirectServer::HangUpOnStrangers() const {
  connections_.ForEach([](Connection& connection) { connection.HangUpUnlessKnown(); });
}

void DirectServer::HangUpOnStuck() const {
  connections_.ForEach([](Connection& connection) { connection.HangUpIfStuck(); });
}

size_t DirectServer::connections() const {
  return connections_.Count([](const Connection& connection) { return !connection.ended(); });
}

uint64_t DirectServer::refused() const { return connections_.refused(); }

}  // namespace kvstow
