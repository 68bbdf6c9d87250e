#include "service/remote/redis_connection.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status_macros.h"
#include "proto/wire/tcp.h"

namespace kvstow {
namespace {

constexpr size_t kPieces = 64;                // of one call of the kernel's
constexpr size_t kReadBytes = 4 << 20;        // before other connections have their turn
constexpr size_t kTlsPieceBytes = 256 << 10;  // between two looks at what came

void AppendWord(std::string& out, absl::string_view word) {
  absl::StrAppend(&out, "$", word.size(), "\r\n", word, "\r\n");
}

// The pieces of a command, in order.
template <typename Each>
void ForPieces(const RedisBytes& command, Each each) {
  each(AsBytes(command.head));
  for (const SharedBytes& part : command.parts) each(part.span());
  each(AsBytes(command.tail));
}

// Returns the pieces that are to be sent, without the first `skip` bytes.
std::vector<std::span<const uint8_t>> PiecesOf(const std::deque<RedisBytes>& out, size_t skip) {
  std::vector<std::span<const uint8_t>> pieces;
  for (const RedisBytes& command : out) {
    ForPieces(command, [&](std::span<const uint8_t> piece) {
      const size_t skipped = std::min(skip, piece.size());
      skip -= skipped;
      if (piece.size() > skipped) pieces.push_back(piece.subspan(skipped));
    });
    if (pieces.size() >= kPieces) break;
  }
  return pieces;
}

}  // namespace

size_t RedisBytes::size() const {
  size_t bytes = head.size() + tail.size();
  for (const SharedBytes& part : parts) bytes += part.size();
  return bytes;
}

RedisBytes RedisCommandOf(std::span<const absl::string_view> words) {
  RedisBytes out{.head = absl::StrCat("*", words.size(), "\r\n")};
  for (const absl::string_view word : words) AppendWord(out.head, word);
  return out;
}

RedisBytes RedisSetOf(absl::string_view name, std::vector<SharedBytes> parts, Duration ttl) {
  size_t bytes = 0;
  for (const SharedBytes& part : parts) bytes += part.size();
  RedisBytes out{.head = ttl.count() > 0 ? "*5\r\n" : "*3\r\n", .parts = std::move(parts)};
  AppendWord(out.head, "SET");
  AppendWord(out.head, name);
  absl::StrAppend(&out.head, "$", bytes, "\r\n");
  out.tail = "\r\n";
  if (ttl.count() > 0) {
    AppendWord(out.tail, "PX");
    const auto millis = std::chrono::ceil<std::chrono::milliseconds>(ttl).count();
    AppendWord(out.tail, absl::StrCat(millis));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Begin(
    const SocketAddress& address, RedisLogin login) {
  const int descriptor =
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  if (descriptor < 0) {
    return absl::UnavailableError(absl::StrCat("no socket: ", std::strerror(errno)));
  }
  std::unique_ptr<RedisConnection> out(new RedisConnection(descriptor, std::move(login)));
  TuneTcp(descriptor);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(descriptor, to, address.size) != 0 && errno != EINPROGRESS) {
    return out->Lost("connect", errno);
  }
  return out;
}

RedisConnection::RedisConnection(int descriptor, RedisLogin login)
    : descriptor_(descriptor), login_(std::move(login)) {}

RedisConnection::~RedisConnection() { close(descriptor_); }

absl::Status RedisConnection::Lost(absl::string_view what, int error) const {
  return absl::UnavailableError(
      absl::StrCat("redis ", login_.node, ": ", what, ": ", std::strerror(error)));
}

int16_t RedisConnection::waits_for() const {
  if (state_ == State::kConnecting) return POLLOUT;
  if (state_ == State::kShaking) return tls_waits_for_;
  return static_cast<int16_t>(POLLIN | tls_waits_for_ | (unsent_ > 0 ? POLLOUT : 0));
}

void RedisConnection::Send(RedisBytes command) {
  unsent_ += command.size();
  out_.push_back(std::move(command));
}

absl::StatusOr<bool> RedisConnection::Advance(int16_t events, std::vector<RedisReply>& replies) {
  if (!broken_.ok()) return broken_;
  if (state_ == State::kConnecting) {
    if ((events & (POLLOUT | POLLERR | POLLHUP)) == 0) return false;
    KVSTOW_RETURN_IF_ERROR(FinishConnect());
  }
  if (state_ == State::kShaking) KVSTOW_RETURN_IF_ERROR(Shake());
  if (state_ == State::kShaking) return false;
  tls_waits_for_ = 0;
  KVSTOW_RETURN_IF_ERROR(tls_ == nullptr ? Write() : WriteTls());
  const size_t before = replies.size();
  const absl::StatusOr<bool> more = Read(replies);
  if (state_ == State::kLoggingIn) {
    // A server that refuses says so, and hangs up then.
    KVSTOW_RETURN_IF_ERROR(TakeLoginReplies(replies));
  } else if (!more.ok() && replies.size() > before) {
    broken_ = more.status();
    return true;
  }
  return more;
}

absl::Status RedisConnection::FinishConnect() {
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(descriptor_, SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return Lost("connect", error);
  if (login_.tls == nullptr) {
    BeginLogin();
    return absl::OkStatus();
  }
  tls_ = std::make_unique<TlsSession>(*login_.tls, descriptor_);
  state_ = State::kShaking;
  return absl::OkStatus();
}

absl::Status RedisConnection::Shake() {
  const absl::StatusOr<TlsSession::Step> step = tls_->Handshake();
  if (!step.ok()) {
    return absl::Status(step.status().code(),
                        absl::StrCat("redis ", login_.node, ": ", step.status().message()));
  }
  tls_waits_for_ = step->wait_for;
  if (step->wait_for == 0) BeginLogin();
  return absl::OkStatus();
}

void RedisConnection::BeginLogin() {
  state_ = State::kLoggingIn;
  const auto send = [&](std::initializer_list<absl::string_view> words) {
    login_steps_.push_back(*words.begin());
    Send(RedisCommandOf({words.begin(), words.size()}));
  };
  if (!login_.password.empty() && !login_.user.empty()) {
    send({"AUTH", login_.user, login_.password});
  } else if (!login_.password.empty()) {
    send({"AUTH", login_.password});
  }
  send({"READONLY"});  // so that a replica answers reads
  send({"PING"});
}

absl::Status RedisConnection::TakeLoginReplies(std::vector<RedisReply>& replies) {
  size_t taken = 0;
  for (; taken < replies.size() && !login_steps_.empty(); ++taken) {
    const RedisReply& reply = replies[taken];
    const absl::string_view step = login_steps_.front();
    const absl::Status status =
        reply.is_error() ? StatusOfRedisError(login_.node, reply.text) : absl::OkStatus();
    // A server that is no cluster knows no READONLY, and a user may lack the right to ask PING.
    const bool matters = step == "AUTH" || !absl::StartsWith(reply.text, "NOPERM");
    const bool early = absl::StartsWith(reply.text, "DENIED") ||
                       absl::StartsWith(reply.text, "NOAUTH") ||
                       absl::StartsWith(reply.text, "ERR max number of clients");
    if (!status.ok() && ((step != "READONLY" && matters) || early)) return status;
    login_steps_.erase(login_steps_.begin());
  }
  replies.erase(replies.begin(), replies.begin() + static_cast<int64_t>(taken));
  if (login_steps_.empty()) state_ = State::kReady;
  return absl::OkStatus();
}

absl::Status RedisConnection::Write() {
  while (unsent_ > 0) {
    std::array<iovec, kPieces> vectors;
    const auto pieces = PiecesOf(out_, sent_of_first_);
    const size_t count = std::min(pieces.size(), kPieces);
    for (size_t i = 0; i < count; ++i) {
      vectors[i] = {const_cast<uint8_t*>(pieces[i].data()), pieces[i].size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = count;
    const ssize_t sent = sendmsg(descriptor_, &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      Wrote(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      blocked_ = true;
      return absl::OkStatus();
    } else if (errno == EPIPE || errno == ECONNRESET) {
      return absl::OkStatus();  // what the server said before tells more, and Read ends it
    } else if (errno != EINTR) {
      return Lost("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::Status RedisConnection::WriteTls() {
  while (unsent_ > 0) {
    const auto pieces = PiecesOf(out_, sent_of_first_);
    KVSTOW_ASSIGN_OR_RETURN(
        const TlsSession::Step step,
        tls_->Write(pieces[0].first(std::min(pieces[0].size(), kTlsPieceBytes))));
    tls_waits_for_ = step.wait_for;
    if (step.wait_for != 0) {
      blocked_ = true;
      return absl::OkStatus();
    }
    Wrote(step.bytes);
  }
  KVSTOW_ASSIGN_OR_RETURN(const TlsSession::Step step, tls_->Flush());
  tls_waits_for_ = step.wait_for;
  return absl::OkStatus();
}

void RedisConnection::Wrote(size_t bytes) {
  if (blocked_) moved_ += bytes;
  blocked_ = false;
  unsent_ -= bytes;
  sent_of_first_ += bytes;
  while (!out_.empty() && sent_of_first_ >= out_.front().size()) {
    sent_of_first_ -= out_.front().size();
    out_.pop_front();
  }
}

// Returns how many bytes came; `dry` says that there are no more for now.
absl::StatusOr<size_t> RedisConnection::ReadSome(bool& dry) {
  auto space = reader_.Space();
  if (tls_ != nullptr) {
    const std::span<uint8_t> first = space[0].empty() ? space[1] : space[0];
    KVSTOW_ASSIGN_OR_RETURN(const TlsSession::Step step, tls_->Read(first));
    if ((step.wait_for & POLLOUT) != 0) tls_waits_for_ |= POLLOUT;
    dry = step.wait_for != 0;
    return step.bytes;
  }
  std::array<iovec, 2> vectors;
  size_t count = 0, room = 0;
  for (const std::span<uint8_t> part : space) {
    if (!part.empty()) vectors[count++] = {part.data(), part.size()};
    room += part.size();
  }
  for (;;) {
    const ssize_t came = readv(descriptor_, vectors.data(), static_cast<int>(count));
    if (came == 0) {
      return absl::UnavailableError(absl::StrCat("redis ", login_.node, " hung up"));
    }
    if (came > 0) {
      dry = static_cast<size_t>(came) < room;
      return static_cast<size_t>(came);
    }
    if (errno == EAGAIN) {
      dry = true;
      return size_t{0};
    }
    if (errno != EINTR) return Lost("receive", errno);
  }
}

absl::StatusOr<bool> RedisConnection::Read(std::vector<RedisReply>& replies) {
  for (size_t total = 0; total < kReadBytes;) {
    bool dry = false;
    KVSTOW_ASSIGN_OR_RETURN(const size_t came, ReadSome(dry));
    const absl::Status taken = reader_.Took(came, replies);
    if (!taken.ok()) {
      return absl::Status(taken.code(), absl::StrCat("redis ", login_.node, ": ", taken.message()));
    }
    moved_ += came;
    total += came;
    if (dry) return false;
  }
  return true;
}

}  // namespace kvstow
