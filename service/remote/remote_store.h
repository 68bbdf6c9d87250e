// RemoteStore: named values in one engine that several servers share, such as a Redis Cluster.
//
// The engine shards, replicates and fails over by itself, and may forget any value at any time.
// It gives no order: a value may be an older one of its name, and two writers of a name race. So
// callers bind a value to its place and check what they get (remote_value.h). Nothing here needs an
// atomic operation, so that an object store can stand behind it too.
//
// Implementations: RedisCluster, MemoryRemoteStore for tests, and NoRemoteStore(), which holds
// nothing, so that callers never ask whether there is one. One conformance suite,
// tests/conformance/remote_store_conformance.h, runs on all.
//
// Each call is one round trip over all of its names at once, and calls `done` once: with one result
// for each name, in order, at the latest shortly after `deadline`. `done` runs on a thread of the
// store, or within the call, and must not block. Results: NOT_FOUND for a value that is not there,
// DEADLINE_EXCEEDED, UNAVAILABLE while the engine or its part of the names cannot be reached,
// RESOURCE_EXHAUSTED when the engine or the queue to it is full, PERMISSION_DENIED when it lets
// this server in no further, INVALID_ARGUMENT for a value that it does not take. Whoever destroys a
// store waits for its calls. Thread-safe.
#ifndef KVSTOW_SERVICE_REMOTE_REMOTE_STORE_H_
#define KVSTOW_SERVICE_REMOTE_REMOTE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/shared_bytes.h"

namespace kvstow {

// A value on its way out: its parts, one after the other.
struct RemoteValue {
  std::string name;  // any bytes. Names with the same text in "{...}" lie together
  std::vector<SharedBytes> parts;
};

class RemoteStore {
 public:
  using GetDone = std::function<void(std::vector<absl::StatusOr<SharedBytes>>)>;
  using Done = std::function<void(std::vector<absl::Status>)>;

  virtual ~RemoteStore() = default;

  // Returns the name for logs and the status page, without secrets: "redis 10.0.0.1:6379, ...".
  virtual std::string name() const = 0;
  // Returns false for NoRemoteStore, which never takes a value.
  virtual bool holds_values() const = 0;
  virtual void Get(std::vector<std::string> names, Time deadline, GetDone done) = 0;
  // Writes values that vanish after `ttl` at the latest; 0 = the engine decides alone.
  virtual void Put(std::vector<RemoteValue> values, Duration ttl, Time deadline, Done done) = 0;
  // Asks which values are there: OK or NOT_FOUND.
  virtual void Exists(std::vector<std::string> names, Time deadline, Done done) = 0;
  // A value that is not there is no error.
  virtual void Erase(std::vector<std::string> names, Time deadline, Done done) = 0;

  struct Counters {
    uint64_t commands = 0, failed = 0;       // sent, and answered with anything but a value
    uint64_t bytes_out = 0, bytes_in = 0;    // of values
    uint64_t redirects = 0, reconnects = 0;  // MOVED and ASK; connections that were opened again
    uint64_t refused = 0;                    // not sent: the queue was full or the breaker open
    uint64_t nodes = 0, connected = 0;       // now
  };
  virtual Counters counters() const = 0;
};

// Holds nothing. Lives as long as the process.
RemoteStore& NoRemoteStore();

}  // namespace kvstow

#endif  // KVSTOW_SERVICE_REMOTE_REMOTE_STORE_H_
