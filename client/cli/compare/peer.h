// The stores that `kvstow bench compare` measures, each behind the protocol that its users speak:
// kvstow (gRPC), Redis (RESP), memcached (text protocol), and a loop over a bare socket that keeps
// one value: what the kernel's sockets allow; and memory that both share with gRPC for its control.
//
// A Peer owns its server. Sessions are connections: one a thread, and they end before their peer.
#ifndef KVSTOW_CLIENT_CLI_COMPARE_PEER_H_
#define KVSTOW_CLIENT_CLI_COMPARE_PEER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/compare/child.h"
#include "kernels/page/page.h"

namespace kvstow::cli {

struct Item {
  std::string key;
  std::span<uint8_t> value;  // to put, or where it goes
};

// Batches go as their protocol has them: in one call, or one behind the other without waiting.
class Session {
 public:
  virtual ~Session() = default;
  virtual absl::Status Put(std::span<const Item> items) = 0;
  // Values of the sizes that were asked for; any other answer is an error.
  virtual absl::Status Get(std::span<const Item> items) = 0;
  virtual absl::Status Delete(const std::string& key) = 0;
  // Memory for values of so many bytes, as this store's workers would use it; one a session.
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
  // Of its server; 0 where that runs within this process.
  virtual double CpuSeconds() const = 0;
};

struct PeerOptions {
  std::string folder;         // for sockets and logs
  uint64_t budget_bytes = 0;  // that the server may keep
  bool local = false;         // a UNIX socket, else TCP
};

// NOT_FOUND when the program is not installed.
absl::StatusOr<std::unique_ptr<Peer>> StartRedis(const PeerOptions& options);
absl::StatusOr<std::unique_ptr<Peer>> StartMemcached(const PeerOptions& options);
absl::StatusOr<std::unique_ptr<Peer>> StartLoop();
// Memory shared with the server, and a unary gRPC call for each batch.
inline constexpr char kGrpcSlots[] = "shared memory by gRPC calls";
absl::StatusOr<std::unique_ptr<Peer>> StartGrpcSlots(const PeerOptions& options);

// The kvstowd that was built with this program, without HTTP; `more` are further arguments.
absl::StatusOr<std::unique_ptr<Child>> StartKvstowd(const std::string& address, uint64_t host_bytes,
                                                    const std::vector<std::string>& more,
                                                    const std::string& log);
// It, with one space of pages of `spec`.
struct KvstowOptions {
  std::string recipe = "raw";
  bool encoded = false;  // pages travel as they are stored and are coded by the client
  bool shared = false;   // or lie in memory that both share
  bool streams = false;  // gRPC alone, as clients of other languages have it
  KvSpec spec;
};
absl::StatusOr<std::unique_ptr<Peer>> StartKvstow(const PeerOptions& options,
                                                  const KvstowOptions& kvstow);

}  // namespace kvstow::cli

#endif  // KVSTOW_CLIENT_CLI_COMPARE_PEER_H_
