// What a fork leaves of a client: nothing that works.
//
// A child shares its parent's connections and the polls of its gRPC, and has none of its threads:
// whatever it says there disturbs the parent, and whatever it waits for never comes. So a child
// neither uses nor destroys what its parent's clients had, and gRPC not at all. Thread-safe; after
// the fork, in the child, nothing here takes a lock.
#ifndef KVSTOW_CLIENT_FORK_H_
#define KVSTOW_CLIENT_FORK_H_

#include "absl/status/status.h"

namespace kvstow {

// From here on forks are noticed. Called when gRPC is about to be used; a fork before that leaves
// no trace, and both processes may have clients.
void NoticeForks();

// Whether this process is a child of one that had noticed, or a child's child.
bool Forked();
// UNAVAILABLE, and what to do.
absl::Status ForkedStatus();

// A descriptor that a child closes as soon as it is forked, without a word to the peer: so the
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

#endif  // KVSTOW_CLIENT_FORK_H_
