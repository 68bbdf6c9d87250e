// A number of bytes that may be held at a time, and the line of waiters for them.
//
// A Held is a move-only value that holds bytes, and gives them back when it goes. The budget gives
// bytes in the order of requests, so nobody starves. Requests of tenants stand in a line for each
// tenant. The lines take turns by weight: bytes go to the line that was given the least, divided by
// its weight, since it began to wait. So a tenant with many requests makes its own wait. A request
// for more than the whole limit gets it once nobody else holds any. A Held may outlive the budget.
//
// Thread-safe. Only WaitFor blocks.
#ifndef KVSTOW_SERVICE_PAGES_BYTE_BUDGET_H_
#define KVSTOW_SERVICE_PAGES_BYTE_BUDGET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"

namespace kvstow {

class ByteBudget {
 private:
  class Line;

 public:
  class Held {
   public:
    Held() = default;
    Held(Held&& other) noexcept
        : line_(std::move(other.line_)), bytes_(std::exchange(other.bytes_, 0)) {}
    Held& operator=(Held&& other) noexcept {
      std::swap(line_, other.line_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Held();
    uint64_t bytes() const { return bytes_; }
    // Changes the held bytes to `bytes`: gives some back, or takes more without waiting.
    void Resize(uint64_t bytes);

   private:
    friend class ByteBudget;
    Held(std::shared_ptr<Line> line, uint64_t bytes) : line_(std::move(line)), bytes_(bytes) {}
    std::shared_ptr<Line> line_;  // null = holds nothing
    uint64_t bytes_ = 0;
  };

  explicit ByteBudget(uint64_t limit);
  ~ByteBudget();
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Returns none when the bytes are not free, or others wait for some.
  std::optional<Held> Try(uint64_t bytes);
  // Returns a quarter of the free bytes, within [least, most]; none when `least` is not free, or
  // others wait.
  std::optional<Held> TryShare(uint64_t least, uint64_t most);
  // Calls `ready` with the bytes: now, or when it is their turn, on the thread that gave some back.
  // `ready` must neither block nor take a lock that is held while bytes are given back. Returns the
  // place in the line; null when `ready` was called.
  class Place;
  struct Payer {
    uint32_t tenant = 0;
    double weight = 1;
  };
  std::shared_ptr<Place> Wait(uint64_t bytes, std::function<void(Held)> ready, Payer payer);
  std::shared_ptr<Place> Wait(uint64_t bytes, std::function<void(Held)> ready) {
    return Wait(bytes, std::move(ready), Payer());
  }
  // Returns none when the bytes did not come within `patience`.
  std::optional<Held> WaitFor(uint64_t bytes, Duration patience, Payer payer);
  std::optional<Held> WaitFor(uint64_t bytes, Duration patience) {
    return WaitFor(bytes, patience, Payer());
  }
  // Leaves the line. Returns false when `ready` was called, or will be at once.
  bool Leave(const std::shared_ptr<Place>& place);

  uint64_t used() const;
  size_t waiting() const;

 private:
  const std::shared_ptr<Line> line_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_BYTE_BUDGET_H_
