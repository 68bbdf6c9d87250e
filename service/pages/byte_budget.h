// A number of bytes that may be held at a time, and the line of those who wait for some.
//
// Who holds bytes has a Held, a move-only value that gives them back when it goes. Bytes are given
// in the order in which they were asked for, so nobody starves; whoever asks for more than the
// whole limit gets it once nobody else holds any. A Held may outlive the budget.
//
// Thread-safe. Nothing here blocks but WaitFor.
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
    // Gives some back, or takes more without waiting: for what turned out to be so much.
    void Resize(uint64_t bytes);

   private:
    friend class ByteBudget;
    Held(std::shared_ptr<Line> line, uint64_t bytes) : line_(std::move(line)), bytes_(bytes) {}
    std::shared_ptr<Line> line_;  // null: holds nothing
    uint64_t bytes_ = 0;
  };

  explicit ByteBudget(uint64_t limit);
  ~ByteBudget();
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // None when they are not free, or others wait for some.
  std::optional<Held> Try(uint64_t bytes);
  // A quarter of what is free, within [least, most]; none when `least` is not free.
  std::optional<Held> TryShare(uint64_t least, uint64_t most);
  // None when they did not come within `patience`.
  std::optional<Held> WaitFor(uint64_t bytes, Duration patience);

  // Calls `ready` with the bytes: now, or when it is their turn, on the thread that gave some back.
  // It must neither block nor take a lock that is held while bytes are given back. Answers the
  // place in the line; null when `ready` was called.
  class Place;
  std::shared_ptr<Place> Wait(uint64_t bytes, std::function<void(Held)> ready);
  // False when `ready` was called, or will be at once.
  bool Leave(const std::shared_ptr<Place>& place);

  uint64_t used() const;
  size_t waiting() const;

 private:
  const std::shared_ptr<Line> line_;
};

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_PAGES_BYTE_BUDGET_H_
