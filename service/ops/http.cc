#include "service/ops/http.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/digest.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "proto/wire/tls_session.h"
#include "service/ops/http_message.h"
#include "service/ops/page_files.h"

namespace kvstow {
namespace {

constexpr size_t kMaxConnections = 64;
constexpr Duration kAskTime = std::chrono::seconds(5);
constexpr Duration kAnswerTime = std::chrono::seconds(5);
constexpr Duration kAcceptAgain = std::chrono::milliseconds(100);  // after it failed
constexpr size_t kTlsBytesAtOnce = 256 << 10;
constexpr char kPlain[] = "text/plain";

int PortOf(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof(address);
  getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  sockaddr_in in;  // the port stands at the same place for IPv4 and IPv6
  std::memcpy(&in, &address, sizeof(in));
  return ntohs(in.sin_port);
}

// A page that takes time, and the connection that asked for it.
struct Job {
  uint64_t connection;
  HttpRequest request;
};
struct Answer {
  uint64_t connection;
  std::string bytes;
};

class PollServer final : public HttpServer {
 public:
  PollServer(const Address& address, Descriptor listener, HttpPages pages,
             std::shared_ptr<TlsContext> tls)
      : host_(address.host),
        tls_(std::move(tls)),
        listener_(std::move(listener)),
        pages_(std::move(pages)),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        making_([this] { MakeAll(); }),
        serving_([this] { ServeAll(); }) {
    pthread_setname_np(making_.native_handle(), "kvstow-pages");
    pthread_setname_np(serving_.native_handle(), "kvstow-http");
  }

  ~PollServer() override {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    has_job_.NotifyAll();
    Wake();
    serving_.join();
    making_.join();
  }

  std::string address() const override {
    const bool v6 = host_.find(':') != std::string::npos;
    return absl::StrCat(v6 ? "[" : "", host_, v6 ? "]" : "", ":", PortOf(listener_));
  }

 private:
  // Of the serving thread, which alone knows them.
  struct Connection {
    enum class State : uint8_t { kShaking, kAsking, kWaiting, kTaking, kOver };
    uint64_t id;
    Descriptor socket;
    std::unique_ptr<TlsSession> tls;  // null: none
    State state = State::kAsking;
    int16_t wait_for = POLLIN;  // what poll() waits for, unless it waits for its page
    Time deadline;              // but while it waits for its page
    std::string bytes = {};     // what came, then what is left of the answer
    bool finished = false;      // the session has the end of the answer
  };

  void Wake() const {
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }

  void MakeAll();
  void ServeAll();
  void PollOnce();
  void DropEnded(Time now);
  void AcceptNew();
  void TakeAnswers();
  void Go(Connection& connection);
  void Shake(Connection& connection);
  void Read(Connection& connection);
  bool Take(Connection& connection, std::span<char> room);
  void Write(Connection& connection);
  void WriteTls(Connection& connection);
  void Begin(Connection& connection, const HttpRequest& request);
  void Send(Connection& connection, std::string bytes);

