#include "service/transports/local_sessions.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/status_macros.h"
#include "base/thread.h"

namespace kvstow {
namespace {

constexpr Duration kGivesWay = std::chrono::seconds(1);  // a connection that has not begun
constexpr size_t kMaxThreads = 4;                        // of a session

size_t ThreadsOfSession() {
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
}

}  // namespace

// One connection, from its first moment. Run() is its main thread.
class LocalSessions::Session {
 public:
  Session(LocalSessions& all, LocalSocket socket) : all_(all), socket_(std::move(socket)) {}
  ~Session() {
    socket_.HangUp();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    KVSTOW_ASSIGN_OR_RETURN(thread_, StartThread("kvstow-local", [this] { Run(); }));
    return absl::OkStatus();
  }
  void HangUp() {
    gave_way_ = true;
    socket_.HangUp();
  }
  bool begun() const { return begun_; }
  bool ended() const { return ended_; }
  void HangUpUnlessKnown() {
    if (begun_ && !all_.parts_.access->Knows(caller_)) HangUp();
  }
  // One that has begun has the worker's pages: it never gives way.
  std::optional<Time> idle_since() const {
    return begun_ || gave_way_ ? std::nullopt : std::optional(came_);
  }

 private:
  void Run() {
    const absl::Status status = Begin();
    if (status.ok()) {
      std::vector<std::thread> others;
      while (others.size() + 1 < ThreadsOfSession()) {
        auto other = StartThread("kvstow-local", [this] { Serve(); });
        if (!other.ok()) break;  // fewer do
        others.push_back(*std::move(other));
      }
      Serve();
      for (std::thread& other : others) other.join();
      Log().info("local session of process {} ended", pid_);
    } else {
      Log().warn("local session of process {} was refused: {}", pid_,
                 std::string(status.message()));
    }
    socket_.HangUp();
    requests_.reset();
    memory_.reset();
    ended_ = true;  // before its memory is given to another: no more than those are told
    all_.GiveBytes(bytes_);
  }

  absl::Status Begin() {
    KVSTOW_ASSIGN_OR_RETURN(const PeerCredentials peer, socket_.Peer());
    pid_ = peer.pid;
    if (peer.uid != geteuid() && peer.uid != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("it runs as user ", peer.uid, ", the server as ", geteuid()));
    }
    v1::LocalRequest hello;
    KVSTOW_RETURN_IF_ERROR(socket_.Receive(hello, all_.options_.hello_time));
    if (hello.has_hello()) caller_ = all_.tokens_.Take(hello.hello().token());
    if (caller_ == nullptr) {
      all_.parts_.access->CountRefusal(Refusal::kTicket, "a local session with an unknown token");
      return absl::PermissionDeniedError("its token is not, or no longer, known");
    }
    bytes_ = all_.TakeBytes(hello.hello().bytes());
    if (bytes_ == 0) {
      return absl::ResourceExhaustedError(absl::StrCat("of ", FormatSize(all_.options_.bytes),
                                                       " for local sessions nothing is left"));
    }
    auto memory = SharedMemory::Create(bytes_);
    if (!memory.ok()) return memory.status();
    memory_.emplace(*std::move(memory));
    v1::LocalReply welcome;
    welcome.mutable_welcome()->set_bytes(bytes_);
    const auto gpu_memory = all_.ShareGpu(hello.hello(), *welcome.mutable_welcome());
    requests_.emplace(all_.parts_, caller_, memory_->bytes(), gpu_memory);
    begun_ = true;  // before the worker knows it
    KVSTOW_RETURN_IF_ERROR(socket_.Send(welcome, memory_->descriptor()));
    if (gpu_memory != nullptr) {
      v1::LocalReply gpu;
      gpu.mutable_gpu()->set_bytes(gpu_memory->bytes().size());
      KVSTOW_RETURN_IF_ERROR(socket_.Send(gpu, gpu_memory->descriptor()));
    }
    Log().info("local session of process {} with {} and {} of the GPU's", pid_, FormatSize(bytes_),
               FormatSize(welcome.welcome().gpu_bytes()));
    return absl::OkStatus();
  }

