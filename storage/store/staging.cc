#include "storage/store/staging.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvstow {
namespace {

absl::Status NoTicket(Staging::Ticket ticket) {
  return absl::NotFoundError(
      absl::StrCat("put ticket ", ticket, " is not open: it was finished, aborted or timed out"));
}

}  // namespace

absl::StatusOr<Staging::Ticket> Staging::Begin(uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("a put of no bytes");
  auto staged = std::make_shared<Staged>();
  staged->block = ByteBlock(bytes);  // outside the lock: the kernel may have to find the pages
  staged->touched = options_.clock->Now();
  MutexLock lock(mu_);
  bytes_ += bytes;
  open_[next_] = std::move(staged);
  return next_++;
}

absl::Status Staging::Append(Ticket ticket, uint64_t offset, std::span<const uint8_t> piece) {
  std::shared_ptr<Staged> staged;
  {
    MutexLock lock(mu_);
    const auto it = open_.find(ticket);
    if (it == open_.end()) return NoTicket(ticket);
    staged = it->second;
    if (piece.empty()) return absl::InvalidArgumentError("a piece of no bytes");
    if (staged->busy || offset != staged->filled) {
      return absl::InvalidArgumentError(absl::StrCat("a piece at offset ", offset, " came where ",
                                                     staged->filled,
                                                     " was due: pieces come once and in order"));
    }
    if (piece.size() > staged->block.size() - offset) {
      return absl::InvalidArgumentError(absl::StrCat("a piece of ", piece.size(), " bytes at ",
                                                     offset, " runs past the declared ",
                                                     staged->block.size()));
    }
    staged->busy = true;
  }
  std::memcpy(staged->block.data() + offset, piece.data(), piece.size());
  MutexLock lock(mu_);
  staged->busy = false;
  staged->filled += piece.size();
  staged->touched = options_.clock->Now();
  return absl::OkStatus();
}

absl::Status Staging::Fill(Ticket ticket,
                           absl::FunctionRef<absl::Status(std::span<uint8_t>)> fill) {
  std::shared_ptr<Staged> staged;
  {
    MutexLock lock(mu_);
    const auto it = open_.find(ticket);
    if (it == open_.end()) return NoTicket(ticket);
    staged = it->second;
    if (staged->busy || staged->filled != 0) {
      return absl::InvalidArgumentError("the content came where pieces of it had come already");
    }
    staged->busy = true;
  }
  const absl::Status filled = fill(staged->block.span());
  MutexLock lock(mu_);
  staged->busy = false;
  if (filled.ok()) staged->filled = staged->block.size();
  staged->touched = options_.clock->Now();
  return filled;
}

absl::StatusOr<SharedBytes> Staging::Finish(Ticket ticket) {
  std::shared_ptr<Staged> staged;
  MutexLock lock(mu_);
  const auto it = open_.find(ticket);
  if (it == open_.end()) return NoTicket(ticket);
  staged = it->second;
  if (staged->busy || staged->filled != staged->block.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("finished after ", staged->filled, " of ", staged->block.size(), " bytes"));
  }
  bytes_ -= staged->block.size();
  open_.erase(it);
  return std::move(staged->block).Share();
}

void Staging::Abort(Ticket ticket) {
  std::shared_ptr<Staged> staged;  // freed after the lock
  MutexLock lock(mu_);
  const auto it = open_.find(ticket);
  if (it == open_.end()) return;
  staged = std::move(it->second);
  bytes_ -= staged->block.size();
  open_.erase(it);
}

size_t Staging::Reap() {
  std::vector<std::shared_ptr<Staged>> dead;  // freed after the lock
  const Time now = options_.clock->Now();
  MutexLock lock(mu_);
  for (auto it = open_.begin(); it != open_.end();) {
    const auto current = it++;
    Staged& staged = *current->second;
    const bool whole =
        staged.filled == staged.block.size();  // it waits for the server, not for more
    if (whole || staged.busy || now - staged.touched < options_.ttl) continue;
    bytes_ -= staged.block.size();
    dead.push_back(std::move(current->second));
    open_.erase(current);
  }
  return dead.size();
}

uint64_t Staging::staged_bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

size_t Staging::open_tickets() const {
  MutexLock lock(mu_);
  return open_.size();
}

}  // namespace kvstow
