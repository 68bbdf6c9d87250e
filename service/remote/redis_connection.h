// One connection to one Redis server, which never waits.
//
// Commands go out in the order of Send, pipelined, and replies come in that order. Values are sent
// from where they lie; with TLS they pass through its records. The connection logs in by itself
// (TLS, AUTH, READONLY, PING) before it sends anything else. One thread at a time uses it. After an
// error it is good for nothing. Errors: UNAVAILABLE when the server is gone or still loads its
// data, PERMISSION_DENIED when it refuses the login, UNAUTHENTICATED when a side does not like the
// other's certificate, INVALID_ARGUMENT when what answers is no Redis.
#ifndef KVSTOW_SERVICE_REMOTE_REDIS_CONNECTION_H_
#define KVSTOW_SERVICE_REMOTE_REDIS_CONNECTION_H_

#include <sys/socket.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/shared_bytes.h"
#include "proto/wire/tls_session.h"
#include "service/remote/redis_reply.h"

namespace kvstow {

// A command as it goes out: some text, the value, some text.
struct RedisBytes {
  std::string head;
  std::vector<SharedBytes> parts = {};
  std::string tail = {};
  size_t size() const;
};
RedisBytes RedisCommandOf(std::span<const absl::string_view> words);
// SET name value, which vanishes after `ttl` (0 = never).
RedisBytes RedisSetOf(absl::string_view name, std::vector<SharedBytes> parts, Duration ttl);

// An address as the system's calls take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

struct RedisLogin {
  std::string user, password;       // no password = no AUTH; no user = the default user
  std::shared_ptr<TlsContext> tls;  // null = plain TCP
  std::string node;                 // the server's name for errors: "10.0.0.1:6379"
};

class RedisConnection {
 public:
  // Begins to connect.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Begin(const SocketAddress& address,
                                                                RedisLogin login);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  int descriptor() const { return descriptor_; }
  // The events to poll for.
  int16_t waits_for() const;
  // Logged in.
  bool ready() const { return state_ == State::kReady; }
  size_t unsent_bytes() const { return unsent_; }
  // Signs of life of the server: bytes that came, and bytes that went after the way was blocked.
  // That the kernel takes bytes while it has room says nothing of the server.
  uint64_t moved_bytes() const { return moved_; }

  // Call it when ready, and Advance afterwards: that sends.
  void Send(RedisBytes command);
  // Goes as far as it can. `events` are those that poll() found. Appends the replies to what Send
  // took. Returns true when there is more to read than it read for now.
  absl::StatusOr<bool> Advance(int16_t events, std::vector<RedisReply>& replies);

 private:
  enum class State : uint8_t { kConnecting, kShaking, kLoggingIn, kReady };

  RedisConnection(int descriptor, RedisLogin login);
  absl::Status FinishConnect();
  absl::Status Shake();
  void BeginLogin();
  absl::Status TakeLoginReplies(std::vector<RedisReply>& replies);
  absl::Status Write();
  absl::Status WriteTls();
  void Wrote(size_t bytes);
  absl::StatusOr<bool> Read(std::vector<RedisReply>& replies);
  absl::StatusOr<size_t> ReadSome(bool& dry);
  absl::Status Lost(absl::string_view what, int error) const;

  const int descriptor_;
  const RedisLogin login_;
  State state_ = State::kConnecting;
  std::unique_ptr<TlsSession> tls_;
  int16_t tls_waits_for_ = 0;  // beside what is to be read
  std::deque<RedisBytes> out_;
  size_t sent_of_first_ = 0, unsent_ = 0;
  uint64_t moved_ = 0;
  bool blocked_ = false;                        // the kernel took no more
  std::vector<absl::string_view> login_steps_;  // whose replies are to come
  RedisReplyReader reader_;
  absl::Status broken_;  // told after the replies that came before
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REDIS_CONNECTION_H_
