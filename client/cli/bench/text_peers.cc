// Redis and memcached. A value is received straight into the buffer that wants it.
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/bench/child.h"
#include "client/cli/bench/peer.h"
#include "client/cli/bench/socket.h"

namespace kvstow::cli {
namespace {

absl::string_view TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

absl::Status Expect(Socket& socket, const std::string& wanted) {
  KVSTOW_ASSIGN_OR_RETURN(const std::string line, socket.ReceiveLine());
  if (line == wanted) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("answered \"", line, "\", not \"", wanted, "\""));
}

// `out`, then the "\r\n" that ends it.
absl::Status ReceiveValue(Socket& socket, std::span<uint8_t> out) {
  KVSTOW_RETURN_IF_ERROR(socket.Receive(out));
  return Expect(socket, "");
}

// Values that Redis is asked for ahead of the one that comes. It copies each of them at once, so
// that more of them cost it memory.
constexpr size_t kAhead = 4;

// https://redis.io/docs/reference/protocol-spec
class RedisSession final : public Session {
 public:
  explicit RedisSession(Socket socket) : socket_(std::move(socket)) {}

  absl::Status Put(std::span<const Item> items) override {
    for (const auto& [key, value] : items) {
      const std::string head = absl::StrCat("*3\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key,
                                            "\r\n$", value.size(), "\r\n");
      const absl::string_view parts[] = {head, TextOf(value), "\r\n"};
      KVSTOW_RETURN_IF_ERROR(socket_.Send(parts));
    }
    for (size_t i = 0; i < items.size(); ++i) KVSTOW_RETURN_IF_ERROR(Expect(socket_, "+OK"));
    return absl::OkStatus();
  }
  absl::Status Get(std::span<const Item> items) override {
    size_t asked = 0;
    for (size_t i = 0; i < items.size(); ++i) {
      const Item& item = items[i];
      while (asked < std::min(items.size(), i + kAhead))
        KVSTOW_RETURN_IF_ERROR(Ask("GET", items[asked++].key));
      KVSTOW_RETURN_IF_ERROR(Expect(socket_, absl::StrCat("$", item.value.size())));
      KVSTOW_RETURN_IF_ERROR(ReceiveValue(socket_, item.value));
    }
    return absl::OkStatus();
  }
  absl::Status Delete(const std::string& key) override {
    KVSTOW_RETURN_IF_ERROR(Ask("DEL", key));
    return Expect(socket_, ":1");
  }

 private:
  absl::Status Ask(absl::string_view verb, const std::string& key) {
    const std::string text =
        absl::StrCat("*2\r\n$3\r\n", verb, "\r\n$", key.size(), "\r\n", key, "\r\n");
    const absl::string_view parts[] = {text};
    return socket_.Send(parts);
  }

  Socket socket_;
};

// https://github.com/memcached/memcached/blob/master/doc/protocol.txt
class MemcachedSession final : public Session {
 public:
  explicit MemcachedSession(Socket socket) : socket_(std::move(socket)) {}

  absl::Status Put(std::span<const Item> items) override {
    for (const auto& [key, value] : items) {
      const std::string head = absl::StrCat("set ", key, " 0 0 ", value.size(), "\r\n");
      const absl::string_view parts[] = {head, TextOf(value), "\r\n"};
      KVSTOW_RETURN_IF_ERROR(socket_.Send(parts));
    }
    for (size_t i = 0; i < items.size(); ++i) KVSTOW_RETURN_IF_ERROR(Expect(socket_, "STORED"));
    return absl::OkStatus();
  }
  absl::Status Get(std::span<const Item> items) override {
    std::string text = "get";
    for (const Item& item : items) absl::StrAppend(&text, " ", item.key);
    KVSTOW_RETURN_IF_ERROR(Ask(absl::StrCat(text, "\r\n")));
    for (const auto& [key, value] : items) {
      KVSTOW_RETURN_IF_ERROR(Expect(socket_, absl::StrCat("VALUE ", key, " 0 ", value.size())));
      KVSTOW_RETURN_IF_ERROR(ReceiveValue(socket_, value));
    }
    return Expect(socket_, "END");
  }
  absl::Status Delete(const std::string& key) override {
    KVSTOW_RETURN_IF_ERROR(Ask(absl::StrCat("delete ", key, "\r\n")));
    return Expect(socket_, "DELETED");
  }

 private:
  absl::Status Ask(const std::string& text) {
    const absl::string_view parts[] = {text};
    return socket_.Send(parts);
  }

  Socket socket_;
};

// A server of its own process whose sessions are `S` over a socket.
template <class S>
class SocketPeer final : public Peer {
 public:
  SocketPeer(std::string name, std::string address, std::unique_ptr<Child> child)
      : name_(std::move(name)), address_(std::move(address)), child_(std::move(child)) {}

  std::string name() const override { return name_; }
  absl::StatusOr<std::unique_ptr<Session>> Connect() override {
    KVSTOW_ASSIGN_OR_RETURN(Socket socket, Socket::Connect(address_));
    return std::make_unique<S>(std::move(socket));
  }
  double CpuSeconds() const override { return child_->CpuSeconds(); }

 private:
  const std::string name_, address_;
  const std::unique_ptr<Child> child_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> StartRedis(const PeerOptions& options) {
  std::vector<std::string> argv = {
      "redis-server", "--save",      "",
      "--appendonly", "no",          "--dir",
      options.folder, "--maxmemory", absl::StrCat(options.budget_bytes)};
  std::string address = absl::StrCat("unix:", options.folder, "/redis.sock");
  if (options.local) {
    argv.insert(argv.end(), {"--port", "0", "--unixsocket", address.substr(5)});
  } else {
    KVSTOW_ASSIGN_OR_RETURN(const int port, PortForAServer(options.host));
    address = absl::StrCat(options.host, ":", port);
    argv.insert(argv.end(), {"--bind", options.host, "--port", absl::StrCat(port)});
    if (options.host != kLoopback) argv.insert(argv.end(), {"--protected-mode", "no"});
  }
  KVSTOW_ASSIGN_OR_RETURN(auto child, Child::Start(argv, options.folder + "/redis.log"));
  return std::make_unique<SocketPeer<RedisSession>>(options.local ? "redis, UNIX" : "redis",
                                                    address, std::move(child));
}

absl::StatusOr<std::unique_ptr<Peer>> StartMemcached(const PeerOptions& options) {
  // Its memory must hold two of the largest items, and values of several MiB in chunks of several
  // classes, between which it moves no memory. It does not run as root unless it is told to, and
  // another user could not reach its socket in our folder.
  std::vector<std::string> argv = {
      "memcached", "-I", "64m", "-m",
      absl::StrCat(std::max<uint64_t>(128, (options.budget_bytes >> 20) * 2))};
  if (geteuid() == 0) argv.insert(argv.end(), {"-u", "root"});
  std::string address = absl::StrCat("unix:", options.folder, "/memcached.sock");
  if (options.local) {
    argv.insert(argv.end(), {"-s", address.substr(5)});
  } else {
    KVSTOW_ASSIGN_OR_RETURN(const int port, PortForAServer(options.host));
    address = absl::StrCat(options.host, ":", port);
    argv.insert(argv.end(), {"-l", options.host, "-p", absl::StrCat(port)});
  }
  KVSTOW_ASSIGN_OR_RETURN(auto child, Child::Start(argv, options.folder + "/memcached.log"));
  return std::make_unique<SocketPeer<MemcachedSession>>(
      options.local ? "memcached, UNIX" : "memcached", address, std::move(child));
}

}  // namespace kvstow::cli
