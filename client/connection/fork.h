// Detects forks. Nothing of a client works in a forked child.
//
// A child shares its parent's connections and the polls of its gRPC, and has none of its threads:
// anything that it sends there disturbs the parent, and anything that it waits for never comes. So
// a child neither uses nor destroys the parts of its parent's clients, and does not use gRPC at
// all. Thread-safe; in the child, after the fork, nothing here takes a lock.
#ifndef KVSTOW_CLIENT_CONNECTION_FORK_H_
#define KVSTOW_CLIENT_CONNECTION_FORK_H_

#include "absl/status/status.h"

namespace kvstow {

// Begins to notice forks. The client calls it before it first uses gRPC. A fork before that leaves
// no trace, and both processes may have clients.
void NoticeForks();

// Returns whether this process is a child, or a child's child, of one that called NoticeForks.
bool Forked();
// Returns UNAVAILABLE, with a message that says what to do.
absl::Status ForkedStatus();

// A descriptor that a child closes as soon as it is forked, without a message to the peer. So the
// connection ends with the parent, and not with the last of its children. The descriptor outlives
// this.
class ClosedInChild {
 public:
  explicit ClosedInChild(int descriptor);
  ~ClosedInChild();
  ClosedInChild(const ClosedInChild&) = delete;
  ClosedInChild& operator=(const ClosedInChild&) = delete;

 private:
  const int descriptor_;
};

}  // namespace kvstow

#endif  // KVSTOW_CLIENT_CONNECTION_FORK_H_
