#include "client/connection/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

namespace kvstow {
namespace {

// The list is never destroyed: sockets may go while the process ends. Its lock is a std::mutex: the
// handlers of a fork take it in one function and give it back in another.
struct Registry {
  std::mutex mu;
  std::multiset<int> descriptors;
  std::atomic<bool> forked{false};
};
Registry& All() {
  static Registry* const all = new Registry;
  return *all;
}

void BeforeFork() { All().mu.lock(); }
void InParent() { All().mu.unlock(); }
void InChild() {
  for (const int descriptor : All().descriptors) close(descriptor);
  All().forked = true;
  All().mu.unlock();
}

}  // namespace

void NoticeForks() {
  static const int registered = pthread_atfork(BeforeFork, InParent, InChild);
  static_cast<void>(registered);
}

bool Forked() { return All().forked.load(std::memory_order_relaxed); }

absl::Status ForkedStatus() {
  return absl::UnavailableError(
      "this process was forked from one that had a Client, whose connections stay with that one, "
      "and gRPC does not survive a fork: fork before the first Client is made and make a new "
      "Client in the child, or make it in a program that the child starts (exec)");
}

ClosedInChild::ClosedInChild(int descriptor) : descriptor_(descriptor) {
  const std::lock_guard lock(All().mu);
  All().descriptors.insert(descriptor);
}

ClosedInChild::~ClosedInChild() {
  const std::lock_guard lock(All().mu);
  All().descriptors.erase(All().descriptors.find(descriptor_));
}

}  // namespace kvstow
