#include "service/pages/byte_budget.h"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "base/mutex.h"

namespace kvstow {

class ByteBudget::Place {
 public:
  const uint64_t bytes;
  const std::function<void(Held)> ready;
  const Payer payer;
};

class ByteBudget::Line : public std::enable_shared_from_this<Line> {
 public:
  explicit Line(uint64_t limit) : limit_(limit) {}

  // Takes what `choose` takes of the free bytes. Returns 0 when it takes none.
  template <typename Choose>
  uint64_t Take(const Choose& choose) {
    MutexLock lock(mu_);
    if (waiting_ > 0) return 0;
    const uint64_t bytes = choose(Free());
    used_ += bytes;
    return bytes;
  }
  bool TakeAll(uint64_t bytes) {
    MutexLock lock(mu_);
    if (waiting_ > 0 || !Fits(bytes)) return false;
    used_ += bytes;
    return true;
  }
  bool TakeOrStand(const std::shared_ptr<Place>& place) {
    MutexLock lock(mu_);
    if (waiting_ > 0 || !Fits(place->bytes)) {
      Stand(place);
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
      const auto line = lines_.find(place->payer.tenant);
      left = line != lines_.end() && std::erase(line->second.places, place) > 0;
      if (left) {
        --waiting_;
        Serve(served);
      }
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
    return waiting_;
  }

 private:
  uint64_t Free() const KVSTOW_REQUIRES(mu_) { return limit_ - std::min(limit_, used_); }
  bool Fits(uint64_t bytes) const KVSTOW_REQUIRES(mu_) { return bytes <= Free() || used_ == 0; }
  // The places of a tenant. `given` counts its bytes by weight, from where those stood who waited
  // when its first one came. It stays for a while when nobody is left: who stands again and again
  // with one place gets no more than who stands with many.
  struct OfTenant {
    std::deque<std::shared_ptr<Place>> places;
    double given = 0;
  };
  void Stand(const std::shared_ptr<Place>& place) KVSTOW_REQUIRES(mu_) {
    OfTenant& line = lines_[place->payer.tenant];
    if (line.places.empty()) line.given = std::max(line.given, given_);
    line.places.push_back(place);
    ++waiting_;
  }
  void Serve(std::vector<std::shared_ptr<Place>>& served) KVSTOW_REQUIRES(mu_) {
    while (waiting_ > 0) {
      const auto comes_later = [](const auto& a, const auto& b) {
        if (a.second.places.empty() != b.second.places.empty()) return a.second.places.empty();
        return a.second.given > b.second.given;
      };
      OfTenant& line = std::max_element(lines_.begin(), lines_.end(), comes_later)->second;
      const Place& first = *line.places.front();
      if (!Fits(first.bytes)) return;
      used_ += first.bytes;
      given_ = line.given;
      line.given += static_cast<double>(first.bytes) / first.payer.weight;
      --waiting_;
      served.push_back(std::move(line.places.front()));
      line.places.pop_front();
      std::erase_if(lines_, [given = given_](const auto& l) {
        return l.second.places.empty() && l.second.given <= given;
      });
    }
    lines_.clear();  // nobody waits: what was given before is of no account
  }
  void Give(const std::vector<std::shared_ptr<Place>>& served) {
    for (const auto& place : served) place->ready(Held(shared_from_this(), place->bytes));
  }

  const uint64_t limit_;
  mutable Mutex mu_;
  uint64_t used_ KVSTOW_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, OfTenant> lines_ KVSTOW_GUARDED_BY(mu_);  // of tenants that wait
  size_t waiting_ KVSTOW_GUARDED_BY(mu_) = 0;
  double given_ KVSTOW_GUARDED_BY(mu_) = 0;  // of the line that was served last, before that
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

std::shared_ptr<ByteBudget::Place> ByteBudget::Wait(uint64_t bytes, std::function<void(Held)> ready,
                                                    Payer payer) {
  auto place = std::shared_ptr<Place>(new Place{bytes, std::move(ready), payer});
  if (!line_->TakeOrStand(place)) return place;
  place->ready(Held(line_, bytes));
  return nullptr;
}

bool ByteBudget::Leave(const std::shared_ptr<Place>& place) { return line_->Leave(place); }

std::optional<ByteBudget::Held> ByteBudget::WaitFor(uint64_t bytes, Duration patience,
                                                    Payer payer) {
  struct Turn {
    Mutex mu;
    CondVar come;
    std::optional<Held> held KVSTOW_GUARDED_BY(mu);
  };
  if (auto held = Try(bytes)) return held;
  const auto turn = std::make_shared<Turn>();
  const auto give = [turn](Held held) {
    MutexLock lock(turn->mu);
    turn->held = std::move(held);
    turn->come.NotifyAll();
  };
  const auto place = Wait(bytes, give, payer);
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
