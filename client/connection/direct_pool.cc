#include "client/connection/direct_pool.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "client/connection/address_list.h"
#include "client/connection/fork.h"
#include "kvstow/v1/direct.pb.h"
#include "proto/wire/direct_socket.h"
#include "proto/wire/tls_context.h"

namespace kvstow {
namespace {

constexpr Duration kConnectTime = std::chrono::seconds(2);
constexpr Duration kTryAgain = std::chrono::seconds(5);
constexpr Duration kIdleTime = std::chrono::seconds(60);
constexpr Duration kWarmTime = std::chrono::milliseconds(50);

// Returns a job that ends the connection.
DirectPool::Job Failing(absl::Status why) {
  return [why = std::move(why)](const DirectSocket&) { return DirectPool::Outcome{why, nullptr}; };
}

}  // namespace

// The pool's lock guards all of it. The socket is set before the connection is idle for the first
// time.
class DirectPool::Connection {
 public:
  enum class State : uint8_t { kOpening, kIdle, kTaken, kEnded };
  State state = State::kOpening;
  std::optional<DirectSocket> socket;
  std::optional<ClosedInChild> closed_in_child;
  bool used = false;
  Job job;          // none: there is nothing to do
  Time idle_since;  // while it is idle
  CondVar has_job;
  std::thread thread;
};

DirectPool::DirectPool(const std::string& address, size_t most, std::shared_ptr<TlsContext> tls,
                       Ask ask)
    : host_(HostOf(address)),
      most_(host_.empty() ? 0 : most),
      tls_(std::move(tls)),
      ask_(std::move(ask)) {}

DirectPool::~DirectPool() { Join(); }

void DirectPool::Join() {
  Close();
  std::list<std::unique_ptr<Connection>> last;
  {
    MutexLock lock(mu_);
    last.swap(connections_);
  }
  for (const auto& connection : last) connection->thread.join();
}

void DirectPool::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  for (const auto& connection : connections_) {
    if (connection->socket.has_value()) connection->socket->HangUp();
    connection->has_job.NotifyAll();
  }
}

// Joins the threads that have ended: they are past their last use of the lock.
void DirectPool::Reap() {
  std::erase_if(connections_, [](const auto& connection) {
    if (connection->state != Connection::State::kEnded) return false;
    connection->thread.join();
    return true;
  });
}

DirectPool::Connection* DirectPool::Take() {
  MutexLock lock(mu_);
  if (closed_ || most_ == 0) return nullptr;
  Reap();
  bool opening = false;
  for (const auto& connection : connections_) {
    opening = opening || connection->state == Connection::State::kOpening;
    if (connection->state != Connection::State::kIdle) continue;
    connection->state = Connection::State::kTaken;
    if (connection->socket->Quiet()) {
      connection->used = true;
      return connection.get();
    }
    // The server went, or took the connection for idle: its thread finds that out. A connection
    // that nobody ever used was one too many for the server: the pool does not ask again at once.
    if (!connection->used) not_before_ = Clock::Real().Now() + kTryAgain;
    connection->job = Failing(absl::UnavailableError("the server hung up"));
    connection->has_job.NotifyAll();
  }
  if (!opening) OpenOneMore();
  return nullptr;
}

void DirectPool::OpenOneMore() {
  if (closed_ || connections_.size() >= most_ || Clock::Real().Now() < not_before_) return;
  auto added = std::make_unique<Connection>();
  auto thread = StartThread("kvstow-direct", [this, c = added.get()] { Serve(c); });
  if (!thread.ok()) {
    not_before_ = Clock::Real().Now() + kTryAgain;
    return;
  }
  added->thread = *std::move(thread);
  connections_.push_back(std::move(added));
}

void DirectPool::Warm() {
  const Time end = Clock::Real().Now() + kWarmTime;
  MutexLock lock(mu_);
  Reap();
  if (connections_.empty()) OpenOneMore();
  for (Duration left = kWarmTime; left > Duration(0); left = end - Clock::Real().Now()) {
    const bool opening = std::ranges::any_of(
        connections_, [](const auto& c) { return c->state == Connection::State::kOpening; });
    if (!opening || closed_) return;
    opened_.WaitFor(mu_, left);
  }
}

void DirectPool::Start(Connection* connection, Job job) {
  MutexLock lock(mu_);
  connection->job = std::move(job);
  connection->has_job.NotifyAll();
}

absl::Status DirectPool::RunHere(Connection* connection,
                                 absl::FunctionRef<absl::Status(const DirectSocket& socket)> use) {
  const absl::Status status = use(*connection->socket);
  if (status.ok()) {
    SetState(connection, /*idle=*/true);
  } else {
    Start(connection, Failing(status));
  }
  return status;
}

absl::StatusOr<DirectSocket> DirectPool::Open() {
  KVSTOW_ASSIGN_OR_RETURN(const Offer offer, ask_());
  const Time deadline = Clock::Real().Now() + kConnectTime;
  KVSTOW_ASSIGN_OR_RETURN(DirectSocket socket, DirectSocket::Connect(host_, offer.port, deadline));
  if (tls_ != nullptr) KVSTOW_RETURN_IF_ERROR(socket.StartTls(*tls_, deadline));
  if (!offer.ticket.empty()) {
    v1::DirectRequest hello;
    hello.mutable_hello()->set_ticket(offer.ticket);
    KVSTOW_RETURN_IF_ERROR(socket.Send(hello, {}, 0, deadline));
  }
  return socket;
}

void DirectPool::Serve(Connection* connection) {
  absl::StatusOr<DirectSocket> opened = Open();
  if (!opened.ok()) {
    if (!absl::IsUnimplemented(opened.status())) {
      Log().debug("pages go over streams: {}", std::string(opened.status().message()));
    }
    MutexLock lock(mu_);
    not_before_ = Clock::Real().Now() + kTryAgain;
    connection->state = Connection::State::kEnded;
    opened_.NotifyAll();
    return;
  }
  {
    MutexLock lock(mu_);
    connection->socket.emplace(*std::move(opened));
    connection->closed_in_child.emplace(connection->socket->descriptor());
  }
  SetState(connection, /*idle=*/true);
  opened_.NotifyAll();
  while (const Job job = NextJob(connection)) {
    const Outcome outcome = job(*connection->socket);
    SetState(connection, outcome.status.ok());
    if (outcome.then) outcome.then();
    if (!outcome.status.ok()) break;
  }
  connection->socket->HangUp();
  MutexLock lock(mu_);
  connection->state = Connection::State::kEnded;
}

// Returns null when nobody needs the connection any more.
DirectPool::Job DirectPool::NextJob(Connection* connection) {
  MutexLock lock(mu_);
  for (;;) {
    if (connection->job) return std::exchange(connection->job, nullptr);
    const Duration left = connection->idle_since + kIdleTime - Clock::Real().Now();
    const bool idle = connection->state == Connection::State::kIdle;
    if (idle && (closed_ || left <= Duration(0))) {
      connection->state = Connection::State::kTaken;
      return nullptr;
    }
    connection->has_job.WaitFor(mu_, std::max<Duration>(left, std::chrono::milliseconds(1)));
  }
}

void DirectPool::SetState(Connection* connection, bool idle) {
  MutexLock lock(mu_);
  connection->state = idle ? Connection::State::kIdle : Connection::State::kTaken;
  connection->idle_since = Clock::Real().Now();
}

}  // namespace kvstow
