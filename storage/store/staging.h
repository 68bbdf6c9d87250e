// Staging: pages on their way in, piece by piece. Staging is the first phase of a put;
// TieredStore::Put is the second.
//
// Begin opens a ticket for a declared number of bytes. The ticket takes its pieces strictly in
// order, and can finish when the last byte came. Nothing that is staged is visible. Reap frees the
// bytes of a ticket that lacks some and that nobody touched for `ttl`. The users of this class
// limit how much is staged.
//
// Thread-safe. Errors: INVALID_ARGUMENT for a piece out of order, twice, too long or empty;
// FAILED_PRECONDITION for finishing early; NOT_FOUND for a ticket that was finished, aborted or
// reaped.
#ifndef KVSTOW_STORAGE_STORE_STAGING_H_
#define KVSTOW_STORAGE_STORE_STAGING_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/shared_bytes.h"

namespace kvstow {

class Staging {
 public:
  struct Options {
    Duration ttl = std::chrono::seconds(30);
    const Clock* clock = &Clock::Real();
  };
  using Ticket = uint64_t;

  explicit Staging(Options options) : options_(options) {}

  absl::StatusOr<Ticket> Begin(uint64_t bytes);
  // `offset` is where `piece` belongs; it must be where the last piece ended.
  absl::Status Append(Ticket ticket, uint64_t offset, std::span<const uint8_t> piece);
  // Takes all pieces in one, in place. `fill` writes the content, without the lock; the ticket is
  // not reaped meanwhile. Fill passes on the status of `fill`. After an error the caller may only
  // abort the ticket.
  absl::Status Fill(Ticket ticket, absl::FunctionRef<absl::Status(std::span<uint8_t>)> fill);
  // Returns the whole content and closes the ticket.
  absl::StatusOr<SharedBytes> Finish(Ticket ticket);
  void Abort(Ticket ticket);
  // Frees expired tickets; returns their number.
  size_t Reap();

  uint64_t staged_bytes() const;
  size_t open_tickets() const;

 private:
  struct Staged {
    ByteBlock block;
    uint64_t filled = 0;
    bool busy = false;  // a piece is being copied in, outside the lock
    Time touched;
  };

  const Options options_;
  mutable Mutex mu_;
  Ticket next_ KVSTOW_GUARDED_BY(mu_) = 1;
  uint64_t bytes_ KVSTOW_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<Ticket, std::shared_ptr<Staged>> open_ KVSTOW_GUARDED_BY(mu_);
};

}  // namespace kvstow

#endif  // KVSTOW_STORAGE_STORE_STAGING_H_