  // Waits for room in the socket. Nothing but the thread is held meanwhile.
  absl::Status Send(const v1::LocalReply& reply) const {
    const Time end = Clock::Real().Now() + all_.options_.patience;
    for (;;) {
      const absl::Status sent = socket_.Send(reply);
      if (!absl::IsResourceExhausted(sent)) return sent;
      const Duration left = end - Clock::Real().Now();
      if (left <= Duration::zero()) {
        return absl::ResourceExhaustedError(
            absl::StrCat("it has left its answers unread for ",
                         absl::FormatDuration(absl::FromChrono(all_.options_.patience))));
      }
      pollfd room{.fd = socket_.descriptor(), .events = POLLOUT};
      const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      (void)poll(&room, 1, static_cast<int>(ms));  // wakes for a worker that hung up, too
    }
  }

  void Serve() {
    v1::LocalRequest request;
    absl::Status status;
    while (status.ok()) {
      status = socket_.Receive(request);
      if (!status.ok()) break;
      status =
          requests_->Handle(request, [this](const v1::LocalReply& reply) { return Send(reply); });
    }
    if (!absl::IsUnavailable(status)) {
      Log().warn("hanging up on process {}: {}", pid_, std::string(status.message()));
    }
    socket_.HangUp();  // the other threads too
  }

  LocalSessions& all_;
  const LocalSocket socket_;
  const Time came_ = Clock::Real().Now();
  pid_t pid_ = 0;
  uint64_t bytes_ = 0;
  CallerPtr caller_;  // set before it begins
  std::optional<SharedMemory> memory_;
  std::optional<LocalRequests> requests_;
  std::atomic<bool> begun_{false}, gave_way_{false}, ended_{false};
  std::thread thread_;  // last: it uses the others
};

absl::StatusOr<std::unique_ptr<LocalSessions>> LocalSessions::Start(const LocalOptions& options,
                                                                    LocalParts parts) {
  KVSTOW_ASSIGN_OR_RETURN(LocalSocket socket, LocalSocket::Listen(options.socket));
  return std::unique_ptr<LocalSessions>(new LocalSessions(options, parts, std::move(socket)));
}

LocalSessions::LocalSessions(const LocalOptions& options, LocalParts parts, LocalSocket socket)
    : options_(options),
      parts_(parts),
      tokens_(options.token_life),
      sessions_(std::move(socket),
                {.listener = "local", .most = options_.max_sessions, .idle = kGivesWay},
                [this](LocalSocket accepted) {
                  return std::make_unique<Session>(*this, std::move(accepted));
                }) {}

// Before the rest: the path of a server that listens there from now on is its own.
LocalSessions::~LocalSessions() { unlink(options_.socket.c_str()); }

void LocalSessions::HangUpOnStrangers() const {
  sessions_.ForEach([](Session& session) { session.HangUpUnlessKnown(); });
}

uint64_t LocalSessions::TakeBytes(uint64_t wanted) {
  MutexLock lock(mu_);
  const uint64_t left = (options_.bytes - bytes_) / kSharedPageBytes * kSharedPageBytes;
  const uint64_t taken = wanted > left ? left : std::min(left, RoundUpToSharedPage(wanted));
  bytes_ += taken;
  return taken;
}

// Null, and why, when there is none.
std::shared_ptr<SharedDeviceMemory> LocalSessions::ShareGpu(const v1::LocalHello& hello,
                                                            v1::LocalWelcome& welcome) {
  if (hello.gpu_bytes() == 0) return nullptr;
  if (parts_.gpu == nullptr) {
    welcome.set_gpu_message("the server shares no memory of a GPU (--local-gpu-bytes)");
    return nullptr;
  }
  auto memory = parts_.gpu->Share(hello.gpu_bytes(), hello.gpu_uuid());
  if (!memory.ok()) {
    welcome.set_gpu_message(std::string(memory.status().message()));
    return nullptr;
  }
  welcome.set_gpu_bytes((*memory)->bytes().size());
  return *std::move(memory);
}

void LocalSessions::GiveBytes(uint64_t bytes) {
  MutexLock lock(mu_);
  bytes_ -= bytes;
}

size_t LocalSessions::sessions() const {
  return sessions_.Count(
      [](const Session& session) { return session.begun() && !session.ended(); });
}

uint64_t LocalSessions::refused() const { return sessions_.refused(); }

uint64_t LocalSessions::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace kvstow
