#include "service/events/event_publisher.h"

#include <zmq.h>

#include <array>
#include <atomic>
#include <chrono>
#include <list>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace kvstow {
namespace {

constexpr auto kRound = std::chrono::milliseconds(20);  // changes become batches so often
constexpr int kQueuedMessages = 100'000;  // for one subscriber, before it misses some (as vLLM)
constexpr size_t kReplays = 16;           // at a time
constexpr auto kPatience = std::chrono::seconds(30);  // with a peer that takes none of its replay
constexpr size_t kReplayMessages = 1024;              // of a replay in a round
// The limits of what peers send. A subscription is a topic; a request has three small frames.
constexpr int64_t kMostFrameBytes = 4 << 10;
constexpr size_t kMostFrames = 3;
constexpr int kWaitingRequests = 16;  // of one peer
constexpr int kRequests = 64;         // in a round

using Context = std::unique_ptr<void, int (*)(void*)>;
using Socket = std::unique_ptr<void, int (*)(void*)>;

absl::Status Failed(absl::string_view setting, absl::string_view address) {
  return absl::UnavailableError(absl::StrCat(
      setting, ": ", address, ": ", zmq_strerror(zmq_errno()),
      "; write the number of a local address, as 0.0.0.0:5557, and a port that is free"));
}

// ZeroMQ takes no host names to bind, and IPv6 only where it is asked to.
std::string EndpointOf(void* socket, absl::string_view address) {
  const int ipv6 = absl::StartsWith(address, "[") ? 1 : 0;
  zmq_setsockopt(socket, ZMQ_IPV6, &ipv6, sizeof(ipv6));
  absl::string_view port = address;
  if (absl::ConsumePrefix(&port, "localhost:")) return absl::StrCat("tcp://127.0.0.1:", port);
  return absl::StrCat("tcp://", address);
}

absl::StatusOr<Socket> MakeSocket(void* context, int type) {
  Socket socket(zmq_socket(context, type), zmq_close);
  if (socket == nullptr) return absl::UnavailableError(zmq_strerror(zmq_errno()));
  const auto set = [&](int option, int value) {
    zmq_setsockopt(socket.get(), option, &value, sizeof(value));
  };
  set(ZMQ_LINGER, 0);
  // A peer that sends more is hung up on.
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMostFrameBytes, sizeof(kMostFrameBytes));
  if (type != ZMQ_ROUTER) set(ZMQ_SNDHWM, kQueuedMessages);
  if (type == ZMQ_ROUTER) set(ZMQ_RCVHWM, kWaitingRequests);
  if (type == ZMQ_XPUB) set(ZMQ_XPUB_VERBOSE, 1);  // every subscription, not only new topics
  // A replay is told when its peer takes no more, or has gone.
  if (type == ZMQ_ROUTER) set(ZMQ_ROUTER_MANDATORY, 1);
  return socket;
}

absl::StatusOr<std::string> Bind(void* socket, absl::string_view setting,
                                 const std::string& address) {
  if (zmq_bind(socket, EndpointOf(socket, address).c_str()) != 0) return Failed(setting, address);
  std::array<char, 256> bound{};
  size_t size = bound.size();
  if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound.data(), &size) != 0) {
    return Failed(setting, address);
  }
  return std::string(absl::StripPrefix(bound.data(), "tcp://"));
}

bool SendFrame(void* socket, absl::string_view frame, bool more) {
  return zmq_send(socket, frame.data(), frame.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >= 0;
}

std::string BigEndian(uint64_t number) {
  std::string out(8, '\0');
  for (int i = 7; i >= 0; --i, number >>= 8) out[i] = static_cast<char>(number & 0xFF);
  return out;
}

void SendEvents(void* socket, const EventFrame& frame) {
  if (!SendFrame(socket, *frame.topic, true)) return;
  SendFrame(socket, BigEndian(frame.sequence), true);
  SendFrame(socket, *frame.payload, false);
}

// Receives one message; empty when there is none. Keeps kMostFrames of its frames, and one more
// where it has more: its sender means nothing that we know.
std::vector<std::string> Receive(void* socket) {
  std::vector<std::string> frames;
  for (int more = 1; more != 0;) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (zmq_msg_recv(&message, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&message);
      return {};
    }
    if (frames.size() <= kMostFrames) {
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    }
    more = zmq_msg_more(&message);
    zmq_msg_close(&message);
  }
  return frames;
}

double SecondsSinceEpoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

class EventPublisher::Impl {
 public:
  Impl(Options options, EventQueue& queue, EventLog::FindLabel find_label,
       std::function<void()> tell_pages)
      : options_(std::move(options)),
        queue_(queue),
        tell_pages_(std::move(tell_pages)),
        log_(options_.log, std::move(find_label)) {}
  ~Impl() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start();
  const std::string& address() const { return address_; }
  const std::string& replay_address() const { return replay_address_; }
  Counters counters() const {
    MutexLock lock(mu_);
    return counters_;
  }

 private:
  struct Replay {
    std::string peer;
    EventLog::Cursor cursor;
    std::optional<EventFrame> next;  // that the peer had no room for
    std::chrono::steady_clock::time_point moved = std::chrono::steady_clock::now();
  };

  void Run();
  void Publish();
  void TakeRequests();
  bool AdvanceAll();
  bool Advance(Replay& replay);

