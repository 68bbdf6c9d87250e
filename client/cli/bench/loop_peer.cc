// Bare sockets: a thread a connection that receives a value into one buffer, and sends that buffer.
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cli/bench/peer.h"
#include "client/cli/bench/socket.h"

namespace kvstow::cli {
namespace {

// A request, followed by `bytes` of value when it is a put. The answer of a put is one byte, that
// of a get the value.
struct Request {
  uint64_t put, bytes;
};

constexpr uint64_t kMostBytes = uint64_t{1} << 30;

absl::Status Serve(Socket& socket) {
  std::vector<uint8_t> value;
  while (true) {
    uint8_t head[sizeof(Request)];
    KVSTOW_RETURN_IF_ERROR(socket.Receive(head));
    Request request;
    std::memcpy(&request, head, sizeof(request));
    if (request.bytes > kMostBytes) return absl::InvalidArgumentError("a value over 1 GiB");
    value.resize(request.bytes);
    if (request.put != 0) KVSTOW_RETURN_IF_ERROR(socket.Receive(value));
    const absl::string_view answer[] = {
        {reinterpret_cast<const char*>(value.data()), request.put != 0 ? 1 : value.size()}};
    KVSTOW_RETURN_IF_ERROR(socket.Send(answer));
  }
}

class LoopSession final : public Session {
 public:
  explicit LoopSession(Socket socket) : socket_(std::move(socket)) {}

  absl::Status Put(std::span<const Item> items) override {
    for (const Item& item : items) {
      KVSTOW_RETURN_IF_ERROR(Ask({.put = 1, .bytes = item.value.size()}, item.value));
    }
    std::vector<uint8_t> answers(items.size());
    return socket_.Receive(answers);
  }
  absl::Status Get(std::span<const Item> items) override {
    for (const Item& item : items) {
      KVSTOW_RETURN_IF_ERROR(Ask({.put = 0, .bytes = item.value.size()}, {}));
    }
    for (const Item& item : items) KVSTOW_RETURN_IF_ERROR(socket_.Receive(item.value));
    return absl::OkStatus();
  }
  absl::Status Delete(const std::string& /*key*/) override { return absl::OkStatus(); }

 private:
  absl::Status Ask(const Request& request, std::span<const uint8_t> value) {
    const absl::string_view parts[] = {{reinterpret_cast<const char*>(&request), sizeof(request)},
                                       {reinterpret_cast<const char*>(value.data()), value.size()}};
    return socket_.Send(parts);
  }

  Socket socket_;
};

class LoopPeer final : public Peer {
 public:
  LoopPeer(Listener listener, const std::string& host)
      : listener_(std::move(listener)), address_(absl::StrCat(host, ":", listener_.port())) {
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~LoopPeer() override {
    listener_.Stop();
    acceptor_.join();
    for (std::thread& t : servers_) t.join();  // sessions have ended
  }

  std::string name() const override { return "bare socket"; }
  absl::StatusOr<std::unique_ptr<Session>> Connect() override {
    KVSTOW_ASSIGN_OR_RETURN(Socket socket, Socket::Connect(address_));
    return std::make_unique<LoopSession>(std::move(socket));
  }
  double CpuSeconds() const override { return 0; }

 private:
  void Accept() {
    while (true) {
      absl::StatusOr<Socket> socket = listener_.Accept();
      if (!socket.ok()) return;
      // It serves until its session hangs up, which is no error here.
      servers_.emplace_back([s = std::move(*socket)]() mutable { Serve(s).IgnoreError(); });
    }
  }

  Listener listener_;
  const std::string address_;
  std::vector<std::thread> servers_;  // the acceptor's, until that is joined
  std::thread acceptor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Peer>> StartLoop(const PeerOptions& options) {
  KVSTOW_ASSIGN_OR_RETURN(Listener listener, Listener::Open(options.host));
  return std::make_unique<LoopPeer>(std::move(listener), options.host);
}

}  // namespace kvstow::cli
