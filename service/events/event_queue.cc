#include "service/events/event_queue.h"

#include "service/events/event_batch.h"

namespace kvstow {

void EventQueue::Restart(size_t pages) {
  MutexLock lock(mu_);
  changes_.clear();
  changes_.reserve(pages + 1);
  changes_.push_back({.kind = PageChange::Kind::kRestart});
  room_ = max_changes_ + pages + 1;
  needs_pages_ = false;
  started_ = true;
}

void EventQueue::PageCame(SpaceId space, absl::string_view key, uint32_t tokens) {
  Append({PageChange::Kind::kCame, space, tokens, EventHash(key)});
}

void EventQueue::PageWent(SpaceId space, absl::string_view key) {
  Append({PageChange::Kind::kWent, space, 0, EventHash(key)});
}

void EventQueue::Append(const PageChange& change) {
  MutexLock lock(mu_);
  if (needs_pages_) {
    lost_ += started_ ? 1 : 0;  // before the start nobody was told anything
    return;
  }
  if (changes_.size() < room_) {
    changes_.push_back(change);
    return;
  }
  lost_ += changes_.size() + 1;
  changes_.clear();
  needs_pages_ = true;
}

void EventQueue::StartOver() {
  MutexLock lock(mu_);
  changes_.clear();
  needs_pages_ = true;
  started_ = false;
}

bool EventQueue::NeedsPages() const {
  MutexLock lock(mu_);
  return needs_pages_;
}

std::vector<PageChange> EventQueue::Take() {
  std::vector<PageChange> taken;
  MutexLock lock(mu_);
  taken.swap(changes_);
  room_ = max_changes_;
  return taken;
}

size_t EventQueue::size() const {
  MutexLock lock(mu_);
  return changes_.size();
}

uint64_t EventQueue::lost() const {
  MutexLock lock(mu_);
  return lost_;
}

}  // namespace kvstow