  const Options options_;
  EventQueue& queue_;
  const std::function<void()> tell_pages_;
  Context context_{zmq_ctx_new(), zmq_ctx_term};
  Socket pub_{nullptr, zmq_close}, router_{nullptr, zmq_close};
  std::string address_, replay_address_;
  mutable Mutex mu_;
  Counters counters_ KVSTOW_GUARDED_BY(mu_);
  // These belong to the thread.
  EventLog log_;
  std::list<Replay> replays_;
  uint64_t replays_begun_ = 0;

  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

absl::Status EventPublisher::Impl::Start() {
  // A router that is connected to cannot ask for a replay: its subscription must be seen.
  const int type = options_.connect.empty() ? ZMQ_PUB : ZMQ_XPUB;
  KVSTOW_ASSIGN_OR_RETURN(pub_, MakeSocket(context_.get(), type));
  if (!options_.listen.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(address_, Bind(pub_.get(), "kv-events-listen", options_.listen));
  }
  if (!options_.connect.empty() &&
      zmq_connect(pub_.get(), EndpointOf(pub_.get(), options_.connect).c_str()) != 0) {
    return Failed("kv-events-connect", options_.connect);
  }
  if (!options_.replay_listen.empty()) {
    KVSTOW_ASSIGN_OR_RETURN(router_, MakeSocket(context_.get(), ZMQ_ROUTER));
    KVSTOW_ASSIGN_OR_RETURN(replay_address_,
                            Bind(router_.get(), "kv-events-replay-listen", options_.replay_listen));
  }
  KVSTOW_ASSIGN_OR_RETURN(thread_, StartThread("kvstow-events", [this] { Run(); }));
  return absl::OkStatus();
}

void EventPublisher::Impl::Run() {
  for (bool last = false; !last;) {
    last = stop_;
    Publish();
    TakeRequests();
    const bool busy = AdvanceAll();
    {
      MutexLock lock(mu_);
      counters_ = {.log = log_.counters(), .replays = replays_begun_};
    }
    if (last || busy) continue;
    zmq_pollitem_t request{router_.get(), 0, ZMQ_POLLIN, 0};
    zmq_poll(&request, router_ == nullptr ? 0 : 1, kRound.count());
  }
}

void EventPublisher::Impl::Publish() {
  if (queue_.NeedsPages()) tell_pages_();
  const auto send = [&](const EventFrame& frame) { SendEvents(pub_.get(), frame); };
  log_.Add(queue_.Take(), SecondsSinceEpoch(), send);
  if (options_.connect.empty()) return;
  bool subscribed = false;
  for (auto frames = Receive(pub_.get()); !frames.empty(); frames = Receive(pub_.get())) {
    subscribed |= absl::StartsWith(frames[0], absl::string_view("\x01", 1));
  }
  if (subscribed) log_.Repeat(SecondsSinceEpoch(), send);
}

void EventPublisher::Impl::TakeRequests() {
  if (router_ == nullptr) return;
  for (int taken = 0; taken < kRequests; ++taken) {
    const std::vector<std::string> request = Receive(router_.get());
    if (request.empty()) return;
    if (request.size() != kMostFrames || !request[1].empty() || request[2].size() != 8 ||
        replays_.size() >= kReplays) {
      continue;
    }
    uint64_t first = 0;
    for (const char byte : request[2]) first = first << 8 | static_cast<uint8_t>(byte);
    replays_.push_back(
        {.peer = request[0], .cursor = log_.Replay(first, SecondsSinceEpoch()), .next = {}});
    ++replays_begun_;
  }
}

// Sends more of every replay; true when there is more to send at once.
bool EventPublisher::Impl::AdvanceAll() {
  const auto now = std::chrono::steady_clock::now();
  bool busy = false;
  for (auto replay = replays_.begin(); replay != replays_.end();) {
    const uint64_t before = replay->cursor.next;
    bool goes_on = Advance(*replay);
    if (replay->cursor.next > before) {
      replay->moved = now;
      busy |= goes_on;
    }
    goes_on &= now - replay->moved < kPatience;
    replay = goes_on ? std::next(replay) : replays_.erase(replay);
  }
  return busy;
}

// Sends more of a replay; false when it has ended, or its peer has gone.
bool EventPublisher::Impl::Advance(Replay& replay) {
  const absl::string_view none = "";
  for (size_t sent = 0; sent < kReplayMessages; ++sent) {
    if (!replay.next.has_value()) replay.next = log_.Next(replay.cursor);
    // The first frame finds out whether the peer takes the message.
    if (!SendFrame(router_.get(), replay.peer, true)) return zmq_errno() == EAGAIN;
    SendFrame(router_.get(), none, true);
    if (!replay.next.has_value()) {
      SendFrame(router_.get(), none, true);
      SendFrame(router_.get(), BigEndian(~uint64_t{0}), true);
      SendFrame(router_.get(), none, false);
      return false;
    }
    SendEvents(router_.get(), *replay.next);
    replay.next.reset();
  }
  return true;
}

EventPublisher::EventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EventPublisher::~EventPublisher() = default;

absl::StatusOr<std::unique_ptr<EventPublisher>> EventPublisher::Start(
    Options options, EventQueue& queue, EventLog::FindLabel find_label,
    std::function<void()> tell_pages) {
  auto impl = std::make_unique<Impl>(std::move(options), queue, std::move(find_label),
                                     std::move(tell_pages));
  KVSTOW_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<EventPublisher>(new EventPublisher(std::move(impl)));
}

const std::string& EventPublisher::address() const { return impl_->address(); }
const std::string& EventPublisher::replay_address() const { return impl_->replay_address(); }
EventPublisher::Counters EventPublisher::counters() const { return impl_->counters(); }

}  // namespace kvstow
