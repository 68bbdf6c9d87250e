#include "client/connection/local_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/log.h"
#include "client/connection/fork.h"

namespace kvstow {
namespace {

constexpr Duration kTryAgain = std::chrono::seconds(5);

uint8_t* MapOwn(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  madvise(at, bytes, MADV_HUGEPAGE);
  return static_cast<uint8_t*>(at);
}

}  // namespace

PageBuffer::PageBuffer(size_t bytes)
    : own_(MapOwn(bytes), Unmap{bytes}), bytes_(own_.get(), bytes) {}

PageBuffer::PageBuffer(std::shared_ptr<LocalSession> session, std::span<uint8_t> slot)
    : own_(nullptr, Unmap{0}), session_(std::move(session)), bytes_(slot) {}

// In a forked child the session is the parent's: it stays where it is.
PageBuffer::~PageBuffer() {
  if (session_ == nullptr) return;
  if (Forked()) {
    static_cast<void>(new std::shared_ptr<LocalSession>(std::move(session_)));
  } else {
    session_->Free(bytes_);
  }
}

void PageBuffer::Unmap::operator()(uint8_t* at) const { munmap(at, bytes); }

bool PageBuffer::shared() const { return session_ != nullptr && !Forked() && session_->open(); }

std::unique_ptr<PageBuffer> LocalMemory::NewBuffer(size_t bytes) {
  if (bytes > 0 && bytes <= options_.bytes) {
    if (const std::shared_ptr<LocalSession> session = OpenSession(); session != nullptr) {
      const auto slot = session->Allocate(bytes);
      if (slot.ok()) return std::make_unique<PageBuffer>(session, *slot);
    }
  }
  return std::make_unique<PageBuffer>(bytes);
}

std::shared_ptr<LocalSession> LocalMemory::session() const {
  MutexLock lock(mu_);
  return session_ != nullptr && session_->open() ? session_ : nullptr;
}

std::shared_ptr<LocalSession> LocalMemory::OpenSession() {
  {
    MutexLock lock(mu_);
    while (opening_) opened_.Wait(mu_);
    if (closed_) return nullptr;
    if (session_ != nullptr && session_->open()) return session_;
    if (Clock::Real().Now() < not_before_) return nullptr;
    opening_ = true;
  }
  absl::StatusOr<std::unique_ptr<LocalSession>> opened = [&] {
    const auto where = ask_();
    if (!where.ok()) return absl::StatusOr<std::unique_ptr<LocalSession>>(where.status());
    // A session has some of the host's memory in any case.
    return LocalSession::Open({.socket = where->socket(),
                               .token = where->token(),
                               .bytes = std::max<uint64_t>(options_.bytes, 1),
                               .timeout = options_.timeout,
                               .gpu = options_.gpu,
                               .gpu_bytes = options_.gpu_bytes});
  }();
  if (!opened.ok() && !absl::IsUnimplemented(opened.status())) {
    Log().info("pages travel over gRPC: {}", std::string(opened.status().message()));
  }
  std::shared_ptr<LocalSession> ended;  // which joins outside the lock
  MutexLock lock(mu_);
  opening_ = false;
  opened_.NotifyAll();
  ended = std::move(session_);
  if (!opened.ok() || closed_) {
    not_before_ = Clock::Real().Now() + kTryAgain;
    return nullptr;
  }
  session_ = *std::move(opened);
  return session_;
}

void LocalMemory::Close() {
  MutexLock lock(mu_);
  closed_ = true;
  if (session_ != nullptr) session_->Close();
}

}  // namespace kvstow
