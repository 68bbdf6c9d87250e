#include "service/pages/byte_budget.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

class ByteBudget::Place {
 public:
  const uint64_t bytes;
  const std::function<void(Held)> ready;
};

class ByteBudget::Line : public std::enable_shared_from_this<Line> {
 public:
  explicit Line(uint64_t limit) : limit_(limit) {}

  // Takes what `choose` takes of the free bytes. Returns 0 when it takes none.
  template <typename Choose>
  uint64_t Take(const Choose& choose) {
    MutexLock lock(mu_);
    if (!places_.empty()) return 0;
    const uint64_t bytes = choose(Free());
    used_ += bytes;
    return bytes;
  }
  bool TakeAll(uint64_t bytes) {
    MutexLock lock(mu_);
    if (!places_.empty() || !Fits(bytes)) return false;
    used_ += bytes;
    return true;
  }
  bool TakeOrStand(const std::shared_ptr<Place>& place) {
    MutexLock lock(mu_);
    if (!places_.empty() || !Fits(place->bytes)) {
      places_.push_back(place);
      return false;
    }
    used_ += place->bytes;
    return true;
  }
  // Moves the sum of what is held, and serves those whose turn it is then.
  void Change(uint64_t from, uint64_t to) {
    std::vector<std::shared_ptr<Place>> served;
    {
      MutexLock lock(mu_);
      used_ += to - from;
      Serve(served);
    }
    Give(served);
  }
  bool Leave(const std::shared_ptr<Place>& place) {
    std::vector<std::shared_ptr<Place>> served;  // those behind it may need less
    bool left = false;
    {
      MutexLock lock(mu_);
      left = std::erase(places_, place) > 0;
      if (left) Serve(served);
    }
    Give(served);
    return left;
  }
  uint64_t used() const {
    MutexLock lock(mu_);
    return used_;
  }
  size_t waiting() const {
    MutexLock lock(mu_);
    return places_.size();
  }

 private:
  uint64_t Free() const KVSTOW_REQUIRES(mu_) { return limit_ - std::min(limit_, used_); }
  bool Fits(uint64_t bytes) const KVSTOW_REQUIRES(mu_) { return bytes <= Free() || used_ == 0; }
  void Serve(std::vector<std::shared_ptr<Place>>& served) KVSTOW_REQUIRES(mu_) {
    while (!places_.empty() && Fits(places_.front()->bytes)) {
      used_ += places_.front()->bytes;
      served.push_back(std::move(places_.front()));
      places_.pop_front();
    }
  }
  void Give(const std::vector<std::shared_ptr<Place>>& served) {
    for (const auto& place : served) place->ready(Held(shared_from_this(), place->bytes));
  }

  const uint64_t limit_;
  mutable Mutex mu_;
  uint64_t used_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::deque<std::shared_ptr<Place>> places_ KVSTOW_GUARDED_BY(mu_);
};

ByteBudget::Held::~Held() {
  if (line_ != nullptr) line_->Change(bytes_, 0);
}

void ByteBudget::Held::Resize(uint64_t bytes) {
  if (line_ == nullptr || bytes == bytes_) return;
  line_->Change(bytes_, bytes);
  bytes_ = bytes;
}

ByteBudget::ByteBudget(uint64_t limit) : line_(std::make_shared<Line>(limit)) {}
ByteBudget::~ByteBudget() = default;

std::optional<ByteBudget::Held> ByteBudget::Try(uint64_t bytes) {
  if (!line_->TakeAll(bytes)) return std::nullopt;
  return Held(line_, bytes);
}

std::optional<ByteBudget::Held> ByteBudget::TryShare(uint64_t least, uint64_t most) {
  const uint64_t bytes = line_->Take([&](uint64_t free) -> uint64_t {
    return least > free ? 0 : std::max(std::min(most, free / 4), least);
  });
  if (bytes == 0) return std::nullopt;
  return Held(line_, bytes);
}

std::shared_ptr<ByteBudget::Place> ByteBudget::Wait(uint64_t bytes,
                                                    std::function<void(Held)> ready) {
  auto place = std::shared_ptr<Place>(new Place{bytes, std::move(ready)});
  if (!line_->TakeOrStand(place)) return place;
  place->ready(Held(line_, bytes));
  return nullptr;
}

bool ByteBudget::Leave(const std::shared_ptr<Place>& place) { return line_->Leave(place); }

std::optional<ByteBudget::Held> ByteBudget::WaitFor(uint64_t bytes, Duration patience) {
  struct Turn {
    Mutex mu;
    CondVar come;
    std::optional<Held> held KVSTOW_GUARDED_BY(mu);
  };
  if (auto held = Try(bytes)) return held;
  const auto turn = std::make_shared<Turn>();
  const auto place = Wait(bytes, [turn](Held held) {
    MutexLock lock(turn->mu);
    turn->held = std::move(held);
    turn->come.NotifyAll();
  });
  const Time end = Clock::Real().Now() + patience;
  const auto wait_until = [&](bool for_ever) {
    MutexLock lock(turn->mu);
    while (!turn->held.has_value()) {
      const Duration left = end - Clock::Real().Now();
      if (for_ever) {
        turn->come.Wait(turn->mu);
      } else if (left <= Duration::zero() || !turn->come.WaitFor(turn->mu, left)) {
        break;
      }
    }
    return std::exchange(turn->held, std::nullopt);
  };
  auto held = wait_until(false);
  if (held.has_value() || Leave(place)) return held;
  return wait_until(true);  // it was its turn at that moment
}

uint64_t ByteBudget::used() const { return line_->used(); }
size_t ByteBudget::waiting() const { return line_->waiting(); }

}  // namespace kvstow
