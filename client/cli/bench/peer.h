// The stores that `kvstow bench compare` measures, each behind the protocol that its users speak:
// kvstow (gRPC), Redis (RESP) and memcached (text protocol). Two more set the scale: a loop over a
// bare socket that keeps one value (the limit of the kernel's sockets), and shared memory with gRPC
// for its control.
//
// A Peer owns its server. A session is a connection of one thread, and ends before its peer.
#ifndef KVSTOW_CLIENT_CLI_BENCH_PEER_H_
#define KVSTOW_CLIENT_CLI_BENCH_PEER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench/child.h"
#include "kernels/page/page.h"

namespace kvstow::cli {

struct Item {
  std::string key;
  std::span<uint8_t> value;  // the value to put, or the place for it
};

// A batch goes as its protocol has it: in one call, or item after item without waiting.
class Session {
 public:
  virtual ~Session() = default;
  virtual absl::Status Put(std::span<const Item> items) = 0;
  // Gets values of exactly the requested sizes; any other answer is an error.
  virtual absl::Status Get(std::span<const Item> items) = 0;
  virtual absl::Status Delete(const std::string& key) = 0;
  // Asks which of the items are there, as a worker does before it gets a prefix. The default asks
  // nothing: other stores are asked by getting.
  virtual absl::Status LookUp(std::span<const Item> /*items*/) { return absl::OkStatus(); }
  // Returns memory for `bytes` of values, as this store's workers would use it; one for each
  // session.
  virtual std::span<uint8_t> Buffer(size_t bytes) {
    own_.resize(bytes);
    return own_;
  }

 private:
  std::vector<uint8_t> own_;
};

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;
  virtual absl::StatusOr<std::unique_ptr<Session>> Connect() = 0;
  // Returns the CPU time of its server; 0 where that runs within this process.
  virtual double CpuSeconds() const = 0;
};

inline constexpr char kLoopback[] = "127.0.0.1";
struct PeerOptions {
  std::string folder;            // for sockets and logs
  uint64_t budget_bytes = 0;     // bytes that the server may keep
  bool local = false;            // a UNIX socket, else TCP
  std::string host = kLoopback;  // where its TCP port is
};

// Start a store. Fail with NOT_FOUND when its program is not installed.
absl::StatusOr<std::unique_ptr<Peer>> StartRedis(const PeerOptions& options);
absl::StatusOr<std::unique_ptr<Peer>> StartMemcached(const PeerOptions& options);
absl::StatusOr<std::unique_ptr<Peer>> StartLoop(const PeerOptions& options);
// Starts a store with shared memory and a unary gRPC call for each batch.
inline constexpr char kGrpcSlots[] = "shared memory by gRPC calls";
absl::StatusOr<std::unique_ptr<Peer>> StartGrpcSlots(const PeerOptions& options);

// Starts the kvstowd beside this program, or else the one on PATH, without HTTP. `more` are further
// arguments.
absl::StatusOr<std::unique_ptr<Child>> StartKvstowd(const std::string& address, uint64_t host_bytes,
                                                    const std::vector<std::string>& more,
                                                    const std::string& log);
// Options for that kvstowd, with one space of pages of `spec`.
struct KvstowOptions {
  std::string recipe = "raw";
  bool encoded = false;  // pages travel as they are stored; the client codes them
  bool shared = false;   // pages lie in memory that both share
  bool streams = false;  // gRPC alone, as clients of other languages have it
  KvSpec spec;
};
absl::StatusOr<std::unique_ptr<Peer>> StartKvstow(const PeerOptions& options,
                                                  const KvstowOptions& kvstow);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_BENCH_PEER_H_
