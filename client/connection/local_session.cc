#include "client/connection/local_session.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "client/payload/page_landing.h"

namespace kvstow {
namespace {

// The answers to more pages would not fit into the socket, and the server does not wait for long.
constexpr size_t kMaxTravelling = 128;
constexpr size_t kMostPagesPerMessage = 16;
static_assert(kMostPagesPerMessage <= kMaxLocalPages);

// A batch goes in several messages, for several threads of the server.
size_t PagesPerMessage(size_t pages) {
  return std::clamp<size_t>(pages / 4, 1, kMostPagesPerMessage);
}

// Returns the memory on the GPU that a welcome promises. Returns null, and logs why, when there is
// none.
absl::StatusOr<std::unique_ptr<GpuStaging>> TakeStaging(const LocalSocket& socket,
                                                        const v1::LocalWelcome& welcome,
                                                        const LocalSession::Options& options) {
  if (welcome.gpu_bytes() == 0) {
    if (!welcome.gpu_message().empty()) {
      Log().info("pages on the GPU travel over gRPC: {}", welcome.gpu_message());
    }
    return nullptr;
  }
  v1::LocalReply reply;
  int descriptor = -1;
  KVSTOW_RETURN_IF_ERROR(socket.Receive(reply, options.timeout, &descriptor));
  if (options.gpu == nullptr || !reply.has_gpu()) {
    if (descriptor >= 0) close(descriptor);
    return absl::InternalError("the server did not send the GPU's memory that it promised");
  }
  auto memory = options.gpu->Map(descriptor, welcome.gpu_bytes());
  if (memory.ok()) return std::make_unique<GpuStaging>(options.gpu, *std::move(memory));
  Log().warn("pages on the GPU travel over gRPC: {}", std::string(memory.status().message()));
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalSession>> LocalSession::Open(const Options& options) {
  KVSTOW_ASSIGN_OR_RETURN(LocalSocket socket, LocalSocket::Connect(options.socket));
  v1::LocalRequest hello;
  hello.mutable_hello()->set_token(options.token);
  hello.mutable_hello()->set_bytes(options.bytes);
  if (options.gpu != nullptr) {
    hello.mutable_hello()->set_gpu_bytes(options.gpu_bytes);
    hello.mutable_hello()->set_gpu_uuid(options.gpu->uuid());
  }
  KVSTOW_RETURN_IF_ERROR(socket.Send(hello));
  v1::LocalReply welcome;
  int descriptor = -1;
  const absl::Status came = socket.Receive(welcome, options.timeout, &descriptor);
  if (!came.ok() || !welcome.has_welcome()) {
    if (descriptor >= 0) close(descriptor);
    return came.ok() ? absl::InternalError("the server did not welcome the session") : came;
  }
  KVSTOW_ASSIGN_OR_RETURN(SharedMemory memory, SharedMemory::Map(descriptor));
  KVSTOW_ASSIGN_OR_RETURN(auto staging, TakeStaging(socket, welcome.welcome(), options));
  std::unique_ptr<LocalSession> session(
      new LocalSession(std::move(socket), std::move(memory), std::move(staging), options.timeout));
  if (session->sooner_.get() < 0) return absl::UnavailableError("local session: no eventfd");
  KVSTOW_ASSIGN_OR_RETURN(session->receiving_, StartThread("kvstow-local", [all = session.get()] {
                            all->ReceiveAll();
                          }));
  return session;
}

LocalSession::LocalSession(LocalSocket socket, SharedMemory memory,
                           std::unique_ptr<GpuStaging> staging, Duration timeout)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      staging_(std::move(staging)),
      timeout_(timeout),
      sooner_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

LocalSession::~LocalSession() {
  Close();
  if (receiving_.joinable()) receiving_.join();
}

bool LocalSession::open() const {
  MutexLock lock(mu_);
  return broken_.ok();
}

absl::StatusOr<std::span<uint8_t>> LocalSession::Allocate(uint64_t bytes) {
  v1::LocalRequest request;
  const Time deadline = Clock::Real().Now() + timeout_;
  uint64_t number;
  {
    // Allocations share the numbers of pages, and wait for no turn.
    MutexLock lock(mu_);
    number = ++last_number_;
    allocations_[number] = std::nullopt;
  }
  request.mutable_allocate()->set_request(number);
  request.mutable_allocate()->set_bytes(bytes);
  const absl::Status sent = socket_.Send(request);
  MutexLock lock(mu_);
  while (sent.ok() && broken_.ok() && !allocations_[number].has_value()) {
    const Duration left = deadline - Clock::Real().Now();
    if (left <= Duration(0)) break;
    slot_came_.WaitFor(mu_, left);
  }
  const std::optional<v1::LocalSlot> came = std::move(allocations_.extract(number).mapped());
  KVSTOW_RETURN_IF_ERROR(sent);
  if (!broken_.ok()) return broken_;
  if (!came.has_value()) return absl::DeadlineExceededError("no slot came in time");
  const v1::LocalSlot& slot = *came;
  if (!slot.has_slot()) return absl::ResourceExhaustedError(slot.message());
  const std::span<uint8_t> all = memory_.bytes();
  if (slot.bytes() != bytes || slot.offset() % kSharedPageBytes != 0 ||
      slot.offset() > all.size() || bytes > all.size() - slot.offset()) {
    return absl::InternalError("the server lent a slot that is not in the memory");
  }
  const std::span<uint8_t> out = all.subspan(slot.offset(), bytes);
  slots_.emplace(out.data(), Slot{slot.slot().index(), slot.slot().generation(), bytes});
  return out;
}

void LocalSession::Free(std::span<uint8_t> slot) {
  v1::Slot name;
  {
    MutexLock lock(mu_);
    const auto node = slots_.extract(slot.data());
    if (node.empty() || !broken_.ok()) return;
    name.set_index(node.mapped().index);
    name.set_generation(node.mapped().generation);
  }
  if (!SendFree(name).ok()) Close();
}

absl::Status LocalSession::SendFree(const v1::Slot& slot) const {
  v1::LocalRequest request;
  *request.mutable_free()->mutable_slot() = slot;
  return socket_.Send(request);
}

std::optional<v1::SlotRange> LocalSession::RangeOf(std::span<const uint8_t> bytes) const {
  MutexLock lock(mu_);
  auto it = slots_.upper_bound(bytes.data());
  if (bytes.empty() || it == slots_.begin() || !broken_.ok()) return std::nullopt;
  --it;
  const uint64_t offset = bytes.data() - it->first;
  const Slot& slot = it->second;
  if (offset >= slot.bytes || bytes.size() > slot.bytes - offset) return std::nullopt;
  const bool to_end = offset + bytes.size() == slot.bytes;
  if (offset % kSharedPageBytes != 0 || (bytes.size() % kSharedPageBytes != 0 && !to_end)) {
    return std::nullopt;
  }
  v1::SlotRange range;
  range.mutable_slot()->set_index(slot.index);
  range.mutable_slot()->set_generation(slot.generation);
  range.set_offset(offset);
  range.set_bytes(bytes.size());
  return range;
}

void LocalSession::Start(const std::string& space, const std::string& fingerprint, uint64_t lease,
                         std::vector<Page> pages, Time deadline) {
  const auto head =
      std::make_shared<const Head>(Head{space, fingerprint, lease, PagesPerMessage(pages.size())});
  absl::Status broken;
  {
    MutexLock lock(mu_);
    broken = broken_;
    for (size_t i = 0; broken.ok() && i < pages.size(); ++i) {
      const uint64_t number = ++last_number_;
      auto& request = pages[i].request;
      if (auto* const get = std::get_if<v1::LocalGetPage>(&request); get != nullptr) {
        get->mutable_page()->set_page(number);
      } else {
        std::get<v1::LocalPutPage>(request).set_number(number);
      }
      pending_.emplace(number, Pending{std::move(pages[i]), head, deadline});
      deadlines_.insert(deadline);
    }
    if (deadline < waits_until_) (void)eventfd_write(sooner_.get(), 1);
  }
  if (broken.ok()) return SendMore();
  for (const Page& page : pages) page.done(broken);
}

// Returns the next pages of one batch, as one message. They travel from here on.
std::optional<v1::LocalRequest> LocalSession::NextMessage() {
  MutexLock lock(mu_);
  const auto first = pending_.lower_bound(next_to_send_);
  if (first == pending_.end() || !broken_.ok()) return std::nullopt;
  const std::shared_ptr<const Head> head = first->second.head;
  v1::LocalRequest message;
  size_t pages = 0;
  for (auto it = first; it != pending_.end() && it->second.head == head &&
                        pages < head->pages_per_message && travelling_ < kMaxTravelling;
       ++it, ++pages, ++travelling_) {
    auto& request = it->second.page.request;
    if (auto* const get = std::get_if<v1::LocalGetPage>(&request); get != nullptr) {
      *message.mutable_get()->add_pages() = *get;
    } else {
      message.mutable_put()->add_pages()->Swap(&std::get<v1::LocalPutPage>(request));
    }
    next_to_send_ = it->first + 1;
  }
  if (pages == 0) return std::nullopt;
  if (message.has_get()) {
    message.mutable_get()->set_space(head->space);
    message.mutable_get()->set_fingerprint(head->fingerprint);
    message.mutable_get()->set_lease(head->lease);
  } else {
    message.mutable_put()->set_space(head->space);
    message.mutable_put()->set_fingerprint(head->fingerprint);
  }
  return message;
}

void LocalSession::SendMore() {
  while (const auto message = NextMessage()) {
    if (!socket_.Send(*message).ok()) return Close();
  }
}

// Waits for a message until the first deadline of a request, also of one that begins meanwhile.
absl::Status LocalSession::AwaitMessage() {
  for (;;) {
    const Time now = Clock::Real().Now();
    bool late;
    int ms;
    {
      MutexLock lock(mu_);
      waits_until_ = deadlines_.empty() ? now + timeout_ : *deadlines_.begin();
      late = !deadlines_.empty() && waits_until_ <= now;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(waits_until_ - now).count();
      ms = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    pollfd waits[] = {{.fd = socket_.descriptor(), .events = POLLIN, .revents = 0},
                      {.fd = sooner_.get(), .events = POLLIN, .revents = 0}};
    (void)poll(waits, std::size(waits), ms);
    if (waits[0].revents != 0) return absl::OkStatus();
    if (late) return absl::DeadlineExceededError("a request was not answered in time");
    uint64_t rang;
    if (waits[1].revents != 0) (void)eventfd_read(sooner_.get(), &rang);
  }
}

void LocalSession::ReceiveAll() {
  v1::LocalReply reply;
  absl::Status status;
  while (status.ok()) {
    status = AwaitMessage();
    if (status.ok()) status = socket_.Receive(reply);
    if (status.ok()) status = Take(reply);
  }
  Break(status);
}

// Gives back a slot that nobody waits for any more.
void LocalSession::TakeSlot(v1::LocalSlot& slot) {
  {
    MutexLock lock(mu_);
    const auto it = allocations_.find(slot.request());
    if (it != allocations_.end()) {
      it->second = std::move(slot);
      slot_came_.NotifyAll();
      return;
    }
  }
  if (slot.has_slot() && !SendFree(slot.slot()).ok()) Close();
}

absl::Status LocalSession::Take(v1::LocalReply& reply) {
  if (reply.has_slot()) {
    TakeSlot(*reply.mutable_slot());
    return absl::OkStatus();
  }
  const uint64_t number = reply.has_got() ? reply.got().page() : reply.put().page();
  Page page;
  {
    MutexLock lock(mu_);
    const auto it = pending_.find(number);
    const bool asked = it != pending_.end() && number < next_to_send_ &&
                       reply.has_got() == (it->second.page.request.index() == 0);
    if (!asked) {
      return absl::InternalError(
          absl::StrCat("the server answered page ", number, ", which was not asked for"));
    }
    const auto* const get = std::get_if<v1::LocalGetPage>(&it->second.page.request);
    if (get != nullptr) {
      KVSTOW_RETURN_IF_ERROR(CheckKey(get->page().key(), reply.got().reply()));
    }
    page = std::move(it->second.page);
    deadlines_.erase(deadlines_.find(it->second.deadline));
    pending_.erase(it);
    --travelling_;
  }
  page.done(std::move(reply));
  SendMore();
  return absl::OkStatus();
}

void LocalSession::Break(const absl::Status& why) {
  socket_.HangUp();
  const absl::Status broken =
      absl::UnavailableError(absl::StrCat("the local session ended: ", why.message()));
  std::map<uint64_t, Pending> open;
  {
    MutexLock lock(mu_);
    broken_ = broken;
    open.swap(pending_);
    slot_came_.NotifyAll();
  }
  for (auto& [number, pending] : open) {
    const bool is_get = pending.page.request.index() == 0;
    const auto peer = is_get ? SharedMemory::Peer::kWrites : SharedMemory::Peer::kReads;
    // Unshare needs a mapping, not memory. Until it succeeds, the caller cannot have its buffer
    // back: the server may still write to it.
    while (!memory_.Unshare(pending.page.bytes, peer).ok()) std::this_thread::yield();
    pending.page.done(broken);
  }
}

}  // namespace kvstow