  const std::string host_;
  const std::shared_ptr<TlsContext> tls_;  // null: none
  const Descriptor listener_;
  const HttpPages pages_;
  const Descriptor wake_;
  std::list<Connection> connections_;  // the serving thread's; the oldest first
  uint64_t last_id_ = 0;
  Time accept_after_;
  Mutex mu_;
  CondVar has_job_;
  // At most one a connection, so as many as there may be of these and one more.
  std::deque<Job> jobs_ KVSTOW_GUARDED_BY(mu_);
  std::vector<Answer> made_ KVSTOW_GUARDED_BY(mu_);
  bool stopping_ KVSTOW_GUARDED_BY(mu_) = false;
  std::thread making_, serving_;  // last: they use the others
};

void PollServer::MakeAll() {
  for (;;) {
    Job job;
    {
      MutexLock lock(mu_);
      while (jobs_.empty() && !stopping_) has_job_.Wait(mu_);
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const std::string& path = job.request.path;
    const bool metrics = path == "/metrics";
    std::string bytes = WriteHttpAnswer(
        200, metrics ? "text/plain; version=0.0.4; charset=utf-8" : "text/html; charset=utf-8",
        metrics            ? pages_.metrics()
        : path == "/parts" ? pages_.parts()
                           : pages_.status(),
        job.request.head_only);
    {
      MutexLock lock(mu_);
      made_.push_back({job.connection, std::move(bytes)});
    }
    Wake();
  }
}

void PollServer::ServeAll() {
  for (;;) {
    {
      MutexLock lock(mu_);
      if (stopping_) return;
    }
    PollOnce();
    TakeAnswers();
  }
}

void PollServer::DropEnded(Time now) {
  std::erase_if(connections_, [now](const Connection& c) {
    return c.state == Connection::State::kOver ||
           (c.state != Connection::State::kWaiting && c.deadline <= now);
  });
}

// Waits until something can be done or a deadline passes, and does it.
void PollServer::PollOnce() {
  const Time now = Clock::Real().Now();
  DropEnded(now);
  const bool may_accept = now >= accept_after_;
  Time until = may_accept ? now + kAskTime : accept_after_;
  std::vector<pollfd> waits = {
      {.fd = wake_.get(), .events = POLLIN, .revents = 0},
      {.fd = may_accept ? listener_.get() : -1, .events = POLLIN, .revents = 0}};
  for (const Connection& c : connections_) {
    const bool waiting = c.state == Connection::State::kWaiting;
    waits.push_back({.fd = waiting ? -1 : c.socket.get(), .events = c.wait_for, .revents = 0});
    if (!waiting) until = std::min(until, c.deadline);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
  if (poll(waits.data(), waits.size(), static_cast<int>(std::max<int64_t>(left, 0))) < 0) return;
  size_t i = 2;
  for (Connection& c : connections_) {
    if (waits[i++].revents != 0) Go(c);
  }
  if (waits[1].revents != 0) AcceptNew();
  uint64_t woken = 0;
  (void)!read(wake_.get(), &woken, sizeof(woken));
}

void PollServer::AcceptNew() {
  for (size_t taken = 0; taken < kMaxConnections; ++taken) {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // No descriptor is left, or no memory: the oldest gives its own back, if there is one.
      if (!connections_.empty()) connections_.pop_front();
      accept_after_ = Clock::Real().Now() + kAcceptAgain;
      return;
    }
    const Time now = Clock::Real().Now();
    if (connections_.size() == kMaxConnections) DropEnded(now);
    if (connections_.size() == kMaxConnections) connections_.pop_front();
    auto session = tls_ == nullptr ? nullptr
                                   : std::make_unique<TlsSession>(*tls_, socket.get(),
                                                                  /*may_be_anonymous=*/true);
    const auto state =
        session == nullptr ? Connection::State::kAsking : Connection::State::kShaking;
    connections_.push_back({.id = ++last_id_,
                            .socket = std::move(socket),
                            .tls = std::move(session),
                            .state = state,
                            .deadline = now + kAskTime});
    Go(connections_.back());  // most have asked by now
  }
}

void PollServer::TakeAnswers() {
  std::vector<Answer> made;
  {
    MutexLock lock(mu_);
    made.swap(made_);
  }
  for (Answer& answer : made) {
    for (Connection& c : connections_) {
      if (c.id == answer.connection) Send(c, std::move(answer.bytes));
    }
  }
}

void PollServer::Go(Connection& connection) {
  if (connection.state == Connection::State::kShaking) Shake(connection);
  if (connection.state == Connection::State::kAsking) {
    Read(connection);
  } else if (connection.state == Connection::State::kTaking) {
    Write(connection);
  }
}

void PollServer::Shake(Connection& connection) {
  const auto step = connection.tls->Handshake();
  if (!step.ok()) {
    if (!absl::IsUnavailable(step.status())) pages_.handshake_failed();
    connection.state = Connection::State::kOver;
  } else if (step->wait_for != 0) {
    connection.wait_for = step->wait_for;
  } else {
    connection.wait_for = POLLIN;
    connection.state = Connection::State::kAsking;
  }
}

// Appends some of what came. Returns false when there is nothing more at the moment, or ever.
bool PollServer::Take(Connection& connection, std::span<char> room) {
  size_t bytes = 0;
  if (connection.tls == nullptr) {
    const ssize_t came = recv(connection.socket.get(), room.data(), room.size(), 0);
    if (came < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (came > 0) bytes = static_cast<size_t>(came);
  } else {
    const auto step = connection.tls->Read({reinterpret_cast<uint8_t*>(room.data()), room.size()});
    if (step.ok() && step->wait_for != 0) {
      connection.wait_for = step->wait_for;
      return false;
    }
    if (step.ok()) bytes = step->bytes;
  }
  if (bytes == 0) {
    connection.state = Connection::State::kOver;
    return false;
  }
  connection.bytes.append(room.data(), bytes);
  return true;
}

void PollServer::Read(Connection& connection) {
  std::array<char, kMaxHttpHeadBytes> piece;
  // What a record brought beyond one piece is not for poll() to find.
  while (connection.state == Connection::State::kAsking) {
    const std::span<char> room(piece.data(), kMaxHttpHeadBytes - connection.bytes.size());
    if (!Take(connection, room)) return;
    if (const auto request = ReadHttpRequest(connection.bytes)) {
      Begin(connection, *request);
    } else if (connection.tls == nullptr) {
      return;
    }
  }
}

void PollServer::Begin(Connection& connection, const HttpRequest& request) {
  const auto answer = [&](int status, absl::string_view body) {
    Send(connection, WriteHttpAnswer(status, kPlain, body, request.head_only));
  };
  if (request.refused != 0) return answer(request.refused, "refused: only GET, without a body\n");
  if (request.path == "/healthz") return answer(200, "ok\n");
  if (request.path == "/readyz") {
    const bool ready = pages_.ready();
    return answer(ready ? 200 : 503, ready ? "ready\n" : "not ready\n");
  }
  if (connection.tls != nullptr && tls_->asks_for_certificates() &&
      !connection.tls->has_peer_certificate()) {
    return answer(403, "refused: this page wants a client certificate\n");
  }
  if (const EmbeddedFile* file = PageFile(request.path); file != nullptr) {
    return Send(connection, WriteHttpAnswer(200, file->type, file->text, request.head_only));
  }
  if (request.path != "/metrics" && request.path != "/" && request.path != "/parts") {
    return answer(404, "not found\n");
  }
  connection.state = Connection::State::kWaiting;
  MutexLock lock(mu_);
  std::erase_if(jobs_, [this](const Job& job) {  // of connections that gave way
    return std::ranges::none_of(connections_,
                                [&](const Connection& c) { return c.id == job.connection; });
  });
  jobs_.push_back({connection.id, request});
  has_job_.NotifyAll();
}

void PollServer::Send(Connection& connection, std::string bytes) {
  connection.state = Connection::State::kTaking;
  connection.deadline = Clock::Real().Now() + kAnswerTime;
  connection.bytes = std::move(bytes);
  Write(connection);
}

void PollServer::Write(Connection& connection) {
  if (connection.tls != nullptr) return WriteTls(connection);
  const ssize_t sent =
      send(connection.socket.get(), connection.bytes.data(), connection.bytes.size(), MSG_NOSIGNAL);
  connection.wait_for = POLLOUT;
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (sent < 0 || static_cast<size_t>(sent) == connection.bytes.size()) {
    connection.state = Connection::State::kOver;
  } else {
    connection.bytes.erase(0, static_cast<size_t>(sent));
  }
}

// One buffer of the session's a time, so that a long answer lets others in between.
void PollServer::WriteTls(Connection& connection) {
  std::string& left = connection.bytes;
  size_t taken = 0;
  auto step = absl::StatusOr<TlsSession::Step>(TlsSession::Step{});
  while (step.ok() && step->wait_for == 0 && taken < left.size() && taken < kTlsBytesAtOnce) {
    step = connection.tls->Write(
        AsBytes(absl::string_view(left).substr(taken, kTlsBytesAtOnce - taken)));
    if (step.ok()) taken += step->bytes;
  }
  left.erase(0, taken);
  if (step.ok() && left.empty()) {
    if (!std::exchange(connection.finished, true)) connection.tls->Finish();
    step = connection.tls->Flush();
    if (step.ok() && step->wait_for == 0) connection.state = Connection::State::kOver;
  }
  if (!step.ok()) connection.state = Connection::State::kOver;
  connection.wait_for = step.ok() && step->wait_for != 0 ? step->wait_for : POLLOUT;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Address& address,
                                                              HttpPages pages,
                                                              std::shared_ptr<TlsContext> tls) {
  KVSTOW_ASSIGN_OR_RETURN(Descriptor listener, ListenAt("http-listen", address));
  return std::make_unique<PollServer>(address, std::move(listener), std::move(pages),
                                      std::move(tls));
}

}  // namespace kvstow
